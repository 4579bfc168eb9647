"""Does a record keep which side each SM of its GPU is on, and do predictions of it use that?"""

import json

import numpy as np
import pytest
from hbmeter.experiments import measure, records, verify
from hbmeter.experiments.records import Record
from hbmeter.hwprofiles import load
from hbmeter.simulator.engines import l2_machine
from sides import SIDES, latency_of_sides

H200 = load("h200")


def profile_of(digits):
    return verify.gpu_profile(Record("one", {"gpu": "NVIDIA H200", "sm_partitions": digits}, []))


def test_sides_are_read_off_latencies(monkeypatch):
    monkeypatch.setattr(measure.probes, "latency", latency_of_sides)
    assert measure._sm_partitions() == SIDES


def test_latencies_that_do_not_tell_give_none(monkeypatch):
    noise = np.random.default_rng(0).integers(200, 300, (132, 64))
    monkeypatch.setattr(measure.probes, "latency",
                        lambda count, stride_bytes: (np.arange(132), noise))
    assert measure._sm_partitions() is None


@pytest.mark.parametrize("turn", [0, 8, 16, 100])
def test_gpcs_turn_with_the_order_in_which_blocks_reach_the_sms(turn):
    sides, gpcs = H200.l2.sm_partitions, H200.l2.sm_gpcs
    found = profile_of(sides[turn:] + sides[:turn]).l2
    assert found.sm_partitions == sides[turn:] + sides[:turn]
    for gpc in set(gpcs):
        assert len({side for side, one in zip(found.sm_partitions, found.sm_gpcs, strict=True)
                    if one == gpc}) == 1


def test_without_sides_or_with_those_of_another_chip_the_profile_stays_as_it_is():
    for digits in (None, "01"):
        assert profile_of(digits) == H200


def test_small_grids_reach_as_many_sms_of_a_side_as_on_the_gpu():
    """recorded/launches: some SMs first, then one of each GPC and another of each."""
    path = records.FOLDER / "launches" / "h200.json"
    for launch in json.loads(path.read_text(encoding="utf-8"))["launches"]:
        sms = l2_machine.sms_of_grid(H200, launch["blocks"])
        assert len(set(sms)) == len(sms) == min(launch["blocks"], H200.sm_count)
        # GPCs of 4 TPCs have fewer than the model gives them.
        share = l2_machine.sm_sides(H200)[sms].mean()
        assert share == pytest.approx(launch["of_side_1"], abs=0.01 if len(sms) <= 32 else 0.05)
