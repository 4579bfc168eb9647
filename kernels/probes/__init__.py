"""Probes: CUDA sources that measure the GPU itself, each with its launcher beside it.

They implement no schedule, so ``kernels.names()`` does not list them.
"""
