"""Does predicted time obey the laws of queues and waves, and is it what its parts say?"""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.blocks import explore, why_faster
from hbmeter.simulator.bounds import pass_bound, program_bound
from hbmeter.simulator.engines.executions import executions
from hbmeter.simulator.execution import (
    estimate_residents,
    fma_output,
    fma_scores,
    generic,
    multiplier_of,
    wgmma,
)
from hbmeter.simulator.phase_time import UNITS, Phase, clear_tiles
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.queueing import alone, residence
from hbmeter.simulator.rates import rates
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.time_model import covers, predict

GPUS = ("h200", "a100-40gb", "t4", "rtx4090")
SHAPES = [
    Attention(1, 4, 300, 64), Attention(2, 8, 1024, 128, mask="causal"),
    Attention(1, 8, 2048, 64, mask="window:256"), Attention(1, 8, 512, 64, dtype="fp32"),
    Attention(1, 4, 300, 64, dtype="fp64"),
]


def predicted(schedule, problem, gpu="h200", tiles=None, residents=None, **more):
    program = schedules.build(schedule, problem, tiles or Tiles(64, 64))
    profile = load(gpu)
    kernel = generic(program, profile)
    if residents is None:
        residents = [max(m, 1) for m in estimate_residents(program, profile, kernel)]
    return predict(program, profile, kernel, blocks_per_sm=residents, **more)


# ---- How often instructions run ----


def walked(program, number):
    """Executions counted by a plain walk of the tape, one dictionary of variables a block."""
    phase, tape = program.phases[number], program.tape
    axes = [range(0, axis.extent, axis.step) for axis in phase.axes] or [range(1)]
    axes += [range(1)] * (2 - len(axes))
    counts = []
    for r0 in axes[0]:
        for c0 in axes[1]:
            variables, stops = {0: r0, 1: c0, -1: 0}, {}
            count, pc = np.zeros(phase.end - phase.first, int), phase.first
            while pc < phase.end:
                row = tape[pc]
                if row["kind"] == Kind.LOOP:
                    at, stop = (variables[int(row[f"{side}_var"])] + int(row[f"{side}_add"])
                                for side in ("start", "stop"))
                    first = max(at, 0) // row["step"] * row["step"]
                    stops[int(row["var"])] = min(max(stop, 0), int(row["limit"]))
                    variables[int(row["var"])] = int(first)
                    inside = first < stops[int(row["var"])]
                    pc = pc + 1 if inside else int(row["partner"]) + 1
                elif row["kind"] == Kind.END:
                    var = int(row["var"])
                    variables[var] += int(row["step"])
                    pc = int(row["partner"]) + 1 if variables[var] < stops[var] else pc + 1
                else:
                    count[pc - phase.first] += 1
                    pc += 1
            counts.append(count)
    return np.array(counts)


@pytest.mark.parametrize("schedule", ["flash1", "flash2", "standard"])
@pytest.mark.parametrize("mask", ["full", "causal", "window:100"])
def test_instructions_are_counted_as_a_plain_walk_does(schedule, mask):
    program = schedules.build(schedule, Attention(1, 2, 200, 32, mask=mask), Tiles(48, 32))
    for number in range(len(program.phases)):
        np.testing.assert_array_equal(executions(program, number), walked(program, number))


# ---- Queues ----


def test_alone_without_parts_is_the_sum_and_parts_only_help():
    demands = np.array([100.0, 40.0, 0.0])
    assert alone(demands, 30.0, 1) == pytest.approx(170.0)
    times = [alone(demands, 30.0, strips) for strips in (1, 2, 4, 8, 64)]
    assert all(a > b for a, b in pairwise(times))
    assert times[-1] >= 100.0  # never less than the busiest unit


def test_two_customers_of_one_unit_queue_as_theory_says():
    """Mean value analysis of one unit with demand 1 and no delay: n customers take n."""
    found = residence(np.array([1.0]), np.array([1.0]), 1.0, 1, 5)
    np.testing.assert_allclose(found, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("together", [1, 2, 3])
def test_more_customers_take_longer_each_but_never_more_than_in_turn(together):
    demands, delay = np.array([50.0, 80.0, 20.0]), 60.0
    found = residence(demands, demands, demands.sum() + delay, together, 12)
    assert (np.diff(found) > 0).all()
    throughput = np.arange(1, 13) / found
    assert (throughput <= 1 / demands.max() + 1e-12).all()
    if together == 1:
        assert (np.diff(throughput) > -1e-12).all()
        assert (found <= np.arange(1, 13) * (demands.sum() + delay) + 1e-9).all()


def test_memory_serves_all_warps_of_a_block_at_once_and_is_used_up():
    """A block whose warps meet waits for the slowest at its SM's units, not at the memory."""
    demands = np.array([1.0, 10.0])
    both = residence(demands, demands, 11.0, 2, 40)
    memory = residence(demands, demands, 11.0, 2, 40, meet=np.array([True, False]))
    assert (memory <= both).all() and 40 / memory[-1] > 0.095 > 0.08 > 40 / both[-1]


def test_warpgroups_in_turns_are_faster_than_one_by_one_and_slower_than_without_any_gap():
    gpu, problem = load("h200"), Attention(4, 16, 4096, 128)
    program = schedules.build("flash2", problem, Tiles(128, 128, 2))
    one, turns = (predict(program, gpu, (how,), blocks_per_sm=1).phases[0] for how in (
        wgmma(128, 2, ping_pong=False), wgmma(128, 2)))
    units = turns.unit_seconds
    assert max(units.values()) < 0.95 * turns.seconds
    assert turns.seconds < units["matmul"] + units["exp"] + units["issue"]
    assert turns.seconds < one.seconds


# ---- Laws of the whole ----


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("problem", SHAPES, ids=str)
@pytest.mark.parametrize("schedule", ["flash1", "flash2", "standard"])
def test_no_prediction_beats_its_bound_nor_any_unit(schedule, problem, gpu):
    program = schedules.build(schedule, problem, Tiles(64, 64))
    bound = program_bound(program, load(gpu))
    found = predicted(schedule, problem, gpu)
    assert bound.bound_s >= pass_bound(problem, load(gpu)).bound_s > 0
    assert found.seconds >= bound.bound_s
    for phase in found.phases:
        assert phase.seconds >= max(phase.unit_seconds.values()) * (1 - 1e-9)


@pytest.mark.parametrize("schedule", ["flash1", "flash2", "standard"])
def test_bounds_and_predictions_grow_with_length_heads_and_slower_memory(schedule):
    gpu = load("h200")
    lengths = [Attention(2, 8, n, 64) for n in (256, 512, 1024, 4096)]
    times = [predicted(schedule, p).seconds for p in lengths]
    bounds = [program_bound(schedules.build(schedule, p, Tiles(64, 64)), gpu).bound_s
              for p in lengths]
    assert times == sorted(times) and bounds == sorted(bounds)
    heads = [predicted(schedule, Attention(1, h, 512, 64)).seconds for h in (1, 64, 512, 4096)]
    assert heads == sorted(heads)
    slow = gpu.model_copy(update={"hbm_bytes_per_s": 1e10, "measured": {}})
    program = schedules.build(schedule, lengths[-1], Tiles(64, 64))
    assert program_bound(program, slow).limiter == "dram"
    assert predict(program, slow, blocks_per_sm=1).limiter.endswith("DRAM")


def test_a_mask_that_hides_half_takes_about_half():
    full, causal = (predicted("flash2", Attention(4, 16, 16384, 128, mask=mask)).seconds
                    for mask in ("full", "causal"))
    assert 0.45 < causal / full < 0.6


def test_a_calibrated_prediction_scales_the_work_and_not_the_launches():
    found = predicted("standard", SHAPES[0])
    work = sum(phase.seconds for phase in found.phases)
    twice = found.calibrated(2.0, found)
    assert twice.seconds - found.seconds == pytest.approx(work)
    assert found.calibrated(1.0, found).seconds == pytest.approx(found.seconds)


def test_spills_and_fewer_blocks_on_an_sm_cost_time():
    program = schedules.build("flash2", Attention(4, 16, 4096, 128), Tiles(64, 64, 2))
    gpu = load("h200")
    kernel = generic(program, gpu)
    spilled = tuple(replace(how, spill_bytes=400) for how in kernel)
    times = [predict(program, gpu, how, blocks_per_sm=m).seconds
             for how, m in ((kernel, 3), (kernel, 2), (kernel, 1), (spilled, 1))]
    assert times == sorted(times) and len(set(times)) == 4


@pytest.mark.parametrize("schedule", ["softmax_online", "softmax_safe"])
def test_rows_of_less_than_a_step_take_as_long_as_a_step(schedule):
    times = [predicted(schedule, Attention(1, 1, 1000, 64, kv_seq=n, direction="softmax"),
                       tiles=Tiles(1, 256)).seconds for n in (1, 16, 255, 256, 257)]
    assert all(a <= b for a, b in pairwise(times)) and times[3] < 1.5 * times[0]


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "fp16"])
def test_narrow_heads_have_a_time_too(dtype):
    times = [predicted("flash2", Attention(1, 4, 300, width, dtype=dtype)).seconds
             for width in (1, 3, 8, 15, 16, 64)]
    assert times[0] > 0 and all(a <= b for a, b in pairwise(times))


def test_what_a_block_does_once_counts_most_where_rows_are_short():
    def share(seq):
        program = schedules.build("flash2", Attention(16384 // seq, 16, seq, 128), Tiles(64, 64, 2))
        gpu = load("h200")
        how, = generic(program, gpu)
        with_it, without = (predict(program, gpu, (x,), blocks_per_sm=2).seconds for x in (
            how, replace(how, costs=how.costs | {"log": replace(how.costs["log"], chain=0)})))
        return with_it / without - 1

    assert share(512) > 4 * share(4096) > 0


def test_blocks_of_unequal_length_leave_the_l2_to_fewer_sms_at_the_end():
    """Four causal blocks a head, one wave: the longest works on when the others are done."""
    gpu = load("h200")
    program = schedules.build("flash2", Attention(1, 33, 512, 64, mask="causal"), Tiles(128, 64, 2))
    phase = Phase(program, 0, gpu, generic(program, gpu)[0])
    phase.settle(phase.time(1, "row", None))
    assert 0.4 * 132 < phase.sharing < 0.9 * 132
    full = schedules.build("flash2", Attention(1, 33, 512, 64), Tiles(128, 64, 2))
    phase = Phase(full, 0, gpu, generic(full, gpu)[0])
    phase.settle(phase.time(1, "row", None))
    assert phase.sharing == 132


def test_units_are_what_the_program_says():
    """Tensor and exp seconds from FLOPs and exponentials by hand; L2 bytes from the counter."""
    from hbmeter.simulator.engines import scratchpad

    problem, gpu = Attention(1, 16, 1024, 128), load("h200")
    program = schedules.build("flash2", problem, Tiles(64, 64))
    phase, at = predicted("flash2", problem).phases[0], rates(gpu, "mma_sync", "fp16")
    sms, pairs = gpu.sm_count, 16 * 1024 * 1024
    clock = problem.forward_flops / (at.matmul_flops * sms * phase.unit_seconds["matmul"])
    assert at.clock_hz <= clock <= gpu.boost_clock_hz
    trips = 16 * 1024 * 16  # rows × column blocks: one more exponential each, of alpha
    assert phase.unit_seconds["exp"] == pytest.approx(
        (pairs + trips + 16 * 1024) / (at.exp * sms * clock))
    count = scratchpad.count(program)
    streamed = sum(count.by_tensor[name]["read_bytes"] for name in "KV")  # by all blocks together
    moved = ((count.read_bytes - streamed) / at.gpu_l2_bytes + streamed / at.gpu_l2_together
             + count.write_bytes / at.gpu_l2_written) / at.clock_hz
    assert phase.unit_seconds["SM boundary"] == pytest.approx(moved)
    assert tuple(phase.unit_seconds) == UNITS


def test_costs_of_an_fma_product_are_those_of_its_loop():
    """Counted by hand in flash2.cu's loop, 128 × 64 tiles of fp16: a step of 8 multiplies 8 × 4
    pairs 8 deep after 12 loads and 96 conversions; 4 keys need 12 loads and 32 conversions."""
    scores, output = fma_scores(128, 64, 128, 2), fma_output(128, 128, 64, 2, 4)
    assert 256 * (scores.instructions - 1) == pytest.approx(12)
    assert 256 * scores.slow == pytest.approx(96 + 11)
    assert 256 * (output.instructions - 1) == pytest.approx(12)
    assert 256 * output.slow == pytest.approx(32 + 6)


@pytest.mark.parametrize("mask", ["full", "causal", "window:40"])
@pytest.mark.parametrize(("n_q", "n_kv"), [(96, 96), (64, 128), (100, 75)])
def test_tiles_that_the_masks_edge_does_not_cross_are_those_without_hidden_pairs(mask, n_q, n_kv):
    problem, br, bc = Attention(1, 1, n_q, 16, kv_seq=n_kv, mask=mask), 16, 32
    tile = SimpleNamespace(rows=br, cols=bc)
    seen = problem.mask_bounds.dense(n_q, n_kv)
    rows, columns = -(-n_q // br), -(-n_kv // bc)
    clear = np.array([[seen[r * br:][:br, c * bc:][:, :bc].all() and (c + 1) * bc <= n_kv
                       for c in range(columns)] for r in range(rows)])
    np.testing.assert_array_equal(clear_tiles(problem, tile, rows, True), clear.sum(axis=1))
    whole = clear & ((np.arange(rows) + 1) * br <= n_q)[:, None]
    np.testing.assert_array_equal(clear_tiles(problem, tile, columns, False), whole.sum(axis=0))


def test_every_kernel_says_how_each_of_its_phases_runs():
    for name in kernels.names():
        kernel = kernels.get(name)
        for problem in (Attention(2, 4, 512, 64, direction=kernel.direction),
                        Attention(2, 4, 512, 64, kv_heads=2, direction=kernel.direction),
                        Attention(2, 4, 1, 64, kv_heads=2, kv_seq=4096)):
            if problem.direction != kernel.direction:
                continue
            for tiles in kernel.tile_choices(problem):
                program = schedules.build(kernel.schedule, problem, tiles)
                how = kernel.executions(problem, tiles)
                found = predict(program, load("h200"), how, blocks_per_sm=1)
                assert found.seconds >= program_bound(
                    program, load("h200"), multiplier_of(how)).bound_s, name


def test_decode_is_never_faster_than_device_memory():
    kernel, gpu = kernels.get("split_kv"), load("h200")
    for batch, splits in ((1, 1), (1, 16), (8, 4), (64, 1)):
        problem = Attention(batch, 32, 1, 128, kv_heads=8, kv_seq=8192)
        tiles = replace(kernel.tile_choices(problem)[0], splits=splits)
        program = schedules.build("split_kv", problem, tiles)
        found = predict(program, gpu, kernel.executions(problem, tiles), blocks_per_sm=2)
        read = problem.compulsory_read_bytes
        assert found.phases[0].seconds > read / gpu.measured["hbm_read"].value
    assert found.phases[0].limiter == "DRAM"


def test_a_clock_is_that_of_the_share_of_units_that_works():
    gpu = load("h200")
    few, all_ = (rates(gpu, "wgmma", "fp16", busy) for busy in (0.25, 1.0))
    assert few.clock_hz > 1.05 * all_.clock_hz and few.clock_hz <= gpu.boost_clock_hz
    assert few.matmul_flops == all_.matmul_flops  # a clock
    assert rates(gpu, "wgmma", "fp16", 0.0).clock_hz == gpu.boost_clock_hz
    assert rates(gpu, "fma", "fp32", 0.1).clock_hz == rates(gpu, "fma", "fp32").clock_hz


def test_memory_that_is_read_and_written_is_slower_than_read_alone():
    at = rates(load("h200"), "fma", "fp16")
    read, half, written = (at.dram_bytes(share) for share in (0.0, 0.5, 1.0))
    assert half < written < read and half < at.dram_bytes(0.25) < read


def test_short_blocks_take_as_long_as_it_takes_to_start_them():
    """Softmax of rows of 32 scores: half a million blocks, and hardly any bytes."""
    gpu, blocks = load("h200"), 1 << 19
    usual = gpu.measured["blocks_started"]
    slow = gpu.model_copy(update={"measured": gpu.measured | {
        "blocks_started": usual.model_copy(update={"value": usual.value / 100})}})
    program = schedules.build("softmax_online", Attention(
        1, 1, blocks, 1, kv_seq=32, dtype="fp16", direction="softmax"), Tiles(1, 32))
    fast, late = (predict(program, x, blocks_per_sm=32).phases[0].seconds for x in (gpu, slow))
    assert fast > blocks / usual.value
    assert late == pytest.approx(100 * blocks / usual.value)


def test_blocks_in_step_share_the_memory_that_they_begin_with():
    """A block of 256 rows an SM, one wave: its queries come at an SM's share of DRAM's rate."""
    gpu = load("h200")
    at = rates(gpu, "mma_sync", "fp16")
    program = schedules.build("flash2", Attention(33, 4, 256, 128), Tiles(256, 64, 2))
    queries = 256 * 128 * 2
    found = predict(program, gpu, blocks_per_sm=1).phases[0]
    assert found.seconds * at.clock_hz > queries * 132 / at.dram_bytes(0.0) + at.dram_latency


# ---- What is predicted, and what is chosen ----


def test_all_but_idealised_counts_and_splits_are_covered():
    covered = {name: covers(schedules.build(name, Attention(
        1, 2, 64, 32, direction=getattr(schedules.get(name), "DIRECTION", "forward"))))
        for name in schedules.names() if name != "mla_decode"}
    left_out = {name for name, yes in covered.items() if not yes}
    assert {"standard_minimal", "chunked", "split_kv", "paged"} <= left_out
    assert left_out.isdisjoint({"flash1", "flash2", "standard", "flash1_backward",
                                "flash2_backward", "standard_backward", "softmax_online"})


def test_the_fastest_tiles_are_ranked_and_explained():
    found = explore("flash2", Attention(), load("h200"))
    timed = [c for c in found.fitting if c.prediction is not None]
    best = min(timed, key=lambda c: c.prediction.seconds)
    assert found.marks["fastest"] == best.tiles
    lean = next(c for c in timed if c.tiles == found.marks["least traffic"])
    why = why_faster(best, lean)
    assert f"{best.sm_bytes / lean.sm_bytes:.2f} times the bytes" in why
    assert f"{best.tiles.br}×{best.tiles.bc}" in why and "block(s) an SM" in why


TILES_4090 = (128, 32)  # published: for head_dim 128 on sm_86 and sm_89 (without a mask)


@pytest.mark.xfail(strict=True, reason="64 × 32 with three blocks an SM is predicted 1.3% faster")
def test_an_rtx_4090_is_given_the_tiles_that_flash_attention_2_takes_there():
    found = explore("flash2", Attention(), load("rtx4090"))
    fastest = found.marks["fastest"]
    assert (fastest.br, fastest.bc) == TILES_4090


def test_the_tiles_that_flash_attention_2_takes_on_an_rtx_4090_are_among_the_fastest_two():
    found = explore("flash2", Attention(), load("rtx4090")).candidates
    timed = sorted((x.prediction.seconds, x.program.tiles.br, x.program.tiles.bc)
                   for x in found if x.prediction is not None)
    assert TILES_4090 in [(br, bc) for _, br, bc in timed[:2]]


def test_a_grid_smaller_than_the_gpu_makes_tiled_attention_lose():
    """Case C13's kind: eight heads, a thread block a head (FlashAttention-1), on 132 SMs."""
    from hbmeter.experiments.figures.speedup import fastest

    gpu, few = load("h200"), Attention(1, 8, 2048, 64)
    plain, tiled, row_blocks = (fastest(name, few, gpu)[1]
                                for name in ("standard", "flash1", "flash2"))
    assert row_blocks < plain < tiled
