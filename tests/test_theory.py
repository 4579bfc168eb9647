"""Do the closed forms give the papers' numbers, and does the engine count the same bytes?"""

import pytest
from hbmeter.simulator import schedules, theory
from hbmeter.simulator.engines import scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from strategies import TILES, posed_for, problems

GPT2 = Attention(batch=64, heads=16, seq=1024, head_dim=64)  # FlashAttention Figure 2
MIB = 1 << 20


def total(schedule, problem, tiles):
    return sum(sum(both) for both in theory.bytes_by_tensor(schedule, problem, tiles).values())


def counted(schedule, problem, tiles):
    count = scratchpad.count(schedules.build(schedule, problem, tiles)).by_tensor
    return {name: (b["read_bytes"], b["write_bytes"]) for name, b in count.items()}


@pytest.mark.parametrize("schedule", theory.closed_forms())
@settings(deadline=None)
@given(p=problems(), tiles=TILES)
def test_the_engine_counts_what_theory_states_tensor_by_tensor(schedule, p, tiles):
    p = posed_for(schedule, p)
    assert counted(schedule, p, tiles) == theory.bytes_by_tensor(schedule, p, tiles)


@pytest.mark.parametrize(("schedule", "tensor", "fits"), [
    ("standard", "S", 24_576), ("standard_backward", "dP", 12_288),  # beside it, P
])
@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_the_softmax_of_long_rows_reads_them_twice(schedule, tensor, fits, more):
    p = posed_for(schedule, Attention(batch=1, heads=1, seq=2, kv_seq=fits + more, head_dim=4))
    tiles = Tiles(br=64, bc=256)
    exact = theory.bytes_by_tensor(schedule, p, tiles)
    assert counted(schedule, p, tiles) == exact
    read, written = exact[tensor]
    assert read == written * (1 if more <= 0 else 2)  # 48 KiB of fp16


def by_hand(p, tiles):
    """Elements that Algorithm 1 of FlashAttention-1 and -2 moves, told block by block in words."""
    visible = p.mask_bounds.dense(p.seq, p.kv_seq)
    kv, f1_rows, f2_columns, passes = 0, [], 0, []
    row_starts, col_starts = range(0, p.seq, tiles.br), range(0, p.kv_seq, tiles.bc)
    for c in col_starts:  # FlashAttention-1: keys outside; load those that any query needs
        if visible[:, c:c + tiles.bc].any():
            kv += len(range(p.kv_seq)[c:c + tiles.bc])
    for r in row_starts:
        rows = len(range(p.seq)[r:r + tiles.br])
        seen = [c for c in col_starts if visible[r:r + tiles.br, c:c + tiles.bc].any()]
        f1_rows.append(rows)
        passes.append(len(seen))
        f2_columns += sum(len(range(p.kv_seq)[c:c + tiles.bc]) for c in seen)
    pairs = list(zip(f1_rows, passes, strict=True))
    return {
        "flash1 K": kv * p.head_dim,
        "flash1 Q": sum(rows * n for rows, n in pairs) * p.head_dim,
        "flash1 O read": sum(rows * (n - 1) for rows, n in pairs if n) * p.value_dim,
        "flash1 O written": sum(rows * max(n, 1) for rows, n in pairs) * p.value_dim,
        "flash2 V": f2_columns * p.value_dim,
    }


@settings(deadline=None)
@given(p=problems(dtypes=("fp8",)), tiles=TILES)
def test_the_bytes_are_those_of_the_algorithms_told_by_hand(p, tiles):
    flash1 = counted("flash1", p, tiles)
    got = {
        "flash1 K": flash1["K"][0], "flash1 Q": flash1["Q"][0], "flash1 O read": flash1["O"][0],
        "flash1 O written": flash1["O"][1], "flash2 V": counted("flash2", p, tiles)["V"][0],
    }
    assert {name: n // p.head_count for name, n in got.items()} == by_hand(p, tiles)


@pytest.mark.parametrize(
    ("bc", "gigabytes"), [(64, "6.577"), (128, "3.355"), (256, "1.745"), (512, "0.940")]
)
def test_flash1_reproduces_figure_2(bc, gigabytes):
    assert f"{theory.flash1_paper_bytes(GPT2, bc) / 1e9:.3f}" == gigabytes


@pytest.mark.parametrize("bc", [64, 128, 256, 512, 1000])
def test_exact_flash1_is_the_papers_form_plus_m_and_l(bc):
    exact = theory.bytes_by_tensor("flash1", GPT2, Tiles(br=64, bc=bc))
    statistics = sum(sum(exact.pop(name)) for name in "ml")
    assert sum(map(sum, exact.values())) == theory.flash1_paper_bytes(GPT2, bc)
    passes = -(-1024 // bc)
    assert statistics == 2 * (2 * passes - 1) * 4 * 1024 * GPT2.head_count


def test_exact_standard_minimal_is_the_papers_form():
    tiles = Tiles(br=1, bc=1)
    assert total("standard_minimal", GPT2, tiles) == theory.standard_paper_bytes(GPT2)


@pytest.mark.parametrize("br", [1, 64, 100, 128, 4096])
def test_exact_flash2_is_the_papers_form_plus_the_logsumexp(br):
    want = theory.flash2_paper_bytes(GPT2, br) + 4 * GPT2.seq * GPT2.head_count
    assert total("flash2", GPT2, Tiles(br=br, bc=64)) == want


def test_memory_reproduces_table_21():
    problems_ = [Attention(batch=16, heads=8, seq=128 << i, head_dim=64) for i in range(10)]
    standard = [theory.standard_training_footprint_bytes(p) // MIB for p in problems_[:6]]
    flash = [theory.flash1_training_footprint_bytes(p) // MIB for p in problems_]
    assert standard == [36, 104, 336, 1184, 4416, 17024]
    assert flash == [22, 44, 104, 209, 418, 836, 1672, 3344, 6688, 13376]
    short, long = (Attention(batch=1, heads=1, seq=n, head_dim=64) for n in (256, 257))
    assert theory.flash1_training_footprint_bytes(short) == 11 * 256 * 64 * 2
    assert theory.flash1_training_footprint_bytes(long) == 13 * 257 * 64 * 2 + 2 * 257 * 4


@pytest.mark.parametrize("d", [16, 64, 128, 256])
def test_both_terms_of_the_lower_bound_meet_at_the_crossover(d):
    m = theory.attention_io_crossover(d)
    assert theory.attention_io_order(4096, d, m) == 4096**2 == theory.flash_io_order(4096, d, m)
    assert theory.attention_io_order(4096, d, m // 4) == 2 * 4096**2
    assert theory.attention_io_order(4096, d, m * 4) == 4096**2 / 4


def test_flash_order_is_refused_outside_its_range():
    with pytest.raises(InputError, match=r"outside \[d, N·d\] = \[64, 65536\]"):
        theory.flash_io_order(1024, 64, 63)
    assert theory.flash_io_order(1024, 64, 64) == 1024 * 1024 * 64
    assert theory.flash_io_order(1024, 64, 1024 * 64) == 1024 * 64


def test_block_sparse_with_all_blocks_is_dense_plus_the_inputs():
    dense = theory.flash_io_order(1024, 64, 4096)
    assert theory.block_sparse_io_order(1024, 64, 4096, 1.0) == 1024 * 64 + dense


@pytest.mark.parametrize("block", [8, 16, 64, 128])
def test_tiled_scores_never_beat_the_proven_bound(block):
    p = Attention(batch=1, heads=1, seq=512, head_dim=64, dtype="fp8")
    moved = theory.bytes_by_tensor("standard", p, Tiles(br=block, bc=block, bk=1))
    capacity = block * block + 2 * block  # what the three tiles hold
    scores = moved["Q"][0] + moved["K"][0] + moved["S"][1]
    assert scores >= theory.matrix_product_lower_bound(512, 512, 64, capacity)


def test_square_tiles_come_near_the_bound_of_a_matrix_product():
    n, block = 4096, 256
    moved = 2 * n**3 // block + n * n
    bound = theory.matrix_product_lower_bound(n, n, n, block * block + 2 * block)
    assert bound <= moved <= 1.1 * bound


def test_flash2_traffic_grows_as_the_order_says():
    """Doubling N quadruples, quadrupling M (Br = Bc = M/4d) quarters, within 10 %."""
    def words(n, capacity, d=64):
        p = Attention(batch=1, heads=1, seq=n, head_dim=d, dtype="fp8")
        block = capacity // (4 * d)
        return total("flash2", p, Tiles(br=block, bc=block))

    base = words(1 << 15, 1 << 14)
    assert words(1 << 16, 1 << 14) / base == pytest.approx(4, rel=0.1)
    assert words(1 << 15, 1 << 16) / base == pytest.approx(1 / 4, rel=0.1)


@given(p=problems())
@settings(deadline=None)
def test_no_schedule_moves_less_than_the_compulsory_output(p):
    for schedule in theory.closed_forms():
        posed = posed_for(schedule, p)
        moved = theory.bytes_by_tensor(schedule, posed, Tiles(br=16, bc=16))
        outputs = {"forward": ("O",), "softmax": ("P",)}.get(posed.direction, ("dQ", "dK", "dV"))
        assert sum(moved[name][1] for name in outputs) >= posed.compulsory_write_bytes
        assert all(isinstance(n, int) and n >= 0 for both in moved.values() for n in both)


def test_the_papers_tiles_and_when_they_exceed_m():
    for capacity in (4096, 20480, 49152, 100000):
        tiles = theory.paper_tiles(capacity, 64)
        assert tiles.bc == -(-capacity // 256) and tiles.br == min(tiles.bc, 64)
    d, capacity = 64, 64 * 64
    t = theory.paper_tiles(capacity, d)
    held = d * (2 * t.br + 2 * t.bc) + t.br * t.bc  # Q, O, K, V and S
    assert capacity < held <= 1.25 * capacity


def test_three_tiles_of_a_third_fill_the_capacity():
    b = theory.third_of_capacity_block(49152, 64)
    assert 3 * b * 64 <= 49152 < 3 * (b + 1) * 64
    assert theory.third_of_capacity_block(10, 64) == 1
    assert theory.third_of_capacity_block(50_000, 64) == 260  # of 260.4


@pytest.mark.parametrize("call", [
    lambda: theory.paper_tiles(0, 64), lambda: theory.third_of_capacity_block(64, 0),
    lambda: theory.attention_io_order(64, 64, 0),
    lambda: theory.matrix_product_lower_bound(1, 1, 1, 0),
])
def test_a_capacity_below_one_element_is_refused(call):
    with pytest.raises(InputError, match="from 1"):
        call()


def test_one_element_is_a_capacity():
    assert theory.paper_tiles(1, 1) == Tiles(1, 1) and theory.third_of_capacity_block(1, 1) == 1
    assert theory.attention_io_order(8, 1, 1) == theory.flash_io_order(8, 1, 1) == 64
    assert theory.matrix_product_lower_bound(2, 3, 5, 1) == 2 * 30 - 2


def test_an_unknown_closed_form_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'flash2'"):
        theory.bytes_by_tensor("flash3", GPT2, Tiles(br=1, bc=1))


def test_counts_are_exact_integers_where_a_float_would_round():
    n = (1 << 20) + 1
    p = Attention(batch=1, heads=1, seq=n, head_dim=16383, dtype="fp8")
    exact = theory.bytes_by_tensor("flash2", p, Tiles(br=1, bc=1))["K"][0]
    assert exact == n * n * 16383 != int(float(exact))
