"""Do the paces that kernels declare agree with the recorded starts and ends of their blocks?"""

from itertools import pairwise

import pytest
from hbmeter import kernels
from hbmeter.experiments import residents
from hbmeter.simulator.engines import l2

RECORDED = residents.load_all()


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: str(found.point))
def test_the_second_block_of_an_sm_runs_at_the_pace_that_its_kernel_declares(found):
    """More blocks on an SM: the more behind the older one."""
    point, together = found.point, found.together
    execution = max(kernels.get(point.kernel).executions(point.problem, point.tiles),
                    key=lambda how: len(how.costs))  # of the launch that multiplies
    paces = l2._paces(together, execution.younger_pace)[together]
    assert paces[0] / paces[1] == pytest.approx(found.pace, abs=0.035)


def test_by_default_blocks_run_at_the_pace_of_wide_warps():
    paces = [found.pace for found in RECORDED
             if found.point.kernel == "flash2_mma" and found.point.tiles.br == 128]
    assert min(paces) - 0.02 <= l2.YOUNGER_PACE <= max(paces) + 0.02


def test_two_blocks_at_equal_pace_end_together_and_one_that_waits_ends_a_whole_block_later():
    def pace(*ends):
        blocks = tuple((0, end) for end in ends)
        return residents.Residents("a GPU", None, (blocks,)).pace

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
            alone = min(end - start for start, end in blocks if start < residents.TOGETHER_NS)
            starts = [start for start, _ in blocks]
            gap = 0.0
            for before, after in pairwise(starts[1:7]):
                gap = alone - found.pace * gap
                assert after - before == pytest.approx(gap, abs=0.08 * alone)
