"""What kernels of the backward pass read, and the gradients they are held to, on the GPU.

The same closed formulas as simulator/engines/gradients.py, in float64, a head at a time.
"""

import numpy as np

from ..simulator.problem import Attention
from . import runner
from .base import tensor_shape


def backward_inputs(problem: Attention, q, k, v, seed: int = 0) -> dict:
    """A standard normal dO, and the O and LSE that an exact forward pass saves (CuPy arrays)."""
    cupy = runner.require_gpu()
    random = np.random.default_rng([seed, 1])
    shape = tensor_shape("dO", problem)
    d_out = cupy.asarray(random.standard_normal(shape, dtype=np.float32))
    saved = runner.reference(problem, q, k, v)
    stored = {"dO": d_out, "O": saved["O"].astype(cupy.float32)}
    return {name: runner.to_storage(x, problem.dtype) for name, x in stored.items()} | {
        "LSE": saved["LSE"].astype(cupy.float32)
    }


def reference_gradients(problem: Attention, q, k, v, d_out, *, sizes: bool = False) -> dict:
    """dQ, dK and dV in float64 (CuPy arrays), computed apart from any kernel.

    ``sizes``: instead, the usual sizes of the sums that make them, √(a² · b²) for a product a · b,
    without the subtraction of D. Of that size are the numbers whose rounding they carry, however
    little is left of dP − D (nothing, where a row sees one key).
    """
    cupy = runner.require_gpu()
    heads = [runner.to_float(x).reshape(-1, *x.shape[2:]) for x in (q, k, v, d_out)]
    found = {name: cupy.zeros(tensor_shape(name, problem)) for name in ("dQ", "dK", "dV")}
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in found.items()}
    low, high = problem.mask_bounds.column_range(np.arange(problem.seq), problem.kv_seq)
    columns = cupy.arange(problem.kv_seq)
    seen = (columns >= cupy.asarray(low)[:, None]) & (columns < cupy.asarray(high)[:, None])

    def product(a, b):
        return cupy.sqrt(a**2 @ b**2) if sizes else a @ b

    for head in range(problem.head_count):
        kv_head = head // problem.group
        q_, k_, v_, do = (x[i].astype(cupy.float64) for x, i in
                          zip(heads, (head, kv_head, kv_head, head), strict=True))
        scores = cupy.where(seen, q_ @ k_.T * problem.softmax_scale, -cupy.inf)
        peak = scores.max(axis=1, keepdims=True)
        weights = cupy.exp(scores - cupy.where(cupy.isfinite(peak), peak, 0.0))
        total = weights.sum(axis=1, keepdims=True)
        p = weights / cupy.where(total > 0, total, 1.0)
        ds = p * product(do, v_.T) * problem.softmax_scale
        if not sizes:
            ds -= p * ds.sum(axis=1, keepdims=True)
        flat["dQ"][head] = product(ds, k_)
        flat["dK"][kv_head] += product(ds.T, q_)
        flat["dV"][kv_head] += product(p.T, do)
    return found
