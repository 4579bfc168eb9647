"""What kernels of the softmax alone read, and the weights they are held to, on the GPU."""

import numpy as np

from ..simulator.problem import Attention
from . import runner
from .base import tensor_shape

SPREAD = 3.0  # standard deviation of scores: of a row some weights matter, not one


def random_scores(problem: Attention, seed: int = 0) -> dict:
    """Normal S [batch, heads, seq, kv_seq], made on the GPU (a CuPy array)."""
    cupy = runner.require_gpu()
    random = cupy.random.default_rng(seed)
    values = random.standard_normal(tensor_shape("S", problem), dtype=cupy.float32)
    return {"S": runner.to_storage(SPREAD * values, problem.dtype)}


def reference_weights(problem: Attention, s) -> dict:
    """P in float64, a head at a time, apart from any kernel; 0 in rows that see nothing."""
    cupy = runner.require_gpu()
    low, high = problem.mask_bounds.column_range(np.arange(problem.seq), problem.kv_seq)
    columns = cupy.arange(problem.kv_seq)
    seen = (columns >= cupy.asarray(low)[:, None]) & (columns < cupy.asarray(high)[:, None])
    found = cupy.empty(s.shape)
    for place in np.ndindex(*s.shape[:2]):
        head = runner.to_float(s[place]).astype(cupy.float64)
        scores = cupy.where(seen, head, -cupy.inf)
        peak = scores.max(axis=1, keepdims=True)
        weights = cupy.exp(scores - cupy.where(cupy.isfinite(peak), peak, 0.0))
        total = weights.sum(axis=1, keepdims=True)
        found[place] = weights / cupy.where(total > 0, total, 1.0)
    return {"P": found}
