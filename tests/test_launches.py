"""Are launches on other pages, and orders of the grid, said on the command line and counted?"""

import json

import pytest
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, InputError, schedules
from hbmeter.simulator.engines import l2

SMALL = ["traffic", "--schedule", "flash2", "--gpu", "h200", "--batch", "1", "--heads", "4",
         "--head-dim", "64", "--br", "64", "--bc", "64"]
JUST_FITS = ["--heads", "32", "--seq", "4096", "--head-dim", "128", "--order", "head"]


def point(capsys, *options):
    assert main([*SMALL, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_another_seed_is_another_launch_of_the_same_requests(capsys):
    one, other = (point(capsys, *JUST_FITS, "--seed", seed) for seed in ("0", "3"))
    assert (one["l2"]["seed"], other["l2"]["seed"]) == (0, 3)
    assert one["sm"] == other["sm"]
    assert one["dram"]["read_bytes"] != other["dram"]["read_bytes"]


def test_the_range_over_launches_holds_the_first(capsys):
    found = point(capsys, *JUST_FITS, "--seeds", "3")["dram"]
    spread = found["read_bytes_over_seeds"]
    assert spread["seeds"] == 3
    assert spread["least"] <= found["read_bytes"] <= spread["most"]
    assert spread["least"] < spread["most"]
    assert main([*SMALL, *JUST_FITS, "--seeds", "2"]) == 0
    assert "DRAM reads over 2 launches on other pages: " in capsys.readouterr().out


def test_one_launch_has_no_range(capsys):
    assert point(capsys, "--seq", "512")["dram"]["read_bytes_over_seeds"] is None


def test_sections_of_heads_are_an_order(capsys):
    assert point(capsys, "--seq", "512", "--order", "longest:2")["order"] == "longest:2"


@pytest.mark.parametrize(("options", "says"), [
    (["--seed", "-1"], "seed -1 must be a whole number from 0"),
    (["--seeds", "0"], "seeds 0 must be a whole number from 1"),
    (["--seeds", "20000"], "from 1 to 10,000"),
    (["--order", "rows"], "unknown order 'rows'; did you mean 'row'?"),
    (["--order", "head:0"], "is the heads that share the L2"),
])
def test_bad_launches_are_refused_in_a_line(capsys, options, says):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main([*SMALL, *options]))
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_call_that_fits_finds_all_of_it_in_the_l2_of_the_call_before(capsys):
    found = point(capsys, "--seq", "512", "--l2-start", "warm")
    assert found["l2"]["start"] == "warm"
    assert found["dram"]["read_bytes"] == 0
    assert found["sm"] == point(capsys, "--seq", "512")["sm"]


def test_a_call_far_larger_than_the_l2_finds_little_and_writes_what_the_last_left():
    gpu = load("h200")
    program = schedules.build("standard", Attention(1, 16, 4096, 64))
    cold, warm = (l2.simulate(program, gpu, blocks_per_sm=2, warm=flag) for flag in (False, True))
    assert warm.dram_read_bytes == pytest.approx(cold.dram_read_bytes, rel=0.05)
    written = warm.sectors_written * warm.sector_bytes
    assert warm.dram_write_bytes == pytest.approx(written, rel=0.02)
    assert cold.dram_write_bytes < warm.dram_write_bytes


def test_a_warm_start_has_no_cold_phases():
    program = schedules.build("flash2", Attention(1, 2, 256, 64))
    with pytest.raises(InputError, match="a warm start has neither phases that start cold"):
        l2.simulate(program, load("h200"), blocks_per_sm=1, warm=True, cold_phases=True)
