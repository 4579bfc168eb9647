"""Tile sizes of a schedule: Br rows of queries by Bc columns of keys."""

from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True)
class Tiles:
    """Br × Bc tiles with ``stages`` buffers for streamed tiles.

    ``bk`` is the depth of the inner step of plain tiled matrix products (schedule ``standard``).
    Decode schedules cut the keys into at most ``splits`` and keep them in pages of ``page`` rows.
    Raises InputError unless all are whole numbers from 1.

    >>> print(Tiles(br=128, bc=64, stages=2))
    Br 128, Bc 64, 2 stages
    """

    br: int
    bc: int
    stages: int = 1
    bk: int = 32
    splits: int = 1
    page: int = 16

    def __post_init__(self):
        for name in ("br", "bc", "stages", "bk", "splits", "page"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 30:
                raise InputError(f"{name} {value!r} must be a whole number from 1 to 2^30")

    def __str__(self):
        text = f"Br {self.br}, Bc {self.bc}" + f", {self.stages} stages" * (self.stages > 1)
        return text + f", {self.splits} splits" * (self.splits > 1)
