"""What does a thread block wait for by itself, and what slows it beside others and beside DRAM?"""

from dataclasses import replace

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.block_alone import exposed_loads
from hbmeter.simulator.execution import mma_sync, wgmma
from hbmeter.simulator.phase_time import UNITS, Phase
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.rates import rates
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.time_model import predict


def test_the_first_bytes_of_a_load_take_as_long_as_the_probe_says():
    at = rates(load("h200"), "mma_sync", "fp16")
    curve = load("h200").measured["block_load_l2"].curve
    for size, bytes_per_clock in curve:
        assert at.block_load_cycles(size) == pytest.approx(size / bytes_per_clock)
    few = [at.block_load_cycles(size) for size in (0, 1024, 4096, 8192)]
    assert few == sorted(few) and at.l2_latency < few[0] < few[-1]


def test_reads_of_dram_take_power_from_tensor_cores():
    gpu = load("h200")

    def clock(load, dram):
        return rates(gpu, "wgmma", "fp16", 0.75, load, dram).clock_hz

    alone, beside, little = clock(0.75, 0.0), clock(0.75, 3.37e12), clock(0.2, 3.37e12)
    assert beside == pytest.approx(1.644e9, rel=0.01)  # measured on three of four SMs
    assert beside < 0.95 * alone and little == alone
    assert rates(gpu, "fma", "fp32", 1.0, 1.0, 4e12).clock_hz == gpu.measured["fp32_fma"].clock_hz


def test_warps_of_half_a_row_of_subpartitions_go_on_in_pairs():
    """Blocks of two warps: the first two have subpartitions of their own, a third has none."""
    program = schedules.build("flash2", Attention(16, 32, 2048, 64), Tiles(32, 64, 2))
    phase = Phase(program, 0, load("h200"), mma_sync(16, 64, 64, stages=2))
    beside = phase._beside(6, np.full(len(UNITS), 100.0), np.full(len(UNITS), 50.0), 700.0)
    assert beside[0] == beside[1] < beside[2] == beside[3] < beside[4] == beside[5]


def test_weights_between_products_cost_a_warp_less_than_after_them():
    program = schedules.build("flash2", Attention(1, 4, 2112, 64), Tiles(64, 64, 2))
    woven = mma_sync(16, 64, 128, stages=2)
    times = [predict(program, load("h200"), (how,), blocks_per_sm=1).seconds
             for how in (woven, replace(woven, interleaved=0.0))]
    assert 0.7 * times[1] < times[0] < 0.95 * times[1]


def test_a_run_that_did_not_wait_for_dram_says_nothing_of_dram():
    def with_heads(heads, seq, order):
        program = schedules.build("flash2", Attention(1, heads, seq, 128), Tiles(128, 128, 2))
        return predict(program, load("h200"), (wgmma(128, 2),), blocks_per_sm=1, order=order)

    known, waits = with_heads(64, 2048, "row"), with_heads(264, 768, "head")
    assert waits.waits_for_dram and not known.waits_for_dram
    assert waits.calibrated(0.8, known).seconds == pytest.approx(waits.seconds)
    assert waits.calibrated(0.8, waits).seconds < waits.seconds
    assert known.calibrated(0.8, known).seconds < known.seconds
    assert waits.calibrated(3.0, known).seconds > waits.seconds  # then the SMs take longer
    phase, = known.calibrated(1e-3, known).phases  # DRAM is as fast, however fast the SMs are
    assert phase.seconds == known.phases[0].dram_s < known.phases[0].seconds


def test_what_is_added_to_beyond_the_l2_is_fetched_first():
    """A backward pass whose dQ does not fit is bound by adds; of one that fits they cost little."""
    gpu, kernel = load("h200"), kernels.get("flash2_backward")
    without = gpu.model_copy(update={"measured": {
        name: found for name, found in gpu.measured.items() if name != "hbm_add"}})
    problem, tiles = Attention(1, 264, 1024, 64, direction="backward"), Tiles(64, 64, 2)
    program, how = (schedules.build("flash2_backward", problem, tiles),
                    kernel.executions(problem, tiles))

    def main_launch(gpu, order):
        return predict(program, gpu, how, blocks_per_sm=(8, 2, 8), order=order,
                       count_dram=True).phases[1].seconds

    added = 264 * 1024 * 64 * 4 * 16  # by each of 16 column blocks
    assert main_launch(gpu, "head") > 0.9 * added / gpu.measured["hbm_add"].value
    assert main_launch(gpu, "head") > 1.15 * main_launch(without, "head")
    assert main_launch(gpu, "row") < 1.02 * main_launch(without, "row")


def test_dram_is_no_faster_than_what_is_on_its_way_lets_it_be():
    """264 heads that DRAM sends again and again, one block an SM: tiles of 64 × 64 have a fourth of
    the bytes of 128 × 128 on their way, and wait; without the measured curve they do not."""
    gpu = load("h200")
    without = gpu.model_copy(update={"measured": {
        name: found for name, found in gpu.measured.items() if name != "hbm_read_in_flight"}})

    def dram_s(gpu, tiles):
        problem = Attention(1, 264, 1536, 128)
        program = schedules.build("flash2", problem, Tiles(tiles, tiles, 2))
        return predict(program, gpu, (wgmma(tiles, tiles // 64),), blocks_per_sm=1,
                       order="head").phases[0].dram_s

    assert dram_s(gpu, 64) > 1.05 * dram_s(without, 64)
    assert dram_s(gpu, 128) < 1.02 * dram_s(without, 128)


def test_loads_that_are_sent_together_are_waited_for_once_a_trip():
    """flash2_backward with one stage: K and V with the first Q and dO, then Q and dO of each trip,
    whose statistics came a trip ahead."""
    kernel, gpu = kernels.get("flash2_backward"), load("h200")
    problem, tiles = Attention(4, 8, 512, 256, direction="backward"), Tiles(64, 64)
    _, how, _ = kernel.executions(problem, tiles)
    program = schedules.build(kernel.schedule, problem, tiles)

    def waits(how):
        phase = Phase(program, 1, gpu, how)
        demands, _ = phase.costs()
        return exposed_loads(phase, demands, demands, dict.fromkeys(range(20), 500.0)).max()

    assert waits(how) == 8 * 500 and waits(replace(how, loads_at_once=False)) == (2 + 8 * 4) * 500
    together, by_turns = (
        predict(program, gpu, (x, y, z), blocks_per_sm=(8, 1, 8)).phases[1].seconds
        for x, _, z in [kernel.executions(problem, tiles)]
        for y in (how, replace(how, loads_at_once=False)))
    assert together < by_turns
