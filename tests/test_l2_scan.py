"""Do scans through the cache model obey the laws of caches, and do the GPU's probes compile?"""

from collections import OrderedDict

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.hwprofiles import load
from hbmeter.kernels import compiler
from hbmeter.kernels.errors import Unavailable
from hbmeter.kernels.probes import l2 as probes
from hbmeter.simulator.engines import l2_cache, l2_machine, l2_scan
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

H200 = load("h200")


def small_l2(sets, partitions=1, **changes):
    return H200.l2.model_copy(update={"size_bytes": sets * l2_cache.WAYS * 128 * partitions,
                                      "partitions": partitions, "dirty_bytes_max": None,
                                      "room_share": None, **changes})


def dictionary_scan(lines, blocks, passes, chunk, n_sets):
    """Lines fetched by blocks that take turns, a chunk of their slice each, with an OrderedDict a
    set."""
    sets, fetched, share = [OrderedDict() for _ in range(n_sets)], 0, -(-lines // blocks)
    walks = []
    for block in range(blocks):
        mine = range(block * share, min((block + 1) * share, lines))
        chunks = [mine[at:at + chunk] for at in range(0, len(mine), chunk)]
        walks.append(iter(chunks * passes))
    while walks:
        going = [(walk, next(walk, None)) for walk in walks]
        walks = [walk for walk, step in going if step is not None]
        for line in (line for _, step in going for line in step or ()):
            ways = sets[line % n_sets]
            if line not in ways:
                fetched += 1
                if len(ways) == l2_cache.WAYS:
                    ways.popitem(last=False)
            ways[line] = True
            ways.move_to_end(line)
    return fetched


@pytest.mark.parametrize("lines", [1, 63, 64, 65, 100, 300])
@pytest.mark.parametrize("blocks", [1, 7])
def test_private_scans_equal_a_dictionary(lines, blocks):
    found = l2_scan.scan(small_l2(4), [0] * blocks, read_bytes=lines * 128, passes=3,
                         step_bytes=2 * 128)
    assert found == (dictionary_scan(lines, blocks, 3, 2, 4) * 128, 0)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_cache_that_holds_all_fetches_once_and_writes_nothing_back(partitions):
    cache, sides = small_l2(4096, partitions), np.arange(12) % partitions
    size = 1 << 20
    for shared in (False, True):
        assert l2_scan.scan(cache, sides, read_bytes=size, passes=3, shared=shared) == (size, 0)
    assert l2_scan.scan(cache, sides, written_bytes=size, rereads=2, read_bytes=size, passes=2) == (
        size, 0)


def test_blocks_that_hit_go_round_their_slices_before_others_push_them_out():
    """44 MiB read five times by an H200's SMs: in step three in four reads miss, at their own pace
    fewer (1.77 to 1.93 times 44 MiB measured)."""
    size = 44 << 20
    sides = l2_machine.sm_sides(H200)
    in_step, free = (
        l2_scan.scan(H200.l2, sides, read_bytes=size, passes=5, **options)[0] / size
        for options in ({}, {"cycles": l2_machine.chunk_cycles(H200, 4096, 1)}))
    assert in_step > 3 and 1.5 < free < 2.6


def test_what_was_dirty_before_leaves_first():
    cache = small_l2(64, dirty_bytes_max=8 * 64 * 128)
    limit, one_a_set = 8 * 64 * 128, 64 * 128
    alone = l2_scan.scan(cache, [0] * 4, written_bytes=2 * limit)
    assert alone == (0, limit - one_a_set)  # which the next access finds too many
    assert l2_scan.scan(cache, [0] * 4, written_bytes=2 * limit, dirty_before_bytes=one_a_set) == (
        0, limit)
    assert l2_scan.scan(cache, [0] * 4, written_bytes=limit + 2 * one_a_set, rereads=2) == (
        0, 2 * one_a_set)


def test_in_step_all_readers_of_a_shared_buffer_count_as_one_a_side():
    cache, sides = small_l2(64, 2), np.array([0, 0, 1, 1, 0])
    once = l2_scan.scan(cache, sides, read_bytes=100_000, passes=2, shared=True)
    assert once == l2_scan.scan(cache, [0, 1], read_bytes=100_000, passes=2, shared=True)


# ---- The probes ----


def test_probes_are_no_kernels_and_compile_without_spilling():
    assert "l2" not in kernels.names()

    class Probe:  # what the compiler asks of a kernel
        name, source, least_arch = "l2", probes.SOURCE.read_text(), 0

        def check(self, problem, tiles):
            pass

        def runs_on(self, arch):
            return True

        def options(self, problem, tiles, count, order):
            return probes.OPTIONS

    try:
        built = compiler.build(Probe(), Attention(), Tiles(16, 16))
    except Unavailable as error:
        pytest.skip(str(error))
    assert set(built.resources) == {probes.LATENCY_ENTRY, probes.SCAN_ENTRY}
    assert not any(r.stack_bytes or r.spill_store_bytes for r in built.resources.values())
