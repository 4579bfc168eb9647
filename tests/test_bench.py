"""Does a benchmark keep each shape as it is timed, and does the ladder come from its record?"""

import json

import pytest
from hbmeter.experiments import bench, records
from hbmeter.experiments.cli import main
from hbmeter.experiments.figures import ladder
from hbmeter.experiments.progress import Progress
from hbmeter.kernels import ahead, runner

HEADER = {"gpu": "G"}


class StoppedError(Exception):
    pass


@pytest.fixture
def races(monkeypatch):
    """No GPU: every contender takes a millisecond; the problems that were raced."""
    raced = []

    def race(problem):
        raced.append(problem)
        return {name: {"times_ms": [1.0, 1.0, 2.0]}
                for name in (*bench.ours(problem), *bench.PEERS, bench.LIBRARY)}

    monkeypatch.setattr(bench, "_race", race)
    monkeypatch.setattr(bench, "_clock_mhz", lambda: 1980)
    monkeypatch.setattr(runner, "require_gpu", lambda: None)
    monkeypatch.setattr(ahead, "build_ahead", lambda builds, report, meanwhile: None)
    return raced


def measured(problems, path=None):
    from io import StringIO

    return bench.measure(problems, records.Partial(path, HEADER), Progress(StringIO()))


def test_a_run_that_was_stopped_goes_on_where_it_was(races, tmp_path, monkeypatch):
    problems, path = bench.shapes((512, 1024, 2048), (64,)), str(tmp_path / "b.json.partial")
    whole = bench._race

    def stop(problem):
        if len(races) == 4:
            raise StoppedError
        return whole(problem)

    monkeypatch.setattr(bench, "_race", stop)
    with pytest.raises(StoppedError):
        measured(problems, path)
    monkeypatch.setattr(bench, "_race", whole)
    points = measured(problems, path)
    assert races == problems  # each once
    assert [point["problem"]["seq"] for point in points] == [p.seq for p in problems]
    assert all(point["sm_clock_mhz"] == 1980 for point in points)


def test_slow_kernels_take_part_at_one_length_only():
    for direction in ("forward", "backward"):
        for problem in bench.shapes(direction=direction):
            slow = set(bench.WITHOUT_TENSOR_CORES[direction]) & set(bench.ours(problem))
            assert bool(slow) == (problem.seq == bench.LADDER_SEQ)
            assert set(bench.OURS[direction]) <= set(bench.ours(problem))


def test_rates_count_the_unmasked_pairs(races):
    problem, = bench.shapes((1024,), (64,))[1:]
    assert problem.mask == "causal"
    row = next(r for r in bench.rows(measured([problem])) if r["contender"] == "flash2_mma")
    assert row["median_ms"] == 1 and row["ratio_to_torch_flash"] == 1
    assert row["tflop_per_s"] == pytest.approx(problem.flops / 1e9)
    assert problem.flops == 16 * 32 * 4 * 64 * (1024 * 1025 // 2)


def test_the_ladder_is_of_the_record_that_has_most_rungs(races, monkeypatch, capsys, tmp_path):
    about = {"gpu": "G", "date": "2026-01-01T00:00:00Z", "torch": "2", "driver": "1"}
    whole = {"name": "new", "provenance": about, "points": measured(bench.shapes((512, 4096)))}
    part = {"name": "old", "provenance": about | {"date": "2027"}, "points": [
        {**p, "contenders": {"flash2_mma": p["contenders"]["flash2_mma"]}}
        for p in whole["points"]]}
    monkeypatch.setattr(bench, "recorded", lambda: [part, whole])
    rows = ladder.run(None, None)
    assert {row["record"] for row in rows} == {"new"} and {row["seq"] for row in rows} == {4096}
    assert [line[0] for line in ladder.cells(rows)] == list(ladder.RUNGS)
    assert ladder.plot(rows) and "flash2_wgmma" in ladder.describe(rows)
    assert main(["bench", "--ladder"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n| `") == 7 and "| torch flash |" in text
    assert main(["bench", "--json", "--ladder", str(tmp_path / "ladder.png")]) == 0
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(capsys.readouterr().out) == rows


def test_the_rungs_are_all_contenders():
    seen = {*bench.OURS["forward"], *bench.WITHOUT_TENSOR_CORES["forward"], *bench.PEERS,
            bench.LIBRARY}
    assert set(ladder.RUNGS) == seen
