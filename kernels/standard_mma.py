"""Launcher of standard_mma.cu: standard attention on tensor cores, S and P in global memory."""

from dataclasses import replace

from ..simulator.execution import WAVEFRONT_BYTES, Cost, mma_sync, softmax_rows
from ..simulator.tiles import Tiles
from .base import THREADS, ceil_div
from .paces import paced
from .standard import Standard

WARPS = THREADS // 32
SOFTMAX_ELEMENTS = 16  # of a row of S, a thread: two vectors


def share(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a warp, of a result of ``rows`` × ``columns`` (as in the source)."""
    down = power_of_two(rows // 16, 4 if rows > columns else 2)
    return rows // down, columns // power_of_two(columns // 16, WARPS // down)


def power_of_two(x: int, most: int) -> int:
    """The largest power of two up to ``most``, itself one, that divides ``x``."""
    return min(x & -x, most)


class StandardMma(Standard):
    name = "standard_mma"
    dtypes = ("fp16", "bf16")
    least_arch = 80  # cp.async, mma.m16n8k16
    most_stages = 4
    matmul_dtype = None  # tensor cores take the inputs as they are
    tiles = (Tiles(128, 128, 3, 64), Tiles(128, 64, 3, 64), Tiles(64, 64, 3, 64),
             Tiles(64, 64, 2, 32))

    def scores_shared_bytes(self, problem, tiles):
        """Shared memory of the scores: steps of Q and K, then the tile of S in their place."""
        depth = min(tiles.bk, problem.head_dim)
        stages = min(tiles.stages, ceil_div(problem.head_dim, depth))
        operands = stages * (tiles.br + tiles.bc) * depth
        return max(operands, tiles.br * tiles.bc) * problem.dtype_bytes

    def output_shared_bytes(self, problem, tiles):
        """Shared memory of the output: steps of P and V, then the tile of O in their place."""
        width = self.value_columns(problem, tiles)
        operands = tiles.stages * tiles.bk * (tiles.br + width)
        return max(operands, tiles.br * width) * problem.dtype_bytes

    def softmax_threads(self, problem):
        """Threads of a row's block: whole warps."""
        return min(ceil_div(problem.kv_seq, 32 * SOFTMAX_ELEMENTS) * 32, THREADS)

    def live_registers(self, problem, tiles):
        rows, columns = share(tiles.br, tiles.bc)
        return rows * columns // 32 + rows // 4 + 40

    def tile_choices(self, problem):
        return tuple(tiles for tiles in self.tiles if self.accepts(problem, tiles))

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {"STAGES": str(tiles.stages)}

    def executions(self, problem, tiles):
        def product(columns):
            how = mma_sync(*share(tiles.br, columns), THREADS, stages=tiles.stages)
            both = how.costs["dot_t_add"]  # operands are read from shared memory, both of them
            return replace(how, costs=how.costs | {"dot_add": both}, interleaved=0.0)

        last = product(self.value_columns(problem, tiles))
        return (product(tiles.bc), self._softmax(problem),
                paced(last, self.name, problem, tiles, 2))

    def _softmax(self, problem):
        """As standard.cu reduces; in the machine code 8 elements take about 80 instructions and 22
        slow ones, both passes, and where the mask hides some 32 comparisons and 16 choices more. A
        row that fits is on its way at once."""
        how = softmax_rows(problem.kv_seq, self.softmax_threads(problem))
        element = Cost(10, 3, 2 * problem.dtype_bytes / WAVEFRONT_BYTES)
        fits = self.softmax_shared_bytes(problem) > 0
        hidden = 1 - problem.pairs / (problem.seq * problem.kv_seq)
        return replace(how, costs=how.costs | {"mask": Cost(2 * hidden, 4 * hidden),
                                               "exp_minus": element,
                                               "div_rows": Cost()},
                       in_flight_bytes=None if fits else how.in_flight_bytes)

    def launches(self, problem, tiles, order="row"):
        scores, softmax, output = super().launches(problem, tiles, order)
        softmax = replace(softmax, threads=self.softmax_threads(problem))
        return tuple(replace(launch, entry=launch.entry.replace("standard", self.name))
                     for launch in (scores, softmax, output))


KERNEL = StandardMma()
