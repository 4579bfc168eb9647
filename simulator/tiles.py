"""Tile sizes of a schedule: Br rows of queries by Bc columns of keys."""

from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True)
class Tiles:
    """Br × Bc tiles with ``stages`` buffers for streamed tiles.

    ``bk`` is the depth of the inner step of plain tiled matrix products (schedule ``standard``).
    Decode schedules cut the keys into at most ``splits`` and keep them in pages of ``page`` rows.
    ``kv_order`` is the order in which row blocks walk K and V, or column blocks the rows, in
    schedules that hold K and V (flash1, backward passes): ``forward``, ``reversed``, or
    ``sawtooth:N``: N blocks forward, the next N backward (``sawtooth``: N = 1).
    Raises InputError unless sizes are whole numbers from 1 and the order is one of these.

    >>> print(Tiles(br=128, bc=64, stages=2))
    Br 128, Bc 64, 2 stages
    """

    br: int
    bc: int
    stages: int = 1
    bk: int = 32
    splits: int = 1
    page: int = 16
    kv_order: str = "forward"

    def __post_init__(self) -> None:
        for name in ("br", "bc", "stages", "bk", "splits", "page"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 30:
                raise InputError(f"{name} {value!r} must be a whole number from 1 to 2^30")
        _ = self.kv_turn

    @property
    def kv_turn(self) -> int:
        """0 of ``forward``, -1 of ``reversed``, N of ``sawtooth:N``."""
        if self.kv_order in ("forward", "reversed"):
            return 0 if self.kv_order == "forward" else -1
        kind, _, turn = str(self.kv_order).partition(":")
        turn = "1" if self.kv_order == "sawtooth" else turn
        if kind == "sawtooth" and turn.isascii() and turn.isdigit() and 0 < int(turn) <= 1 << 30:
            return int(turn)
        raise InputError(f"kv_order {self.kv_order!r} is not known; it is forward, reversed, "
                         "sawtooth or sawtooth:N with N blocks from 1 to 2^30")

    def __str__(self) -> str:
        text = f"Br {self.br}, Bc {self.bc}" + f", {self.stages} stages" * (self.stages > 1)
        text += f", K,V {self.kv_order}" * (self.kv_order != "forward")
        return text + f", {self.splits} splits" * (self.splits > 1)
