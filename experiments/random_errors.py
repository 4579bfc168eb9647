"""Errors of every kernel against float64 attention, over random problems.

A problem's number and the run's seed draw the same problem anywhere: lengths that no tile divides,
as many queries as keys or not, grouped heads, masks that hide whole rows, and inputs that are hard
on a softmax (``KINDS``). Outputs start as NaN. An error is ‖x − x64‖ / ‖x64‖ over a whole tensor,
both from the same stored inputs; row statistics, which may be near 0 themselves, are taken as at
least 1 each, and dQ, dK, dV as what dP and D are, of which they carry the rounding (gradients.py).

Standard attention stores S in the inputs' dtype, which changes a weight by exp(rounding of its
score): more than any bar where logits are large. There S is held to its own float64 value, and P
and O to what follows from the S that was stored; O from Q, K and V too with normal inputs.
"""

from dataclasses import dataclass
from random import Random

from .. import kernels
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from . import records
from .grid import Point, of_problem

BARS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3}
DIMS = {  # head_dim, value_dim; a kernel is compiled for each
    "fp32": ((64, 64), (128, 128)),
    "fp16": ((64, 64), (128, 128), (256, 256), (48, 80)),
    "bf16": ((128, 128), (48, 80)),
}
LONGEST_Q, LONGEST_WINDOW = 1024, 300
LONGEST_KV = 1536  # flash1_mma rounds O once a column block: at most 32 times here (see its source)
KINDS = {  # Q = scale · normal + offset, K = normal + offset
    "normal": (1, 0),
    "large logits": (16, 0),
    "huge logits": (256, 0),
    "common offset": (1, 1),
    "equal weights": (0, 0),
}
UNKNOWN_TO_FP32 = "huge logits"  # a logit of 1,000 has an error of 1e-4 in fp32
FROM_INPUTS = "O of Q, K, V"  # beside "O", which follows from the S that was stored
FOLDER = records.FOLDER / "errors"


@dataclass(frozen=True)
class Case:
    """One random problem: its number in the run, what its inputs are and what they are drawn by."""

    number: int
    problem: Attention
    kind: str
    seed: int


def cases(how_many: int, seed: int) -> list[Case]:
    """The problems of a run."""
    return [_draw(number, Random(f"{seed} {number}")) for number in range(how_many)]


def _draw(number: int, random: Random) -> Case:
    direction = random.choices(("forward", "backward", "softmax"), (14, 5, 1))[0]
    dtype = random.choice(tuple(BARS))
    head_dim, value_dim = random.choice(DIMS[dtype])
    kv_heads, group = random.choice((1, 2, 3)), random.choice((1, 1, 2, 4))
    kv_seq = _length(random, LONGEST_KV)
    seq = random.choice((kv_seq, _length(random, LONGEST_Q)))
    if direction == "forward" and random.random() < 0.2:
        seq = random.randint(1, 4)  # decode
    if direction == "softmax":  # which has neither K nor V
        group, head_dim, value_dim = 1, 64, 64
    problem = Attention(
        batch=random.choice((1, 2)), kv_heads=kv_heads, heads=kv_heads * group, seq=seq,
        kv_seq=kv_seq,
        head_dim=head_dim, value_dim=value_dim, dtype=dtype, direction=direction,
        mask=random.choice(("full", "causal", f"window:{random.randint(1, LONGEST_WINDOW)}")),
    )
    kinds = [kind for kind in KINDS if (dtype, kind) != ("fp32", UNKNOWN_TO_FP32)]
    kind = random.choice(("normal", *kinds))
    return Case(number, problem, kind, random.randrange(1 << 31))


def _length(random: Random, longest: int) -> int:
    """Short ones are as likely as long ones."""
    return random.randint(1, random.choice((32, 256, longest)))


def runs(case: Case) -> list[Point]:
    """The kernels that take the problem, with their default tiles."""
    found = []
    for name in kernels.names():
        kernel = kernels.get(name)
        if kernel.direction != case.problem.direction or case.problem.dtype not in kernel.dtypes:
            continue
        for tiles in kernel.tile_choices(case.problem)[:1]:
            found.append(Point(name, case.problem, tiles, "row"))
    return found


# ---- On a GPU -----------------------------------------------------------------------------------


def measure(found: list[Case], partial, report) -> list[dict]:
    """One dict a problem: {"number", "seed", "kind", "problem", "runs": [{"kernel", "tiles",
    "order", "errors": {tensor: error, or None when not finite}}]}, kept in ``partial``
    (records.Partial) as it is measured; those that are there already are not measured again.

    What this GPU cannot run is left out with a note. Raises Unavailable without a GPU.
    """
    from ..kernels import runner
    from ..kernels.ahead import build_ahead

    runner.require_gpu()
    missing = [case for case in found if str(case.number) not in partial]
    right = build_ahead([(x.kernel, x.problem, x.tiles, x.order, False)
                         for case in missing for x in runs(case)], report,
                        lambda: [_inputs_and_results(case) for case in missing])
    report.start("random problems", len(missing))
    left_out = set()
    for number, case in enumerate(missing):
        report.step(number, case.kind)
        partial.put(str(case.number), {
            "number": case.number, "seed": case.seed, "kind": case.kind,
            "problem": of_problem(case.problem),
            "runs": _run_all(case, *right[number], left_out)})
    for text in sorted(left_out):
        report.note(f"left out: {text}")
    report.end()
    return [partial[str(case.number)] for case in found]


def _inputs_and_results(case: Case) -> tuple:
    inputs, more = _inputs(case)
    return inputs, more, *_expected(case.problem, inputs, more)


def _run_all(case: Case, inputs, more, wanted, sizes, left_out: set[str]) -> list[dict]:
    found = []
    for point in runs(case):
        try:
            errors = _errors(point, inputs, more, wanted, sizes)
        except InputError as error:
            left_out.add(str(error))
            continue
        if case.kind != "normal":
            errors.pop(FROM_INPUTS, None)
        run = {key: point.document[key] for key in ("kernel", "tiles", "order")}
        found.append(run | {"errors": errors})
    return found


def _inputs(case: Case) -> tuple[tuple, dict]:
    """Q, K and V (None of a softmax), and what else the pass reads by name."""
    from ..kernels import gradients, runner, scores

    scale, offset = KINDS[case.kind]
    if case.problem.direction == "softmax":
        s = runner.to_float(scores.random_scores(case.problem, case.seed)["S"])
        return (None,) * 3, {"S": runner.to_storage(s * scale + offset, case.problem.dtype)}
    q, k, v = map(runner.to_float, runner.random_inputs(case.problem, case.seed))
    inputs = tuple(runner.to_storage(x, case.problem.dtype)
                   for x in (q * scale + offset, k + offset, v))
    if case.problem.direction == "forward":
        return inputs, {}
    return inputs, gradients.backward_inputs(case.problem, *inputs, case.seed)


def _expected(problem: Attention, inputs: tuple, more: dict) -> tuple[dict, dict]:
    """The results in float64 by name, and what the errors of some are taken in parts of."""
    from ..kernels import gradients, runner, scores

    if problem.direction == "softmax":
        return scores.reference_weights(problem, more["S"]), {}
    if problem.direction == "forward":
        return runner.reference(problem, *inputs), {}
    return tuple(gradients.reference_gradients(problem, *inputs, more["dO"], sizes=flag)
                 for flag in (False, True))


def _errors(point: Point, inputs: tuple, more: dict, wanted: dict, sizes: dict) -> dict:
    from ..kernels import runner

    kernel, problem = kernels.get(point.kernel), point.problem
    outputs = runner.run(kernel, problem, point.tiles, *inputs, point.order, more=more).outputs
    found = {name: relative_error(x, wanted[name], sizes.get(name, wanted[name]),
                                  least_one=name in ("m", "LSE"))
             for name, x in outputs.items() if name in wanted}
    if "S" not in outputs:
        return found
    follows = _from_scores(problem, *inputs, outputs["S"])
    return {FROM_INPUTS: found["O"]} | {
        name: relative_error(outputs[name], right, right) for name, right in follows.items()}


def _from_scores(problem: Attention, q, k, v, stored) -> dict:
    """S of Q and K; P and O of the S that was stored; all in float64."""
    from ..kernels import runner, scores

    cupy = runner.require_gpu()
    p = scores.reference_weights(problem, stored)["P"]
    groups = [cupy.repeat(runner.to_float(x).astype(cupy.float64), problem.group, axis=1)
              for x in (k, v)]
    s = runner.to_float(q).astype(cupy.float64) @ groups[0].swapaxes(2, 3) * problem.softmax_scale
    return {"S": s, "P": p, "O": p @ groups[1]}


def relative_error(stored, right, size, least_one: bool = False) -> float | None:
    """‖x − right‖ / ‖size‖; None unless x is finite, and −∞ or all 0 in a row, where ``right`` is.

    ``least_one``: numbers are taken as of size 1 at least.
    """
    from ..kernels import runner

    cupy = runner.require_gpu()
    found = runner.to_float(stored).astype(cupy.float64)
    finite = cupy.isfinite(right)
    empty = ~right.any(axis=-1) & ~size.any(axis=-1)  # rows that see nothing
    if not (bool((found[~finite] == right[~finite]).all()) and not bool(found[empty].any())
            and bool(cupy.isfinite(found[finite]).all())):
        return None
    error, norm = (float(cupy.linalg.norm(x[finite])) for x in (found - right, size))
    if least_one:
        norm = max(norm, int(finite.sum()) ** 0.5)
    return error / norm if norm else error


# ---- What it says -------------------------------------------------------------------------------


def summary(points: list[dict]) -> list[dict]:
    """A row a kernel and dtype: problems, the worst error (None: not finite), its bar and where."""
    rows = {}
    for point in points:
        dtype = point["problem"]["dtype"]
        for run in point["runs"]:
            worst = max(run["errors"].values(), key=_badness)
            row = rows.setdefault((run["kernel"], dtype), {
                "kernel": run["kernel"], "dtype": dtype, "problems": 0, "worst": 0.0,
                "bar": BARS[dtype], "at": ""})
            row["problems"] += 1
            if _badness(worst) >= _badness(row["worst"]):
                row |= {"worst": worst, "at": _where(point, run)}
    return [rows[key] for key in sorted(rows)]


def _badness(error: float | None) -> float:
    return float("inf") if error is None else error


def _where(point: dict, run: dict) -> str:
    shape = Point.of(run | {"problem": point["problem"]}).shape
    tensor = max(run["errors"], key=lambda name: _badness(run["errors"][name]))
    return f"{tensor}, {point['number']}: {shape}, {point['kind']}"


def failures(points: list[dict]) -> list[str]:
    """The kernels that do not pass their bar, in words."""
    return [f"{row['kernel']} {row['dtype']}: error "
            f"{'not finite' if row['worst'] is None else format(row['worst'], '.2e')}, bar "
            f"{row['bar']:g}: {row['at']}"
            for row in summary(points) if not _badness(row["worst"]) <= row["bar"]]


def recorded() -> list[dict]:
    """Every run of the repository, by file name: {"name", "provenance", "points"}."""
    return records.documents(FOLDER)
