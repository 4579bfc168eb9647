"""Do masks and problems mean what their options say, and is bad input refused by name?"""

from dataclasses import replace

import numpy as np
import pytest
from hbmeter.simulator.errors import InputError, unknown_name
from hbmeter.simulator.mask_forms import parse
from hbmeter.simulator.masks import parse_mask
from hbmeter.simulator.problem import DTYPE_BYTES, Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given
from hypothesis import strategies as st
from strategies import MASKS, SIZES, problems


def visible(mask: str, n_q: int, n_kv: int) -> np.ndarray:
    """The mask written down pair by pair: key j is at query i's position or before it."""
    out = np.zeros((n_q, n_kv), bool)
    for i in range(n_q):
        position = i + n_kv - n_q  # the last query stands at the last key
        for j in range(n_kv):
            out[i, j] = mask == "full" or (
                j <= position and (mask == "causal" or j > position - int(mask.split(":")[1]))
            )
    return out


@given(MASKS, SIZES, SIZES)
def test_a_mask_is_what_it_says_pair_by_pair(mask, n_q, n_kv):
    want, bounds = visible(mask, n_q, n_kv), parse_mask(mask, n_q, n_kv)
    np.testing.assert_array_equal(bounds.dense(n_q, n_kv), want)
    assert bounds.pairs(n_q, n_kv) == want.sum()


@given(MASKS, SIZES, SIZES, st.data())
def test_a_tile_of_a_mask_is_that_part_of_the_whole(mask, n_q, n_kv, data):
    row, col = data.draw(st.integers(0, n_q - 1)), data.draw(st.integers(0, n_kv - 1))
    rows, cols = data.draw(st.integers(1, n_q - row)), data.draw(st.integers(1, n_kv - col))
    bounds = parse_mask(mask, n_q, n_kv)
    np.testing.assert_array_equal(
        bounds.dense(n_q, n_kv, row, col, rows, cols),
        bounds.dense(n_q, n_kv)[row:row + rows, col:col + cols],
    )


@given(SIZES, SIZES)
def test_a_window_as_wide_as_all_keys_is_causal(n_q, n_kv):
    wide, causal = parse_mask(f"window:{n_kv}", n_q, n_kv), parse_mask("causal", n_q, n_kv)
    np.testing.assert_array_equal(wide.dense(n_q, n_kv), causal.dense(n_q, n_kv))


@pytest.mark.parametrize(
    "mask", ["", "windows:4", "window", "window:", "window:0", "window:-1", "window:1.5",
             "window:٣", "window:4:5", f"window:{1 << 41}", "Causal", None]
)
def test_an_unknown_mask_is_refused_with_the_known_ones(mask):
    with pytest.raises(InputError, match="full, causal or window:W"):
        parse_mask(mask, 4, 4)


def test_defaults_follow_from_the_other_fields():
    p = Attention(heads=6, seq=10, head_dim=8)
    assert (p.kv_heads, p.kv_seq, p.value_dim) == (6, 10, 8)
    assert replace(p, kv_heads=2).group == 3


@given(problems())
def test_the_mask_decides_the_forward_flops(p):
    assert p.pairs == visible(p.mask, p.seq, p.kv_seq).sum()
    assert p.forward_flops == 2 * p.pairs * (p.head_dim + p.value_dim) * p.batch * p.heads


def test_full_forward_flops_are_the_papers_4n2d():
    p = Attention(batch=3, heads=5, seq=128, head_dim=64)
    assert p.forward_flops == 4 * 128**2 * 64 * 15


@given(problems())
def test_compulsory_bytes_are_the_sizes_of_the_arrays(p):
    """Of K and V the keys that some query sees."""
    seen = int(p.mask_bounds.dense(p.seq, p.kv_seq).any(axis=0).sum())
    q = np.empty((p.batch, p.heads, p.seq, p.head_dim), np.uint8).size
    k = np.empty((p.batch, p.kv_heads, seen, p.head_dim), np.uint8).size
    v = np.empty((p.batch, p.kv_heads, seen, p.value_dim), np.uint8).size
    o = np.empty((p.batch, p.heads, p.seq, p.value_dim), np.uint8).size
    size = DTYPE_BYTES[p.dtype]
    assert p.compulsory_read_bytes == (q + k + v) * size
    assert p.compulsory_write_bytes == o * size


@pytest.mark.parametrize(("dtype", "size"), [("fp64", 8), ("fp32", 4), ("fp16", 4), ("fp8", 4)])
def test_row_statistics_are_fp32_or_fp64_for_fp64(dtype, size):
    assert Attention(dtype=dtype).stat_bytes == size


@pytest.mark.parametrize("field", ["batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim",
                                   "value_dim"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "4", True])
def test_a_size_that_is_no_whole_number_from_1_is_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"^{field} "):
        Attention(**{field: value})


def test_kv_heads_must_divide_heads():
    with pytest.raises(InputError, match="heads 6 is not divisible by kv_heads 4"):
        Attention(heads=6, kv_heads=4)


def test_an_unknown_dtype_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'fp16'"):
        Attention(dtype="pf16")


def test_a_problem_whose_counts_pass_int64_is_refused():
    with pytest.raises(InputError, match="too large"):
        Attention(seq=1 << 31, head_dim=128)


@pytest.mark.parametrize("field", ["br", "bc", "stages", "bk"])
@pytest.mark.parametrize("value", [0, -3, 2.0, True, (1 << 30) + 1])
def test_a_tile_size_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"^{field} "):
        Tiles(**{"br": 1, "bc": 1, field: value})


@pytest.mark.parametrize(("mask", "says"), [
    ("random:half,1", "a share of blocks above 0, at most 1"),
    ("random:0.5,1@1", "2,097,152 × 2,097,152 blocks of 1; at most 67,108,864: use larger ones"),
    ("strided:2@64", "32,768 × 32,768 blocks of 64; at most 67,108,864"),
    ("documents:1", "2,097,152 documents; at most 1,048,576"),
    ("documents:{}/zero.npy", "zero.npy must hold a row of lengths from 1"),
    ("documents:{}/square.npy", "square.npy must hold a row of lengths from 1"),
])
def test_a_list_that_is_too_long_or_none_is_refused(mask, says, tmp_path):
    np.save(tmp_path / "zero.npy", np.array([5, 0]))
    np.save(tmp_path / "square.npy", np.ones((2, 2), np.int64))
    with pytest.raises(InputError, match=says):
        parse(mask.format(tmp_path), 1 << 21, 1 << 21)


def test_a_mask_that_leaves_nothing_is_refused(tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((2, 3), np.bool_))
    with pytest.raises(InputError, match="leaves no \\(query, key\\) pair of 16 × 20"):
        Attention(seq=16, kv_seq=20, mask=f"blocks:{tmp_path}/none.npy@8")


def test_a_mask_is_read_in_the_form_that_it_has():
    with pytest.raises(InputError, match="mask causal is no list of bands"):
        _ = Attention(seq=8, mask="causal").listed_mask
    with pytest.raises(InputError, match="mask prefix:3 is not possible here, where rows see one"):
        _ = Attention(seq=8, mask="prefix:3").mask_bounds


def test_a_name_far_from_all_others_gets_no_suggestion():
    assert "did you mean" not in str(unknown_name("gpu", "zzz", ["h200"]))
