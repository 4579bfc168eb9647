"""The softmax alone in float64: what schedules of the softmax are held to."""

import numpy as np

from ..problem import Attention
from .numeric import round_to

SPREAD = 4.0  # standard deviation of the scores: exponents far enough apart to need the maximum


def random_scores(problem: Attention, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal S [batch, heads, seq, kv_seq] in the problem's dtype."""
    shape = (problem.batch, problem.heads, problem.seq, problem.kv_seq)
    scores = SPREAD * np.random.default_rng(seed).standard_normal(shape)
    return {"S": round_to(scores, problem.dtype)}


def reference_softmax(problem: Attention, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """P [batch, heads, seq, kv_seq] in float64 from S; rows that see nothing give 0."""
    visible = problem.visibility.dense(problem.seq, problem.kv_seq)
    scores = np.where(visible, inputs["S"].astype(np.float64), -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(peak), 0.0, peak))
    total = weights.sum(axis=-1, keepdims=True)
    return {"P": weights / np.where(total == 0, 1.0, total)}
