"""Times of every tile of each kernel on a few shapes: what a choice of tiles is judged by.

  python -m hbmeter.experiments.tile_sweep --out FILE.json

Runs on a GPU, in under a minute on an H200. The first shape of each group is small and full: the
one that calibrated predictions take as known. Recorded in ``recorded/tiles/``.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from .. import kernels
from ..kernels.base import tensor_shape
from ..kernels.probes import launch as launch_probe
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from . import records
from .grid import Point
from .measure import source_hash
from .progress import Progress

SAMPLES = 5
BATCH_MS = 2.5  # of back-to-back launches in one sample
QUEUED_MAX = 400  # launches of a batch; a stream takes about a thousand before the host waits
HOST_S = 15e-6  # that the host takes for a launch, as long as it takes no more
COMPILERS = 12  # builds at once
ROWS, COLUMNS, STAGES = (32, 64, 96, 128, 256), (32, 64, 96, 128), (1, 2)
FOLDER = records.FOLDER / "tiles"
NOTES = {"clocks": "left alone", "times": "CUDA event time of a batch of back-to-back calls over "
         f"their number, a batch about {BATCH_MS} ms or one call; all of them are queued behind a "
         "kernel that waits before the first begins, so that none waits for the host"}


def _shape(heads, seq, head_dim, mask="full", order="row", **more):
    return Attention(more.pop("batch", 1), heads, seq, head_dim, mask=mask, **more), order


# Kernel: groups of (problem, grid order) that share their builds; the first calibrates.
SHAPES = {
    "flash2_mma": (
        (_shape(32, 2048, 64), _shape(16, 8192, 64), _shape(64, 2048, 64, "causal"),
         _shape(16, 8192, 64, "causal", "head"), _shape(16, 1000, 64, batch=4)),
        (_shape(32, 2048, 128), _shape(16, 4096, 128, order="head"),
         _shape(32, 4096, 128, "causal"), _shape(8, 16384, 128),
         _shape(64, 2048, 128, "causal", "head", kv_heads=8),
         _shape(16, 8192, 128, "window:2048")),
        (_shape(16, 2048, 256), _shape(16, 4096, 256, "causal")),
    ),
    "flash2": (
        (_shape(16, 1024, 64), _shape(16, 4096, 64, "causal"), _shape(32, 2048, 64, order="head")),
        (_shape(16, 1024, 128), _shape(16, 4096, 128, "causal"),
         _shape(32, 2048, 128, "window:512")),
    ),
    "flash1": (
        (_shape(128, 512, 64), _shape(128, 1024, 64, "causal"), _shape(300, 512, 64)),
        (_shape(128, 512, 128), _shape(128, 1024, 128, "causal")),
    ),
    "standard": (
        (_shape(64, 1024, 64), _shape(16, 1024, 64), _shape(8, 4096, 64),
         _shape(16, 2048, 64, "causal")),
        (_shape(64, 1024, 128), _shape(16, 1024, 128), _shape(8, 2048, 128)),
    ),
}


def tiles_of(kernel, problem: Attention) -> list[Tiles]:
    """Every tile of the sweep that the kernel accepts."""
    if kernel.most_stages == 1:
        return list(kernel.tile_choices(problem))
    found = (Tiles(br, bc, stages) for br in ROWS for bc in COLUMNS for stages in STAGES)
    return [tiles for tiles in found if kernel.accepts(problem, tiles)]


def points() -> Iterator[Point]:
    """The whole sweep, a shape after the other."""
    for name, groups in SHAPES.items():
        for group in groups:
            for problem, order in group:
                for tiles in tiles_of(kernels.get(name), problem):
                    yield Point(name, problem, tiles, order)


@cache
def calibrators() -> frozenset[Point]:
    """The points of the first shape of each group."""
    return frozenset(
        Point(name, problem, tiles, order)
        for name, groups in SHAPES.items() for (problem, order), *_ in groups
        for tiles in tiles_of(kernels.get(name), problem)
    )


def measure(wanted: list[Point], report, rounds: int = 1, samples: int = SAMPLES,
            rest_s: float = 0.0) -> list[dict]:
    """One dict a point that this GPU can run: the point, its attributes and its times, ``samples``
    in each of ``rounds`` over all points: clocks that drop for a while slow only some of them. The
    GPU rests for ``rest_s`` before: hard work lowers its clock for tens of milliseconds."""
    _build(wanted, report)
    report.start("timing", rounds * len(wanted))
    found: dict[Point, dict] = {}
    for number, point in enumerate(wanted * rounds):
        report.step(number, point)
        time.sleep(rest_s)
        try:
            attributes, times = _time(point, samples)
        except InputError as error:
            report.note(f"left out: {error}")
            continue
        one = found.setdefault(point, point.document | {"attributes": attributes, "times_ms": []})
        one["times_ms"] += times
    report.end()
    return list(found.values())


def _build(wanted: list[Point], report) -> None:
    """Compile every build at once; each point's own call then finds it ready."""
    from ..kernels import runner

    runner.require_gpu()
    first = {}
    for point in wanted:
        kernel = kernels.get(point.kernel)
        options = kernel.options(point.problem, point.tiles, order=point.order)
        first.setdefault((point.kernel, options), point)
    report.note(f"{len(first)} builds")
    with ThreadPoolExecutor(COMPILERS) as pool:
        list(pool.map(_attributes, first.values()))


def _attributes(point: Point) -> dict | None:
    from ..kernels import runner

    try:
        found = runner.attributes(kernels.get(point.kernel), point.problem, point.tiles,
                                  point.order)
    except InputError:
        return None  # measure() reports it
    return {entry: asdict(values) for entry, values in found.items()}


@lru_cache(maxsize=1)
def _inputs(problem: Attention):
    """Standard normal Q, K and V, made on the GPU, and what else the pass reads by name."""
    from ..kernels import runner

    cupy = runner.require_gpu()
    random = cupy.random.default_rng(0)

    def normal(name):
        shape = tensor_shape(name, problem)
        return runner.to_storage(random.standard_normal(shape, dtype=cupy.float32), problem.dtype)

    inputs = tuple(normal(name) for name in "QKV")
    if problem.direction == "forward":
        return inputs, None
    kernel, forward = kernels.get("flash2_mma"), replace(problem, direction="forward")
    saved = runner.run(kernel, forward, kernel.tile_choices(forward)[0], *inputs).outputs
    return inputs, saved | {"dO": normal("dO")}


def _time(point: Point, samples: int) -> tuple[dict | None, list[float]]:
    """Attributes, and milliseconds of a call over batches of back-to-back calls."""
    from ..kernels import runner

    inputs, more = _inputs(point.problem)
    prepared = runner.Prepared(kernels.get(point.kernel), point.problem, point.tiles,
                               *inputs, point.order, False, None, more)
    prepared.launch()
    once_ms = _batch_ms(prepared, 1)
    most = max(QUEUED_MAX // len(prepared.functions), 1)
    batch = min(max(round(BATCH_MS / once_ms), 1), most)
    return _attributes(point), [_batch_ms(prepared, batch) / batch for _ in range(samples)]


def _batch_ms(prepared, batch: int) -> float:
    """Milliseconds of so many calls, queued while a kernel keeps the GPU waiting; for longer, and
    all again, when the host took longer."""
    from ..kernels import runner

    cuda = runner.require_gpu().cuda
    wait = launch_probe.waiting()
    hold_s = HOST_S * batch * len(prepared.functions)
    while True:
        start, stop = cuda.Event(), cuda.Event()
        cuda.runtime.deviceSynchronize()
        began = time.perf_counter()
        wait((1,), (1,), (np.uint64(hold_s * 1e9),))
        start.record()
        for _ in range(batch):
            prepared.launch()
        stop.record()
        in_time = time.perf_counter() - began < hold_s
        stop.synchronize()
        if in_time:
            return cuda.get_elapsed_time(start, stop)
        hold_s *= 2


def recorded() -> list[dict]:
    """Every recorded sweep, by file name: {"name", "provenance", "points"}."""
    return records.documents(FOLDER)


def save(out: Path, found: list[dict], command: str) -> None:
    """Write a record of measured points."""
    from ..kernels import runner

    origin = records.provenance(runner.require_gpu(), None, source_hash(), NOTES)
    records.save(out, records.document(origin | {"command": command}, found))


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="record to write")
    out = parser.parse_args(arguments).out
    found = measure(list(points()), Progress(sys.stderr))
    save(out, found, "python -m hbmeter.experiments.tile_sweep")


if __name__ == "__main__":
    sys.exit(records.run(main))
