"""Times of points that nobody had measured when the time model was finished.

  python -m hbmeter.experiments.held_out_times --out FILE.json

Runs on a GPU, in about a minute on an H200. Recorded in ``recorded/held_out/``. Chosen before any
of them was run: of all combinations below, in each kernel those whose hash is least. Each build is
also timed on one small full shape that fills the GPU: the run that calibrated predictions know.

A model that was changed after a list was measured and looked at has a new one, drawn with another
salt; points of earlier lists are left out of it.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from heapq import nsmallest
from itertools import product
from pathlib import Path

from .. import kernels
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from . import records, tile_sweep
from .grid import Point
from .progress import Progress

FOLDER = records.FOLDER / "held_out"
# The list to be measured last.
SALTS = ("time ", "time, second list ", "time, fourth list ", "time, fifth list ",
         "time, sixth list ", "time, seventh list ", "time, eighth list ")
ROUNDS, SAMPLES = 3, 2  # over all points, and of each in a round
REST_S = 0.05  # of the GPU, before each point of a round (0.02 after a long one left it slow)
HEADS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 264)
LENGTHS = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576)
MASKS = ("full", "causal", "window:1024")
COUNTS = {"flash2_mma": 60, "flash2": 20, "flash1": 10, "standard": 10, "flash2_wgmma": 20,
          "flash1_mma": 12, "standard_mma": 12, "flash2_backward": 24}
TILES = {
    "flash2_mma": {64: (Tiles(128, 128, 2), Tiles(64, 64, 2), Tiles(128, 64), Tiles(32, 64, 2)),
                   128: (Tiles(128, 64, 2), Tiles(64, 64), Tiles(64, 32, 2), Tiles(256, 64, 2)),
                   256: (Tiles(64, 64), Tiles(128, 64))},
    "flash2": {64: (Tiles(128, 128), Tiles(64, 64)), 128: (Tiles(128, 64), Tiles(64, 64))},
    "flash1": {64: (Tiles(64, 128), Tiles(64, 64)), 128: (Tiles(64, 64),)},
    "standard": {64: (Tiles(128, 128), Tiles(64, 64)), 128: (Tiles(128, 128),)},
    "flash2_wgmma": {64: (Tiles(192, 128, 2),), 128: (Tiles(128, 128, 2), Tiles(64, 64, 2)),
                     256: (Tiles(128, 80, 2),)},
    "flash1_mma": {64: (Tiles(128, 256, 2),), 128: (Tiles(128, 192, 2),)},
    "standard_mma": {64: (Tiles(128, 128, 3, 64),), 128: (Tiles(128, 128, 3, 64),)},
    "flash2_backward": {64: (Tiles(32, 128, 2), Tiles(64, 64, 2)), 128: (Tiles(64, 128, 2),)},
}
FMA = ("flash2", "flash1", "standard")  # which also take fp32, and do a tenth of the work
FLOPS, FMA_FLOPS = (4e9, 1e12), (1e9, 6e10)  # of a point
SCORES_BYTES, ELEMENTS = 1 << 30, 1.2e8  # most of standard attention, and of each input
# Heads and length of the calibrating shape; all others: 64 heads.
SMALL = {"flash1": (264, 512), "flash1_mma": (264, 1024), "flash2": (64, 1024),
         "standard": (64, 1024)}
USUAL = (64, 2048)


def points(number: int = len(SALTS) - 1) -> tuple[Point, ...]:
    """All of a list, by default of the last one, in the order of their kernels and hashes."""
    return _lists()[number]


@cache
def _lists() -> tuple[tuple[Point, ...], ...]:
    """One a salt, of points that are in no earlier one."""
    found: list[list[Point]] = [[] for _ in SALTS]
    for kernel, count in COUNTS.items():
        left = {point.text: point for point in _candidates(kernel)}
        for drawn, salt in zip(found, SALTS, strict=True):
            texts = nsmallest(count, left, key=lambda text: _hash(salt + text))
            drawn += [left.pop(text) for text in texts]
    return tuple(map(tuple, found))


@cache
def calibrators() -> tuple[Point, ...]:
    """The small shape of every build."""
    return tuple(dict.fromkeys(_small(point) for point in points()))


def calibrates(point: Point) -> bool:
    """Whether a point is the small shape of its build."""
    return point == _small(point)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _small(point: Point) -> Point:
    heads, seq = SMALL.get(point.kernel, USUAL)
    p = point.problem
    problem = Attention(1, heads, seq, p.head_dim, dtype=p.dtype, direction=p.direction)
    return Point(point.kernel, problem, point.tiles)


def _candidates(name: str) -> Iterator[Point]:
    """Every combination that is not too small or too large, and no calibrating shape."""
    kernel = kernels.get(name)
    least, most = FMA_FLOPS if name in FMA else FLOPS
    orders = ("row",) if name.startswith("flash1") else ("row", "head")
    for head_dim, choices in TILES[name].items():
        for heads, seq, mask, dtype in product(HEADS, LENGTHS, MASKS, kernel.dtypes):
            problem = Attention(1, heads, seq, head_dim, dtype=dtype, mask=mask,
                                direction=kernel.direction)
            scores = heads * seq * seq * problem.dtype_bytes
            if (not least <= problem.flops <= most or heads * seq * head_dim > ELEMENTS
                    or (name.startswith("standard") and scores > SCORES_BYTES)
                    or (mask.startswith("window") and seq <= 1024)
                    or (heads, seq) == SMALL.get(name, USUAL)):
                continue
            for tiles in choices:
                if kernel.accepts(problem, tiles):
                    yield from (Point(name, problem, tiles, order) for order in orders)


def recorded() -> list[dict]:
    """Every record, by file name: {"name", "provenance", "points"}."""
    return records.documents(FOLDER)


def is_fresh(record: dict) -> bool:
    """Whether a record is of the last list: it was first measured when the model was finished."""
    last = set(points())
    return any(Point.of(data) in last for data in record["points"])


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="record to write")
    out = parser.parse_args(arguments).out
    found = tile_sweep.measure([*calibrators(), *points()], Progress(sys.stderr), ROUNDS, SAMPLES,
                               REST_S)
    tile_sweep.save(out, found, f"python -m {__spec__.name}")


if __name__ == "__main__":
    sys.exit(records.run(main))
