"""Rounding errors of attention: simulated operation by operation, and as kernels had them on a GPU.

The numeric reader runs a schedule's program with rounding after each operation (of a product, after
each fused multiply-add) and its result is compared with attention in float64 on the same rounded
inputs. Standard normal inputs; a logit scale multiplies Q.
"""

import numpy as np

from .. import kernels
from ..simulator import schedules
from ..simulator.engines import numeric
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from . import records
from .grid import Point

METHODS = {  # schedule, Br, Bc; online: one key a step
    "standard": ("standard", 64, 64),
    "online": ("flash2", 64, 1),
    "tiled": ("flash2", 64, 64),
}
ACCUMULATORS = {"fp64": ("fp64", "fp32", "fp16"), "fp32": ("fp32", "fp16"),
                "bf16": ("fp32", "fp16"), "fp16": ("fp32", "fp16"), "fp8": ("fp32", "fp16")}
QUERIES, KEYS, HEAD_DIM = 16, 128, 64  # rows are independent of each other: few are enough
CHECKED_QUERIES, CHECKED_KEYS = 16, 2048  # of a recorded point that is simulated again


def error(method: str, dtype: str, accumulator: str, *, keys: int = KEYS, bc: int | None = None,
          logit_scale: float = 1.0) -> float:
    """‖O − O64‖ / ‖O64‖ of ``method`` (one of METHODS) with inputs in ``dtype``; infinite when a
    number of O is not finite."""
    schedule, br, columns = METHODS[method]
    problem = Attention(1, 1, QUERIES, HEAD_DIM, kv_seq=keys, dtype=dtype)
    inputs = numeric.random_inputs(problem)
    inputs["Q"] = numeric.round_to(inputs["Q"].astype(float) * logit_scale, dtype)
    return _error(schedules.build(schedule, problem, Tiles(br, bc or columns)), inputs, accumulator,
                  term_by_term=True)


def _error(program, inputs, accumulator: str | None, term_by_term: bool) -> float:
    got = numeric.run(program, inputs, accumulate_in=accumulator, term_by_term=term_by_term)["O"]
    if not np.isfinite(got.astype(float)).all():
        return float("inf")
    return numeric.relative_error(got, numeric.reference(program.problem, inputs))


def by_type() -> list[dict]:
    """A row a method, input dtype and accumulator, at KEYS keys."""
    return [{"against": TYPES, "at": None, "method": method, "dtype": dtype,
             "accumulator": accumulator, "error": error(method, dtype, accumulator)}
            for dtype, several in ACCUMULATORS.items() for accumulator in several
            for method in METHODS]


TYPES = "types"  # what by_type's rows are against
SWEEPS = {"keys": (64, 256, 1024, 2048), "bc": (1, 8, 32, 128), "logit_scale": (1, 4, 16, 64)}


def sweeps() -> list[dict]:
    """Errors of tiled attention, fp16, against keys, Bc and logit scale, with both accumulators."""
    method, dtype = "tiled", "fp16"
    return [{"against": name, "at": value, "method": method, "dtype": dtype,
             "accumulator": accumulator,
             "error": error(method, dtype, accumulator, **{name: value})}
            for name, values in SWEEPS.items() for value in values
            for accumulator in ACCUMULATORS[dtype]]


# ---- What can go wrong ------------------------------------------------------------------------


def largest_logit(dtype: str) -> int:
    """The largest whole logit whose exponential is finite in ``dtype`` when no maximum is taken
    off first."""
    logits = np.arange(1, 1000)
    with np.errstate(over="ignore"):
        found = numeric.round_to(np.exp(logits.astype(np.longdouble)).astype(float), dtype)
        finite = np.isfinite(found.astype(float))
    return int(logits[finite].max())


def underflow_gap(dtype: str) -> float:
    """By how much the maximum must rise, in steps of 0.01, for the rescaling factor
    exp(m_old − m_new) to be 0 in ``dtype``."""
    gaps = np.arange(1, 100_000) / 100
    return float(gaps[(numeric.round_to(np.exp(-gaps), dtype).astype(float) == 0).argmax()])


def lost_by_underflow(gap: float, accumulator: str, keys_before: int = 4096) -> float:
    """Largest error of O, in parts of the values, when the last 64 of many keys raise the maximum
    by ``gap``: what the keys before had gathered is multiplied by exp(−gap). fp16 inputs."""
    problem = Attention(1, 1, 16, 16, kv_seq=keys_before + 64, dtype="fp16")
    inputs = {name: np.zeros((1, 1, rows, 16), np.float16)
              for name, rows in (("Q", 16), ("K", problem.kv_seq), ("V", problem.kv_seq))}
    inputs["Q"][..., 0] = 1 / problem.softmax_scale
    inputs["K"][..., keys_before:, 0] = gap
    inputs["V"][..., :keys_before, :] = 1
    got = numeric.run(schedules.build("flash2", problem, Tiles(16, 64)), inputs,
                      accumulate_in=accumulator)["O"]
    return float(np.abs(got.astype(float) - numeric.reference(problem, inputs)).max())


def masked_rows_are_zero(method: str, accumulator: str) -> bool:
    """Whether queries that see no key (causal, more queries than keys) get 0 and no NaN."""
    schedule, br, bc = METHODS[method]
    problem = Attention(1, 1, 8, 16, kv_seq=4, dtype="fp16", mask="causal")
    got = numeric.run(schedules.build(schedule, problem, Tiles(br, bc)),
                      numeric.random_inputs(problem), accumulate_in=accumulator)["O"]
    return bool((got[:, :, :4] == 0).all())


def denominator(scores: np.ndarray, block: int, forget_local: bool = False) -> float:
    """The softmax denominator of a row over its blocks, times exp(maximum):
    l ← l·exp(m − m_new) + l_local·exp(m_local − m_new).

    With ``forget_local`` the last term is exp(m_local − m_new) alone, as a formula in circulation
    has it. Float64.
    """
    m, l = -np.inf, 0.0
    for start in range(0, len(scores), block):
        part = scores[start:start + block]
        m_local = part.max()
        l_local = 1.0 if forget_local else np.exp(part - m_local).sum()
        m_new = max(m, m_local)
        l = l * np.exp(m - m_new) + l_local * np.exp(m_local - m_new)
        m = m_new
    return float(l * np.exp(m))


def formula_error(block: int, forget_local: bool, length: int = 256) -> float:
    """Relative error of the denominator of a row of normal scores."""
    scores = np.random.default_rng(0).standard_normal(length)
    want = np.exp(scores).sum()
    return abs(denominator(scores, block, forget_local) - want) / want


# ---- What kernels had -------------------------------------------------------------------------


def recorded_errors(most_keys: int = CHECKED_KEYS, every: bool = False) -> list[dict]:
    """Recorded errors of O beside simulated ones: forward, unmasked, at most ``most_keys`` keys.

    One point a kernel and dtype, the longest, unless ``every`` is asked for. FMA kernels are
    simulated term by term. The simulation takes CHECKED_QUERIES rows of one head.
    """
    found = {}
    for record in records.load_all():
        for data in record.points:
            point, relative = Point.of(data), data["error"].get("O", {}).get("relative")
            problem = point.problem
            checked = (relative and problem.direction == "forward" and problem.mask == "full"
                       and problem.kv_seq <= most_keys and kernels.get(point.kernel).schedule
                       in ("standard", "flash1", "flash2"))
            if checked:
                key = (point.kernel, problem.dtype)
                key += (problem.kv_seq, problem.head_dim, point.tiles) if every else ()
                if key not in found or problem.kv_seq > found[key][0].problem.kv_seq:
                    found[key] = point, relative
    return [_beside(point, relative) for point, relative in found.values()]


def _beside(point: Point, relative: float) -> dict:
    kernel, asked = kernels.get(point.kernel), point.problem
    problem = Attention(1, 1, CHECKED_QUERIES, asked.head_dim, kv_seq=asked.kv_seq,
                        value_dim=asked.value_dim, dtype=asked.dtype)
    program = schedules.build(kernel.schedule, problem, point.tiles)
    simulated = _error(program, numeric.random_inputs(problem), None,
                       term_by_term=kernel.matmul_dtype == "fp32")
    return {"kernel": point.kernel, "dtype": asked.dtype, "head_dim": asked.head_dim,
            "keys": asked.kv_seq, "br": point.tiles.br, "bc": point.tiles.bc,
            "recorded": relative, "simulated": simulated}
