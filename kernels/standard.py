"""Launcher of standard.cu: standard attention, three launches with S and P in global memory."""

from dataclasses import replace

from ..simulator.execution import fma, fma_output, fma_scores, softmax_rows
from .base import THREADS, Kernel, Launch, ceil_div, padded
from .paces import paced

ROW_BYTES = 49_152  # a row of S up to this size is read once
STALLS = 0.6  # cycles an instruction of the products: stall_wait of Nsight Compute, 0.42 to 0.71


class Standard(Kernel):
    name = schedule = "standard"
    tensors = ("Q", "K", "V", "S", "P", "O")
    outputs = ("S", "P", "O")

    def steps(self, tiles):
        return super().steps(tiles) | {"bk": tiles.bk}

    def scores_shared_bytes(self, problem, tiles):
        """Shared memory of the scores: a step of Q and K, then the tile of S in their place."""
        operands = (tiles.br + tiles.bc) * padded(tiles.bk, problem.dtype_bytes)
        return max(operands, tiles.br * padded(tiles.bc, problem.dtype_bytes))

    def softmax_shared_bytes(self, problem):
        """Shared memory of the softmax: the row of S, when it fits."""
        row = problem.kv_seq * problem.dtype_bytes
        return ceil_div(row, 16) * 16 if row <= ROW_BYTES else 0

    def output_shared_bytes(self, problem, tiles):
        """Shared memory of the output: a step of P and V."""
        values = tiles.bk * self.value_columns(problem, tiles) * problem.dtype_bytes
        return tiles.br * padded(tiles.bk, problem.dtype_bytes) + values

    def value_columns(self, problem, tiles):
        """Columns of O of one thread block."""
        return min(tiles.bc, problem.value_dim)

    def shared_bytes(self, problem, tiles):
        return max(launch.shared_bytes for launch in self.launches(problem, tiles))

    def live_registers(self, problem, tiles):
        operands = tiles.br // 16 * (16 // problem.dtype_bytes)
        return tiles.br * tiles.bc // THREADS + operands + 64

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {
            "ROW_BYTES": str(ROW_BYTES),
            "SCORES_SHARED_BYTES": str(self.scores_shared_bytes(problem, tiles)),
            "OUTPUT_SHARED_BYTES": str(self.output_shared_bytes(problem, tiles)),
        }

    def executions(self, problem, tiles):
        element, width = problem.dtype_bytes, self.value_columns(problem, tiles)
        scores = fma_scores(tiles.br, tiles.bc, tiles.bk, element)
        output = fma_output(tiles.br, width, tiles.bk, element, element)
        first, last = (replace(fma(*products, tiles.bc, element_bytes=element), stalls=STALLS)
                       for products in ((scores, None), (None, output)))
        return (first, softmax_rows(problem.kv_seq), paced(last, self.name, problem, tiles, 2))

    def launches(self, problem, tiles, order="row"):
        heads, row_blocks = problem.head_count, ceil_div(problem.seq, tiles.br)
        value_blocks = ceil_div(problem.value_dim, self.value_columns(problem, tiles))
        shape, shifts = ("heads", "group", "n_q", "n_kv"), ("lo_shift", "hi_shift")
        return (
            Launch(
                "hbmeter_standard_scores",
                heads * row_blocks * ceil_div(problem.kv_seq, tiles.bc),
                THREADS,
                self.scores_shared_bytes(problem, tiles),
                ("Q", "K", "S", *shape, "scale"),
            ),
            Launch(
                "hbmeter_standard_softmax",
                heads * problem.seq,
                THREADS,
                self.softmax_shared_bytes(problem),
                ("S", "P", "heads", "n_q", "n_kv", *shifts),
            ),
            Launch(
                "hbmeter_standard_output",
                heads * row_blocks * value_blocks,
                THREADS,
                self.output_shared_bytes(problem, tiles),
                ("P", "V", "O", *shape),
            ),
        )


KERNEL = Standard()
