"""Does the clock of tensor cores follow from the watts of an SM's units, as recorded on an H200?"""

import json
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments import records
from hbmeter.experiments.grid import Point
from hbmeter.hwprofiles import load
from hbmeter.kernels.probes import power
from hbmeter.simulator import schedules
from hbmeter.simulator.phase_time import Phase
from hbmeter.simulator.rates import LOAD_WATTS, LOADS, WATTS, first_clock_s, power_load, rates
from hbmeter.simulator.units import BOUNDARY, EXP, ISSUE, MATMUL, SMEM, UNITS

H200 = load("h200")
RECORD = json.loads((records.FOLDER / "power" / "h200-units.json").read_text(encoding="utf-8"))
THROTTLED = 1.75e9  # clocks below lack power


def shares(**found):
    """[unit] of the time, by name."""
    return np.array([found.get(unit, 0.0) for unit in UNITS])


def test_the_profile_has_the_watts_that_were_recorded():
    recorded = {row["name"]: row for row in RECORD["watts"]}
    names = {*LOAD_WATTS.values()} | {
        name for units in WATTS.values() for name in units.values()}
    for name in names:
        said = H200.measured[name]
        assert said.value == pytest.approx(recorded[name]["watts"], rel=1e-3)
        assert said.clock_hz == pytest.approx(recorded[name]["clock_hz"], rel=1e-3)
    assert H200.measured["idle_watts"].value == RECORD["idle_watts"]


def throttled(reads_tb_per_s, **at):
    """Clocks of a load beside about so many reads."""
    return [row["clock_hz"] for row in RECORD["clocks"]
            if abs(row["read_bytes_per_s"] / 1e12 - reads_tb_per_s) < 0.1
            and all(row[key] == value for key, value in at.items())]


@pytest.mark.parametrize("reads", [3.4, 4.34])
def test_beside_the_same_reads_load_times_clock_cubed_is_the_same(reads):
    """On three quarters of the SMs, a clock that is the cube root of 4/3 higher, while it is not
    limited otherwise."""
    whole = median(throttled(reads, load="rows32", sms=132, threads=256))
    for sms in (99, 66):
        part = median(throttled(reads, load="rows32", sms=sms, threads=256))
        expected = min(whole / np.cbrt(sms / 132), 1.8e9)
        assert part == pytest.approx(expected, rel=0.025)


@pytest.mark.parametrize(("load", "name"), [
    ("registers", "mma_fp16_watts"), ("bf16", "mma_bf16_watts"),
    ("rows16", "mma_fp16_from_smem_16_watts")])
def test_watts_of_other_loads_say_their_clocks_beside_the_same_reads(load, name):
    """Loads that draw less power keep a higher clock: watts by themselves, clocks beside reads."""
    watts = {row["name"]: (row["watts"] - RECORD["idle_watts"]) / row["clock_hz"] ** 3
             for row in RECORD["watts"]}
    less = watts[name] / watts["mma_fp16_from_smem_watts"]
    for reads in (3.4, 4.34):
        theirs, first = (median(throttled(reads, load=which, sms=132, threads=256))
                         for which in (load, "rows32"))
        assert theirs < THROTTLED and theirs > first
        assert theirs == pytest.approx(first / np.cbrt(less), rel=0.03)


def test_units_add_up_to_the_load_that_was_measured():
    """32 rows a warp from shared memory: of the time at these rates (tensor.cu) 0.97 of the tensor
    cores', 0.65 of shared memory's and 0.2 of the issue's."""
    busy = shares(**{UNITS[MATMUL]: 0.97, UNITS[SMEM]: 0.65, UNITS[ISSUE]: 0.2})
    assert power_load(H200, "mma_sync", busy, 0.0) == pytest.approx(1, abs=0.03)


def test_more_work_is_more_power_and_the_l2s_reads_from_dram_count_once():
    for multiplier, units in WATTS.items():
        for unit in units:
            little, much = (power_load(H200, multiplier, shares(**{UNITS[unit]: x}), 0.0)
                            for x in (0.3, 0.6))
            assert 0 < little == pytest.approx(much / 2)
    busy, l2 = shares(**{UNITS[BOUNDARY]: 0.5}), H200.measured["l2_read"].value
    assert power_load(H200, "mma_sync", busy, 0.5 * l2) == 0


def test_without_watts_the_busiest_unit_stands_for_the_power():
    measured = {name: fact for name, fact in H200.measured.items() if "watts" not in name}
    gpu = H200.model_copy(update={"measured": measured})
    busy = shares(**{UNITS[MATMUL]: 0.4, UNITS[SMEM]: 0.9, UNITS[EXP]: 0.2})
    assert power_load(gpu, "mma_sync", busy, 0.0) == 0.9


BESIDE_DRAM = [row for row in RECORD["kernels"] if row.get("dram_bytes", 0) > 1e9]


@pytest.mark.parametrize("row", BESIDE_DRAM, ids=lambda row: str(Point.of(row["point"])))
def test_clocks_of_attention_beside_dram_are_those_that_were_timed(row):
    """With the bytes that were counted; tiles of 64 rows, whose shared memory is their limit."""
    point = Point.of(row["point"])
    kernel = kernels.get(point.kernel)
    program = schedules.build(kernel.schedule, point.problem, point.tiles)
    how, = kernel.executions(point.problem, point.tiles)
    resident = {1: 3, 2: 4}[point.tiles.stages]
    phase = Phase(program, 0, H200, replace(how), False)
    phase.settle(phase.time(resident, point.order, row["dram_bytes"]))
    assert row["clock_hz"] < THROTTLED
    assert phase.rates.clock_hz == pytest.approx(row["clock_hz"], rel=0.06)


# ---- Sustained load ------------------------------------------------------------------------------

SUSTAINED = json.loads((records.FOLDER / "power" / "h200-sustained.json").read_text(
    encoding="utf-8"))["points"]


def test_the_profile_has_the_sustained_clocks_that_were_recorded():
    for fact in power.facts(SUSTAINED):
        said = H200.measured[fact.name]
        assert said.value == pytest.approx(fact.value, rel=1e-3)
        np.testing.assert_allclose(said.curve or (), fact.curve, rtol=1e-3)
    assert all(sample["beside"] for point in SUSTAINED for sample in point["samples"])


def test_tensor_cores_keep_their_first_clock_for_some_50_ms_and_a_lower_one_then():
    """Each load, with and without reads beside it."""
    for point in SUSTAINED:
        for sample in point["samples"]:
            clock, at_ms = np.array(sample["clock_hz"]), np.array(sample["at_ms"])
            assert np.ptp(clock[at_ms < 20]) < 0.05 * clock[0]
            assert np.median(clock[at_ms > 125]) < 0.96 * clock[0]
    assert 0.03 < first_clock_s(H200) < 0.09


@pytest.mark.parametrize("multiplier", LOADS)
def test_under_sustained_load_no_clock_is_higher_and_little_work_keeps_its_own(multiplier):
    for dram in (0.0, 1e12, 3e12, 4.4e12):
        last = 0.0
        for busy in (1.0, 0.7, 0.3, 0.05):
            first, under = (rates(H200, multiplier, "fp16", busy, busy, dram, sustained).clock_hz
                            for sustained in (False, True))
            assert last <= under <= first
            last = under
        assert under == first


def test_gpus_without_tensor_cores_clocks_sustain_what_they_begin_with():
    for gpu, multiplier, dtype in ((load("a100-80gb"), "mma_sync", "fp16"), (H200, "fma", "fp32")):
        assert rates(gpu, multiplier, dtype) == rates(gpu, multiplier, dtype, sustained=True)
    assert first_clock_s(load("a100-80gb")) is None
