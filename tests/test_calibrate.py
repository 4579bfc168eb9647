"""Do the recorded L2 microbenchmarks say what the H200's profile says, and what the model does?"""

import pytest
from hbmeter import kernels
from hbmeter.experiments import calibrate
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load


@pytest.fixture(scope="module")
def record():
    return next(r for r in calibrate.load_all() if r.name.startswith("h200"))


def test_half_of_the_sms_sit_on_each_side(record):
    digits = calibrate.partition_digits(record)
    assert len(digits) == load("h200").sm_count
    assert digits.count("0") == digits.count("1") == 66


def test_homes_change_every_4_kib(record):
    assert calibrate.home_bytes(record) == 4096


def test_the_profiles_limit_on_dirty_bytes_is_what_was_measured(record):
    value, _ = calibrate.dirty_bytes_max(record)
    assert value == pytest.approx(load("h200").l2.dirty_bytes_max, rel=0.02)


@pytest.mark.parametrize("curve", ["shared, read 2×, 1 block/SM", "written"])
def test_the_model_follows_shared_reads_and_plain_writes(record, curve):
    rows = calibrate.judged(calibrate.model_curves(load("h200"), record))
    found = [row for row in calibrate.summary(rows) if row["curve"] == curve]
    assert found and all(row["within"] == row["judged"] for row in found)


def test_probes_are_no_attention_kernels():
    assert not {"l2", "probes"} & set(kernels.names())


def test_the_recorded_table_prints_anywhere(capsys):
    assert main(["calibrate", "--recorded"]) == 0
    assert "measured MiB" in capsys.readouterr().out
