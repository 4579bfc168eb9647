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


def fullest(columns: int, threads: int) -> float:
    """Work of the subpartition that has the most of rows of S, over the mean: a warp takes 32
    vectors of 8 columns a turn, and the warps of one block after the other go round the four."""
    turns = [ceil_div(max(columns - 256 * warp, 0), 8 * threads) for warp in range(threads // 32)]
    shares = [sum((4 * turns)[first::4]) for first in range(4)]
    return 4 * max(shares) / sum(shares)


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
        """Of the products' machine code: 16 instructions for a vector that is copied; for an
        element of S one to scale it, half a one each to pack and to store it, and the block's own
        200 a warp."""
        staged = Cost(4.5, 1, problem.dtype_bytes / WAVEFRONT_BYTES)

        def product(columns):
            how = mma_sync(*share(tiles.br, columns), THREADS, stages=tiles.stages)
            both = how.costs["dot_t_add"]  # operands are read from shared memory, both of them
            return replace(how, costs=how.costs | {"dot_add": both, "scale": staged},
                           interleaved=0.0, instructions_per_byte=16 / 16)

        last = product(self.value_columns(problem, tiles))
        return (product(tiles.bc), self._softmax(problem),
                paced(last, self.name, problem, tiles, 2))

    def _softmax(self, problem):
        """As standard.cu reduces; Nsight Compute counts 192 instructions for 8 elements, both
        passes, 54 of them slow, and 110 a warp, 35 slow; where the mask hides, some 3 and 8 slow
        more an element. A row that fits is on its way at once."""
        columns, threads = problem.kv_seq, self.softmax_threads(problem)
        how = softmax_rows(columns, threads)
        hidden = 1 - problem.pairs / (problem.seq * columns)
        costs = {"row_max": Cost(75 * threads / columns, 35 * threads / columns, waits=14),
                 "mask": Cost(3 * hidden, 8 * hidden), "div_rows": Cost(),
                 "exp_minus": Cost(17, 7, 2 * problem.dtype_bytes / WAVEFRONT_BYTES)}
        fits = self.softmax_shared_bytes(problem) > 0
        return replace(how, costs=how.costs | costs, filled=fullest(columns, threads), apart=True,
                       in_flight_bytes=None if fits else how.in_flight_bytes)

    def launches(self, problem, tiles, order="row"):
        scores, softmax, output = super().launches(problem, tiles, order)
        softmax = replace(softmax, threads=self.softmax_threads(problem))
        return tuple(replace(launch, entry=launch.entry.replace("standard", self.name))
                     for launch in (scores, softmax, output))


KERNEL = StandardMma()
