"""Launcher of split_kv.cu: decode on tensor cores, a block for each split of each KV head."""

import numpy as np

from ..simulator.execution import mma_decode, streaming
from ..simulator.schedules._decode import COMBINE_ROWS, Cut, cut
from ..simulator.tiles import Tiles
from .base import Kernel, Launch, ceil_div

COMBINE_THREADS = 128
MOST_WARPS = 8
MERGE_PADDING = 8 + 2  # floats of a row when warps merge: bank padding, and m and l


class SplitKV(Kernel):
    name = schedule = "split_kv"
    reads = ("Q", "K", "V")
    outputs = ("O",)
    scratch = ("O_part", "LSE_part")
    dtypes = ("fp16", "bf16")
    least_arch = 80  # cp.async, mma.m16n8k16
    most_stages = 8
    matmul_dtype = None  # tensor cores take the inputs as they are
    tiles = (Tiles(16, 64, 3), Tiles(16, 64, 3, splits=4), Tiles(16, 32, 3), Tiles(16, 64, 2),
             Tiles(32, 64, 2), Tiles(16, 64), Tiles(16, 16))

    @property
    def tensors(self):
        return (*self.reads, *self.outputs, *self.scratch)

    def used(self, problem, tiles):
        one = self.cut(problem, tiles).splits == 1
        return tuple(name for name in self.tensors if not (one and name in self.scratch))

    def cut(self, problem, tiles) -> Cut:
        """How the keys are cut into splits."""
        return cut(problem, tiles.splits, tiles.bc)

    def warp_keys(self, tiles):
        """Keys of a column block that one warp takes."""
        return 16 * ceil_div(tiles.bc, 16 * MOST_WARPS)

    def block_threads(self, tiles):
        """Threads of one block of the attention launch."""
        return tiles.bc // self.warp_keys(tiles) * 32

    def loop_shared_bytes(self, problem, tiles):
        """Q and the stages of K and V, or the warps' O when they merge."""
        streamed = tiles.stages * tiles.bc * (problem.head_dim + problem.value_dim)
        inputs = (tiles.br * problem.head_dim + streamed) * problem.dtype_bytes
        warps = self.block_threads(tiles) // 32
        return max(inputs, 4 * warps * tiles.br * (problem.value_dim + MERGE_PADDING))

    def shared_bytes(self, problem, tiles):
        return self.loop_shared_bytes(problem, tiles)

    def live_registers(self, problem, tiles):
        return tiles.br * (problem.value_dim + self.warp_keys(tiles)) // 32 + 60

    def check(self, problem, tiles):
        super().check(problem, tiles)
        if tiles.bc % self.warp_keys(tiles):
            raise self._refusal("bc", tiles.bc, "a multiple of 32 above 128")

    def tile_choices(self, problem):
        return tuple(tiles for tiles in self.tiles if self.accepts(problem, tiles))

    def tensor_shape(self, name, problem, tiles):
        rows = (problem.batch, problem.heads, problem.seq)
        shapes = {"O": (*rows, problem.value_dim)}
        splits = self.cut(problem, tiles).splits
        shapes |= {"O_part": (*rows, splits, problem.value_dim), "LSE_part": (*rows, splits)}
        return shapes[name]

    def scalars(self, problem, tiles):
        split = self.cut(problem, tiles)
        values = {
            "kv_head_count": problem.batch * problem.kv_heads,
            "kv_heads": problem.kv_heads,
            "n_rows": problem.group * problem.seq,
            "splits": split.splits,
            "split_keys": split.keys,
        }
        null = {name: np.uint64(0) for name in self.scratch if split.splits == 1}
        return super().scalars(problem, tiles) | null | {
            name: np.int32(value) for name, value in values.items()
        }

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {
            "STAGES": str(tiles.stages),
            "WARP_KEYS": str(self.warp_keys(tiles)),
            "SHARED_BYTES": str(self.loop_shared_bytes(problem, tiles)),
        }

    def executions(self, problem, tiles):
        attend = mma_decode(self.warp_keys(tiles), tiles.br, problem.head_dim,
                            self.block_threads(tiles), stages=tiles.stages)
        if self.cut(problem, tiles).splits == 1:
            return (attend,)
        return attend, streaming(COMBINE_THREADS, 4, slow=0, trips_ahead=8)

    def launches(self, problem, tiles, order="row"):
        heads, rows = problem.batch * problem.kv_heads, problem.group * problem.seq
        splits = self.cut(problem, tiles).splits
        attend = Launch(
            "hbmeter_split_kv", heads * ceil_div(rows, tiles.br) * splits,
            self.block_threads(tiles), self.shared_bytes(problem, tiles),
            (*self.reads, *self.outputs, *self.scratch, "kv_head_count", "n_rows", "n_q", "n_kv",
             "lo_shift", "hi_shift", "scale", "splits", "split_keys"),
        )
        if splits == 1:
            return (attend,)
        return attend, Launch(
            "hbmeter_split_kv_combine", heads * ceil_div(rows, COMBINE_ROWS), COMBINE_THREADS, 0,
            (*self.scratch, *self.outputs, "kv_head_count", "n_rows", "splits"),
        )


KERNEL = SplitKV()
