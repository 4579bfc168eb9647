"""Launcher of flash2_backward.cu: FlashAttention-2 backward on tensor cores, dQ by atomics."""

from ..simulator.execution import mma_backward, streaming
from ..simulator.tiles import Tiles
from .base import MAX_REGISTERS, SHAPE, THREADS, Kernel, Launch, ceil_div

ROWS = (32, 64, 128)  # of a tile: 32 a warp


class BackwardKernel(Kernel):
    """Schedule flash2_backward: the main launch between those of backward.cuh."""

    schedule = "flash2_backward"
    direction = "backward"
    inputs = ("Q", "K", "V", "dO", "O", "LSE")
    outputs = ("dQ", "dK", "dV")
    scratch = ("D", "dQ_acc", "dK_acc", "dV_acc")
    tensors = (*inputs, *outputs, *scratch)

    def used(self, problem, tiles):
        own = problem.group == 1  # each query head has its KV head, and no need to add up
        return tuple(t for t in self.tensors if not (own and t in ("dK_acc", "dV_acc")))

    def block_threads(self, problem, tiles):
        """Threads of one block of the main launch."""
        return THREADS

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {"GROUPED": str(int(problem.group > 1))}

    def main_execution(self, problem, tiles):
        """How the main launch runs its phase."""
        raise NotImplementedError

    def executions(self, problem, tiles):
        around = streaming(THREADS, 2)
        phases = [around, self.main_execution(problem, tiles), around]
        if problem.group > 1:
            phases = [around, *phases, around]
        return tuple(phases)

    def launches(self, problem, tiles, order="row"):
        heads, grouped = problem.head_count, problem.group > 1
        q_grid = heads * ceil_div(problem.seq, tiles.br)
        kv_grid = heads * ceil_div(problem.kv_seq, tiles.bc)
        dk, dv = ("dK_acc", "dV_acc") if grouped else ("dK", "dV")
        of_q, of_kv = ("heads", "n_q"), ("heads", "group", "n_kv")

        def around(part, grid, *arguments):
            return Launch(f"hbmeter_backward_{part}", grid, THREADS, 0, arguments)

        main = Launch(
            f"hbmeter_{self.name}", kv_grid, self.block_threads(problem, tiles),
            self.shared_bytes(problem, tiles),
            ("Q", "K", "V", "dO", "LSE", "D", "dQ_acc", dk, dv, *SHAPE),
        )
        launches = [
            around("preprocess", q_grid, "O", "dO", "D", "dQ_acc", *of_q),
            main,
            around("convert_q", q_grid, "dQ_acc", "dQ", *of_q, "scale"),
        ]
        if grouped:
            kv_grid //= problem.group
            launches.insert(1, around("zero_kv", kv_grid, dk, dv, *of_kv))
            launches.append(around("convert_kv", kv_grid, dk, dv, "dK", "dV", *of_kv))
        return tuple(launches)


class Flash2Backward(BackwardKernel):
    name = "flash2_backward"
    dtypes = ("fp16", "bf16")
    least_arch = 80  # cp.async, mma.m16n8k16
    most_stages = 2
    matmul_dtype = None  # tensor cores take the inputs as they are
    tiles = {  # noqa: RUF012 (up to a width of head_dim and value_dim, the best first)
        64: (Tiles(32, 128, 2), Tiles(64, 128, 2), Tiles(64, 64, 2)),
        128: (Tiles(64, 128, 2), Tiles(32, 64, 2)),
        256: (Tiles(64, 64), Tiles(64, 64, 2)),
    }

    def block_threads(self, problem, tiles):
        """The fewest whose registers hold the sums: two small thread blocks on an SM wait less."""
        return 128 if self._registers(problem, tiles, 128) <= MAX_REGISTERS else 256

    def _registers(self, problem, tiles, threads):
        sums = tiles.bc * (problem.head_dim + problem.value_dim) + 2 * tiles.br * tiles.bc
        return sums // threads + 40

    def main_execution(self, problem, tiles):
        threads = self.block_threads(problem, tiles)

        def share(rows, columns):
            """Rows and columns of a warp (Share of the source)."""
            across = threads // 32 // (rows // 32)
            return 32, 16 * ceil_div(columns, 16 * across)

        return mma_backward(share, tiles.br, tiles.bc, (problem.head_dim, problem.value_dim),
                            threads, stages=tiles.stages)

    def shared_bytes(self, problem, tiles):
        widths = problem.head_dim + problem.value_dim
        elements = (tiles.bc + tiles.stages * tiles.br) * widths + 2 * tiles.br * tiles.bc
        return elements * problem.dtype_bytes + 2 * 4 * tiles.br

    def live_registers(self, problem, tiles):
        return self._registers(problem, tiles, self.block_threads(problem, tiles))

    def check(self, problem, tiles):
        super().check(problem, tiles)
        for name, value in (("br", tiles.br), ("bc", tiles.bc)):
            if value not in ROWS:
                raise self._refusal(name, value, f"one of {', '.join(map(str, ROWS))}")
        least = 16 * self.block_threads(problem, tiles)  # a warp has 32 rows, and 16 columns
        if tiles.br * tiles.bc < least:
            raise self._refusal("bc", tiles.bc, f"at least {least // tiles.br} with br {tiles.br}")

    def tile_choices(self, problem):
        width = max(problem.head_dim, problem.value_dim)
        choices = next((tiles for most, tiles in self.tiles.items() if width <= most), ())
        return tuple(tiles for tiles in choices if self.accepts(problem, tiles))

    def defines(self, problem, tiles):
        warps = self.block_threads(problem, tiles) // 32
        return super().defines(problem, tiles) | {
            "STAGES": str(tiles.stages), "WARPS": str(warps),
        }


KERNEL = Flash2Backward()
