"""Launcher of softmax_fused.cu: the softmax alone, one pass, rows kept in shared memory."""

from ..simulator.execution import softmax_alone
from .base import THREADS, ceil_div
from .softmax_safe import Softmax


class SoftmaxFused(Softmax):
    schedule = "softmax_fused"

    def shared_bytes(self, problem, tiles):
        return ceil_div(problem.kv_seq * problem.dtype_bytes, 16) * 16

    def executions(self, problem, tiles):
        return (softmax_alone(problem.kv_seq, problem.kv_seq, THREADS, resident=True),)


KERNEL = SoftmaxFused()
