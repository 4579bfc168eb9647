"""Do scans through the cache model obey the laws of caches, and do the GPU's probes compile?"""

from collections import OrderedDict

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.hwprofiles import load
from hbmeter.kernels import compiler
from hbmeter.kernels.errors import Unavailable
from hbmeter.kernels.probes import l2 as probes
from hbmeter.simulator.engines import l2_cache, l2_scan
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

H200 = load("h200")


def small_l2(sets, partitions=1, **changes):
    return H200.l2.model_copy(update={"size_bytes": sets * l2_cache.WAYS * 128 * partitions,
                                      "partitions": partitions, "dirty_bytes_max": None, **changes})


def dictionary_scan(lines, blocks, passes, chunk, n_sets):
    """Lines fetched by blocks that read their slices in step, with an OrderedDict a set."""
    sets, fetched, share = [OrderedDict() for _ in range(n_sets)], 0, -(-lines // blocks)
    for _ in range(passes):
        for start in range(0, share, chunk):
            for block in range(blocks):
                first, end = block * share, min((block + 1) * share, lines)
                for line in range(first + start, min(first + start + chunk, end)):
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
    l2, sides = small_l2(4096, partitions), np.arange(12) % partitions
    size = 1 << 20
    for shared in (False, True):
        assert l2_scan.scan(l2, sides, read_bytes=size, passes=3, shared=shared) == (size, 0)
    assert l2_scan.scan(l2, sides, written_bytes=size, rereads=2, read_bytes=size, passes=2) == (
        size, 0)


def test_what_was_dirty_before_leaves_first():
    l2 = small_l2(64, dirty_bytes_max=8 * 64 * 128)
    limit, before = 8 * 64 * 128, 64 * 128
    alone = l2_scan.scan(l2, [0] * 4, written_bytes=2 * limit)
    assert alone == (0, limit)
    assert l2_scan.scan(l2, [0] * 4, written_bytes=2 * limit, dirty_before_bytes=before) == (
        0, limit + before)


def test_in_step_all_readers_of_a_shared_buffer_count_as_one_a_side():
    l2, sides = small_l2(64, 2), np.array([0, 0, 1, 1, 0])
    once = l2_scan.scan(l2, sides, read_bytes=100_000, passes=2, shared=True)
    assert once == l2_scan.scan(l2, [0, 1], read_bytes=100_000, passes=2, shared=True)
    every = l2_scan._read_all(
        l2_cache.empty_cache(l2.size_bytes, 2, 128), np.sort(sides), 32, 0, 700, True,
        np.uint64(15))
    first = l2_scan._read_all(
        l2_cache.empty_cache(l2.size_bytes, 2, 128), np.array([0, 1]), 32, 0, 700, True,
        np.uint64(15))
    assert every == first


# ---- The probes ----


def test_probes_are_no_kernels_and_compile_without_spilling():
    assert "l2" not in kernels.names()

    class Probe:  # what the compiler asks of a kernel
        name, source, least_arch = "l2", probes.SOURCE.read_text(), 0

        def check(self, problem, tiles):
            pass

        def runs_on(self, arch):
            return True

        def options(self, problem, tiles, count):
            return probes.OPTIONS

    try:
        built = compiler.build(Probe(), Attention(), Tiles(16, 16))
    except Unavailable as error:
        pytest.skip(str(error))
    assert set(built.resources) == {probes.LATENCY_ENTRY, probes.SCAN_ENTRY}
    assert not any(r.stack_bytes or r.spill_store_bytes for r in built.resources.values())
