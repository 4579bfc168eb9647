"""Are kernels timed while they are queued, and in rounds over all of them?"""

import time
from itertools import pairwise
from types import SimpleNamespace

import fake_cupy
import pytest
from hbmeter.experiments import held_out_times, tile_sweep
from hbmeter.experiments.grid import Point
from hbmeter.kernels import runner
from hbmeter.kernels.probes import launch
from hbmeter.simulator.errors import InputError

REPORT = SimpleNamespace(start=lambda *_: None, step=lambda *_: None, note=lambda *_: None,
                         end=lambda: None)


@pytest.fixture
def holds(monkeypatch):
    """Seconds that the GPU was asked to wait, a number for each time."""
    found = []
    gpu = fake_cupy.cupy([])
    monkeypatch.setattr(runner, "require_gpu", lambda: gpu)
    monkeypatch.setattr(launch, "waiting",
                        lambda: lambda grid, block, arguments: found.append(arguments[0] * 1e-9))
    return found


def kernel(launch):
    return SimpleNamespace(functions=[None], launch=launch)


def test_a_batch_is_timed_again_until_all_of_it_was_queued_while_the_gpu_waited(holds):
    tile_sweep._batch_ms(kernel(lambda: time.sleep(0.002)), 5)
    assert len(holds) > 1 and holds[-1] > 0.01
    assert all(b == pytest.approx(2 * a) for a, b in pairwise(holds))


def test_a_batch_that_was_queued_in_time_is_timed_once(holds, monkeypatch):
    monkeypatch.setattr(tile_sweep, "HOST_S", 0.01)  # a busy machine has its time too
    tile_sweep._batch_ms(kernel(lambda: None), 300)
    assert holds == [pytest.approx(3.0)]


def test_each_round_times_every_point_and_leaves_out_what_does_not_run(monkeypatch):
    one, two, refused = held_out_times.points()[:3]
    taken = []

    def timed(point, samples):
        if point == refused:
            raise InputError("too large")
        taken.append(point)
        return {"entry": {}}, [float(len(taken))] * samples

    monkeypatch.setattr(tile_sweep, "_build", lambda wanted, report: None)
    monkeypatch.setattr(tile_sweep, "_time", timed)
    found = tile_sweep.measure([one, refused, two], REPORT, rounds=2, samples=2)
    assert taken == [one, two, one, two]
    assert [(Point.of(data), data["times_ms"]) for data in found] == [
        (one, [1, 1, 3, 3]), (two, [2, 2, 4, 4])]


def test_lists_to_be_timed_share_no_point_and_the_first_is_the_recorded_one():
    first, last = held_out_times.points(0), held_out_times.points()
    assert len(set(first)) == len(set(last)) == sum(held_out_times.COUNTS.values()) >= 150
    assert not set(first) & set(last)
    record = next(r for r in held_out_times.recorded() if r["name"] == "h200")
    measured = {Point.of(data) for data in record["points"]}
    assert set(first) <= measured and not held_out_times.is_fresh(record)
    assert held_out_times.is_fresh({"points": [last[0].document]})
    assert all(held_out_times.calibrates(point) for point in held_out_times.calibrators())
    assert not any(held_out_times.calibrates(point) for point in last)
