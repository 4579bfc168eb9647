"""Points measured only after the L2 model was finished: its predictions had nothing to look at.

Chosen before any of them was run: of all the combinations below, in each kernel those whose hash is
least. Shapes of the recorded grid are left out. Points that have been looked at are fresh no more:
each model that was made after that has a drawing of its own.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from heapq import nsmallest
from itertools import islice, product

from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from .grid import Point

# One a model.
SALTS = (b"fresh ", b"fresh 2 ", b"fresh 4 ", b"fresh 5 ", b"fresh 6 ", b"fresh 7 ", b"fresh 8 ",
         b"fresh 9 ", b"fresh 10 ", b"fresh 11 ",
         b"fresh 12 ")
HEADS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LENGTHS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536,
           98304, 131072)
MASKS = ("full", "causal", "window:4096")
SHARING = (1, 4, 8)  # query heads of a KV head
COUNTS = {"flash2_mma": 36, "flash2": 14, "flash1": 6, "standard": 4}
TILES = {
    "flash2_mma": {64: (Tiles(128, 128, 2), Tiles(64, 64), Tiles(64, 64, 2)),
                   128: (Tiles(128, 64, 2), Tiles(64, 64)), 256: (Tiles(64, 64),)},
    "flash2": {64: (Tiles(128, 128), Tiles(64, 64)), 128: (Tiles(128, 64), Tiles(64, 64))},
    "flash1": {64: (Tiles(64, 64), Tiles(64, 128)), 128: (Tiles(64, 64),)},
    "standard": {64: (Tiles(128, 128), Tiles(64, 64)), 128: (Tiles(128, 128),)},
}
DTYPES = {"flash2_mma": ("fp16", "bf16")}  # of others also fp32
LIMITS = {"flash2_mma": (None, 1, 2, 3, 4)}  # blocks per SM; others: as many as fit
ORDERS = {"flash1": ("row",)}  # one block a head: no order
FLOPS = {"flash2_mma": (3e10, 8e12)}  # a point's work, so that all are measured in minutes
FMA_FLOPS = (1e10, 4e11)
KV_BYTES_MIN = 4 << 20  # of all heads
SCORES_MAX, ELEMENTS_MAX = 4e10, 1.2e8  # of the float64 reference, and of each input


@cache
def points() -> tuple[Point, ...]:
    """Those of the latest model, in the order of their kernels and hashes."""
    return _drawings()[-1]


@cache
def seen() -> tuple[Point, ...]:
    """Those of models before it."""
    return tuple(point for drawing in _drawings()[:-1] for point in drawing)


@cache
def _drawings() -> tuple[tuple[Point, ...], ...]:
    """One a salt: of each kernel those of least hash that no record and no earlier drawing has."""
    from .grid import recorded

    known, found = set(recorded()), []
    least = {kernel: _least(kernel, known) for kernel in COUNTS}
    for number in range(len(SALTS)):
        drawn = [point for kernel, count in COUNTS.items()
                 for point in islice((p for p in least[kernel][number] if p not in known), count)]
        found.append(tuple(drawn))
        known.update(drawn)
    return tuple(found)


def _least(kernel: str, known: set[Point]) -> list[list[Point]]:
    """By salt, the candidates that are not known by their hashes: the first, enough for all
    drawings."""
    written = {point.text.encode(): point for point in _candidates(kernel) if point not in known}
    enough = COUNTS[kernel] * len(SALTS)

    def least(salt: bytes) -> list[Point]:
        hashed = ((hashlib.sha256(salt + text).digest(), text) for text in written)
        return [written[text] for _, text in nsmallest(enough, hashed)]

    return [least(salt) for salt in SALTS]


def _candidates(kernel: str) -> Iterator[Point]:
    """Every combination that is not too small or too large and that the kernel runs."""
    from .. import kernels

    launcher = kernels.get(kernel)
    least, most = FLOPS.get(kernel, FMA_FLOPS)
    dtypes = DTYPES.get(kernel, ("fp16", "bf16", "fp32"))
    for head_dim, choices in TILES[kernel].items():
        for heads, seq, sharing, dtype, mask in product(HEADS, LENGTHS, SHARING, dtypes, MASKS):
            if heads % sharing or (mask.startswith("window") and seq <= 4096):
                continue
            problem = Attention(1, heads, seq, head_dim, heads // sharing, dtype=dtype, mask=mask)
            kv_bytes = 2 * problem.kv_heads * seq * head_dim * problem.dtype_bytes
            if not least <= problem.flops <= most or kv_bytes < KV_BYTES_MIN:
                continue
            if heads * seq * seq > SCORES_MAX or heads * seq * head_dim > ELEMENTS_MAX:
                continue
            if kernel == "standard" and heads * seq * seq * problem.dtype_bytes > 1 << 30:
                continue
            for tiles in choices:
                if _runs(launcher, problem, tiles):
                    for order, limit in product(ORDERS.get(kernel, ("row", "head")),
                                                LIMITS.get(kernel, (None,))):
                        yield Point(kernel, problem, tiles, order, limit)


def _runs(kernel, problem: Attention, tiles: Tiles) -> bool:
    try:
        kernel.check(problem, tiles)
    except InputError:
        return False
    return True
