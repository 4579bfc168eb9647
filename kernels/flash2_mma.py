"""Launcher of flash2_mma.cu: FlashAttention-2 forward on tensor cores, one block a row block."""

from dataclasses import replace

from ..simulator.tiles import Tiles
from .base import SHAPE, Kernel, Launch, ceil_div

STAGES = (1, 2)


class Flash2Mma(Kernel):
    name, schedule = "flash2_mma", "flash2"
    tensors = ("Q", "K", "V", "O", "LSE")
    outputs = ("O", "LSE")
    dtypes = ("fp16", "bf16")

    def warp_rows(self, problem, tiles):
        """Rows of one warp: 32 halve the reads of K and V, where O and S of 32 rows fit."""
        wide = tiles.br % 32 == 0 and tiles.br >= 128 and problem.value_dim <= 128
        return 32 if wide else 16

    def block_threads(self, problem, tiles):
        return tiles.br // self.warp_rows(problem, tiles) * 32

    def shared_bytes(self, problem, tiles):
        streamed = tiles.stages * tiles.bc * (problem.head_dim + problem.value_dim)
        inputs = tiles.br * problem.head_dim + streamed
        return max(inputs, tiles.br * problem.value_dim) * problem.dtype_bytes

    def live_registers(self, problem, tiles):
        return self.warp_rows(problem, tiles) * (tiles.bc + problem.value_dim) // 32 + 56

    def check(self, problem, tiles):
        if tiles.stages not in STAGES:
            raise self._refusal("stages", tiles.stages, "1 or 2")
        super().check(problem, replace(tiles, stages=1))
        self._check_capacity(problem, tiles)

    def tile_choices(self, problem):
        choices = (Tiles(128, 64), Tiles(128, 128), Tiles(64,64))
        return tuple(tiles for tiles in choices if self.accepts(problem, tiles))

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {
            "STAGES": str(tiles.stages),
            "WARP_ROWS": str(self.warp_rows(problem, tiles)),
        }

    def launches(self, problem, tiles, order="row"):
        grid = problem.head_count * ceil_div(problem.seq, tiles.br)
        threads, shared = self.block_threads(problem, tiles), self.shared_bytes(problem, tiles)
        return (Launch("hbmeter_flash2_mma", grid, threads, shared, (*self.tensors, *SHAPE)),)


KERNEL = Flash2Mma()
