"""Do recorded times keep above their bounds, and do predictions keep to their errors?

Everything is computed now from the records of an H200 and from published tables. Points are held
out by hash from the development of the model; the bars are on those.
"""

from statistics import mean

import pytest
from hbmeter import kernels
from hbmeter.experiments import (
    bench,
    busy_units,
    held_out_times,
    published,
    tile_sweep,
    time_table,
    time_text,
)
from hbmeter.hwprofiles import load
from hbmeter.simulator.bounds import pass_bound
from hbmeter.simulator.problem import Attention


@pytest.fixture(scope="module")
def rows():
    return time_table.rows(time_table.timed())


@pytest.fixture(scope="module")
def choices(rows):
    return time_table.choices(rows)


def line(rows, mode, points="held out", kernel="all"):
    return next(x for x in time_table.summary(rows)
                if (x["mode"], x["points"], x["kernel"]) == (mode, points, kernel))


def test_no_recorded_run_beats_its_bound(rows):
    assert len(rows) > 800 and time_table.beaten(rows) == []
    assert max(row["bound_s"] / row["fastest_s"] for row in rows) > 0.4  # and it is not idle


def test_no_contender_of_a_recorded_benchmark_beats_the_bound_of_its_problem():
    checked = 0
    for record in bench.recorded():
        for point in record["points"]:
            bound = pass_bound(Attention(**point["problem"]), load("h200")).bound_s
            for entry in point["contenders"].values():
                if "times_ms" in entry:
                    assert min(entry["times_ms"]) * 1e-3 > bound * 0.98
                    checked += 1
    assert checked > 100


def test_zero_shot_predictions_keep_to_their_errors(rows):
    found = line(rows, "zero-shot")
    assert found["count"] >= 100 and found["mean"] <= 0.15
    for kernel in ("flash2_mma", "flash2", "flash1", "standard"):
        assert line(rows, "zero-shot", kernel=kernel)["mean"] <= 0.15


def test_calibrated_predictions_keep_to_their_errors(rows):
    found = line(rows, "calibrated")
    assert found["count"] >= 100 and found["mean"] <= 0.05


def calibrated_errors(rows, part):
    found = [abs(r["calibrated_error"]) for r in rows
             if r["part"] == part and r["calibrated_error"] is not None]
    if part == "fresh" and not found:
        pytest.skip("the last list of fresh points is not measured yet")
    return found


@pytest.mark.xfail(strict=True, reason="5 of 645, up to 14%: flash2_mma of width 256 on 32,768 "
                   "keys and 48 heads of 24,576 under sustained load, which lowers the clock, and "
                   "512 rows of flash2_backward of width 256")
def test_no_calibrated_prediction_is_far_off(rows):
    assert max(calibrated_errors(rows, "held out")) <= 0.12


def test_few_calibrated_predictions_are_far_off(rows):
    errors = sorted(calibrated_errors(rows, "held out"))
    assert sum(error > 0.12 for error in errors) <= 0.01 * len(errors) and errors[-2] <= 0.15


def test_no_calibrated_prediction_of_a_fresh_point_is_far_off(rows):
    assert max(calibrated_errors(rows, "fresh")) <= 0.12


def test_runs_that_waited_for_the_host_are_said_to_be_developed_on():
    """The first list was timed with the host's launching in it: a call of 20 µs or less."""
    first = [x for x in time_table.timed() if x.source == "held out h200"]
    assert len(first) > 200 and {x.part for x in first} == {"developed on"}
    assert min(x.ms for x in first) > 0.019


def test_a_benchmark_has_the_blocks_per_sm_of_its_own_threads():
    """standard_mma's softmax: a warp for 512 scores, eight for 4,096; 2,048 threads an SM."""
    found = {x.point.problem.seq: x.blocks_per_sm for x in time_table.timed()
             if x.source == "bench h200" and x.point.kernel == "standard_mma"
             and x.point.problem.head_dim == 128}
    assert found[512][1] == 32 and found[4096][1] == 8
    assert {(scores, output) for scores, _, output in found.values()} == {(2, 2)}


def test_points_measured_after_the_model_are_predicted_as_well(rows):
    errors = calibrated_errors(rows, "fresh")
    assert len(errors) >= 100 and mean(errors) <= 0.05
    assert line(rows, "zero-shot", "fresh")["mean"] <= 0.15


def test_points_to_be_measured_are_other_than_those_that_calibrate():
    points, small = held_out_times.points(), held_out_times.calibrators()
    assert len(points) == sum(held_out_times.COUNTS.values()) >= 100
    assert len({*points, *small}) == len(points) + len(small)
    builds = {(p.kernel, p.tiles, p.problem.head_dim, p.problem.dtype) for p in small}
    assert {(p.kernel, p.tiles, p.problem.head_dim, p.problem.dtype) for p in points} == builds
    assert all(kernels.get(p.kernel).accepts(p.problem, p.tiles) for p in (*points, *small))


def test_held_out_points_are_predicted_as_well_as_those_developed_on(rows):
    for mode in time_table.MODES:
        ratio = line(rows, mode)["mean"] / line(rows, mode, "developed on")["mean"]
        assert ratio < 1.3


def test_a_calibrating_point_is_not_judged_by_itself(rows):
    calibrators = {(p.kernel, p.shape, p.order) for p in tile_sweep.calibrators()}
    swept = [r for r in rows if r["source"].startswith("tiles")]
    judged = [(r["kernel"], r["shape"], r["order"]) for r in swept if r["calibrated_s"] is not None]
    assert len(judged) > 300 and calibrators.isdisjoint(judged)


def test_the_predicted_order_of_tiles_is_the_measured_one(choices):
    assert len(choices) >= 8 and min(c["tiles"] for c in choices) >= 8
    assert mean(c["rank_correlation"] for c in choices) >= 0.8


def test_the_predicted_best_tiles_are_nearly_the_measured_best(choices):
    zero = [c["zero-shot"] for c in choices]
    known = [c["calibrated"] for c in choices if c["calibrated"] is not None]
    assert len(known) >= 8 and mean(known) <= 0.03 and max(known) <= 0.08
    assert mean(zero) <= 0.10


def test_the_predicted_limiter_is_the_busiest_unit():
    found = time_table.limiters()
    for part in (found, [x for x in found if x["held_out"]]):
        agree = sum(x["predicted"] == x["measured"] for x in part)
        assert len(part) >= 40 and agree >= 0.8 * len(part)


def test_declared_instructions_are_those_that_ran():
    """Warp instructions and shared-memory wavefronts that kernels declare against the counters."""
    from hbmeter.experiments.grid import Point
    from hbmeter.simulator import schedules
    from hbmeter.simulator.rates import rates
    from hbmeter.simulator.time_model import predict

    gpu, ratios = load("h200"), []
    for record in busy_units.recorded():
        for data in record["points"]:
            point = Point.of(data)
            if point.kernel not in ("flash1", "flash2", "flash2_mma"):
                continue
            how = time_table.executions(point)
            program = schedules.build(
                kernels.get(point.kernel).schedule, point.problem, point.tiles)
            phase = predict(program, gpu, how, blocks_per_sm=1).phases[0]
            at = rates(gpu, how[0].multiplier, point.problem.dtype)
            active = min(gpu.sm_count, phase.blocks)
            issued = phase.unit_seconds["issue"] * at.clock_hz * active * 4
            ratios.append(issued / data["launches"][0]["metrics"]["sm__inst_executed.sum"])
    assert len(ratios) > 40 and 0.85 < mean(ratios) < 1.15
    assert all(0.6 < ratio < 1.5 for ratio in ratios)


def test_published_forward_times_of_flash_kernels_are_predicted_within_a_fifth():
    errors = published.errors(published.table())
    forward = [e for e in errors if e["pass"] == "fwd" and e["method"].startswith("flash")]
    assert {e["gpu"] for e in forward} == {"a100-40gb", "h100"} and len(forward) >= 5
    assert all(e["mean"] <= 0.20 for e in forward)


def test_the_record_says_all_of_it_as_text(rows, monkeypatch):
    monkeypatch.setattr(time_table, "rows", lambda timed: rows)
    found = time_text.record()
    text = time_text.record_text(found)
    assert "calibrated  held out" in text and "rank correlation" in text
    assert f"{found['limiters']['agree']} of {found['limiters']['points']} points" in text
