"""Do the paces that kernels declare agree with the recorded starts and ends of their blocks?"""

from itertools import pairwise

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments import residents
from hbmeter.kernels import paces
from hbmeter.simulator.engines import l2
from hbmeter.simulator.tiles import Tiles

RECORDED = residents.load_all()


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: f"{found.point} {found.launch}")
def test_blocks_of_an_sm_run_at_the_paces_that_their_kernel_declares(found):
    """Ends of the first blocks of an SM, over the first, are to a twentieth what the declared pace
    makes of them: each runs so much slower than the next older one until that ends."""
    execution = kernels.get(found.point.kernel).executions(
        found.point.problem, found.point.tiles)[found.launch]
    pace, together = execution.younger_pace(found.together), found.together
    alike = residents.Residents(found.gpu, found.point, found.launch, (_wave(pace, together),))
    assert alike.paces == pytest.approx([pace ** age for age in range(together)], abs=1e-3)
    ends, declared = (np.array([sorted(end for _, end in wave) for wave in waves])
                      for waves in (found.first_waves, alike.first_waves))
    ends = np.median(ends, axis=0)
    assert ends / ends[0] == pytest.approx(declared[0] / declared[0, 0], rel=0.05)


def _wave(pace, together):
    """(start, end) of blocks that start together and take 100 µs alone at the oldest's speed."""
    left, ends, now = [1e5] * together, [], 0.0
    for done in range(together):
        now += left[done]
        for younger in range(done + 1, together):
            left[younger] -= left[done] * pace ** (younger - done)
        ends.append(round(now))
    return tuple((0, end) for end in ends)


def test_what_was_recorded_covers_every_build_that_paces_are_declared_for():
    recorded = {(found.point.kernel, found.launch) for found in RECORDED}
    assert set(paces.MEASURED) <= recorded


def test_by_default_blocks_run_at_the_pace_of_wide_warps():
    found = [found.pace for found in RECORDED
             if found.point.kernel == "flash2_mma" and found.point.tiles == Tiles(128, 64, 2)]
    assert l2.YOUNGER_PACES[0] == pytest.approx(np.mean(found), abs=0.03)


def test_two_blocks_at_equal_pace_end_together_and_one_that_waits_ends_a_whole_block_later():
    def pace(*ends):
        blocks = tuple((0, end) for end in ends)
        return residents.Residents("a GPU", None, 0, (blocks,)).pace

    assert pace(100_000, 100_000) == 1
    assert pace(100_000, 200_000) == 0
    assert pace(100_000, 122_000) == pytest.approx(0.78)


def test_a_wave_drifts_apart_as_the_recursion_of_ages_says():
    """Start of block k + 2 of an SM is the end of block k, which was the younger of two until block
    k − 1 ended: gaps d of starts follow d' = W − pace · d."""
    for found in RECORDED:
        point = found.point
        if point.kernel != "flash2_mma" or point.tiles.br != 128:
            continue
        for blocks in found.blocks:
            if len(blocks) < residents.KEPT:
                continue
            alone = min(end - start for start, end in blocks if start < residents.TOGETHER_NS)
            starts = [start for start, _ in blocks]
            gap = 0.0
            for before, after in pairwise(starts[1:7]):
                gap = alone - found.pace * gap
                assert after - before == pytest.approx(gap, abs=0.08 * alone)
