"""Is the error of an O that is rounded again and again what rounding makes of it?"""

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments import records
from hbmeter.experiments.grid import Point
from hbmeter.kernels.base import Kernel
from hbmeter.simulator.rounding import rounded_error


def recorded():
    """(Column blocks, error) of full attention by flash1 in fp16, as measured."""
    found = []
    for record in records.load_all():
        for data in record.points:
            point = Point.of(data)
            problem = point.problem
            if (point.kernel, problem.dtype, problem.mask) == ("flash1", "fp16", "full"):
                times = kernels.get("flash1").roundings(problem, point.tiles)
                found.append((times, data["error"]["O"]["relative"]))
    return found


def test_it_is_the_measured_error_of_flash1_on_a_gpu():
    """To 2%, from 8 blocks of columns to 192, with no constant to choose."""
    found = recorded()
    assert len(found) > 12 and {8, 192} <= {times for times, _ in found}
    for times, error in found:
        assert error == pytest.approx(rounded_error("fp16", times), rel=0.02)


def test_it_is_that_of_a_mean_that_is_kept_in_fp16():
    """Means over ever more blocks, rounded after each: a naive twin."""
    rng, times = np.random.default_rng(0), 50
    blocks = rng.standard_normal((times, 20_000))
    kept = np.zeros(20_000, np.float16)
    for number, block in enumerate(blocks, 1):
        kept = (kept.astype(float) + (block - kept) / number).astype(np.float16)
    exact = blocks.mean(axis=0)
    error = np.linalg.norm(kept - exact) / np.linalg.norm(exact)
    assert error == pytest.approx(rounded_error("fp16", times), rel=0.02)


def test_other_kernels_round_once():
    assert {name for name in kernels.names()
            if type(kernels.get(name)).roundings is not Kernel.roundings} == {
                "flash1", "flash1_mma"}
