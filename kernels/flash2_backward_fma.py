"""Launcher of flash2_backward_fma.cu: FlashAttention-2 backward in fp32 arithmetic."""

from ..simulator.execution import fma_backward, fma_scores
from .base import THREADS, padded
from .flash2_backward import BackwardKernel


class Flash2BackwardFma(BackwardKernel):
    name = "flash2_backward_fma"
    rows, columns = (32, 64, 16), (64, 32, 128, 16)
    most_scores = 64 * 64

    def main_execution(self, problem, tiles):
        element, widths = problem.dtype_bytes, (problem.head_dim, problem.value_dim)
        scores = fma_scores(tiles.br, tiles.bc, problem.head_dim, element)
        return fma_backward(scores, tiles.br, tiles.bc, widths, element)

    def shared_bytes(self, problem, tiles):
        widths = sum(padded(width, problem.dtype_bytes)
                     for width in (problem.head_dim, problem.value_dim))
        scores = tiles.br * (tiles.bc + 4) + tiles.bc * (tiles.br + 4) + 2 * tiles.br
        return (tiles.br + tiles.bc) * widths + 4 * scores

    def live_registers(self, problem, tiles):
        gradients = tiles.bc * (problem.head_dim + problem.value_dim)
        own = gradients + 2 * tiles.br * tiles.bc + tiles.br * problem.head_dim
        return own // THREADS + 64


KERNEL = Flash2BackwardFma()
