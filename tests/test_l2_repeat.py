"""Do three speeds of the L2 reader give one answer, and does the cost stop growing with heads?"""

from dataclasses import replace

import numpy as np
import pytest
from hbmeter.hwprofiles import load
from hbmeter.simulator import InputError, schedules, traffic
from hbmeter.simulator.engines import l2, l2_repeat, scratchpad
from hbmeter.simulator.engines.l2_moves import Running
from hbmeter.simulator.grid_order import ORDERS
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

H200 = load("h200")
BOUND = 0.01  # of the DRAM traffic: what skipping repeats may change, as README says
SHAPE, TILES = Attention(4, 32, 1024, 64), Tiles(64, 64)


def small_gpu(partitions=2, l2_bytes=4 << 20, sm_count=20):
    cache = H200.l2.model_copy(update={"partitions": partitions, "sm_partitions": None,
                                       "room_share": None, "size_bytes": l2_bytes,
                                       "dirty_bytes_max": None})
    return H200.model_copy(update={"l2": cache, "sm_count": sm_count})


def simulate(schedule, problem=SHAPE, gpu=None, tiles=TILES, **options):
    program = schedules.build(schedule, problem, tiles)
    return l2.simulate(program, gpu or small_gpu(), **{"blocks_per_sm": 1, **options})


def differences(one, other):
    """(Read, written) bytes of ``one`` less those of ``other``, in parts of all DRAM traffic."""
    moved = other.dram_read_bytes + other.dram_write_bytes
    return ((one.dram_read_bytes - other.dram_read_bytes) / moved,
            (one.dram_write_bytes - other.dram_write_bytes) / moved)


# ---- One answer ----

CASES = [
    ("flash2", {}), ("flash2", {"mask": "causal"}), ("flash2", {"mask": "window:256"}),
    ("flash2", {"kv_heads": 8}), ("flash2", {"seq": 1000, "kv_seq": 1500}),
    ("flash2", {"kv_heads": 1, "mask": "causal"}),
    ("flash2", {"heads": 48, "kv_heads": 6, "seq": 777, "mask": "causal"}),
    ("flash1", {"batch": 8, "seq": 512}), ("flash1", {"batch": 8, "seq": 512, "mask": "causal"}),
    ("standard", {"batch": 1, "seq": 512}), ("standard_minimal", {"seq": 256}),
    ("flash2_backward", {"seq": 512, "direction": "backward"}),
    ("flash1_backward", {"seq": 256, "direction": "backward"}),
]


@pytest.mark.parametrize("blocks_per_sm", [1, 3])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("schedule", "changes"), CASES,
                         ids=[f"{s}-{'-'.join(map(str, c.values()))}" for s, c in CASES])
def test_what_repeats_counts_as_if_it_were_simulated(schedule, changes, order, blocks_per_sm):
    problem = replace(SHAPE, **({"kv_heads": SHAPE.heads, "kv_seq": changes.get("seq", SHAPE.seq)}
                                | changes))
    options = {"order": order, "blocks_per_sm": blocks_per_sm}
    fast = simulate(schedule, problem, **options)
    full = simulate(schedule, problem, **options, skip_repeats=False)
    assert full.blocks_simulated == full.blocks == fast.blocks
    assert max(map(abs, differences(fast, full))) <= BOUND
    assert fast.sectors_asked == full.sectors_asked
    assert fast.sectors_written == full.sectors_written


@pytest.mark.parametrize("schedule", ["flash2", "standard"])
def test_lines_and_tiles_agree(schedule):
    shape, gpu = replace(SHAPE, batch=1, kv_heads=32), small_gpu()
    steady = gpu.l2.model_copy(update={"dram_late_cycles": None})  # no chance in it
    gpu = gpu.model_copy(update={"l2": steady})
    point = {engine: traffic(schedule, shape, gpu, Tiles(64, 64), engine=engine)["dram"]
             for engine in ("l2", "l2-tile", "l2-line")}
    exact = point["l2-line"]["read_bytes"]
    assert point["l2-tile"]["read_bytes"] == pytest.approx(exact, rel=0.02)
    assert point["l2"]["read_bytes"] == pytest.approx(exact, rel=0.02 + BOUND)


def test_an_unknown_engine_lists_the_known_ones():
    with pytest.raises(InputError, match="l2-tile"):
        traffic("flash2", SHAPE, H200, Tiles(64, 64), engine="l3")


# ---- What it saves ----


@pytest.mark.parametrize("changes", [{}, {"mask": "causal"}, {"kv_heads": 8}])
def test_the_cost_does_not_grow_with_the_batch(changes):
    few, many = (simulate("flash2", replace(SHAPE, batch=batch, **changes)) for batch in (16, 256))
    assert few.blocks_simulated < few.blocks / 4
    assert many.blocks_simulated < 2 * few.blocks_simulated  # 16 times the work
    assert many.dram_read_bytes == pytest.approx(16 * few.dram_read_bytes, rel=BOUND)


def test_waves_of_a_long_head_repeat():
    long = Attention(1, 1, 65536, 64)
    fast = simulate("flash2", long, small_gpu(sm_count=16), Tiles(64, 256))
    full = simulate("flash2", long, small_gpu(sm_count=16), Tiles(64, 256), skip_repeats=False)
    assert fast.blocks_simulated < fast.blocks / 4
    assert max(map(abs, differences(fast, full))) <= BOUND


def test_what_is_written_once_leaves_or_stays_dirty_to_the_byte():
    count = simulate("flash2", replace(SHAPE, batch=32))
    assert count.blocks_simulated < count.blocks
    outputs = sum(count.program.tensor_bytes(t) for t in count.program.tensors
                  if t.role == "output")
    assert count.dram_write_bytes + count.dirty_bytes_at_end == outputs


def test_blocks_that_differ_are_all_simulated():
    """Causal, heads together: each row of blocks reads more than the one before."""
    count = simulate("flash2", replace(SHAPE, mask="causal"), order="head")
    assert count.blocks_simulated == count.blocks


def test_nothing_is_skipped_while_older_data_may_be_in_the_cache():
    count = simulate("flash2", replace(SHAPE, batch=32), small_gpu(l2_bytes=1 << 30))
    assert count.blocks_simulated == count.blocks
    assert count.dram_read_bytes == count.program.problem.compulsory_read_bytes


def test_what_is_stored_in_parts_of_sectors_does_not_leave_as_often_as_it_is_written():
    """Rows of 777 × 2 bytes: neighbours write the same sectors."""
    shape = Attention(4, 16, 777, 64)
    fast, full = (simulate("standard", shape, skip_repeats=skip) for skip in (True, False))
    assert fast.blocks_simulated < full.blocks_simulated
    assert max(map(abs, differences(fast, full))) <= BOUND


@pytest.mark.parametrize("order", ["head", "longest"])
@pytest.mark.parametrize("seq", [4096, 4090])  # the last row of blocks ragged
def test_waves_of_heads_side_by_side_repeat(order, seq):
    shape = Attention(1, 24, seq, 64)
    fast, full = (simulate("flash2", shape, order=order, skip_repeats=skip)
                  for skip in (True, False))
    assert fast.blocks_simulated < fast.blocks / 2
    assert max(map(abs, differences(fast, full))) <= 0.001
    assert fast.sectors_asked == full.sectors_asked


@pytest.mark.parametrize("order", ["head:4", "longest:4", "longest:1"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_sections_of_heads_repeat(order, mask):
    shape = replace(SHAPE, batch=12, kv_heads=32, mask=mask)
    fast, full = (simulate("flash2", shape, order=order, skip_repeats=skip)
                  for skip in (True, False))
    assert fast.blocks_simulated < 0.6 * fast.blocks
    assert max(map(abs, differences(fast, full))) <= BOUND
    assert fast.sectors_asked == full.sectors_asked


@pytest.mark.parametrize(("batch", "seq", "order"), [
    (2, 12288, "row"), (1, 16384, "row"), (1, 16384, "head:2"), (1, 16384, "longest:1"),
])
def test_what_blocks_read_that_drift_apart_is_not_multiplied_before_it_settles(batch, seq, order):
    """K and V of a head or two just fit, and blocks compute while they load, at paces of their own:
    in the end they read a third more than at first."""
    shape, running = Attention(batch, 64, seq, 64), [Running("trip")]
    fast, full = (simulate("flash2", shape, order=order, running=running, skip_repeats=skip)
                  for skip in (True, False))
    assert max(map(abs, differences(fast, full))) <= BOUND


def test_heads_side_by_side_that_drift_apart_are_all_simulated():
    """K and V of all heads just do not fit, and each wave reads a little more than the last."""
    count = simulate("flash2", Attention(1, 8, 4096, 64), small_gpu(l2_bytes=8 << 20),
                     order="head", blocks_per_sm=2)
    assert count.blocks_simulated == count.blocks


# ---- Its parts ----


@pytest.mark.parametrize(("length", "slots", "runs"), [
    (132, 132, 1),  # every run begins a wave
    (66, 132, 2), (64, 132, 33),  # 64, 128, 60, 124, …: slowly all over the wave
    (1 << 20, 132, 1),  # where it begins does not matter
    (1, 132, 1),
])
def test_a_window_has_runs_that_begin_all_over_a_wave(length, slots, runs):
    found = l2_repeat._evenly(length, slots)
    assert found == runs if runs < 33 else 16 < found <= runs


def test_masks_make_blocks_unlike():
    def alike(mask):
        program = schedules.build("flash2", replace(SHAPE, mask=mask), Tiles(64, 64))
        return l2_repeat.blocks_alike(program, program.phase_records[0])

    assert alike("full") and not alike("causal") and not alike("window:64")
    scores = schedules.build("standard", SHAPE, Tiles(64, 64))
    assert all(l2_repeat.blocks_alike(scores, phase) for phase in scores.phase_records)


def test_groups_follow_each_other_in_the_order_of_issue():
    program = schedules.build("flash2", replace(SHAPE, seq=4096, kv_seq=4096), Tiles(64, 64))
    for order in range(len(ORDERS)):
        plan = l2_repeat.plan_phase(program, program.phase_records[0], small_gpu(sm_count=10), 1,
                                    order, True)
        groups = [l2_repeat.group_of(block, plan) for block in range(plan["total"])]
        assert groups[0] == 0 and groups[-1] == plan["groups"] - 1
        steps = np.diff(groups)
        assert set(steps) <= {0, 1}
        firsts = [0, *(np.flatnonzero(steps) + 1)]
        assert firsts == [l2_repeat._first_block(group, plan) for group in range(plan["groups"])]


def test_a_run_can_be_followed_and_stopped():
    """It would take minutes to the end."""
    shares = []

    def stop(share):
        shares.append(share)
        if len(shares) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate("flash2", Attention(8, 64, 65536, 64, mask="causal"), H200, order="head",
                 on_progress=stop)
    assert shares == sorted(shares) and 0 <= shares[-1] < 1


# ---- Laws of caches ----


@pytest.mark.parametrize("schedule", ["flash1", "flash2", "standard"])
def test_without_an_l2_all_that_an_sm_loads_comes_from_dram(schedule):
    """One SM and one set of 16 lines: nothing stays until it is read again."""
    gpu = small_gpu(1, 16 * 128, sm_count=1)
    count = simulate(schedule, Attention(1, 2, 256, 64), gpu, unit_bytes=128)
    assert count.dram_read_bytes == scratchpad.count(count.program).read_bytes


@pytest.mark.parametrize("schedule", ["flash1", "flash2", "standard"])
def test_hits_and_misses_are_accesses_tensor_by_tensor(schedule):
    count = simulate(schedule, replace(SHAPE, batch=1, seq=512, kv_seq=512))
    counted = scratchpad.count(count.program).by_tensor
    for tensor, sectors in zip(count.program.tensors, count.sectors, strict=True):
        read, fetched = sectors[0] * count.sector_bytes, sectors[1] * count.sector_bytes
        assert read == counted[tensor.name]["read_bytes"]
        assert 0 <= fetched <= read
        assert count.by_tensor[tensor.name]["read_bytes"] == fetched
