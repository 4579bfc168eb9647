"""Launcher of flash1_mma.cu: FlashAttention-1 forward on tensor cores, one thread block a head."""

from ..simulator.execution import mma_sync
from ..simulator.tiles import Tiles
from .base import SHAPE, Launch
from .flash1 import Flash1

WARP_ROWS = 16
MOST_THREADS = 256


class Flash1Mma(Flash1):
    name = "flash1_mma"
    dtypes = ("fp16", "bf16")
    least_arch = 80  # cp.async, mma.m16n8k16
    most_stages = 2
    matmul_dtype = None  # tensor cores take the inputs as they are
    tiles = {  # noqa: RUF012 (up to a width of head_dim and value_dim, the best first)
        # Many columns: each column block rounds O once.
        64: (Tiles(128, 256, 2), Tiles(128, 192, 2), Tiles(128, 128, 2), Tiles(64, 128, 2)),
        128: (Tiles(128, 192, 2), Tiles(128, 160), Tiles(128, 128, 2), Tiles(64, 128, 2)),
        256: (Tiles(128, 48), Tiles(64, 48)),
    }

    def block_threads(self, tiles):
        """Threads of one block: a warp for each 16 rows."""
        return tiles.br // WARP_ROWS * 32

    def shared_bytes(self, problem, tiles):
        resident = tiles.bc * (problem.head_dim + problem.value_dim)
        streamed = tiles.br * (tiles.stages * problem.head_dim + problem.value_dim)
        return (resident + streamed) * problem.dtype_bytes

    def live_registers(self, problem, tiles):
        return (tiles.bc + problem.value_dim) // 2 + 60

    def check(self, problem, tiles):
        super().check(problem, tiles)
        if self.block_threads(tiles) > MOST_THREADS:
            raise self._refusal("br", tiles.br, f"at most {MOST_THREADS // 32 * WARP_ROWS}")

    def tile_choices(self, problem):
        width = max(problem.head_dim, problem.value_dim)
        choices = next((tiles for most, tiles in self.tiles.items() if width <= most), ())
        return tuple(tiles for tiles in choices if self.accepts(problem, tiles))

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {"STAGES": str(tiles.stages)}

    def executions(self, problem, tiles):
        threads = self.block_threads(tiles)
        return (mma_sync(WARP_ROWS, tiles.bc, threads, stages=tiles.stages),)

    def launches(self, problem, tiles, order="row"):
        return (Launch("hbmeter_flash1_mma", problem.head_count, self.block_threads(tiles),
                       self.shared_bytes(problem, tiles), (*self.tensors, *SHAPE)),)


KERNEL = Flash1Mma()
