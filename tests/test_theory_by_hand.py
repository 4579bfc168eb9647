"""Do closed forms give the bytes that one counts with pencil and paper?"""

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
