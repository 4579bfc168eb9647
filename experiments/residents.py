"""How fast thread blocks run that share an SM: their starts and ends, logged, and their paces.

  python -m hbmeter.experiments.residents --out FILE.json [--only "flash2_mma d64 128x64x1"]

Runs on a GPU, in 20 s on an H200. Recorded in ``recorded/residents/``.

Warps of the oldest block are served first, so a younger block runs at a pace below that of the
older one until that ends; then it is the oldest. Where Execution.younger_paces come from.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from .. import kernels
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from . import records
from .grid import Point
from .measure import source_hash
from .progress import Progress

FOLDER = records.FOLDER / "residents"
TOGETHER_NS = 2000  # blocks that start this close start together
LEAST_NS = 20_000  # that a block lasts whose pace says something
EVERY, KEPT = 11, 8  # SMs of which more than the first wave is kept: every how many-th, and blocks
COMPILERS = 12  # builds at once
NOTES = {"clocks": "left alone", "how": "kernels built with -DLOG_BLOCKS: the first thread of a "
         "block notes its SM and the GPU's timer (ticks of 32 ns) when it begins and ends; of two "
         "launches the second; of each SM the first blocks, of some SMs more"}


def points() -> list[Point]:
    """Kernels whose blocks share SMs (but decode's and the FMA backward), their usual tiles, and
    how many share one."""
    found = [Point(kernel, problem, tiles, "row", most)
             for kernel, problem, choices in _choices() for tiles in choices
             for most in _limits(kernel)]
    return [point for point in found if kernels.get(point.kernel).accepts(point.problem,
                                                                         point.tiles)]


def _choices():
    """(Kernel, problem, tiles)."""
    yield from (("flash2_mma", Attention(1, 24, 4096, d, dtype=dtype), tiles)
                for d, dtype, tiles in (
        (64, "fp16", (Tiles(128, 128, 2), Tiles(128, 96, 2), Tiles(64, 64), Tiles(64, 64, 2),
                      Tiles(128, 64))),
        (64, "bf16", (Tiles(64, 64), Tiles(64, 64, 2), Tiles(32, 64, 2))),
        (128, "fp16", (Tiles(128, 64, 2), Tiles(128, 32, 2), Tiles(64, 64), Tiles(64, 64, 2),
                       Tiles(64, 32, 2))),
        (256, "fp16", (Tiles(64, 64), Tiles(64, 32))),
    ))
    for dtype in ("fp16", "bf16", "fp32"):
        for d, tiles in ((64, (Tiles(64, 64), Tiles(128, 128), Tiles(64, 128))),
                         (128, (Tiles(64, 64), Tiles(128, 64)))):
            yield "flash2", Attention(1, 16, 2048, d, dtype=dtype), tiles
            yield "flash1", Attention(1, 264, 512, d, dtype=dtype), tiles
            yield "standard", Attention(1, 12, 2048, d, dtype=dtype), tiles
        small = (Tiles(16, 16), Tiles(32, 32), Tiles(16, 64), Tiles(64, 16))
        yield "flash2", Attention(1, 16, 2048, 64, dtype=dtype), small
        yield "flash1", Attention(1, 1056, 512, 64, dtype=dtype), small
    for d in (64, 128):
        yield "flash1_mma", Attention(1, 12, 4096, d), kernels.get("flash1_mma").tile_choices(
            Attention(1, 12, 4096, d))
        yield "standard_mma", Attention(1, 12, 4096, d), (Tiles(128, 128, 3), Tiles(64, 64, 2))
        backward = Attention(1, 12, 4096, d, direction="backward")
        yield "flash2_backward", backward, kernels.get("flash2_backward").tile_choices(backward)
    for kernel in ("softmax_fused", "softmax_online", "softmax_safe"):
        for dtype in ("fp16", "fp32"):
            rows = Attention(1, 1, 4096, 64, kv_seq=16384, dtype=dtype, direction="softmax")
            yield kernel, rows, kernels.get(kernel).tile_choices(rows)[:1]


def _limits(kernel: str) -> tuple[int | None, ...]:
    """Most blocks on an SM; those of the L2's points are kept apart too."""
    return (None, 4, 3, 2) if kernel == "flash2_mma" else (None,)


# ---- What was logged ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Residents:
    """The thread blocks of one launch of a point, by SM: (start, end) in ns, in the order of
    starts."""

    gpu: str
    point: Point
    launch: int
    blocks: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def together(self) -> int:
        """Blocks that an SM has at once: those that start with the first, the median of the SMs."""
        return int(median(map(len, map(_first_wave, self.blocks))))

    @property
    def first_waves(self) -> list[list[tuple[int, int]]]:
        """Blocks that start together, of SMs that have as many as most."""
        waves = map(_first_wave, self.blocks)
        return [wave for wave in waves if len(wave) == self.together]

    @property
    def paces(self) -> tuple[float, ...]:
        """Speeds of blocks of equal length that start together, by age, over that of the oldest;
        the median of the SMs.

        When the first ends, the others are each one older: a block's length is what it does at each
        age, one after the other.
        """
        ends = np.median([np.sort([end for _, end in wave]) - wave[0][0]
                          for wave in self.first_waves], axis=0)
        lasting, speeds = np.diff(ends, prepend=0.0), np.ones(len(ends))
        for age in range(1, len(ends)):
            older = speeds[age - 1::-1] @ lasting[1:age + 1]
            speeds[age] = (ends[0] - older) / ends[0]
        return tuple(map(float, speeds))

    @property
    def pace(self) -> float:
        """Of the next older block: the mean over the ages."""
        return float(self.paces[-1] ** (1 / max(len(self.paces) - 1, 1)))


def _first_wave(blocks):
    return [(start, end) for start, end in blocks if start - blocks[0][0] <= TOGETHER_NS]


def load_all() -> list[Residents]:
    """All that is recorded, of launches in which blocks share SMs for long enough."""
    found = []
    for record in records.documents(FOLDER):
        for data in record["points"]:
            for number, sms in enumerate(data["launches"]):
                blocks = tuple(tuple(zip(sm[::2], sm[1::2], strict=True)) for sm in sms)
                one = Residents(record["provenance"]["gpu"], Point.of(data), number, blocks)
                lasting = median(blocks[0][1] - blocks[0][0] for blocks in one.blocks)
                if one.together > 1 and lasting > LEAST_NS:
                    found.append(one)
    return found


# ---- Runs ---------------------------------------------------------------------------------------


def measure(chosen: list[Point], report: Progress) -> list[dict]:
    """Log each point; those that this GPU cannot run are left out."""
    report.start("logged builds", len(chosen))
    with ThreadPoolExecutor(COMPILERS) as pool:
        runs = list(pool.map(_compiled, chosen))
    chosen = [point for point, here in zip(chosen, runs, strict=True) if here]
    report.start("blocks", len(chosen))
    found = []
    for number, point in enumerate(chosen):
        report.step(number, point)
        found.append(point.document | {"launches": _logged(point)})
    report.end()
    return found


def _compiled(point: Point) -> bool:
    from ..kernels import runner

    try:
        runner.attributes(kernels.get(point.kernel), point.problem, point.tiles, point.order,
                          log=True)
    except InputError:
        return False
    return True


def _logged(point: Point) -> list[list[list[int]]]:
    """[launch, SM, start and end of each block]."""
    from ..kernels import runner
    from .profile_child import _inputs

    inputs = _inputs(point.problem)
    q, k, v = (inputs.pop(name, None) for name in "QKV")
    logs = runner.block_logs(kernels.get(point.kernel), point.problem, point.tiles, q, k, v,
                             point.order, point.blocks_per_sm, inputs)
    return [_by_sm(log) for log in logs.values()]


def _by_sm(log: np.ndarray) -> list[list[int]]:
    log = log[np.argsort(log[:, 1], kind="stable")]
    found = []
    for sm in np.unique(log[:, 0]):
        blocks = log[log[:, 0] == sm, 1:]
        kept = len(_first_wave(blocks.tolist()))
        found.append(blocks[:max(kept, KEPT if sm % EVERY == 0 else 0)].ravel().tolist())
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the record."""
    from ..kernels import runner

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="record to write")
    parser.add_argument("--only", default="", metavar="WORDS", help="points that have all of these "
                        "words: kernel, heads and length, d64, fp16, tiles as 128x64x1")
    given = parser.parse_args(arguments)
    chosen = [point for point in points() if set(given.only.split()) <= set(_words(point))]
    if not chosen:
        parser.error(f"--only {given.only!r}: no point has all of these words; one has "
                     f"{' '.join(_words(points()[0]))!r}")
    found = measure(chosen, Progress(sys.stderr))
    origin = records.provenance(runner.require_gpu(), None, source_hash(), NOTES)
    origin["command"] = "python -m hbmeter.experiments.residents" + (
        f" --only {given.only!r}" if given.only else "")
    records.save(given.out, records.document(origin, found))


def _words(point: Point) -> list[str]:
    tiles = point.tiles
    return [point.kernel, *point.shape.split(), f"{tiles.br}x{tiles.bc}x{tiles.stages}"]


if __name__ == "__main__":
    sys.exit(records.run(main))
