"""Launcher of flash2.cu: FlashAttention-2 forward, one thread block a row block."""

from ..simulator.execution import fma, fma_output, fma_scores
from .base import SHAPE, THREADS, Kernel, Launch, ceil_div, padded
from .paces import paced


class Flash2(Kernel):
    name = schedule = "flash2"
    tensors = ("Q", "K", "V", "O", "LSE")
    outputs = ("O", "LSE")

    def shared_bytes(self, problem, tiles):
        width = padded(problem.head_dim, problem.dtype_bytes)
        keys_or_weights = max(tiles.bc * width, 4 * tiles.br * tiles.bc)
        values = tiles.bc * problem.value_dim * problem.dtype_bytes
        return tiles.br * width + keys_or_weights + values

    def live_registers(self, problem, tiles):
        operands = tiles.br // 16 * (16 // problem.dtype_bytes)
        return tiles.br * (tiles.bc + problem.value_dim) // THREADS + operands + 64

    def executions(self, problem, tiles):
        element = problem.dtype_bytes
        scores = fma_scores(tiles.br, tiles.bc, problem.head_dim, element)
        output = fma_output(tiles.br, problem.value_dim, tiles.bc, element, 4)
        how = fma(scores, output, tiles.bc, element_bytes=element)
        return (paced(how, self.name, problem, tiles),)

    def launches(self, problem, tiles, order="row"):
        grid = problem.head_count * ceil_div(problem.seq, tiles.br)
        shared = self.shared_bytes(problem, tiles)
        return (Launch("hbmeter_flash2", grid, THREADS, shared, (*self.tensors, *SHAPE)),)


KERNEL = Flash2()
