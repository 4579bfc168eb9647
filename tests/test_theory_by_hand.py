"""Do closed forms give the bytes that one counts with pencil and paper?"""

from dataclasses import replace

import numpy as np
import pytest
from hbmeter.simulator import schedules, theory
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles


def test_every_schedule_has_a_closed_form_but_those_told_otherwise():
    without = set(schedules.names()) - set(theory.closed_forms())
    assert set(theory.closed_forms()) <= set(schedules.names())
    assert without <= {name for name in schedules.names() if "separate" in name}, without


# 100 keys of d 4 in fp16 (8 bytes a row), two query heads on one KV head, one query each; column
# blocks of 16. A window of W begins at key 100 - W, rounded down to a whole step.
@pytest.mark.parametrize(("window", "keys", "pages"), [
    (37, 52, 7),  # from 63: 48
    (36, 36, 5),  # from 64: 64; pages 8 to 12
    (30, 36, 5),  # from 70: 64
    (100, 100, 13), (1, 4, 1),  # from 99: 96
])
def test_decode_walks_the_window_from_a_whole_step_on(window, keys, pages):
    problem = Attention(1, 2, 1, 4, kv_heads=1, kv_seq=100, mask=f"window:{window}")
    found = theory.bytes_by_tensor("paged", problem, Tiles(1, 16, page=8))
    assert found["K"] == (2 * keys * 8, 0)  # once for each of the two rows, a block each
    assert found["table"] == (2 * pages * 4, 0)
    assert theory.bytes_by_tensor("split_kv", problem, Tiles(2, 16))["K"] == (keys * 8, 0)


def test_decode_in_steps_of_a_page_and_of_single_keys():
    """Pages of 5 and column blocks of 16 begin together at every 80th key; a window as wide as all
    keys begins at the first."""
    problem = Attention(1, 2, 1, 4, kv_heads=1, kv_seq=100, mask="window:12")  # from 88
    found = theory.bytes_by_tensor("paged", problem, Tiles(1, 16, page=5))
    assert found["table"] == (2 * 4 * 4, 0) and found["K"] == (2 * 20 * 8, 0)
    whole = replace(problem, mask="window:100")
    assert theory.bytes_by_tensor("split_kv", whole, Tiles(2, 1))["K"] == (100 * 8, 0)


def test_splits_are_whole_steps_and_none_is_empty():
    problem = Attention(1, 2, 1, 4, kv_heads=1, kv_seq=100)  # 7 steps of 16
    for asked, splits in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 4), (7, 7), (9, 7)]:
        found = theory.bytes_by_tensor("split_kv", problem, Tiles(2, 16, splits=asked))
        assert found["Q"] == (splits * 2 * 8, 0)
        if splits > 1:
            assert found["O_part"] == (splits * 2 * 16, splits * 2 * 16)
            assert found["LSE_part"] == (splits * 2 * 4, splits * 2 * 4)


def test_the_bound_of_a_matrix_product():
    assert theory.matrix_product_lower_bound(8, 8, 8, 16) == 2 * 512 / 4 - 32
    assert theory.matrix_product_lower_bound(2, 3, 5, 4) == 2 * 30 / 2 - 8
    assert theory.matrix_product_lower_bound(2, 3, 5, 100) == 0


def test_lists_of_blocks_by_hand():
    """Two documents of 4 tokens, blocks of 2, causal: row blocks see 1, 2, 1 and 2 column blocks.
    Algorithm 5: four columns that begin twice (again, first); rows see again 0, 1, 0, 1 blocks."""
    problem = Attention(1, 3, 8, 4, mask="documents:4,4")
    flash2 = theory.bytes_by_tensor("flash2", problem, Tiles(2, 2))
    assert flash2["begins"] == (3 * 8 * 4, 0) and flash2["blocks"] == (3 * 4 * 6, 0)
    flash1 = theory.bytes_by_tensor("flash1", problem, Tiles(2, 2))
    assert "unseen" not in flash1 and flash1["columns"] == (3 * 4 * 4, 0)
    assert flash1["first_begins"] == flash1["again_begins"] == (3 * 4 * 2 * 4, 0)
    assert (flash1["again_blocks"], flash1["first_blocks"]) == ((3 * 4 * 2, 0), (3 * 4 * 4, 0))
    assert theory.touched_blocks(problem, Tiles(2, 2)).sum() == 6
    assert theory.touched_blocks(problem, Tiles(3, 2)).tolist() == [
        [True, True, False, False], [True, True, True, False], [False, False, True, True]]


def test_blocks_without_order_by_hand(tmp_path):
    """Blocks of 2 × 2 of 8 queries and 8 keys; no query sees the third column block, and two
    row blocks see nothing. Column block 0 is the first of row block 0, 1 that of 2."""
    kept = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]], np.bool_)
    np.save(tmp_path / "kept.npy", kept)
    p = Attention(1, 3, 8, 4, mask=f"blocks:{tmp_path}/kept.npy@2")
    flash1 = theory.bytes_by_tensor("flash1", p, Tiles(2, 2))
    assert flash1["K"] == flash1["V"] == (3 * 6 * 8, 0)
    assert flash1["Q"] == (3 * (3 + 2) * 2 * 8, 0)
    assert flash1["O"] == (3 * (2 + 1) * 2 * 8, 3 * (3 + 1 + 2 + 1) * 2 * 8)
    lists = {"unseen": 2, "columns": 3, "first_begins": 2 * 3, "again_begins": 2 * 3,
             "first_blocks": 2, "again_blocks": 3}
    assert {name: flash1[name] for name in lists} == {
        name: (3 * 4 * entries, 0) for name, entries in lists.items()}
    flash2 = theory.bytes_by_tensor("flash2", p, Tiles(2, 2))
    assert flash2["K"] == flash2["V"] == (3 * (3 + 2) * 2 * 8, 0)
    assert flash2["begins"] == (3 * 4 * 8, 0) and flash2["blocks"] == (3 * 5 * 4, 0)
    backward = theory.bytes_by_tensor("flash2_backward", replace(p, direction="backward"),
                                      Tiles(2, 2))
    assert backward["Q"] == (3 * (1 + 2 + 2) * 2 * 8, 0)
    assert backward["begins"] == (3 * 4 * 8, 0) and backward["blocks"] == (3 * 5 * 4, 0)


# Four queries at positions 16 to 19 of 20 keys, d 4 in fp16 (8 bytes a row), two query heads on one
# KV head, windows of 6 (keys 11 to 16, …, 14 to 19) and 7. In row blocks of 2 and column blocks of
# 4 the first row block sees the last three column blocks, the second the last two.
LATE = [Attention(1, 2, 4, 4, kv_heads=1, kv_seq=20, mask=f"window:{width}") for width in (6, 7)]


@pytest.mark.parametrize("p", LATE)
def test_keys_before_every_window_are_not_moved(p):
    flash1 = theory.bytes_by_tensor("flash1", p, Tiles(2, 4))
    assert flash1["K"] == flash1["V"] == (2 * 12 * 8, 0)  # from key 8
    assert flash1["Q"] == (2 * (3 + 2) * 2 * 8, 0)
    assert flash1["O"] == (2 * (2 + 1) * 2 * 8, 2 * (3 + 2) * 2 * 8)
    assert flash1["m"] == flash1["l"] == (2 * (2 + 1) * 2 * 4, 2 * (3 + 2) * 2 * 4)
    flash2 = theory.bytes_by_tensor("flash2", p, Tiles(2, 4))
    assert flash2["K"] == flash2["V"] == (2 * (12 + 8) * 8, 0)
    assert (flash2["Q"], flash2["O"], flash2["LSE"]) == ((64, 0), (0, 64), (0, 2 * 4 * 4))


@pytest.mark.parametrize("p", LATE)
def test_gradients_of_a_late_window_by_hand(p):
    """Column blocks from key 8 on are passed by 2, 4 and 4 rows, those before by none."""
    p, rows = replace(p, direction="backward"), 2 * (2 + 4 + 4)
    flash1 = theory.bytes_by_tensor("flash1_backward", p, Tiles(2, 4))
    assert flash1["Q"] == (rows * 8, 0) and flash1["dO"] == (rows * 8 + 2 * 4 * 8, 0)
    assert flash1["dQ"] == (rows * 8, rows * 8 + 2 * 4 * 8)
    flash2 = theory.bytes_by_tensor("flash2_backward", p, Tiles(2, 4))
    assert flash2["Q"] == (rows * 8, 0) and flash2["LSE"] == (rows * 4, 0)
    assert flash2["D"] == (rows * 4, 2 * 4 * 4)
    zeros = 2 * 4 * 16  # fp32 rows
    assert flash2["dQ_acc"] == (zeros, zeros + rows * 16) and flash2["dQ"] == (0, 2 * 4 * 8)
    for found in (flash1, flash2):
        assert found["K"] == (2 * 20 * 8, 0) and found["dK"] == (0, 20 * 8)
        assert found["dK_acc"] == found["dV_acc"] == (20 * 16, 20 * 16 + 2 * 20 * 16)


def test_gradients_of_a_causal_mask_by_hand():
    """8 queries and keys in row blocks of 2 and column blocks of 3: keys from 3 on are seen from
    row 3 on, the second of a row block. 8, 6 and 2 rows pass."""
    p = Attention(1, 2, 8, 4, mask="causal", direction="backward")
    for schedule in ("flash1_backward", "flash2_backward"):
        assert theory.bytes_by_tensor(schedule, p, Tiles(2, 3))["Q"] == (2 * 16 * 8, 0)


@pytest.mark.parametrize("schedule", ["flash1_backward", "flash2_backward"])
def test_gradients_under_lists_of_blocks_by_hand(schedule):
    """Two documents of 4 tokens in blocks of 2, causal: column blocks are passed by 4, 2, 4, 2
    rows; in row blocks of 3 (of 3, 3 and 2 rows) by 6, 6, 5 and 2."""
    p = Attention(1, 3, 8, 4, mask="documents:4,4", direction="backward")
    for br, rows, row_blocks in ((2, 12, 6), (3, 19, 7)):
        found = theory.bytes_by_tensor(schedule, p, Tiles(br, 2))
        assert found["Q"] == (3 * rows * 8, 0)
        assert found["begins"] == (3 * 4 * 8, 0) and found["blocks"] == (3 * row_blocks * 4, 0)


def test_products_in_tiles_by_hand():
    """10 queries, 24 keys, d 20 and d_v 12 in fp32 (tiles of 4 × 8): 3 row blocks, 3 column blocks
    of keys, 3 of d and 2 of d_v, 6 row blocks of keys."""
    p, tiles = Attention(1, 1, 10, 20, kv_seq=24, value_dim=12, dtype="fp32"), Tiles(4, 8)
    q, k, v, o, s = 4 * 10 * 20, 4 * 24 * 20, 4 * 24 * 12, 4 * 10 * 12, 4 * 10 * 24
    assert theory.bytes_by_tensor("standard", p, tiles) == {
        "Q": (3 * q, 0), "K": (3 * k, 0), "V": (3 * v, 0), "S": (s, s), "P": (2 * s, s),
        "O": (0, o)}
    assert theory.bytes_by_tensor("standard_backward", replace(p, direction="backward"), tiles) == {
        "Q": (6 * q, 0), "K": (3 * k, 0), "V": (3 * v, 0), "dO": ((6 + 3) * o, 0),
        "P": ((2 + 1) * s, 0), "dP": (s, s), "dS": (2 * 3 * s, s), "dQ": (0, q), "dK": (0, k),
        "dV": (0, v)}
