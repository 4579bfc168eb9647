"""Does the L2 reader obey the laws of caches, and equal a dictionary that anyone can read?"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import l2, l2_cache, scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st

H200 = load("h200")
SCHEDULES = ("flash1", "flash2", "standard")
TILES = Tiles(32, 64)
SMALL = Attention(2, 4, 256, 64, kv_heads=2)


def gpu_with(l2_bytes=None, partitions=1, **l2_changes):
    """The H200 with another L2."""
    cache = H200.l2.model_copy(update={
        "partitions": partitions, "sm_partitions": None, "dirty_bytes_max": None,
        "size_bytes": l2_bytes or H200.l2.size_bytes, **l2_changes,
    })
    return H200.model_copy(update={"l2": cache})


def simulate(schedule, problem=SMALL, gpu=H200, tiles=TILES, **options):
    program = schedules.build(schedule, problem, tiles)
    return l2.simulate(program, gpu, **{"blocks_per_sm": 1, **options})


@pytest.mark.parametrize("order", l2.ORDERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_l2_that_holds_everything_reads_each_input_once(schedule, order):
    count = simulate(schedule, gpu=gpu_with(1 << 30), order=order)
    assert count.dram_read_bytes == SMALL.compulsory_read_bytes
    assert count.dram_write_bytes == 0
    outputs = [t for t in count.program.tensors if t.role != "input"]
    assert count.dirty_bytes_at_end == sum(count.program.tensor_bytes(t) for t in outputs)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sectors_asked_for_are_the_bytes_of_the_sm_boundary(schedule, partitions):
    count = simulate(schedule, gpu=gpu_with(1 << 20, partitions))
    counted = scratchpad.count(count.program)
    assert count.sectors_read * 32 == counted.read_bytes
    assert count.sectors_written * 32 == counted.write_bytes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cache_of_one_set_reads_about_what_crosses_the_sm_boundary(schedule):
    tiny = gpu_with(l2_cache.WAYS * 128)
    count = simulate(schedule, Attention(1, 1, 512, 64), tiny, unit_bytes=128)
    assert 0.5 < count.dram_read_bytes / (count.sectors_read * 32) <= 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_written_leaves_or_stays_dirty(schedule):
    """flash1 writes O again and again: at least every output once, at most every store."""
    count = simulate(schedule, gpu=gpu_with(1 << 20, 2))
    gone_or_dirty = count.dram_write_bytes + count.dirty_bytes_at_end
    outputs = [t for t in count.program.tensors if t.role != "input"]
    assert gone_or_dirty >= sum(count.program.tensor_bytes(t) for t in outputs)
    assert gone_or_dirty <= count.sectors_written * 32


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tensors_add_up_to_the_totals(schedule):
    count = simulate(schedule, gpu=gpu_with(1 << 20, 2))
    by_tensor = count.by_tensor.values()
    assert sum(t["read_bytes"] for t in by_tensor) == count.dram_read_bytes
    assert sum(t["write_bytes"] for t in by_tensor) == count.dram_write_bytes


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("schedule", ("flash1", "flash2"))
def test_units_of_lines_count_as_single_lines(schedule, partitions):
    """Tiles of whole units: the same counts, but for the rank at which a line's fellows enter."""
    gpu, problem = gpu_with(4 << 20, partitions), Attention(1, 8, 1024, 64)
    coarse, exact = (simulate(schedule, problem, gpu, Tiles(64, 64), unit_bytes=size)
                     for size in (l2_cache.UNIT_BYTES, 128))
    assert coarse.dram_read_bytes == pytest.approx(exact.dram_read_bytes, rel=0.02)
    assert coarse.sectors_read == exact.sectors_read


def test_the_same_call_gives_the_same_numbers():
    first, second = (simulate("flash2", gpu=gpu_with(1 << 20, 2)) for _ in range(2))
    assert np.array_equal(first.sectors, second.sectors)


def test_standard_attention_flushed_between_kernels_reads_s_and_p_again():
    warm, cold = (simulate("standard", gpu=gpu_with(1 << 30), cold_phases=flag)
                  for flag in (False, True))
    s_and_p = 2 * SMALL.head_count * SMALL.seq * SMALL.kv_seq * SMALL.dtype_bytes
    assert cold.dram_read_bytes - warm.dram_read_bytes == s_and_p


def test_head_order_reads_more_than_row_order_when_k_and_v_outgrow_the_cache():
    problem, gpu = Attention(1, 64, 2048, 64), gpu_with(8 << 20)
    row, head = (simulate("flash2", problem, gpu, order=order) for order in l2.ORDERS)
    assert head.dram_read_bytes > 3 * row.dram_read_bytes


def dictionary_lru(accesses, n_sets):
    """Units read, written or added to one after the other: (sectors fetched, written back).

    One partition, write-back without fetch, no limit on dirty ways."""
    sets = [OrderedDict() for _ in range(n_sets)]
    fetched = written_back = 0
    for unit, mask, how in accesses:
        ways = sets[unit % n_sets]
        valid, dirty = ways.pop(unit, (0, 0))
        if not valid and len(ways) == l2_cache.WAYS:
            _, (_, leaving) = ways.popitem(last=False)
            written_back += leaving.bit_count()
        if how != "read":
            dirty |= mask
        if how != "write":
            fetched += (mask & ~valid).bit_count()
        ways[unit] = (valid | mask, dirty)
    return fetched, written_back


access = st.tuples(st.integers(0, 200), st.integers(1, 15),
                   st.sampled_from(["read", "write", "add"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(access, max_size=400), st.integers(1, 5))
def test_the_cache_is_a_dictionary_lru(accesses, n_sets):
    cache = l2_cache.empty_cache(n_sets * l2_cache.WAYS * 128, 1, 128, n_sets * 16 * 128)
    assert cache.shape[1] == n_sets
    fetched = written_back = 0
    for unit, mask, how in accesses:
        if how == "add":
            filled, _, dirty, _, cleaned = l2_cache.add_unit(cache, unit, np.uint64(mask), 32)
            fetched += int(filled).bit_count()
            written_back += int(dirty).bit_count() + int(cleaned).bit_count()
        elif how == "write":
            answer = l2_cache.write_unit(cache, unit, 0, np.uint64(mask), 32)
            written_back += sum(int(bits).bit_count() for bits in answer[1::2])
        else:
            answer = l2_cache.read_unit(cache, unit, 0, np.uint64(mask), 32)
            fetched += int(answer[0]).bit_count()
            written_back += int(answer[2]).bit_count() + int(answer[4]).bit_count()
    assert (fetched, written_back) == dictionary_lru(accesses, n_sets)


def test_an_add_is_made_at_the_home_and_far_copies_are_stale_then():
    cache = l2_cache.empty_cache(2 * 16 * 128, 2, 128)
    l2_cache.read_unit(cache, 0, 1, np.uint64(15), 32)  # from the far side: a copy on both
    fetched, *_ = l2_cache.add_unit(cache, 0, np.uint64(3), 32)
    assert fetched == 0
    assert l2_cache.read_unit(cache, 0, 0, np.uint64(15), 32)[0] == 0
    far = cache.copy()
    assert l2_cache.read_unit(far, 0, 1, np.uint64(15), 32)[0] == 0  # the home has the sums
    held = cache[1, 0, l2_cache.VALID + int(np.flatnonzero(cache[1, 0, :l2_cache.WAYS])[0])]
    assert int(held) == 15 & ~3


def test_no_more_ways_are_dirty_than_may_be():
    share = 0.5
    cache = l2_cache.empty_cache(16 * 128, 1, 128, int(16 * 128 * share))
    cleaned = 0
    for unit in range(12):
        cleaned += int(l2_cache.write_unit(cache, unit, 0, np.uint64(15), 32)[5]).bit_count()
    assert cleaned == (12 - 8) * 4
    for unit in range(12):  # what was written back is still there
        assert l2_cache.read_unit(cache, unit, 0, np.uint64(15), 32)[0] == 0


def test_far_data_takes_room_on_both_sides():
    cache = l2_cache.empty_cache(2 * 16 * 128, 2, 128)
    for unit in range(8):
        l2_cache.read_unit(cache, unit, 1, np.uint64(15), 32)
    held = (cache[:, 0, :l2_cache.WAYS] != 0).sum(axis=1)
    assert held.tolist() == [4, 8]  # half have their home on side 0


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="order 'column' is not known; it is row or head"):
        simulate("flash2", order="column")
    with pytest.raises(InputError, match="smaller than one set"):
        simulate("flash2", gpu=gpu_with(1024))
    with pytest.raises(InputError, match="must divide"):
        simulate("flash2", gpu=gpu_with(sector_bytes=16))


def test_no_recompilation_for_another_shape_or_schedule():
    from hbmeter.simulator.engines.l2_blocks import run_phase

    simulate("flash2")
    before = len(run_phase.signatures)
    simulate("standard", replace(SMALL, batch=1, seq=100), order="head", blocks_per_sm=2)
    simulate("flash1", replace(SMALL, mask="causal", dtype="fp32"), gpu=gpu_with(1 << 20, 2))
    assert len(run_phase.signatures) == before
