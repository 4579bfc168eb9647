"""The backward pass in float64, written down directly: what schedules of gradients are held to.

Closed formulas of reverse-mode differentiation, dense, apart from any tile program:
dV = PᵀdO, dP = dO·Vᵀ, dS = P ∘ (dP − rowsum(P ∘ dP)), dQ = dS·K/√d, dK = dSᵀ·Q/√d. With dropout Z
(0 or 1 / (1 − p)) dV = (P ∘ Z)ᵀdO and dP = (dO·Vᵀ) ∘ Z.
"""

import numpy as np

from ..dropout import kept, scaling
from ..problem import Attention
from .numeric import accumulator_dtype, round_to


def probabilities(problem: Attention, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """P [batch, heads, seq, kv_seq] in float64, and the row statistics m, l and LSE it is made of.

    A row that sees nothing has P = 0, l = 0, m = LSE = −∞.
    """
    q, k = (inputs[name].astype(np.float64) for name in "QK")
    k = np.repeat(k, problem.group, axis=1)
    visible = problem.visibility.dense(problem.seq, problem.kv_seq)
    scores = np.where(visible, q @ k.swapaxes(-1, -2) * problem.softmax_scale, -np.inf)
    m = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(m), 0.0, m))
    l = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = m + np.log(l)
    return {"P": weights / np.where(l == 0, 1.0, l), "m": m, "l": l, "LSE": lse}


def backward_inputs(problem: Attention, inputs: dict[str, np.ndarray],
                    seed: int = 0) -> dict[str, np.ndarray]:
    """What a backward pass may read beside Q, K, V: a normal dO, and what the forward pass saved
    (O and P in the problem's dtype, m, l and LSE in the accumulator type; with dropout also what it
    kept and left of P)."""
    rng = np.random.default_rng([seed, 1])
    shape = (problem.batch, problem.heads, problem.seq, problem.value_dim)
    saved = probabilities(problem, inputs)
    values = np.repeat(inputs["V"].astype(np.float64), problem.group, axis=1)
    stored = {"dO": rng.standard_normal(shape), "P": saved["P"]}
    if problem.dropout:
        stored["kept"] = kept(problem, 0, 0, problem.seq, problem.kv_seq)
        saved["P"] = stored["P_dropped"] = saved["P"] * scaling(problem)
    stored["O"] = saved["P"] @ values
    statistics = {name: saved[name].astype(accumulator_dtype(problem.dtype))
                  for name in ("m", "l", "LSE")}
    return statistics | {name: round_to(x, problem.dtype) for name, x in stored.items()}


def reference_gradients(problem: Attention,
                        inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """dQ, dK and dV in float64 from Q, K, V and dO, shaped as Q, K and V."""
    q, k, v, do = (inputs[name].astype(np.float64) for name in ("Q", "K", "V", "dO"))
    k, v = (np.repeat(x, problem.group, axis=1) for x in (k, v))
    p = probabilities(problem, inputs)["P"]
    stay = scaling(problem) if problem.dropout else 1.0
    dp = do @ v.swapaxes(-1, -2) * stay
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * problem.softmax_scale
    dk, dv = ds.swapaxes(-1, -2) @ q, (p * stay).swapaxes(-1, -2) @ do
    return {"dQ": ds @ k, "dK": _over_groups(problem, dk), "dV": _over_groups(problem, dv)}


def _over_groups(problem: Attention, gradient: np.ndarray) -> np.ndarray:
    """The sum over the query heads of each KV head."""
    batch, _, rows, cols = gradient.shape
    return gradient.reshape(batch, problem.kv_heads, problem.group, rows, cols).sum(axis=2)
