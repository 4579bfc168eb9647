"""Do the paces that kernels declare agree with the recorded starts and ends of their blocks?"""

from itertools import pairwise

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments import residents
from hbmeter.kernels import paces
from hbmeter.simulator.engines import l2_moves
from hbmeter.simulator.engines.dispatch import by_age
from hbmeter.simulator.tiles import Tiles

RECORDED = residents.load_all()


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: f"{found.point} {found.launch}")
def test_blocks_of_an_sm_run_at_the_paces_that_their_kernel_declares(found):
    """Ends of the first blocks of an SM, over the first, are to a twentieth what the declared pace
    makes of them: each runs so much slower than the next older one until that ends."""
    execution = kernels.get(found.point.kernel).executions(
        found.point.problem, found.point.tiles)[found.launch]
    speeds = by_age(execution.younger_pace(found.together), found.together)
    alike = residents.Residents(found.gpu, found.point, found.launch, (_wave(speeds),))
    assert alike.paces == pytest.approx(speeds, abs=1e-3)
    ends, declared = (np.array([sorted(end for _, end in wave) for wave in waves])
                      for waves in (found.first_waves, alike.first_waves))
    ends = np.median(ends, axis=0)
    assert ends / ends[0] == pytest.approx(declared[0] / declared[0, 0], rel=0.05)


def _wave(speeds):
    """(start, end) of blocks that start together and take 100 µs at the oldest's speed."""
    left, ends, now = [1e5] * len(speeds), [], 0.0
    for done in range(len(speeds)):
        lasting = left[done]
        now += lasting
        for younger in range(done + 1, len(speeds)):
            left[younger] -= lasting * speeds[younger - done]
        ends.append(round(now))
    return tuple((0, end) for end in ends)


def test_speeds_by_age_are_powers_of_a_pace_or_as_given_and_go_on_so():
    assert by_age(0.5, 3).tolist() == [1, 0.5, 0.25]
    assert by_age((1, 0.5, 0.4), 2).tolist() == [1, 0.5]
    assert by_age((1, 0.5, 0.4), 5) == pytest.approx([1, 0.5, 0.4, 0.32, 0.256])


def test_what_was_recorded_covers_every_build_that_paces_are_declared_for():
    recorded = {(found.point.kernel, found.launch) for found in RECORDED}
    assert set(paces.MEASURED) <= recorded


def test_by_default_blocks_run_at_the_pace_of_wide_warps():
    found = [found.pace for found in RECORDED
             if found.point.kernel == "flash2_mma" and found.point.tiles == Tiles(128, 64, 2)]
    assert l2_moves.YOUNGER_PACES[0] == pytest.approx(np.mean(found), abs=0.03)


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
