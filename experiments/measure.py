"""Measures the points of a grid on this machine's GPU: results, times, counted bytes, counters."""

import hashlib
import json
import sys
import tempfile
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from .. import kernels
from ..kernels.errors import Unavailable
from ..kernels.probes import l2 as probes
from ..simulator.errors import InputError
from . import calibrate, grid, ncu, records
from .ncu_csv import Profiled
from .profile_child import PROGRESS
from .progress import Progress

SAMPLES = 10
WARM_UP = 3
AT_ONCE = 30  # points of one run of ncu, whose counters are kept when it ends
SIDE_PROBE = {"count": 64, "stride_bytes": 8192}
CHILD = f"{__package__}.profile_child"
NOTES = {
    "clocks": "left alone; times are CUDA event times of all launches of a call, caches warm",
    "cache_control": "counters: caches flushed before each launch (ncu --cache-control all), "
                     "clocks left alone (ncu --clock-control none)",
    "memory": "counters: other memory for each repeat, up to 63 physical pages between arrays",
}


def measure(points, out: str | None, *, counters: bool = True, repeats: int = 3,
            report=None) -> tuple[dict, Unavailable | None]:
    """(record document, why there are no counters or None) of ``points`` on this GPU.

    ``out`` names the record file (None: keep nothing); results stream to ``out``.partial and a
    run that was stopped goes on from there. Points that this GPU cannot run are left out with a
    note. Raises Unavailable without a GPU or CuPy.
    """
    from ..kernels import runner

    cupy = runner.require_gpu()
    report = report or Progress(sys.stderr)
    path, why = None, None
    if counters:
        try:
            path = ncu.find()
        except Unavailable as error:
            why = error
    notes = NOTES | {"sm_partitions": _sm_partitions()}
    provenance = records.provenance(cupy, path and ncu.version(path), source_hash(), notes)
    header = {key: provenance[key] for key in ("format", "gpu", "driver", "kernel_sources")}
    partial = records.Partial(out and f"{out}.partial", header)
    if partial.resumed:
        report.note(f"going on from {out}.partial, which has {partial.resumed} results")
    points = _run_all(points, partial, report)
    for repeat in range(repeats if path else 0):
        try:
            _count_all(path, points, repeat, partial, report)
        except Unavailable as error:
            why = error
            break
    report.end()
    document = records.document(provenance, [_gather(p, partial, repeats) for p in points])
    if out:
        records.save(out, document)
        if why is None:  # else a later run adds the counters
            partial.finish()
    return document, why


def _sm_partitions() -> str | None:
    """Profile.l2.sm_partitions of this very GPU, on which others of its kind differ; None where
    latencies do not tell."""
    smid, cycles = probes.latency(**SIDE_PROBE)
    found = calibrate.sides({"smid": smid, "cycles": cycles})
    return None if found is None else "".join(map(str, found))


def source_hash() -> str:
    """Changes with any CUDA source or launcher."""
    digest = hashlib.sha256()
    for path in sorted(p for p in kernels.FOLDER.iterdir() if p.suffix in (".cu", ".cuh", ".py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _key(point: grid.Point, part: str) -> str:
    return f"{json.dumps(point.document)} {part}"


def _gather(point: grid.Point, partial: records.Partial, repeats: int) -> dict:
    keys = [_key(point, f"counters {repeat}") for repeat in range(repeats)]
    counters = [partial[key] for key in keys if key in partial]
    return point.document | partial[_key(point, "run")] | {"counters": counters}


# ---- Results, times, counted bytes ------------------------------------------------------------


def _run_all(points, partial: records.Partial, report) -> list[grid.Point]:
    """Run what has not been run; the points that this GPU can run."""
    from ..kernels.ahead import build_ahead

    missing = [point for point in points if _key(point, "run") not in partial]
    build_ahead([(point.kernel, point.problem, point.tiles, point.order, count)
                 for point in missing for count in (False, True)], report)
    report.start("running and timing", len(missing))
    # One problem after the other: its inputs and reference are made once.
    for number, point in enumerate(sorted(missing, key=lambda point: str(point.problem))):
        report.step(number, point)
        try:
            partial.put(_key(point, "run"), run_point(point))
        except InputError as error:
            report.note(f"left out: {error}")
    return [point for point in points if _key(point, "run") in partial]


@lru_cache(maxsize=1)
def _inputs_and_reference(problem):
    """Q, K and V (None of a softmax), what else the pass reads by name, and its results in
    float64."""
    from ..kernels import gradients, runner, scores

    if problem.direction == "softmax":
        more = scores.random_scores(problem)
        return (None, None, None), more, scores.reference_weights(problem, more["S"])
    inputs = runner.random_inputs(problem)
    if problem.direction == "forward":
        return inputs, {}, runner.reference(problem, *inputs)
    more = gradients.backward_inputs(problem, *inputs)
    return inputs, more, gradients.reference_gradients(problem, *inputs, more["dO"])


def run_point(point: grid.Point) -> dict:
    """Attributes, error, times and counted bytes of one point."""
    from ..kernels import runner

    kernel = kernels.get(point.kernel)
    inputs, more, expected = _inputs_and_reference(point.problem)
    call = (kernel, point.problem, point.tiles)
    launch = {"order": point.order, "most_blocks_per_sm": point.blocks_per_sm}
    plain = runner.run(*call, *inputs, more=more, **launch)
    counted = runner.run(*call, *inputs, count=True, more=more, **launch)
    times = runner.time_ms(*call, *inputs, warmup=WARM_UP, repeats=SAMPLES, more=more, **launch)
    attributes = runner.attributes(*call, **launch)
    errors = _errors(plain.outputs, expected)
    return {
        "attributes": {entry: asdict(found) for entry, found in attributes.items()},
        "error": errors,
        "times_ms": list(times.samples_ms),
        "counted": counted.bytes,
    }


def _errors(outputs: dict, expected: dict) -> dict:
    """{"O": {"written": every element, "relative": ‖x − reference‖ / ‖reference‖ or None}, …}.

    S and P of standard attention have no reference: only whether every element was written.
    """
    from ..kernels import runner

    found = {}
    for name, stored in outputs.items():
        array = runner.to_float(stored)
        cupy = runner.require_gpu()
        written = not bool(cupy.isnan(array).any())  # outputs start as NaN
        relative = None
        if name in expected:
            difference = array.astype(cupy.float64) - expected[name]
            relative = float(cupy.linalg.norm(difference) / cupy.linalg.norm(expected[name]))
        finite = relative is not None and relative == relative and relative < float("inf")
        found[name] = {"written": written, "relative": relative if finite else None}
    return found


# ---- Counters ---------------------------------------------------------------------------------


def _count_all(path: str, points, repeat: int, partial: records.Partial, report) -> None:
    """Every point under ncu, unless an earlier run has its counters."""
    missing = [point for point in points if _key(point, f"counters {repeat}") not in partial]
    if missing:
        report.start(f"counters, repeat {repeat + 1}", len(missing))
    for first in range(0, len(missing), AT_ONCE):
        _count(path, missing[first:first + AT_ONCE], first, repeat, partial, report)


def _count(path: str, points, first: int, repeat: int, partial: records.Partial, report) -> None:
    """One run of ncu over some points, the missing ones from number ``first`` on."""

    def on_line(line: str) -> None:
        if line.startswith(PROGRESS):
            number = int(line.removeprefix(PROGRESS))
            report.step(first + number, points[number])

    with tempfile.TemporaryDirectory(prefix="hbmeter-") as folder:
        spec = Path(folder) / "points.json"
        spec.write_text(json.dumps([point.document for point in points]), encoding="utf-8")
        answer = ncu.profile(path, CHILD, [str(spec), str(repeat)], on_line=on_line)
    if answer.dropped:
        report.note(f"this GPU does not have {', '.join(answer.dropped)}")
    for point, launches in zip(points, by_point(points, answer.launches), strict=True):
        partial.put(_key(point, f"counters {repeat}"), [
            {"kernel": launch.function, "metrics": ncu.asked_for(launch.metrics)}
            for launch in launches
        ])


def by_point(points, launches: list[Profiled]) -> list[list[Profiled]]:
    """The profiled launches of each point, by their order.

    Raises Unavailable when they are not the launches that the points make.
    """
    expected = [
        [launch.entry for launch in
         kernels.get(point.kernel).launches(point.problem, point.tiles, point.order)]
        for point in points
    ]
    names = [name for entries in expected for name in entries]
    seen = [launch.function for launch in launches]
    if seen != names:
        wrong = next((i for i, pair in enumerate(zip(names, seen, strict=False))
                      if pair[0] != pair[1]), min(len(names), len(seen)))
        got = seen[wrong] if wrong < len(seen) else "nothing"
        want = names[wrong] if wrong < len(names) else "nothing"
        raise Unavailable(
            f"the profiled launches are not those of the points: {len(seen)} launches, "
            f"{len(names)} expected; number {wrong} is {got}, expected {want}; counters are left "
            "out"
        )
    rest = iter(launches)
    return [[next(rest) for _ in entries] for entries in expected]


# ---- Progress ---------------------------------------------------------------------------------
