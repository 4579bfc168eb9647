"""Launcher of starts.cu: what kernels wait for when they start: their first tile and instructions.

Importing this needs no CuPy.
"""

from pathlib import Path
from statistics import median

import numpy as np

from ..tensor_map import tensor_map
from .bench import STAMP_WORDS, Bench, Fact, curve, select

SOURCE = Path(__file__).with_suffix(".cu")
TMA_CAPABILITY = 90
THREADS, WIDTH, BOX_ROWS = 384, 64, 64  # columns of 16 bits in a row; rows of a box
ROWS = (64, 128, 256, 512)  # of a first tile
ROW_BYTES = 2 * WIDTH
TILE_BYTES = 32 << 10  # of the tile that the fact is about
SHARED_BYTES = 160 << 10  # one block an SM; less where a block gets no more
CODE_THREADS, CODE_KIB = 128, 16


def measure(bench: Bench) -> None:
    """Add this probe's points; first tiles by TMA only on a GPU that has it."""
    functions = bench.functions(SOURCE)
    bench.step("first tiles")
    shared = min(SHARED_BYTES, bench.block_shared_bytes)
    tensor = bench.cupy.zeros((bench.sms, max(ROWS), WIDTH), np.uint16)
    for rows in (rows for rows in ROWS if rows * ROW_BYTES <= shared):
        _first(bench, functions("first_copy"), "first_copy", rows, shared, (tensor, np.int32(rows)))
        if bench.capability >= TMA_CAPABILITY:
            boxes = tensor_map(tensor, BOX_ROWS, WIDTH)
            _first(bench, functions("first_tma"), "first_tma", rows, shared,
                   (boxes, np.int32(rows), np.int32(BOX_ROWS)))
    bench.step("first instructions")
    code, other = functions("code"), functions("other_code")
    for before in (0, 2):
        _code(bench, code, other, before)


def _first(bench: Bench, function, series: str, rows: int, shared: int, arguments) -> None:
    samples = bench.time(function, bench.sms, THREADS, arguments, shared)
    bench.add(series, rows * ROW_BYTES, "bytes", samples, bytes=rows * ROW_BYTES, sms=bench.sms)


def _code(bench: Bench, code, other, before: int) -> None:
    """The instructions after ``before`` rounds of the same, after a kernel with other ones."""
    numbers = (np.float32(0.5), np.float32(0.5), bench.sink)
    unread = bench.cupy.zeros((bench.sms, STAMP_WORDS), np.int64)

    def after_other(_repeat):
        other((bench.sms,), (CODE_THREADS,), (np.int32(0), *numbers, unread))
        return np.int32(before), *numbers

    samples = bench.time(code, bench.sms, CODE_THREADS, None, before=after_other)
    bench.add("code", CODE_KIB << 10, "bytes", samples, before=before, sms=bench.sms)


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say: of two series, one beyond the other."""
    def pairs(one: dict, other: dict):
        return zip(select(points, **one), select(points, **other), strict=False)

    tile = {"bytes": TILE_BYTES}
    found = [Fact(
        "tma_start", "cycles", _beyond(tma, copy),
        f"a thread block's first {TILE_BYTES >> 10} KiB, from L2 by TMA, its barrier made, "
        "beyond the same by cp.async; one block an SM; the curve has cycles of all of it "
        "against bytes", (),
        curve(select(points, "first_tma"), "bytes", _cycles), "bytes")
        for tma, copy in pairs(tile | {"series": "first_tma"}, tile | {"series": "first_copy"})]
    return found + [Fact(
        "code_start", "cycles", _beyond(first, later), f"{CODE_KIB} KiB of instructions in a row, "
        "after a kernel with 64 KiB of others, beyond the same the third time")
        for first, later in pairs({"series": "code", "before": 0}, {"series": "code", "before": 2})]


def _cycles(point: dict) -> list[float]:
    return [sample["cycles"] for sample in point["samples"]]


def _beyond(point: dict, other: dict) -> tuple[float, ...]:
    usual = median(_cycles(other))
    return tuple(cycles - usual for cycles in _cycles(point))
