"""The grid of points that ``hbmeter verify`` measures: kernels, shapes, tiles and grid orders."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles

SHAPE = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "value_dim", "dtype", "mask")
TILES = ("br", "bc", "stages", "bk")
UNUSUAL = {"direction": "forward"}  # of a problem, written when it is another
# Tile options that are written when they are others.
TILE_OPTIONS = {"splits": 1, "page": 16, "kv_order": "forward"}


def of_problem(problem: Attention) -> dict:
    """The problem as JSON has it; what is as usual is left out where older records have no name
    for it."""
    unusual = {name: getattr(problem, name) for name, usual in UNUSUAL.items()
               if getattr(problem, name) != usual}
    return {name: getattr(problem, name) for name in SHAPE} | unusual


def of_tiles(tiles: Tiles) -> dict:
    """Tiles as JSON has them, without options that are as usual."""
    unusual = {name: getattr(tiles, name) for name, usual in TILE_OPTIONS.items()
               if getattr(tiles, name) != usual}
    return {name: getattr(tiles, name) for name in TILES} | unusual


@lru_cache(16)  # neighbours in a list of points share them
def _sorted_json(part: Attention | Tiles) -> str:
    document = of_tiles(part) if isinstance(part, Tiles) else of_problem(part)
    return json.dumps(document, sort_keys=True)


@dataclass(frozen=True)
class Point:
    """One kernel on one problem with one choice of tiles and one grid order.

    ``blocks_per_sm`` limits the thread blocks that share an SM; None leaves it to the driver.
    """

    kernel: str
    problem: Attention
    tiles: Tiles
    order: str = "row"
    blocks_per_sm: int | None = None

    @cached_property
    def document(self) -> dict:
        """The point as JSON has it."""
        return {
            "kernel": self.kernel,
            "problem": of_problem(self.problem),
            "tiles": of_tiles(self.tiles),
            "order": self.order,
            "blocks_per_sm": self.blocks_per_sm,
        }

    @property
    def text(self) -> str:
        """The document as JSON with sorted keys: what points are drawn and held out by hash of."""
        return (f'{{"blocks_per_sm": {json.dumps(self.blocks_per_sm)}, "kernel": "{self.kernel}", '
                f'"order": "{self.order}", "problem": {_sorted_json(self.problem)}, '
                f'"tiles": {_sorted_json(self.tiles)}}}')

    @classmethod
    def of(cls, document: dict) -> "Point":
        """The point of a JSON document; other keys are ignored."""
        return cls(document["kernel"], Attention(**document["problem"]),
                   Tiles(**document["tiles"]), document["order"],
                   document.get("blocks_per_sm"))

    @property
    def results(self) -> tuple[str, ...]:
        """The tensors whose error is judged: O, gradients, or P of the softmax alone."""
        return {"forward": ("O",), "backward": ("dQ", "dK", "dV"),
                "softmax": ("P",)}[self.problem.direction]

    @property
    def held_out(self) -> bool:
        """Whether the L2 model may not be developed on this point: two thirds, by hash."""
        return hashlib.sha256(self.text.encode()).digest()[0] % 3 != 0

    @property
    def fresh(self) -> bool:
        """Whether it was first measured when the L2 model was finished (grid_fresh.py)."""
        from . import grid_fresh

        return self in grid_fresh.points()

    @property
    def newer(self) -> bool:
        """The same of the kernels for training, decoding and softmax (grid_newer.py)."""
        from . import grid_newer

        return self in grid_newer.points()

    def __str__(self):
        limit = f" {self.blocks_per_sm}/SM" if self.blocks_per_sm else ""
        turn = f" K,V {self.tiles.kv_order}" * (self.tiles.kv_order != "forward")
        return (f"{self.kernel} {self.shape} {self.tiles.br}×{self.tiles.bc} {self.order}{limit}"
                f"{turn}")

    @property
    def shape(self) -> str:
        """Such as "1×16/4 4096 d128 fp16 causal": batch × heads / KV heads, length, and so on."""
        p = self.problem
        heads = f"{p.heads}" if p.kv_heads == p.heads else f"{p.heads}/{p.kv_heads}"
        length = f"{p.seq}" if p.kv_seq == p.seq else f"{p.seq}→{p.kv_seq}"
        width = "" if p.direction == "softmax" else f" d{p.head_dim}"
        other_pass = f" {p.direction}" * (p.direction != "forward")
        return f"{p.batch}×{heads} {length}{width} {p.dtype} {p.mask}{other_pass}"


def points(quick: bool = False) -> tuple[Point, ...]:
    """The recorded grid: minutes on an H200; ``quick``: a few small points of each kernel.

    K and V of all heads are below the L2 for some points and above it for others. Lengths are
    multiples of 16, so that every store is of whole sectors.
    """
    from . import grid_fresh, grid_newer

    found = recorded()
    if not quick:
        return found + grid_fresh.seen() + grid_fresh.points() + grid_newer.points()
    small = [p for p in found if p.problem.seq <= 2048]
    return tuple(p for name in dict.fromkeys(x.kernel for x in found)
                 for p in [x for x in small if x.kernel == name][:3])


def having(points: tuple[Point, ...], texts: list[str]) -> tuple[Point, ...]:
    """The points in whose line (as ``str`` has it) one of the texts is; "fresh" and "newer": those
    that are. Raises InputError for a text that no line has."""
    def has(point, text):
        return text in str(point) or (text in ("fresh", "newer") and getattr(point, text))

    for text in texts:
        if not text or not any(has(point, text) for point in points):
            raise InputError(f"--only {text!r}: no point of the grid has it; a line is such as "
                             f"{str(points[0])!r}")
    return tuple(point for point in points if any(has(point, text) for text in texts))


def recorded() -> tuple[Point, ...]:
    """The points that the L2 model's developers have looked at, a third of them or all."""
    return tuple([*_flash2(), *_flash2_mma(), *_flash2_wgmma(), *_l2(), *_kv_orders(),
                  *_flash1(), *_flash1_mma(),
                  *_standard(), *_standard_mma(), *_longest_first(), *_decode(), *_backward(),
                  *_softmax()])


def _problem(heads: int, seq: int, head_dim: int, dtype="fp16", mask="full", kv_heads=None):
    return Attention(1, heads, seq, head_dim, kv_heads, dtype=dtype, mask=mask)


def _flash2() -> Iterator[Point]:
    """One wave and many, K and V of all heads from 0.5 to 134 MB."""
    rows_of_128 = Tiles(128, 64)
    for heads, seq in ((64, 512), (16, 1024), (16, 2048)):
        yield Point("flash2", _problem(heads, seq, 128), rows_of_128)
    for mask in ("full", "causal"):
        for order in ("row", "head"):
            yield Point("flash2", _problem(16, 4096, 128, mask=mask), rows_of_128, order)
            yield Point("flash2", _problem(32, 8192, 128, mask=mask), rows_of_128, order)
            yield Point("flash2", _problem(8, 16384, 64, mask=mask), Tiles(128, 128), order)
    for order in ("row", "head"):
        yield Point("flash2", _problem(4, 32768, 128), rows_of_128, order)
        yield Point("flash2", _problem(16, 4096, 128), Tiles(64, 64), order)
        yield Point("flash2", _problem(16, 4096, 64, "fp32"), Tiles(64, 64), order)
        yield Point("flash2", _problem(32, 4096, 128, kv_heads=8), rows_of_128, order)
    yield Point("flash2", _problem(16, 4096, 128), Tiles(64, 128))
    yield Point("flash2", _problem(8, 16384, 128, mask="window:4096"), rows_of_128)
    yield Point("flash2", _problem(16, 8192, 64, kv_heads=2), Tiles(128, 128), "head")
    yield Point("flash2", _problem(16, 8192, 64, "fp32", "causal"), Tiles(64, 64), "head")
    yield Point("flash2", _problem(16, 2048, 128, "fp32"), Tiles(64, 64))
    yield Point("flash2", _problem(16, 4096, 128, "bf16"), rows_of_128)
    for seq in (2048, 8192):
        yield Point("flash2", _problem(16, seq, 64), Tiles(64, 64))


def _flash2_mma() -> Iterator[Point]:
    """The same schedule on tensor cores: ten times as many bytes a second."""
    wide, narrow = Tiles(128, 64, 2), Tiles(128, 128, 2)
    for heads, seq in ((64, 512), (16, 2048)):
        yield Point("flash2_mma", _problem(heads, seq, 128), wide)
    for order in ("row", "head"):
        for mask in ("full", "causal"):
            yield Point("flash2_mma", _problem(32, 8192, 128, mask=mask), wide, order)
        yield Point("flash2_mma", _problem(8, 16384, 64), narrow, order)
    yield Point("flash2_mma", _problem(4, 32768, 128), wide)
    yield Point("flash2_mma", _problem(16, 4096, 128), Tiles(64, 64, 2))
    yield Point("flash2_mma", _problem(32, 4096, 128, "bf16", kv_heads=8), wide, "head")
    yield Point("flash2_mma", _problem(16, 2048, 64), Tiles(64, 64))


def _l2() -> Iterator[Point]:
    """Evidence for the L2 reader: K and V of one head up to 67 MB, 2 to 256 heads, 1 to 4 blocks
    on an SM, both grid orders."""
    wide, narrow, small = Tiles(128, 64, 2), Tiles(128, 128, 2), Tiles(64, 64)
    for order in ("row", "head"):
        for mask in ("full", "causal"):
            for limit in (1, 2):
                yield _mma(16, 16384, 128, wide, order, limit, mask=mask)
                yield _mma(64, 4096, 128, wide, order, limit, mask=mask)
                yield _mma(64, 8192, 64, narrow, order, limit, mask=mask)
            for limit in (1, 2, 3, 4):
                yield _mma(16, 8192, 64, small, order, limit, mask=mask)
        for limit in (1, 2, 4):
            yield _mma(8, 16384, 64, small, order, limit)
        yield _mma(256, 1024, 128, wide, order)
        yield _mma(8, 32768, 128, wide, order)
        yield _mma(2, 131072, 64, narrow, order)
        yield _mma(8, 8192, 256, Tiles(64, 64), order)
        yield _mma(32, 16384, 128, wide, order, kv_heads=8)
        yield _mma(64, 8192, 128, wide, order, kv_heads=8)
    yield _mma(4, 65536, 128, wide)
    yield _mma(2, 65536, 128, wide, mask="causal")
    yield _mma(8, 32768, 128, wide, mask="window:8192")
    yield _mma(256, 512, 64, narrow)


def _flash2_wgmma() -> Iterator[Point]:
    """Hopper's own instructions: a persistent grid of a block an SM."""
    wide, narrow = Tiles(128, 128, 2), Tiles(192, 128, 2)
    yield Point("flash2_wgmma", _problem(16, 2048, 128), wide)
    for mask in ("full", "causal"):
        yield Point("flash2_wgmma", _problem(64, 4096, 128, mask=mask), wide)
    yield Point("flash2_wgmma", _problem(32, 8192, 128), wide, "head")
    yield Point("flash2_wgmma", _problem(64, 4096, 64), narrow)
    yield Point("flash2_wgmma", _problem(8, 16384, 64, "bf16"), narrow)
    yield Point("flash2_wgmma", _problem(32, 4096, 256, kv_heads=8), Tiles(128, 80, 2))


def _kv_orders() -> Iterator[Point]:
    """K and V of a head from half of what an SM's side of the L2 keeps to four times that (more
    points that walk forward are in _l2): row blocks that turn one by one, and a wave (132 SMs × 2)
    at a time; and other kernels that turn."""
    wide, narrow = Tiles(128, 64, 2), Tiles(128, 128, 2)
    for seq in (32768, 49152, 65536, 98304, 131072, 196608):
        for kv_order in ("forward", "sawtooth:264"):
            yield _mma(1, seq, 128, replace(wide, kv_order=kv_order))
    for seq in (65536, 131072):
        yield _mma(1, seq, 128, replace(wide, kv_order="sawtooth"))
    for kv_order in ("sawtooth", "sawtooth:264"):
        yield _mma(2, 131072, 64, replace(narrow, kv_order=kv_order))
    yield _mma(4, 65536, 128, replace(wide, kv_order="sawtooth:264"))
    for kv_order in ("reversed", "sawtooth:132"):
        yield Point("flash2_backward", _gradient(4, 32768, 128),
                    Tiles(64, 128, 2, kv_order=kv_order))
    yield Point("flash1_mma", _problem(64, 4096, 128), Tiles(128, 192, 2, kv_order="sawtooth"))
    yield Point("split_kv", _cache(8, 8192), Tiles(16, 64, 3, splits=3, kv_order="reversed"))


def _mma(heads, seq, head_dim, tiles, order="row", limit=None, **shape) -> Point:
    return Point("flash2_mma", _problem(heads, seq, head_dim, **shape), tiles, order, limit)


def _flash1() -> Iterator[Point]:
    """One thread block a head: heads enough to use the SMs."""
    for seq in (512, 1024, 2048):
        yield Point("flash1", _problem(128, seq, 64), Tiles(64, 64))
    for mask in ("full", "causal"):
        yield Point("flash1", _problem(128, 2048, 64, mask=mask), Tiles(64, 128))
        yield Point("flash1", _problem(64, 4096, 64, mask=mask), Tiles(64, 128))
        yield Point("flash1", _problem(64, 2048, 128, mask=mask), Tiles(64, 64))
    yield Point("flash1", _problem(64, 3072, 128), Tiles(64, 64))
    yield Point("flash1", _problem(64, 2048, 64), Tiles(128, 64))
    yield Point("flash1", _problem(128, 1024, 64, "fp32"), Tiles(64, 64))
    yield Point("flash1", _problem(64, 2048, 64, kv_heads=16), Tiles(64, 64))


def _flash1_mma() -> Iterator[Point]:
    """The same loop order on tensor cores, with as many columns as shared memory holds."""
    wide, narrow = Tiles(128, 192, 2), Tiles(128, 256, 2)
    yield Point("flash1_mma", _problem(128, 2048, 64), narrow)
    for mask in ("full", "causal"):
        yield Point("flash1_mma", _problem(64, 4096, 64, mask=mask), narrow)
        yield Point("flash1_mma", _problem(64, 4096, 128, mask=mask), wide)
    yield Point("flash1_mma", _problem(64, 4096, 64), Tiles(64, 64, 2))


def _standard() -> Iterator[Point]:
    """S and P from 8 to 700 MB each."""
    tiles = Tiles(128, 128)
    for heads, seq in ((16, 512), (16, 1024), (8, 2048), (4, 8192), (1, 16384)):
        yield Point("standard", _problem(heads, seq, 64), tiles)
    for order in ("row", "head"):
        yield Point("standard", _problem(8, 4096, 64), tiles, order)
        yield Point("standard", _problem(8, 4096, 128), tiles, order)
    yield Point("standard", _problem(16, 2048, 64), Tiles(64, 64))
    yield Point("standard", _problem(8, 4096, 64, mask="causal"), tiles)
    yield Point("standard", _problem(8, 2048, 64, "fp32"), Tiles(64, 64))
    yield Point("standard", _problem(16, 2048, 128, kv_heads=4), tiles)
    # Rows of S above 48 KiB: the softmax reads them twice.
    yield Point("standard", _problem(1, 13312, 64, "fp32"), Tiles(64, 64))


def _standard_mma() -> Iterator[Point]:
    """The same three launches on tensor cores."""
    tiles = Tiles(128, 128, 3, 64)
    yield Point("standard_mma", _problem(16, 2048, 64), tiles)
    yield Point("standard_mma", _problem(4, 8192, 64, mask="causal"), tiles)
    yield Point("standard_mma", _problem(16, 2048, 128, "bf16", kv_heads=4), tiles)
    for order in ("row", "head"):
        yield Point("standard_mma", _problem(8, 4096, 128), tiles, order)


def _longest_first() -> Iterator[Point]:
    """Causal, the last row blocks first."""
    wide = Tiles(128, 64, 2)
    yield Point("flash2", _problem(16, 4096, 128, mask="causal"), Tiles(128, 64), "longest")
    for heads, seq in ((64, 4096), (32, 8192), (8, 32768)):
        yield Point("flash2_mma", _problem(heads, seq, 128, mask="causal"), wide, "longest")


def _decode() -> Iterator[Point]:
    """One query a head, or a few, against caches of 34 to 540 MB; with and without splits."""
    plain = Tiles(16, 64, 3)
    yield Point("split_kv", _cache(1, 8192), Tiles(16, 64, 3, splits=19))
    yield Point("split_kv", _cache(64, 1024), plain)
    yield Point("split_kv", _cache(8, 8192), Tiles(16, 64, 3, splits=3))
    for tiles in (plain, Tiles(16, 64, 3, splits=3, page=64)):
        yield Point("paged", _cache(8, 8192), tiles)
    yield Point("split_kv", _cache(16, 8192), plain)
    yield Point("split_kv", _cache(16, 2048, heads=8), plain, "head")
    yield Point("split_kv", _cache(16, 4096, head_dim=64, dtype="bf16"), plain)
    yield Point("split_kv", _cache(8, 2048, head_dim=256), Tiles(16, 64, 2))
    yield Point("split_kv", _cache(8, 4096, seq=4, mask="causal"), plain)
    yield Point("split_kv", _cache(8, 8192, mask="window:2048"), plain)
    yield Point("paged", _cache(64, 512), Tiles(16, 32, 3))


def _cache(batch, kv_seq, heads=32, head_dim=128, **shape) -> Attention:
    """A decode step of 8 KV heads."""
    return Attention(**{"batch": batch, "heads": heads, "kv_heads": 8, "seq": 1, "kv_seq": kv_seq,
                        "head_dim": head_dim} | shape)


def _backward() -> Iterator[Point]:
    """Q and dO of all heads from 8 MB to 134 MB, their fp32 sums of dQ twice that."""
    wide, narrow = Tiles(64, 128, 2), Tiles(32, 128, 2)
    for order in ("row", "head"):
        for mask in ("full", "causal"):
            yield Point("flash2_backward", _gradient(16, 4096, 128, mask=mask), wide, order)
            yield Point("flash2_backward", _gradient(64, 4096, 64, mask=mask), narrow, order)
    for heads, seq in ((16, 1024), (32, 8192), (4, 32768)):
        yield Point("flash2_backward", _gradient(heads, seq, 128), wide)
    yield Point("flash2_backward", _gradient(16, 2048, 64), Tiles(64, 64, 2))
    yield Point("flash2_backward", _gradient(16, 4096, 128, "bf16", kv_heads=4), wide)
    yield Point("flash2_backward", _gradient(8, 4096, 256), Tiles(64, 64))
    yield Point("flash2_backward", _gradient(8, 16384, 64, mask="window:4096"), narrow)
    for dtype, seq in (("fp32", 2048), ("fp16", 4096)):
        yield Point("flash2_backward_fma", _gradient(16, seq, 64, dtype), Tiles(32, 64))


def _gradient(heads: int, seq: int, head_dim: int, dtype="fp16", mask="full", kv_heads=None):
    """The backward pass of a problem."""
    return replace(_problem(heads, seq, head_dim, dtype, mask, kv_heads), direction="backward")


def _softmax() -> Iterator[Point]:
    """Score matrices of 17 MB to 0.5 GB; rows from 4 KB, all in flight in L2, to 256 KB, with which
    they outgrow it."""
    half, single = Tiles(1, 4096), Tiles(1, 2048)
    for kernel in ("softmax_safe", "softmax_online", "softmax_fused"):
        yield Point(kernel, _scores(2048, 4096), half)
        yield Point(kernel, _scores(8192, 8192, "fp32"), single)
        yield Point(kernel, _scores(4096, 65536), half)
    yield Point("softmax_online", _scores(8192, 8192, mask="causal"), half)
    yield Point("softmax_fused", _scores(4096, 16384, "bf16"), half)
    yield Point("softmax_safe", _scores(2048, 32768, "fp32"), single)


def _scores(seq: int, kv_seq: int, dtype="fp16", mask="full") -> Attention:
    """The softmax alone of one head's scores."""
    return Attention(1, 1, seq, kv_seq=kv_seq, dtype=dtype, mask=mask, direction="softmax")
