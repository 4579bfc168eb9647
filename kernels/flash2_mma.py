"""Launcher of flash2_mma.cu: FlashAttention-2 forward on tensor cores, one block a row block."""

from ..simulator.execution import mma_sync
from ..simulator.tiles import Tiles
from .base import SHAPE, Kernel, Launch, ceil_div
from .paces import paced

MOST_THREADS = 256


class Flash2Mma(Kernel):
    name, schedule = "flash2_mma", "flash2"
    tensors = ("Q", "K", "V", "O", "LSE")
    outputs = ("O", "LSE")
    dtypes = ("fp16", "bf16")
    least_arch = 80  # cp.async, mma.m16n8k16
    most_stages = 2
    matmul_dtype = None  # tensor cores take the inputs as they are
    tiles = {  # noqa: RUF012 (up to a width of head_dim and value_dim, the best first)
        64: (Tiles(128, 128, 2), Tiles(128, 96, 2), Tiles(64, 64, 2)),
        128: (Tiles(128, 64, 2), Tiles(128, 48, 2), Tiles(128, 32, 2), Tiles(64, 64, 2)),
        256: (Tiles(64, 64), Tiles(64, 80), Tiles(128, 64), Tiles(64, 32)),
    }

    def warp_rows(self, problem, tiles):
        """Rows of one warp. 32 halve its reads of K and V, where its part of S and O fits."""
        return 32 if tiles.br >= 128 and tiles.br % 32 == 0 and problem.value_dim <= 128 else 16

    def block_threads(self, problem, tiles):
        """Threads of one block: a warp for each ``warp_rows``."""
        return tiles.br // self.warp_rows(problem, tiles) * 32

    def shared_bytes(self, problem, tiles):
        streamed = tiles.stages * tiles.bc * (problem.head_dim + problem.value_dim)
        inputs = tiles.br * problem.head_dim + streamed
        return max(inputs, tiles.br * problem.value_dim) * problem.dtype_bytes

    def live_registers(self, problem, tiles):
        return self.warp_rows(problem, tiles) * (tiles.bc + problem.value_dim) // 32 + 60

    def check(self, problem, tiles):
        super().check(problem, tiles)
        if self.block_threads(problem, tiles) > MOST_THREADS:
            right = "at most 128, or a multiple of 32 with value_dim up to 128"
            raise self._refusal("br", tiles.br, right)

    def tile_choices(self, problem):
        width = max(problem.head_dim, problem.value_dim)
        choices = next((tiles for most, tiles in self.tiles.items() if width <= most), ())
        return tuple(tiles for tiles in choices if self.accepts(problem, tiles))

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {
            "STAGES": str(tiles.stages),
            "WARP_ROWS": str(self.warp_rows(problem, tiles)),
        }

    def executions(self, problem, tiles):
        rows, threads = self.warp_rows(problem, tiles), self.block_threads(problem, tiles)
        how = mma_sync(rows, tiles.bc, threads, stages=tiles.stages)
        return (paced(how, self.name, problem, tiles),)

    def launches(self, problem, tiles, order="row"):
        grid = problem.head_count * ceil_div(problem.seq, tiles.br)
        threads, shared = self.block_threads(problem, tiles), self.shared_bytes(problem, tiles)
        return (Launch("hbmeter_flash2_mma", grid, threads, shared, (*self.tensors, *SHAPE)),)


KERNEL = Flash2Mma()
