"""Launcher of softmax_online.cu: the softmax alone, two passes, a thread block a row."""

from .softmax_safe import Softmax


class SoftmaxOnline(Softmax):
    schedule = "softmax_online"


KERNEL = SoftmaxOnline()
