"""Does every schedule compute exact attention, and do the roundings round as the formats say?"""

import ml_dtypes
import numpy as np
import pytest
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import numeric
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TILES, posed_for, problems

SCHEDULES = schedules.names("forward")
# Unit roundoff (half a unit in the last place of 1) and half the smallest subnormal.
ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
UNDERFLOW = {"fp32": 2.0**-150, "tf32": 2.0**-137, "fp16": 2.0**-25, "bf16": 2.0**-134,
             "fp8": 2.0**-10}


def computed(schedule, problem, tiles, seed=0):
    """(the problem as the schedule takes it, inputs, outputs)"""
    problem = posed_for(schedule, problem)
    inputs = numeric.random_inputs(problem, seed)
    outputs = numeric.run(schedules.build(schedule, problem, tiles), inputs)
    return problem, inputs, outputs


def attention_pair_by_pair(p, inputs):
    """Attention as nested loops over heads and queries: a twin of the reference."""
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    visible = p.mask_bounds.dense(p.seq, p.kv_seq)
    out = np.zeros((p.batch, p.heads, p.seq, p.value_dim))
    for b, h, i in np.ndindex(p.batch, p.heads, p.seq):
        keys, values = k[b, h // p.group][visible[i]], v[b, h // p.group][visible[i]]
        if len(keys):
            scores = keys @ q[b, h, i] / np.sqrt(p.head_dim)
            weights = np.exp(scores - scores.max())
            out[b, h, i] = weights @ values / weights.sum()
    return out


@settings(deadline=None, max_examples=50)
@given(problems(dtypes=("fp64",)), st.integers(0, 99))
def test_the_reference_is_attention_pair_by_pair(p, seed):
    inputs = numeric.random_inputs(p, seed)
    want = attention_pair_by_pair(p, inputs)
    np.testing.assert_allclose(numeric.reference(p, inputs), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=60)
@given(p=problems(dtypes=("fp64",)), tiles=TILES, seed=st.integers(0, 99))
def test_every_schedule_is_exact_attention(schedule, p, tiles, seed):
    p, inputs, outputs = computed(schedule, p, tiles, seed)
    assert numeric.relative_error(outputs["O"], numeric.reference(p, inputs)) <= 1e-12


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mask", ["full", "causal", "window:1", "window:50"])
@pytest.mark.parametrize(("seq", "kv_seq"), [(1, 1), (1, 300), (300, 1), (193, 257), (257, 130)])
def test_every_schedule_is_exact_at_default_tiles(schedule, mask, seq, kv_seq):
    p = Attention(batch=2, heads=4, kv_heads=2, seq=seq, kv_seq=kv_seq, head_dim=20, value_dim=12,
                  dtype="fp64", mask=mask)
    p, inputs, outputs = computed(schedule, p, None)
    assert numeric.relative_error(outputs["O"], numeric.reference(p, inputs)) <= 1e-12


def test_standard_is_exact_when_a_row_does_not_stay_on_chip():
    p = Attention(batch=1, heads=1, seq=3, kv_seq=6145, head_dim=4, dtype="fp64", mask="causal")
    program = schedules.build("standard", p)
    assert len(program.phases[1].tiles) == 6  # the online softmax, not the resident one
    inputs = numeric.random_inputs(p)
    got = numeric.run(program, inputs)["O"]
    assert numeric.relative_error(got, numeric.reference(p, inputs)) <= 1e-12


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ["fp64", "fp16", "fp8"])
def test_rows_that_see_nothing_are_zero(schedule, dtype):
    p = Attention(batch=1, heads=2, seq=50, kv_seq=13, head_dim=8, dtype=dtype, mask="window:5")
    _, _, outputs = computed(schedule, p, Tiles(br=16, bc=8))
    out = outputs["O"].astype(np.float64)
    assert (out[:, :, :37] == 0).all() and (out[:, :, 37:] != 0).any(axis=-1).all()


@pytest.mark.parametrize("mask", ["full", "causal", "window:7"])
def test_saved_row_statistics_are_the_logsumexp(mask):
    p = Attention(batch=1, heads=2, seq=30, kv_seq=25, head_dim=8, dtype="fp64", mask=mask)
    _, inputs, flash1 = computed("flash1", p, Tiles(br=8, bc=7))
    _, _, flash2 = computed("flash2", p, Tiles(br=8, bc=7))
    scores = np.einsum("bhid,bhjd->bhij", inputs["Q"], inputs["K"]) * p.softmax_scale
    scores = np.where(p.mask_bounds.dense(30, 25), scores, -np.inf)
    with np.errstate(divide="ignore"):
        want = np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        got = np.log(flash1["l"]) + flash1["m"]
    np.testing.assert_allclose(flash2["LSE"], want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16", "fp8"])
def test_outputs_are_stored_in_their_dtype_even_one_column_wide(schedule, dtype):
    p = Attention(batch=1, heads=1, seq=5, kv_seq=1, head_dim=1, value_dim=1, dtype=dtype)
    for name, got in computed(schedule, p, None)[2].items():
        wide = name in ("m", "l", "LSE")
        want = numeric.accumulator_dtype(dtype) if wide else numeric.storage_dtype(dtype)
        assert got.dtype == want


def error_bound(p, inputs, passes):
    """What rounding may cost each element of O, to first order, from the unit roundoff.

    S rounded to the dtype moves exp by 2·u·max|S| (numerator and denominator), P and O cost u
    each, and O once more a pass when it is rewritten; sums in fp32 cost their length times 2^-24.
    All of it weighs Σ P·|V|. Underflow adds an absolute error for every P and O.
    """
    sizes = {name: np.abs(inputs[name].astype(np.float64)) for name in "QKV"}
    k, v = (np.repeat(sizes[name], p.group, axis=1) for name in "KV")
    peak = (sizes["Q"] @ k.swapaxes(-1, -2)).max() * p.softmax_scale
    weighed = numeric.reference(p, inputs | {"V": sizes["V"]})
    relative = ROUNDOFF[p.dtype] * (2 * peak + 2 + 2 * passes)
    relative += 2.0**-24 * (p.kv_seq + 2 * (p.head_dim + 2) * peak + 8 * passes)
    absolute = UNDERFLOW[p.dtype] * (passes + 2 * v.sum(axis=-2, keepdims=True))
    return np.expm1(relative) * weighed + absolute


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("mask", ["full", "causal", "window:20"])
def test_lower_precision_costs_no_more_than_its_roundings(schedule, dtype, mask):
    p = Attention(batch=1, heads=2, seq=70, kv_seq=90, head_dim=16, value_dim=8, dtype=dtype,
                  mask=mask)
    p, inputs, outputs = computed(schedule, p, Tiles(br=32, bc=24, splits=3))
    want = numeric.reference(p, inputs)
    difference = np.abs(outputs["O"].astype(np.float64) - want)
    assert (difference <= error_bound(p, inputs, passes=4)).all()
    assert numeric.relative_error(outputs["O"], want) <= 4 * ROUNDOFF[dtype]  # what is typical


def test_lower_precision_is_not_computed_in_higher():
    """The error of fp16 is of the size of its roundoff, not of fp32's."""
    p = Attention(batch=1, heads=1, seq=64, head_dim=16, dtype="fp16")
    _, inputs, outputs = computed("flash2", p, None)
    error = numeric.relative_error(outputs["O"], numeric.reference(p, inputs))
    assert 2.0**-14 < error < 2.0**-9


def nearest_even(x, values):
    """The nearest of sorted ``values`` (finite, of one format), ties to the even one."""
    above = int(np.clip(np.searchsorted(values, x), 1, len(values) - 1))
    low, high = values[above - 1], values[above]
    if x - low != high - x:
        return low if x - low < high - x else high
    zero = int(np.searchsorted(values, 0.0))  # codes count from 0, so parity is the last bit
    return low if (above - 1 - zero) % 2 == 0 else high


@given(st.floats(-448, 448, width=32))
def test_fp8_rounds_to_nearest_even(x):
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    values = np.unique(codes[np.isfinite(codes)])
    assert float(numeric.round_to(np.float32(x), "fp8")) == nearest_even(x, values)


def test_fp8_has_no_infinity_and_overflows_to_nan():
    got = numeric.round_to(np.array([448, 464, 465, 1e9, -1e9]), "fp8").astype(np.float64)
    assert list(got[:2]) == [448, 448] and np.isnan(got[2:]).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_tf32_rounds_to_nearest_even_with_10_mantissa_bits(x):
    spacing = np.exp2(np.maximum(np.frexp(x)[1] - 1, -126) - 10.0)  # 2^(e - 10), subnormals too
    want = np.rint(np.float64(x) / spacing) * spacing  # rint is nearest-even
    with np.errstate(over="ignore"):
        assert numeric.round_to(np.array(x), "tf32") == np.float32(want)


@pytest.mark.parametrize(("x", "want"), [
    (1 + 2.0**-11, 1.0), (1 + 3 * 2.0**-11, 1 + 2.0**-9), (1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-10),
    (np.finfo(np.float32).max, np.inf), (-np.inf, -np.inf), (np.nan, np.nan), (-0.0, -0.0),
])
def test_tf32_at_ties_and_the_ends_of_the_range(x, want):
    np.testing.assert_equal(numeric.round_to(np.array([x]), "tf32")[0], np.float32(want))


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_tf32_keeps_every_nan_a_nan(bits):
    assert np.isnan(numeric.round_to(np.array([bits], np.uint32).view(np.float32), "tf32"))


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"])
def test_rounding_twice_changes_nothing(dtype):
    once = numeric.round_to(np.random.default_rng(0).standard_normal(1000), dtype)
    np.testing.assert_array_equal(numeric.round_to(once, dtype), once)


def test_a_nan_in_the_output_makes_the_error_nan():
    assert np.isnan(numeric.relative_error(np.array([np.nan, 1.0]), np.array([1.0, 1.0])))


def test_a_problem_too_large_for_a_cpu_is_refused():
    p = Attention(batch=1, heads=1, seq=1 << 15, head_dim=8)
    with pytest.raises(InputError, match=r"numeric check of S .* use a smaller seq"):
        numeric.run(schedules.build("standard", p), {"Q": np.zeros((1, 1, 1, 1))} | {
            name: np.zeros((1, 1, 1, 1)) for name in "KV"})
