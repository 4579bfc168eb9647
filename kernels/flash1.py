"""Launcher of flash1.cu: FlashAttention-1 forward, one thread block a head."""

from ..simulator.execution import fma, fma_output, fma_scores
from .base import SHAPE, THREADS, Kernel, Launch, padded
from .paces import paced


class Flash1(Kernel):
    name = schedule = "flash1"
    tensors = ("Q", "K", "V", "O", "m", "l")
    outputs = ("O", "m", "l")
    most_scores = 128 * 64  # 128 × 128 spills a few registers when it counts

    def roundings(self, problem, tiles):
        return -(-problem.kv_seq // tiles.bc)

    def shared_bytes(self, problem, tiles):
        width = padded(problem.head_dim, problem.dtype_bytes)
        values = tiles.bc * problem.value_dim * problem.dtype_bytes
        weights_and_statistics = 4 * tiles.br * (tiles.bc + 2)
        return (tiles.br + tiles.bc) * width + values + weights_and_statistics

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
        shared = self.shared_bytes(problem, tiles)
        arguments = (*self.tensors, *SHAPE)
        return (Launch("hbmeter_flash1", problem.head_count, THREADS, shared, arguments),)


KERNEL = Flash1()
