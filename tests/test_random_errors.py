"""Do random problems find kernels that are wrong, and only those?"""

import json

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments import random_errors, records
from hbmeter.experiments.cli import main
from hbmeter.kernels import ahead, runner
from hbmeter.kernels.base import tensor_shape

MANY = 400


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # −∞ of rows that see nothing


@pytest.fixture
def exact_kernels(monkeypatch):
    """No GPU: kernels that are exact but for the rounding of what they store; ``spoil`` them."""
    spoilers = []

    def run(kernel, problem, tiles, q, k, v, order, more=None):
        wanted, _ = random_errors._expected(problem, (q, k, v), more)
        if "S" in kernel.outputs:
            nothing = runner.to_storage(np.zeros(tensor_shape("S", problem)), problem.dtype)
            s = random_errors._from_scores(problem, q, k, v, nothing)["S"]
            stored = runner.to_storage(s.astype(np.float32), problem.dtype)
            wanted = wanted | random_errors._from_scores(problem, q, k, v, stored)
        outputs = {
            name: wanted[name].astype(np.float32) if name in ("m", "l", "LSE")
            else runner.to_storage(wanted[name].astype(np.float32), problem.dtype)
            for name in kernel.outputs
        }
        for spoil in spoilers:
            spoil(kernel, problem, outputs)
        return runner.Result(outputs)

    monkeypatch.setattr(runner, "require_gpu", lambda: np)
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(ahead, "build_ahead", lambda builds, report, meanwhile: meanwhile())
    return spoilers


class Silent:
    def start(self, *_):
        pass

    step = done = note = start

    def end(self):
        pass


def small(how_many=16):
    found = [case for case in random_errors.cases(MANY, 1)
             if case.problem.pairs * case.problem.head_dim < 1 << 17]
    return found[:how_many]


def measured(cases):
    return random_errors.measure(cases, records.Partial(None, {}), Silent())


def test_a_seed_draws_the_same_problems_and_another_draws_others():
    cases = random_errors.cases(MANY, 7)
    assert cases == random_errors.cases(MANY, 7)
    assert cases[:10] == random_errors.cases(10, 7)
    assert cases != random_errors.cases(MANY, 8)


def test_the_problems_are_those_that_are_hard():
    cases = random_errors.cases(200, 0)
    problems = [case.problem for case in cases]
    assert {case.kind for case in cases} == set(random_errors.KINDS)
    assert {p.direction for p in problems} == {"forward", "backward", "softmax"}
    assert {(p.dtype, p.head_dim, p.value_dim) for p in problems} >= {
        (dtype, *dims) for dtype, several in random_errors.DIMS.items() for dims in several}
    assert sum(p.seq != p.kv_seq for p in problems) > 60 and sum(p.group > 1 for p in problems) > 40
    assert sum(p.seq % 16 > 0 for p in problems) > 100 and sum(p.seq <= 4 for p in problems) > 10
    blind = [p for p in problems if p.mask_bounds.column_range(np.zeros(1, int), p.kv_seq)[1] <= 0]
    assert len(blind) > 20  # the first row sees nothing
    named = {point.kernel for case in cases for point in random_errors.runs(case)}
    assert named == set(kernels.names())
    assert not any(case.kind == "huge logits" and case.problem.dtype == "fp32" for case in cases)


def test_exact_kernels_pass(exact_kernels):
    points = measured(small())
    assert random_errors.failures(points) == []
    rows = random_errors.summary(points)
    assert all(row["worst"] > 0 or row["kernel"].startswith("softmax") for row in rows)
    json.dumps(points, allow_nan=False)


def hidden_row(problem):
    """(batch, head, row) of O that sees nothing, or None."""
    _, high = problem.mask_bounds.column_range(np.arange(problem.seq), problem.kv_seq)
    rows = np.flatnonzero(high <= 0)
    return (0, 0, rows[0]) if len(rows) else None


def unwritten(kernel, problem, outputs):
    outputs["O"][0, 0, -1, -1] = np.nan if outputs["O"].dtype != np.uint16 else 0x7FFF


def not_zero(kernel, problem, outputs):
    at = hidden_row(problem)
    if at:
        outputs["O"][(*at, 0)] = 1


def of_another_head(kernel, problem, outputs):
    outputs["O"][:] = np.roll(outputs["O"], 1, axis=1)


def a_little_off(kernel, problem, outputs):
    values = runner.to_float(outputs["O"])
    outputs["O"] = runner.to_storage(values * np.float32(1 + 2 * random_errors.BARS[problem.dtype]),
                                     problem.dtype)


@pytest.mark.parametrize("spoil", [unwritten, not_zero, of_another_head, a_little_off])
def test_a_kernel_that_is_wrong_is_named(exact_kernels, spoil, monkeypatch):
    monkeypatch.setattr(kernels, "names", lambda: ("flash2", "flash2_mma", "standard"))
    exact_kernels.append(
        lambda kernel, *rest: spoil(kernel, *rest) if kernel.name == "flash2_mma" else None)
    cases = [case for case in small(MANY) if "flash2_mma" in
             {point.kernel for point in random_errors.runs(case)}]
    cases.sort(key=lambda case: hidden_row(case.problem) is None)
    failed = random_errors.failures(measured(cases[:2]))
    assert failed and all(line.startswith("flash2_mma") for line in failed)


def test_scores_that_are_rounded_are_no_error_of_what_follows(exact_kernels):
    cases = [case for case in random_errors.cases(MANY, 3) if case.kind == "huge logits"
             and case.problem.direction == "forward" and case.problem.pairs < 1 << 16][:3]
    points = measured(cases)
    assert random_errors.failures(points) == []
    standard = [run for point in points for run in point["runs"] if run["kernel"] == "standard"]
    assert standard and all(set(run["errors"]) == {"S", "P", "O"} for run in standard)


def test_kept_errors_are_read_and_judged(tmp_path, capsys, exact_kernels):
    points = measured(small(8))
    about = {"gpu": "G", "driver": "1", "date": "2026", "seed": 1}
    path = tmp_path / "errors.json"
    path.write_text(json.dumps({"provenance": about, "points": points}))
    assert main(["verify", "--random", "--recorded", str(path)]) == 0
    assert "8 random problems, seed 1" in capsys.readouterr().out
    points[0]["runs"][0]["errors"] = {"O": None}
    path.write_text(json.dumps({"provenance": about, "points": points}))
    assert main(["verify", "--random", "--recorded", str(path), "--json"]) == 1
    document, = json.loads(capsys.readouterr().out)
    assert any(row["worst"] is None for row in document["summary"])
