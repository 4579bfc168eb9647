"""Is the grid large enough, and does every point of it run and survive a file?"""

import json

from hbmeter import kernels
from hbmeter.experiments import grid
from hbmeter.simulator.grid_order import ORDERS


def test_the_grid_is_large_enough_and_every_kernel_accepts_its_points():
    points = grid.points()
    assert len(points) == len(set(points)) >= 48
    for point in points:
        kernels.get(point.kernel).check(point.problem, point.tiles)
        assert point.problem.seq % 16 == 0 or point.problem.seq < point.problem.kv_seq  # decode
    assert {p.kernel for p in points} == {p.kernel for p in grid.points(quick=True)}
    assert set(grid.points(quick=True)) < set(points)
    assert {p.order for p in points} == set(ORDERS)
    assert {p.problem.dtype for p in points} >= {"fp16", "fp32"}
    assert any(p.problem.group > 1 for p in points)


def test_a_point_survives_json():
    for point in grid.points():
        assert grid.Point.of(json.loads(json.dumps(point.document))) == point
        assert point.text == json.dumps(point.document, sort_keys=True)
