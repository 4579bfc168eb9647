"""Are the zeros that TMA fills into boxes beyond a tensor's end counted box by box?"""

import pytest
from hbmeter import kernels
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles


@pytest.mark.parametrize("mask", ["full", "causal", "window:70"])
@pytest.mark.parametrize("seq", [256, 300])
def test_zeros_that_fill_boxes_are_counted_box_by_box(mask, seq):
    problem, tiles = Attention(1, 3, seq, 64, kv_seq=350, mask=mask), Tiles(192, 80, 2)
    zeros = 0
    for row in range(0, seq, tiles.br):
        zeros += max(row + tiles.br - seq, 0) * 64
        for column in range(0, 350, tiles.bc):
            seen = problem.mask_bounds
            rows = range(row, min(row + tiles.br, seq))
            if any(low < min(column + tiles.bc, 350) and high > column
                   for low, high in (seen.column_range(at, 350) for at in rows)):
                zeros += max(column + tiles.bc - 350, 0) * 2 * 64
    assert zeros and kernels.get("flash2_wgmma").filled_bytes(problem, tiles) == 3 * zeros * 2
