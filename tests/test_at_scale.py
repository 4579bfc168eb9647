"""Does a walk at a scale move what the long walk does?"""

from dataclasses import replace
from statistics import median

import pytest
from hbmeter.hwprofiles import load
from hbmeter.simulator import at_scale, schedules, traffic
from hbmeter.simulator.engines import l2, scratchpad
from hbmeter.simulator.engines.l2_moves import Running
from hbmeter.simulator.grid_order import grids
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

H200 = load("h200")
BOUND = 0.02  # of the DRAM traffic, beside what one launch differs from another, as README says
LONG, TILES = Attention(1, 8, 32768, 64), Tiles(64, 64)
# 20 SMs, a L2 of 4 MiB: eight heads of LONG walk over 8 MiB of K and V each.
SMALL = H200.model_copy(update={"sm_count": 20, "l2": H200.l2.model_copy(update={
    "sm_partitions": None, "room_share": None, "size_bytes": 4 << 20, "dirty_bytes_max": None})})


def build(schedule="flash2", problem=LONG, tiles=TILES):
    return schedules.build(schedule, problem, tiles)


def simulate(program, gpu=SMALL, **options):
    return l2.simulate(program, gpu, **{"blocks_per_sm": 1, "skip_repeats": False,
                                        "running": [Running("trip")], **options})


# ---- The same answer ----


@pytest.mark.parametrize(("changes", "order"), [
    ({}, "row"), ({}, "head"), ({"mask": "causal"}, "head"),
    ({"seq": 16380, "kv_seq": 30001}, "row"),
    ({"seq": 16384, "kv_seq": 16384}, "row"), ({"seq": 16384, "kv_seq": 16384}, "head"),
    ({"heads": 16, "seq": 8192, "kv_seq": 16384, "kv_heads": 4}, "head:4"),
])
def test_a_walk_at_a_scale_moves_what_the_long_one_does(changes, order):
    program = build(problem=replace(LONG, **{"kv_heads": changes.get("heads", 8)} | changes))
    whole, *others = (simulate(program, order=order, seed=seed) for seed in range(3))

    def differs(other):
        moved = whole.dram_read_bytes + whole.dram_write_bytes
        return max(abs(other.dram_read_bytes - whole.dram_read_bytes) / moved,
                   abs(other.dram_write_bytes - whole.dram_write_bytes) / moved,
                   abs(other.sectors_read / whole.sectors_read - 1))

    for scale in (2, 4):  # (one launch in six of these falls out of step, with so small an L2)
        short = [simulate(at_scale.shortened(program, scale), order=order, scale=scale, seed=seed)
                 for seed in range(3)]
        assert median(map(differs, short)) <= BOUND + max(map(differs, others)), scale


def test_all_that_fits_is_read_once_at_any_scale():
    gpu = SMALL.model_copy(update={"l2": SMALL.l2.model_copy(update={"size_bytes": 1 << 30})})
    program = build(problem=replace(LONG, seq=8192, kv_seq=8192))
    for scale in (2, 8):
        count = simulate(at_scale.shortened(program, scale), gpu, scale=scale)
        assert count.dram_read_bytes == program.problem.compulsory_read_bytes


# ---- What is shortened ----


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_as_many_blocks_move_so_many_times_fewer_bytes(mask):
    program = build(problem=replace(LONG, mask=mask))
    shorter = at_scale.shortened(program, 8)
    assert grids(shorter) == grids(program)
    assert 8 * scratchpad.count(shorter).read_bytes == pytest.approx(
        scratchpad.count(program).read_bytes, rel=at_scale.TOLERANCE)


@pytest.mark.parametrize(("schedule", "problem", "tiles"), [
    ("standard", LONG, TILES),  # scores: as many times fewer rows and columns
    ("chunked", LONG, TILES),  # so are parts of O, one a chunk of keys
    ("flash2", replace(LONG, mask="window:1024"), TILES),  # the window stays
    ("flash2", LONG, Tiles(72, 72)),  # 16 does not divide the tiles
    ("flash1", LONG, TILES),  # one block a head: other rows' work is not as many times less
    ("flash2", replace(LONG, mask="causal"), TILES),  # diagonal tiles would be too large a part
])
def test_what_has_no_scale(schedule, problem, tiles):
    assert at_scale.shortened(build(schedule, problem, tiles), 16) is None


# ---- When ----


def test_short_work_is_simulated_as_it_is():
    program = build(problem=Attention(4, 32, 4096, 128), tiles=Tiles(128, 64))
    assert at_scale.at_scale(program, H200, 1, "row") == (program, 1)


@pytest.mark.parametrize("order", ["row", "head"])
@pytest.mark.parametrize(("head_dim", "bc"), [(64, 32), (128, 96)])
def test_a_long_walk_costs_as_much_as_a_shorter_one(order, head_dim, bc):
    program = build(problem=Attention(1, 32, 131072, head_dim), tiles=Tiles(256, bc))
    shorter, scale = at_scale.at_scale(program, H200, 1, order)
    assert 8 <= scale <= 16
    assert scratchpad.count(shorter).read_bytes <= at_scale.TRAFFIC_MAX


def test_many_short_walks_keep_their_length():
    """Heads of 4,096 in a large batch repeat; their walks are no longer than some tiles."""
    program = build(problem=Attention(512, 32, 4096, 128), tiles=Tiles(128, 64))
    assert scratchpad.count(program).read_bytes > at_scale.TRAFFIC_MAX
    assert at_scale.at_scale(program, H200, 1, "row") == (program, 1)


def test_heads_side_by_side_need_room_for_a_tile_of_each():
    program = build(problem=Attention(1, 128, 1 << 20, 128), tiles=Tiles(128, 128))
    together, alone = (at_scale.at_scale(program, H200, 1, order)[1] for order in ("head", "row"))
    assert together < alone == at_scale.SCALE_MAX


def test_engines_say_their_scale_and_it_changes_nothing_else(monkeypatch):
    monkeypatch.setattr(at_scale, "TRAFFIC_MAX", 1 << 30)
    found = {engine: traffic("flash2", LONG, SMALL, TILES, engine=engine)
             for engine in ("l2", "l2-tile")}
    assert found["l2-tile"]["l2"]["scale"] == 1 < found["l2"]["l2"]["scale"]
    for name in ("flops", "sm", "footprint_bytes", "tiles"):
        assert found["l2"][name] == found["l2-tile"][name]
