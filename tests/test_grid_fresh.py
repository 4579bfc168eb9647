"""Are fresh points new to whoever made the model?"""

from hbmeter.experiments import grid, grid_fresh, grid_newer, records
from hbmeter.experiments.grid import Point


def test_fresh_points_are_none_that_was_recorded_before():
    fresh, seen = grid_fresh.points(), grid_fresh.seen()
    assert len(set(fresh)) == 60 and not {*fresh} & {*grid.recorded(), *seen}
    measured = [Point.of(data) for path in records.FOLDER.glob("h200-fresh*.json")
                for data in records.load(path).points]
    assert len(measured) == len({*measured}) and {*measured} == {*seen}
    assert grid.having(grid.points(), ["fresh"]) == fresh


def test_they_are_spread_over_shapes_orders_and_working_sets():
    points = grid_fresh.points()
    assert {p.order for p in points} == {"row", "head"}
    assert {p.problem.head_dim for p in points} == {64, 128, 256}
    assert {p.problem.dtype for p in points} == {"fp16", "bf16", "fp32"}
    assert {p.blocks_per_sm for p in points} == {None, 1, 2, 3, 4}
    assert {p.problem.group for p in points} == {1, 4, 8}
    kv_bytes = [2 * p.problem.kv_heads * p.problem.seq * p.problem.head_dim
                * p.problem.dtype_bytes for p in points]
    assert min(kv_bytes) < 8 << 20 and max(kv_bytes) > 256 << 20


def test_newer_points_are_of_all_kernels_that_the_model_was_not_developed_with():
    points = grid_newer.points()
    assert len({*points}) == sum(grid_newer.COUNTS.values()) and not {*points} & {*grid.recorded()}
    assert not {p.kernel for p in points} & {*grid_fresh.COUNTS}
    assert {p.problem.direction for p in points} == {"forward", "backward", "softmax"}
    assert grid.having(grid.points(), ["newer"]) == points
