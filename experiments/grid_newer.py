"""Points of the kernels for training, decoding and softmax, first measured when the model was done.

As grid_fresh.py has them for the kernels that the L2 model was developed with: of all combinations
below, in each kernel those whose hash is least, none of them in the recorded grid.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from heapq import nsmallest
from itertools import product

from .. import kernels
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from .grid import Point

SALT = b"newer "
HEADS = (4, 8, 16, 32, 48, 64, 128)
LENGTHS = (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
MASKS = ("full", "causal", "window:4096")
TILES = {
    "flash2_wgmma": {64: (Tiles(192, 128, 2),), 128: (Tiles(128, 128, 2), Tiles(64, 64, 2)),
                     256: (Tiles(128, 80, 2),)},
    "flash1_mma": {64: (Tiles(128, 256, 2), Tiles(64, 64, 2)), 128: (Tiles(128, 192, 2),)},
    "standard_mma": {64: (Tiles(128, 128, 3, 64),), 128: (Tiles(128, 128, 3, 64),)},
    "flash2_backward": {64: (Tiles(32, 128, 2), Tiles(64, 64, 2)), 128: (Tiles(64, 128, 2),),
                        256: (Tiles(64, 64),)},
    "flash2_backward_fma": {64: (Tiles(32, 64),)},
}
COUNTS = {"flash2_wgmma": 12, "flash1_mma": 5, "standard_mma": 6, "flash2_backward": 10,
          "flash2_backward_fma": 3, "split_kv": 8, "paged": 4, "softmax_safe": 3,
          "softmax_online": 3, "softmax_fused": 2}
# One block a head, or none at all: no order.
ORDERS = {name: ("row",) for name in ("flash1_mma", "softmax_safe", "softmax_online",
                                      "softmax_fused")}
FLOPS, FMA_FLOPS = (3e10, 4e12), (1e10, 2e11)
INPUT_BYTES = (8 << 20, 1 << 30)  # all of them
SCORES_MAX = 2e10  # of the float64 reference
STANDARD_SCORES_BYTES_MAX = 1 << 30


@cache
def points() -> tuple[Point, ...]:
    """All of them, in the order of their kernels and hashes."""
    from .grid import recorded

    known, found = set(recorded()), []
    for kernel, count in COUNTS.items():
        left = (point for point in _candidates(kernel) if point not in known)
        found += nsmallest(count, left, key=_hash)
    return tuple(found)


def _hash(point: Point) -> bytes:
    return hashlib.sha256(SALT + point.text.encode()).digest()


def _candidates(name: str) -> Iterator[Point]:
    """Every combination that is not too small or too large and that the kernel runs."""
    kernel, family = kernels.get(name), _FAMILIES.get(name, _square)
    for problem, tiles in family(name):
        least, most = INPUT_BYTES
        if least <= problem.compulsory_read_bytes <= most and kernel.accepts(problem, tiles):
            for order in ORDERS.get(name, ("row", "head")):
                yield Point(name, problem, tiles, order)


Choices = Iterator[tuple[Attention, Tiles]]


def _square(name: str) -> Choices:
    """As many keys as queries, forward or backward."""
    kernel = kernels.get(name)
    least, most = FMA_FLOPS if name.endswith("_fma") else FLOPS
    for head_dim, choices in TILES[name].items():
        for heads, seq, mask, dtype in product(HEADS, LENGTHS, MASKS, kernel.dtypes):
            problem = Attention(1, heads, seq, head_dim, dtype=dtype, mask=mask,
                                direction=kernel.direction)
            scores = heads * seq * seq
            kept = scores * problem.dtype_bytes * name.startswith("standard")
            if (least <= problem.flops <= most and scores <= SCORES_MAX
                    and kept <= STANDARD_SCORES_BYTES_MAX
                    and not (mask.startswith("window") and seq <= 4096)):
                yield from ((problem, tiles) for tiles in choices)


def _decode(name: str) -> Choices:
    """A token of each sequence against its cache."""
    for batch, (heads, kv_heads), kv_seq, head_dim, dtype in product(
            (1, 2, 4, 8, 16, 32, 64), ((32, 8), (8, 8), (64, 8), (16, 2)),
            (1024, 2048, 4096, 8192, 16384, 32768, 65536), (64, 128), ("fp16", "bf16")):
        problem = Attention(batch, heads, 1, head_dim, kv_heads, kv_seq=kv_seq, dtype=dtype)
        yield problem, Tiles(16, 64, 3)


def _softmax(name: str) -> Choices:
    """Matrices of rows that are in flight in L2, and of ones that are not."""
    for rows, columns, dtype in product((1024, 2048, 4096, 8192, 16384),
                                        (2048, 4096, 8192, 16384, 32768, 65536),
                                        ("fp16", "bf16", "fp32")):
        problem = Attention(1, 1, rows, 128, kv_seq=columns, dtype=dtype, direction="softmax")
        yield problem, Tiles(1, 2048 if dtype == "fp32" else 4096)


_FAMILIES: dict[str, Callable[[str], Choices]] = {
    "split_kv": _decode, "paged": _decode,
    "softmax_safe": _softmax, "softmax_online": _softmax, "softmax_fused": _softmax,
}
