"""Are simulated rounding errors those of the formats, and those that kernels had on a GPU?"""

import math

import numpy as np
import pytest
from hbmeter.experiments import numerics
from hbmeter.experiments.figures import numerics as figure
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import numeric
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
WITHIN = 2.0  # of simulated errors, that recorded ones are


def standard_by_loops(problem, inputs, accumulator):
    """Standard attention of one head, an operation at a time, each rounded: a twin of the numeric
    reader's term-by-term products."""
    store, acc = numeric.storage_dtype(problem.dtype), numeric.storage_dtype(accumulator)
    wide = np.promote_types(acc, np.float32)
    q, k, v = (inputs[name][0, 0].astype(np.float64) for name in "QKV")

    def dot(a, b):
        total = acc.type(0)
        for x, y in zip(a, b, strict=True):
            total = acc.type(np.float64(total) + x * y)
        return total

    def rounded(x):
        return acc.type(wide.type(x))

    out = np.zeros((problem.seq, problem.value_dim), store)
    for i in range(problem.seq):
        s = [store.type(rounded(wide.type(dot(q[i], key)) * wide.type(problem.softmax_scale)))
             for key in k]
        s = np.array(s).astype(wide)
        e = np.array([rounded(np.exp(x - s.max())) for x in s]).astype(wide)
        total = wide.type(rounded(e.sum()))
        p = [np.float64(store.type(rounded(x / total))) for x in e]
        for j in range(problem.value_dim):
            out[i, j] = store.type(dot(p, v[:, j]))
    return out


@pytest.mark.parametrize("dtype, accumulator", (("fp16", "fp16"), ("fp16", "fp32"),
                                                ("fp32", "fp32"), ("bf16", "fp16")))
def test_the_reader_rounds_as_loops_do(dtype, accumulator):
    problem = Attention(1, 1, 3, 8, kv_seq=13, dtype=dtype)
    inputs = numeric.random_inputs(problem, 7)
    program = schedules.build("standard", problem, Tiles(4, 16))
    got = numeric.run(program, inputs, accumulate_in=accumulator, term_by_term=True)["O"][0, 0]
    want = standard_by_loops(problem, inputs, accumulator)
    np.testing.assert_array_equal(got.astype(float), want.astype(float))


@pytest.mark.parametrize("schedule", schedules.names("forward"))
def test_products_term_by_term_are_still_attention(schedule):
    problem = Attention(1, 2, 9, 8, kv_seq=21, dtype="fp64", mask="causal",
                        shared_kv=schedule == "mla_decode")
    if schedule == "mla_decode":
        problem = Attention(1, 2, 9, 8, kv_heads=1, kv_seq=21, value_dim=4, dtype="fp64",
                            mask="causal", shared_kv=True)
    inputs = numeric.random_inputs(problem)
    got = numeric.run(schedules.build(schedule, problem, Tiles(4, 8)), inputs, term_by_term=True)
    assert numeric.relative_error(got["O"], numeric.reference(problem, inputs)) < 1e-13


def test_accumulators_are_of_the_type_that_is_asked_for():
    problem = Attention(1, 1, 8, 8, dtype="fp32")
    inputs = numeric.random_inputs(problem)
    program = schedules.build("flash2", problem, Tiles(4, 4))
    lse = numeric.run(program, inputs, accumulate_in="fp16")["LSE"]
    assert lse.dtype == np.float16
    assert numeric.run(program, inputs)["LSE"].dtype == np.float32


@pytest.fixture(scope="module")
def table() -> list[dict]:
    return figure.run(None, None)


def test_errors_are_of_the_size_of_the_widest_roundoff(table):
    for row in table:
        if row["against"] == numerics.TYPES:
            widest = max(ROUNDOFF[row["dtype"]], ROUNDOFF[row["accumulator"]])
            assert widest / 8 < row["error"] < widest * 16, row


def test_errors_in_fp16_accumulators_grow_with_keys_and_in_fp32_hardly(table):
    def growth(accumulator):
        errors = [row["error"] for row in table
                  if (row["against"], row["accumulator"]) == ("keys", accumulator)]
        return errors[-1] / errors[0]

    assert growth("fp16") > 2 > 1.5 > growth("fp32")


def test_the_figure_says_what_it_shows(table):
    assert figure.plot(table).axes
    assert "fp16" in figure.describe(table) and figure.notes(table)
    assert len(figure.tables(table)[0].rows) == len(table)


@pytest.mark.parametrize("dtype, limit", (("fp16", 65504), ("fp32", 3.4028235e38),
                                          ("bf16", 3.3895314e38), ("fp8", 448)))
def test_exponentials_overflow_where_the_format_ends(dtype, limit):
    assert numerics.largest_logit(dtype) == math.floor(math.log(limit))


def test_the_running_maximum_keeps_logits_finite_that_overflow_without():
    scale = 16 * numerics.largest_logit("fp16")
    assert math.isfinite(numerics.error("tiled", "fp16", "fp16", logit_scale=scale))


def test_the_rescaling_factor_underflows_past_half_the_least_subnormal():
    gap = numerics.underflow_gap("fp16")
    assert math.exp(-gap) <= 2.0**-25 < math.exp(-gap + 0.01)


def test_what_underflow_loses_is_below_the_rounding_of_fp16():
    gap = numerics.underflow_gap("fp16")
    lost, kept = (numerics.lost_by_underflow(gap, accumulator) for accumulator in ("fp16", "fp32"))
    assert 0 < kept < lost < ROUNDOFF["fp16"]
    assert lost == pytest.approx(4096 / 64 * math.exp(-gap), rel=0.05)


@pytest.mark.parametrize("accumulator", ("fp32", "fp16"))
@pytest.mark.parametrize("method", numerics.METHODS)
def test_rows_that_see_nothing_are_zero(method, accumulator):
    assert numerics.masked_rows_are_zero(method, accumulator)


@pytest.mark.parametrize("block", (1, 2, 7, 64, 1000))
def test_the_formula_that_forgets_the_local_sum_is_right_for_single_elements_only(block):
    assert numerics.formula_error(block, forget_local=False) < 1e-14
    wrong = numerics.formula_error(block, forget_local=True)
    assert wrong < 1e-14 if block == 1 else wrong > 0.1


def test_recorded_errors_are_within_twice_the_simulated_ones():
    rows = numerics.recorded_errors()
    assert {"standard", "flash1", "flash2", "flash2_mma"} <= {row["kernel"] for row in rows}
    assert {"fp32", "fp16", "bf16"} <= {row["dtype"] for row in rows}
    for row in rows:
        assert 1 / WITHIN < row["recorded"] / row["simulated"] < WITHIN, row
