"""Do waves of thread blocks end when small steps of time say?"""

import json

import numpy as np
import pytest
from hbmeter.experiments import records, residents
from hbmeter.hwprofiles import load
from hbmeter.simulator import grid_order
from hbmeter.simulator.engines.dispatch import DRAWN, DRAWS, makespan, places

ROW, HEAD, LONGEST = (np.array([number]) for number in
                      (grid_order.ROW, grid_order.HEAD, grid_order.LONGEST))


def naive_makespan(weights, sms, residence, begin=0.0, load=0.0, pace=1.0, together=False):
    """Older ones faster, in small steps of time; a block begins when its load is there, the first
    ones when all of theirs are if they load ``together``."""
    waiting, on_sm, port = list(weights), [[] for _ in range(sms)], [0.0] * sms
    now, step = 0.0, residence[0] / 4000

    def admit(sm):
        port[sm] = max(now + begin, port[sm]) + load
        on_sm[sm].append([port[sm], waiting.pop(0)])

    for _ in residence:
        for sm in range(sms):
            if waiting:
                admit(sm)
    for blocks in on_sm if together else ():
        for block in blocks:
            block[0] = blocks[-1][0]
    while any(on_sm):
        now += step
        for sm, blocks in enumerate(on_sm):
            ready = [block for block in blocks if block[0] <= now]
            shares = pace ** np.arange(len(ready))
            for block, share in zip(ready, shares / max(shares.sum(), 1), strict=True):
                block[1] -= share * len(ready) / residence[len(ready) - 1] * step
            blocks[:] = [block for block in blocks if block[1] > 1e-12]
            while waiting and len(blocks) < len(residence):
                admit(sm)
    return now


@pytest.mark.parametrize(("begin", "load", "pace"), [(0, 0, 1), (3, 0, 0.5), (2, 1.5, 0.8)])
@pytest.mark.parametrize(("blocks", "sms"), [(1, 4), (7, 3), (13, 2), (30, 4)])
@pytest.mark.parametrize("together", [False, True])
def test_dispatch_is_what_small_steps_of_time_give(blocks, sms, begin, load, pace, together):
    beside = np.array([10.0, 14.0, 19.0])
    weights = np.random.default_rng(blocks).uniform(0.5, 1.5, blocks)
    found = makespan(weights, 1, ROW, sms, beside, begin, load, pace, together=together)
    naive = naive_makespan(weights, sms, beside, begin, load, pace, together)
    assert found == pytest.approx(naive, rel=0.02)


def test_blocks_of_an_sm_that_start_at_once_have_their_first_tiles_at_once():
    """recorded/launches: the ends of nine builds' first blocks, of lengths from 512 to 4,096. What
    the last is behind the first grows with the length, from nothing: one load after the other
    would have taken a microsecond or two."""
    points = json.loads((records.FOLDER / "launches" / "h200-ends.json").read_text())["points"]
    behind = {}
    for point in points:
        ends = np.median(point["ends_ns"], axis=0)
        build = (point["kernel"], point["problem"]["head_dim"], *point["tiles"].values())
        behind.setdefault(build, []).append((ends[0], ends[-1] - ends[0]))
    for build, pairs in behind.items():
        _, at_once = np.polyfit(*np.transpose(pairs), 1)
        assert len(pairs) >= 3 and at_once < 200, build


def test_of_equal_blocks_all_sms_do_as_the_fullest():
    beside = np.array([10.0, 14.0, 19.0])
    for blocks in (1, 11, 12, 13, 50):
        one = makespan(np.ones(1), -(-blocks // 4), ROW, 1, beside, 2.0, 1.0)
        assert makespan(np.ones(1), blocks, ROW, 4, beside, 2.0, 1.0) == pytest.approx(one)


def test_whole_waves_of_equal_blocks_take_whole_times():
    beside = np.array([10.0])
    for waves in (1, 2, 5):
        assert makespan(np.ones(1), 8 * waves, ROW, 8, beside) == pytest.approx(10.0 * waves)
    assert makespan(np.ones(1), 9, ROW, 8, beside) == pytest.approx(20.0)  # the tail


def test_longest_first_never_ends_later_than_the_other_orders():
    beside = np.array([10.0])
    for heads, rows, sms in ((3, 8, 4), (16, 32, 132), (5, 64, 132)):
        weights = np.arange(1, rows + 1) / (rows + 1) * 2  # causal: later rows see more
        row, head, longest = (makespan(weights, heads, order, sms, beside)
                              for order in (ROW, HEAD, LONGEST))
        assert longest <= min(row, head) and longest < head


# ---- Blocks that have a part of an SM ----


def test_blocks_that_have_half_of_an_sm_share_that_half_only():
    """Blocks 0 and 2 on one half, 1 and 3 on the other, which is idle in the end."""
    beside, weights = np.array([10.0, 10.0, 16.0, 16.0]), np.array([3.0, 1.0, 3.0, 1.0])
    halves = [naive_makespan(weights[half::2], 1, beside[1::2]) for half in (0, 1)]
    found = makespan(weights, 1, ROW, 1, beside, parts=2)
    assert found == pytest.approx(max(halves), rel=0.01) == pytest.approx(48, rel=0.01)
    assert makespan(weights, 1, ROW, 1, beside) < 0.9 * found


@pytest.mark.parametrize("blocks", [7, 24, 61])
def test_halves_of_an_sm_are_sms_of_half_the_size(blocks):
    """With blocks that wait, and as many SMs as take turns alike."""
    beside = np.array([10.0, 10.0, 16.0, 16.0])
    weights = np.random.default_rng(blocks).uniform(0.5, 1.5, blocks)
    expected = naive_makespan(weights, 2, beside[1::2])
    assert makespan(weights, 1, ROW, 1, beside, parts=2) == pytest.approx(expected, rel=0.02)


# ---- Chance ----


@pytest.mark.parametrize("blocks", [7, 13, 30])
def test_chance_is_the_mean_of_a_few_grids_with_other_weights(blocks):
    beside, spread = np.array([10.0, 14.0, 19.0]), 0.1
    weights = np.random.default_rng(blocks).uniform(0.5, 1.5, blocks)
    own = 1 + spread * np.random.default_rng(0).uniform(-1, 1, (DRAWS, blocks))
    expected = np.mean([naive_makespan(weights * one, 3, beside, 2.0, 1.5, 0.8) for one in own])
    found = makespan(weights, 1, ROW, 3, beside, 2.0, 1.5, 0.8, spread=spread)
    assert found == pytest.approx(expected, rel=0.02)


def test_of_large_grids_few_draws_are_enough():
    beside, weights = np.array([10.0, 14.0]), np.linspace(0.1, 1.9, DRAWN // 8)
    first, *others = (makespan(weights, 16, ROW, 132, beside, spread=spread)
                      for spread in (0.0, 0.01))
    assert others == pytest.approx([first], rel=1e-3)


def test_ends_closer_than_chance_let_blocks_meet_again_in_a_last_round_that_is_not_full():
    """384 blocks of 264 that run at once: of blocks whose ends lie apart each SM's first is free
    first and takes one of the last 120; of others two become free at once, and some SMs take two
    (recorded/residents, standard with pace 0.97: two rounds of two)."""
    beside = np.array([200.0, 273.0])

    def grid(pace, spread):
        return makespan(np.ones(1), 384, ROW, 132, beside, pace=pace, spread=spread)

    assert grid(0.995, 0.01) > 1.1 * grid(0.995, 0.0)
    assert grid(0.6, 0.01) == pytest.approx(grid(0.6, 0.0), rel=0.02)


def test_chance_is_as_large_as_blocks_of_an_sm_differ():
    """Ends of first blocks on an SM, less the mean of their age and of the SM, over many SMs."""
    apart = []
    for found in residents.load_all():
        ends = np.array([sorted(end for _, end in wave) for wave in found.first_waves], float)
        if len(ends) > 100:
            ends = (ends - ends.mean(axis=0)) / ends.mean()
            apart.append((ends - ends.mean(axis=1, keepdims=True)).std())
    assert len(apart) > 50
    assert np.median(apart) == pytest.approx(load("h200").l2.pace_spread / np.sqrt(3), rel=0.3)


# ---- Where a grid's first blocks go ----


def neighbours(sms):
    """{first block of an SM: its other ones} by the numbers of thread blocks."""
    found = {}
    for block, sm in enumerate(sms):
        found.setdefault(sm, []).append(block)
    return {first: rest for first, *rest in found.values()}


@pytest.mark.parametrize("first", [0, 8])
def test_a_grid_fills_all_sms_alike(first):
    for blocks in (1, 7, 131, 132, 192, 264, 300, 528, 1000):
        counts = np.bincount(places(blocks, 132, 3, first), minlength=132)
        assert counts.sum() == min(blocks, 3 * 132) and np.ptp(counts) <= 1


def test_blocks_that_share_an_sm_are_those_that_do_on_the_gpu():
    """recorded/launches: whole rounds to the block; of a last one that is not full within 8."""
    path, gpu = records.FOLDER / "launches" / "h200-places.json", load("h200")
    launches = json.loads(path.read_text(encoding="utf-8"))["launches"]
    assert len(launches) >= 8
    for launch in launches:
        blocks, most = launch["blocks"], launch["blocks_per_sm_max"]
        said = neighbours(places(blocks, gpu.sm_count, most, gpu.l2.first_sms))
        measured = neighbours(launch["sms"])
        whole = blocks % gpu.sm_count == 0
        same = sum(said[first] == rest for first, rest in measured.items() if first in said)
        assert not whole or same >= 0.87 * gpu.sm_count
        apart = [abs(said[first][0] - rest[0]) for first, rest in measured.items()
                 if rest and said.get(first)]
        assert len(apart) > 50 and max(apart) <= 8


def test_neighbours_of_the_longest_block_decide_how_long_it_takes():
    """24 heads of eight rows, the first the longest: the same of two heads may meet, or not."""
    weights, beside = np.arange(16, 0, -2) / 9, np.array([10.0, 15.0])
    plain, placed = (makespan(weights, 24, ROW, 132, beside, first=first) for first in (0, 8))
    assert plain < placed == pytest.approx(15.0 * 16 / 9)
