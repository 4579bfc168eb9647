"""Launcher of softmax_safe.cu: the softmax alone, three passes, a thread block a row."""

from ..simulator.execution import softmax_alone
from ..simulator.tiles import Tiles
from .base import THREADS, Kernel, Launch


class Softmax(Kernel):
    """P of scores S; Bc columns are a step of a row: so many loads are on their way at once."""

    direction = "softmax"
    inputs = ("S",)
    tensors = ("S", "P")
    outputs = ("P",)
    widths = ()

    @property
    def name(self):
        return self.schedule

    def steps(self, tiles):
        return {}

    def check(self, problem, tiles):
        super().check(problem, tiles)
        least = THREADS * 16 // problem.dtype_bytes
        if tiles.br != 1:
            raise self._refusal("br", tiles.br, "1: a thread block takes a row")
        if tiles.bc % least or tiles.bc > 8 * least:
            raise self._refusal("bc", tiles.bc, f"{least} to {8 * least} in steps of {least} with "
                                f"{problem.dtype}")

    def shared_bytes(self, problem, tiles):
        return 0

    def live_registers(self, problem, tiles):
        return 4 * tiles.bc * problem.dtype_bytes // (16 * THREADS) + 20

    def tile_choices(self, problem):
        step = THREADS * 16 // problem.dtype_bytes
        choices = (Tiles(1, loads * step) for loads in (2, 1, 4))
        return tuple(tiles for tiles in choices if self.accepts(problem, tiles))

    def executions(self, problem, tiles):
        return (softmax_alone(problem.kv_seq, tiles.bc, THREADS),)

    def launches(self, problem, tiles, order="row"):
        arguments = ("S", "P", "heads", "n_q", "n_kv", "lo_shift", "hi_shift")
        return (Launch(f"hbmeter_{self.name}", problem.head_count * problem.seq, THREADS,
                       self.shared_bytes(problem, tiles), arguments),)


class SoftmaxSafe(Softmax):
    schedule = "softmax_safe"


KERNEL = SoftmaxSafe()
