"""Does the L2 reader obey the laws of caches, and equal a dictionary that anyone can read?"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from compiled import from_python
from hbmeter.experiments import calibrate
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import l2, l2_cache, l2_places, scratchpad
from hbmeter.simulator.engines.l2_moves import Running
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.grid_order import ORDERS
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st

H200 = load("h200")
add_unit, read_unit, write_unit, home_of, set_of, sets_of, valid_of = (
    from_python(function) for function in (
        l2_cache.add_unit, l2_cache.read_unit, l2_cache.write_unit, l2_places.home_of,
        l2_places.set_of, l2_places.sets_of, l2_cache.valid_of))
SCHEDULES = ("flash1", "flash2", "standard")
TILES = Tiles(32, 64)
SMALL = Attention(2, 4, 256, 64, kv_heads=2)
# All SMs as fast, all tiles as late.
IN_STEP = dict.fromkeys(("pace_spread", "gpc_pace_spread", "pace_spread_alone", "tile_cycles",
                         "tile_bytes_per_clock", "dram_late_cycles", "dram_ahead_cycles"))


def gpu_with(l2_bytes=None, partitions=1, **l2_changes):
    """The H200 with another L2."""
    cache = H200.l2.model_copy(update={
        "partitions": partitions, "sm_partitions": None, "dirty_bytes_max": None,
        "room_share": None,
        "size_bytes": l2_bytes or H200.l2.size_bytes, **l2_changes,
    })
    return H200.model_copy(update={"l2": cache})


def simulate(schedule, problem=SMALL, gpu=H200, tiles=TILES, **options):
    program = schedules.build(schedule, problem, tiles)
    return l2.simulate(program, gpu, **{"blocks_per_sm": 1, **options})


@pytest.mark.parametrize("order", ORDERS)
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
    assert count.sectors_asked * 32 == counted.read_bytes
    assert count.sectors_written * 32 == counted.write_bytes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cache_of_one_set_reads_about_what_crosses_the_sm_boundary(schedule):
    tiny = gpu_with(l2_cache.WAYS * 128)
    count = simulate(schedule, Attention(1, 1, 512, 64), tiny, unit_bytes=128)
    assert 0.5 < count.dram_read_bytes / (count.sectors_asked * 32) <= 1


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
    row, head = (simulate("flash2", problem, gpu, order=order) for order in ("row", "head"))
    assert head.dram_read_bytes > 3 * row.dram_read_bytes


def dictionary_lru(accesses, n_sets, dirty_ways):
    """Units read, written or added to one after the other: (sectors fetched, written back).

    One partition, write-back without fetch. Before each access a set writes back its oldest dirty
    unit if it is the oldest of a full set or more than ``dirty_ways`` are dirty; a new unit takes
    the place of the oldest that was clean then, or of the oldest."""
    cache = new_cache(n_sets, dirty_ways)
    sets = [OrderedDict() for _ in range(n_sets)]
    fetched = written_back = 0
    for unit, mask, how in accesses:
        ways = sets[set_of(cache, unit)]
        for kind in {"add": ("read", "write")}.get(how, (how,)):
            clean = [other for other, (_, dirty) in ways.items() if not dirty]
            dirty = [other for other in ways if other not in clean]
            full = len(ways) == l2_cache.WAYS
            if dirty and ((full and dirty[0] == next(iter(ways))) or len(dirty) > dirty_ways):
                written_back += ways[dirty[0]][1].bit_count()
                ways[dirty[0]] = (ways[dirty[0]][0], 0)
            if unit not in ways and full:
                ways.pop((clean or dirty)[0])
            valid, written = ways.pop(unit, (0, 0))
            if kind == "read":
                fetched += (mask & ~valid).bit_count()
            ways[unit] = (valid | mask, written | mask if kind == "write" else written)
    return fetched, written_back


def new_cache(n_sets, dirty_ways=l2_cache.WAYS):
    """One partition of so many sets of lines."""
    cache = l2_cache.empty_cache(n_sets * l2_cache.WAYS * 128, 1, 128, n_sets * dirty_ways * 128)
    assert sets_of(cache) == n_sets
    return cache


access = st.tuples(st.integers(0, 200), st.integers(1, 15),
                   st.sampled_from(["read", "write", "add"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(access, max_size=400), st.integers(1, 5), st.sampled_from([1, 7, 16]))
def test_the_cache_is_a_dictionary_lru(accesses, n_sets, dirty_ways):
    assert replay(accesses, n_sets, dirty_ways) == dictionary_lru(accesses, n_sets, dirty_ways)


@pytest.mark.parametrize(("seed", "written"), [(0, 0.2), (1, 0.2), (2, 0.5), (3, 0.5), (4, 0.9)])
def test_the_cache_is_a_dictionary_lru_over_thousands_of_accesses(seed, written):
    random = np.random.default_rng(seed)
    hows = random.choice(["read", "write", "add"], 4000, p=[0.9 - written, written, 0.1])
    units, masks = random.integers(0, 100, 4000), random.integers(1, 16, 4000)
    accesses = [(int(u), int(m), str(how)) for u, m, how in zip(units, masks, hows, strict=True)]
    for dirty_ways in (1, 7, 16):
        assert replay(accesses, 3, dirty_ways) == dictionary_lru(accesses, 3, dirty_ways)


def replay(accesses, n_sets, dirty_ways):
    """The same, by the cache."""
    cache = new_cache(n_sets, dirty_ways)
    fetched = written_back = 0
    for unit, mask, how in accesses:
        if how == "add":
            filled, _, dirty, _, cleaned = add_unit(cache, unit, np.uint64(mask))
            fetched += int(filled).bit_count()
            written_back += int(dirty).bit_count() + int(cleaned).bit_count()
        elif how == "write":
            answer = write_unit(cache, unit, 0, np.uint64(mask))
            written_back += sum(int(bits).bit_count() for bits in answer[1::2])
        else:
            answer = read_unit(cache, unit, 0, np.uint64(mask))
            fetched += int(answer[0]).bit_count()
            written_back += int(answer[2]).bit_count() + int(answer[4]).bit_count()
    return fetched, written_back


def test_an_add_is_made_at_the_home_and_far_copies_are_stale_then():
    cache = l2_cache.empty_cache(2 * 16 * 128, 2, 128)
    read_unit(cache, 0, 1, np.uint64(15))  # from the far side: a copy on both
    fetched, *_ = add_unit(cache, 0, np.uint64(3))
    assert fetched == 0
    assert read_unit(cache, 0, 0, np.uint64(15))[0] == 0
    far = cache.copy()
    assert read_unit(far, 0, 1, np.uint64(15))[0] == 0  # the home has the sums
    held = valid_of(cache, 1, 0, int(np.flatnonzero(cache[1, 0, :l2_cache.WAYS])[0]))
    assert int(held) == 15 & ~3


def test_no_more_ways_are_dirty_than_may_be():
    cache, cleaned = new_cache(1, dirty_ways=8), 0
    for unit in range(12):
        cleaned += int(write_unit(cache, unit, 0, np.uint64(15))[3]).bit_count()
    assert cleaned == (12 - 9) * 4  # the last write finds nine
    for unit in range(12):  # what was written back is still there; the next access finds nine
        fetched, _, dirty, *_ = read_unit(cache, unit, 0, np.uint64(15))
        assert fetched == 0 and int(dirty) == (15 if unit == 0 else 0)


@pytest.mark.parametrize("unit_bytes", [128, l2_cache.UNIT_BYTES])
@pytest.mark.parametrize("seed", [0, 3])
def test_lines_fill_the_sets_of_an_h200_evenly_two_of_a_page_with_one_home_each(unit_bytes, seed):
    """As recorded/sets has it: a page has two lines of a set or none, one of each home."""
    cache = l2_cache.cache_of(H200.l2, unit_bytes, seed)
    pages, units = 64, l2_cache.PAGE_BYTES // unit_bytes
    found = np.zeros((pages, sets_of(cache), 2), np.int64)
    for page in range(pages):
        for unit in range(page * units, (page + 1) * units):
            found[page, set_of(cache, unit), home_of(cache, unit)] += 1
    assert np.array_equal(found[..., 0], found[..., 1]) and found.max() == 1
    for window in (8, 14, 64):  # as even as in seven sets of an H200: 0.9 to 1.3 lines, 1.9 of 70
        sums = 2 * found[:window, :, 0].sum(axis=0)
        assert 0.6 < sums.std() < 1.9


@pytest.mark.parametrize("sets", [1, 3, 40, 5000])
def test_every_unit_has_a_set_in_caches_of_any_size(sets):
    cache = l2_cache.empty_cache(sets * l2_cache.WAYS * 128, 1, 128)
    for unit in (0, 1, 16383, 16384, 10 ** 9, 2 ** 40):
        assert 0 <= set_of(cache, unit) < sets


def test_homes_change_with_the_address_as_the_latencies_of_an_h200_did():
    """The homes of 64 chunks one after the other, but for which partition is called 0."""
    record = calibrate.load_all()[0]
    part = record.latency[0]["homes"]
    measured = calibrate.homes(part, calibrate.sides(part))
    cache = l2_cache.empty_cache(H200.l2.size_bytes, 2, part["stride_bytes"])
    modelled = np.array([home_of(cache, line) for line in range(len(measured))])
    assert len(set(measured ^ modelled)) == 1


def test_a_dirty_way_is_written_back_when_it_is_the_oldest_and_leaves_after_it():
    cache = new_cache(1)
    write_unit(cache, 0, 0, np.uint64(15))
    for unit in range(1, 16):
        read_unit(cache, unit, 0, np.uint64(15))
    for new, written, left in ((16, 15, 1), (17, 0, 0), (18, 0, 2)):
        _, _, dirty, *_ = read_unit(cache, new, 0, np.uint64(15))
        assert int(dirty) == written
        assert left + 1 not in cache[0, 0, :l2_cache.WAYS].tolist()  # tags are units + 1


def test_reads_that_hit_let_old_dirty_ways_be_written_back():
    cache = new_cache(1)
    for unit in range(16):
        write_unit(cache, unit, 0, np.uint64(15))
    written = [int(read_unit(cache, 15, 0, np.uint64(15))[2]) for _ in range(3)]
    assert written == [15, 0, 0]  # unit 0 is the oldest, and clean then


def test_far_data_takes_room_on_both_sides():
    cache = l2_cache.empty_cache(2 * 16 * 128, 2, 128)
    for chunk in range(8):
        read_unit(cache, 32 * chunk, 1, np.uint64(15))
    held = (cache[:, 0, :l2_cache.WAYS] != 0).sum(axis=1)
    assert held.tolist() == [4, 8]  # half have their home on side 0


def causal_head_order(**options):
    """DRAM reads of thread blocks of unequal length whose heads share a small L2."""
    problem = Attention(1, 16, 8192, 64, mask="causal")
    return simulate("flash2", problem, gpu_with(20 << 20, 2), Tiles(64, 64, 2), order="head",
                    skip_repeats=False, **options).dram_read_bytes


def test_blocks_that_never_wait_for_a_load_do_not_fall_into_step():
    apart, in_step = (causal_head_order(running=[Running(how)]) for how in ("trip", "none"))
    assert apart > 2 * in_step


def test_the_second_block_of_an_sm_walks_k_and_v_apart_from_the_first():
    """Full attention in waves: as many walks as there are paces on an SM."""
    problem = Attention(1, 16, 8192, 128)
    alike, apart = (
        simulate("flash2", problem, gpu_with(12 << 20, 2, **IN_STEP), Tiles(128, 64, 2),
                 order="head", blocks_per_sm=2, running=[Running(younger_paces=(pace,))],
                 skip_repeats=False)
        for pace in (1.0, 0.8))
    assert 1.5 < apart.dram_read_bytes / alike.dram_read_bytes < 2.2


def test_blocks_of_unequal_pace_part_and_heads_far_above_the_cache_are_read_more_often():
    problem = Attention(1, 64, 8192, 128)
    in_step, apart = (simulate("flash2", problem, gpu_with(16 << 20, 2, **changes),
                               Tiles(128, 64, 2), order="head", blocks_per_sm=2,
                               running=[Running(younger_paces=(1.0,))], skip_repeats=False)
                      for changes in (IN_STEP, {}))
    assert apart.dram_read_bytes > 1.5 * in_step.dram_read_bytes
    assert apart.sectors_asked == in_step.sectors_asked


def test_seeds_matter_where_all_just_fits_and_nowhere_else():
    """64 thread blocks that each read and rewrite their own head: where their memory lies decides
    (an H200 read 26 to 76 MB of 25 in six launches of 64 heads and 16 of K and V)."""
    spread = {}
    for heads, seq in ((64, 1024), (64, 2048), (128, 2048)):
        program = schedules.build("flash1", Attention(1, heads, seq, 64), Tiles(64, 64))
        least, most = l2.read_spread(program, H200, seeds=8, blocks_per_sm=1)
        spread[heads, seq] = most / least
    assert spread[64, 1024] < 1.01 and spread[64, 2048] > 1.2 and spread[128, 2048] < 1.03


def test_what_was_dirty_before_leaves_and_counts_as_written_but_for_no_tensor():
    gpu = gpu_with(1 << 20, 2)
    clean, dirty = (simulate("flash2", gpu=gpu, dirty_before_bytes=size) for size in (0, 1 << 18))
    left = dirty.before_written_back * 32
    assert 0.95 < left / (1 << 18) <= 1  # (what sets that nobody touched again still have)
    tensors = sum(t["write_bytes"] for t in dirty.by_tensor.values())
    assert dirty.dram_write_bytes == tensors + left
    assert clean.before_written_back == 0


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="prefetch 'two' is not known; it is one of none"):
        Running("two")
    with pytest.raises(InputError, match=r"order 'column' \(valid: .*head, .*, row\)"):
        simulate("flash2", order="column")
    with pytest.raises(InputError, match="smaller than one set"):
        simulate("flash2", gpu=gpu_with(1024))
    with pytest.raises(InputError, match="must divide"):
        simulate("flash2", gpu=gpu_with(sector_bytes=16))
    with pytest.raises(InputError, match=r"l2\.home_bytes 3000 must be a power of two"):
        simulate("flash2", gpu=gpu_with(home_bytes=3000))


def test_no_recompilation_for_another_shape_or_schedule():
    from hbmeter.simulator.engines.l2_blocks import run_phase

    simulate("flash2")
    before = len(run_phase.signatures)
    simulate("standard", replace(SMALL, batch=1, seq=100), order="head", blocks_per_sm=2)
    simulate("flash1", replace(SMALL, mask="causal", dtype="fp32"), gpu=gpu_with(1 << 20, 2))
    assert len(run_phase.signatures) == before
