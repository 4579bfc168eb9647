"""Is a set of an H200's L2 plain LRU in two partitions? Recorded with kernels/probes/sets.cu.

And does the probe's search find a set, on a made-up cache?
"""

import json
from collections import OrderedDict

import numpy as np
import pytest
from hbmeter.experiments import records
from hbmeter.hwprofiles import load
from hbmeter.kernels.probes import pace, places, sets

PATH = records.FOLDER / "sets" / "h200.json"
RECORD = json.loads(PATH.read_text(encoding="utf-8"))
FOUND = [entry for entry in RECORD["sets"] if entry["lines"]]
WARM = 64  # touches until what was there before is gone
NEAR, FAR, MISSED = range(3)


class Partitions:
    """The set in both partitions, and where each line's home is."""

    def __init__(self, homes, ways=16):
        self.parts, self.homes, self.ways = (OrderedDict(), OrderedDict()), homes, ways

    def use(self, part, line):
        """Bring a line to the front: whether it was there."""
        lines = self.parts[part]
        hit = lines.pop(line, None) is not None
        lines[line] = True
        if len(lines) > self.ways:
            lines.popitem(last=False)
        return hit

    def read(self, side, line):
        """Where a read from a side finds a line: near, at its far home, or nowhere."""
        if line in self.parts[side]:
            self.use(side, line)
            return NEAR
        at_home = self.homes[line] != side and self.use(self.homes[line], line)
        self.use(side, line)
        return FAR if at_home else MISSED

    def write(self, side, line):
        """The line is at home then, and near the writer; a copy of the other side is gone."""
        self.use(self.homes[line], line)
        if side != self.homes[line]:
            self.use(side, line)
        else:
            self.parts[1 - side].pop(line, None)


def replayed(trace, homes):
    """(Where each read after the first WARM touches should find its line, where it did)."""
    cache, expected, measured = Partitions(homes), [], []
    touches = zip(trace["line"], map(int, trace["side"]), trace["written"], trace["cycles"],
                  strict=True)
    for number, (line, side, written, cycles) in enumerate(touches):
        if written == "1":
            cache.write(side, line)
            continue
        where = cache.read(side, line)
        if number >= WARM:
            missed = sets.FAR_CYCLES if homes[line] == side else sets.MISS_CYCLES
            expected.append(where)
            measured.append(NEAR if cycles < sets.NEAR_CYCLES else
                            MISSED if homes[line] == side or cycles > missed else FAR)
    return np.array(expected), np.array(measured)


def agreeing(entry, trace):
    """(Reads that found their line where they should, reads)."""
    expected, measured = replayed(trace, list(map(int, entry["homes"])))
    return int((expected == measured).sum()), len(expected)


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: f"set {entry['seed']}")
def test_each_touch_finds_what_lru_of_two_partitions_keeps(entry):
    for trace in entry["traces"]:
        right, reads = agreeing(entry, trace)
        assert right >= 0.985 * reads, (trace["who"], trace["lines"], trace["written_share"])


def test_of_all_touches_995_in_a_thousand_do():
    found = [agreeing(entry, trace) for entry in FOUND for trace in entry["traces"]]
    right, reads = np.sum(found, axis=0)
    assert reads > 20_000 and right >= 0.995 * reads


def test_sets_have_as_many_lines_as_the_profiles_room():
    """Of a buffer on average: as many sets as the room of a partition holds. Lines of a set lie
    two by two in pages, of which some have more than others."""
    assert len(FOUND) >= 6
    l2 = load("h200").l2
    room = l2.size_bytes / l2.partitions * l2.room_share
    per_set = sets.LINES * sets.LINE_BYTES / room * sets.WAYS
    found = [len(entry["lines"]) for entry in FOUND]
    assert np.mean(found) == pytest.approx(per_set, rel=0.01)
    assert max(abs(lines - per_set) for lines in found) < 3


def test_recorded_sms_are_two_sides_and_eight_gpcs():
    where, = RECORD["sms"]
    assert sorted(where["launch_order"]) == list(range(132))
    assert 60 <= where["sides"].count("0") <= 72
    assert len(where["gpcs"]) == 8
    for gpc in where["gpcs"]:
        assert len({where["sides"][sm] for sm in gpc}) == 1


# ---- The search ----

class MadeUp(sets._Sets):
    """A cache whose sets are known: LRU of 16 ways, and no GPU."""

    def __init__(self, seed):
        self.set_of = np.random.default_rng(seed).permutation(sets.LINES) // 70

    def _pushed_out(self, target, lines, tests, votes=3):
        mine = self.set_of[lines] == self.set_of[target]
        return np.array([mine[first:end].sum() - mine[max(hole, first):hole_end].sum() >= sets.WAYS
                         for first, end, hole, hole_end in tests])


def test_the_search_finds_every_line_of_a_set():
    cache, random = MadeUp(1), np.random.default_rng(2)
    pool = random.permutation(sets.LINES)
    target = int(pool[0])
    some = cache._reduced(target, pool[1:sets.POOL], random)
    assert len(some) == sets.WAYS
    found = [target, *some.tolist(), *cache._others(target, some, pool)]
    assert sorted(found) == np.flatnonzero(cache.set_of == cache.set_of[target]).tolist()


def test_too_few_lines_push_nothing_out():
    assert not len(MadeUp(1)._reduced(5, np.arange(6, 2000), np.random.default_rng(0)))


@pytest.mark.parametrize(("clusters", "groups"), [
    ([], []), ([[0, 1]], [[0, 1]]), ([[0, 3], [1, 4], [4, 3]], [[0, 1, 3, 4]]),
    ([[5, 2], [5, 2], [0, 1]], [[0, 1], [2, 5]]),
])
def test_clusters_that_share_an_sm_are_of_a_gpc(clusters, groups):
    assert places.grouped(clusters, 6) == groups


# ---- Pace ----

def pace_facts(name):
    return pace.facts(json.loads((records.FOLDER / "pace" / f"{name}.json").read_text())["waves"])


@pytest.mark.parametrize(("name", "of_starts", "of_pace"), [
    ("h200-1", 0.005, 0.01),  # where the profile has them from
    ("h200-2", 0.02, 0.1), ("h200", 0.02, 0.1),  # of other units
])
def test_the_profile_has_what_the_pace_records_say(name, of_starts, of_pace):
    said, l2 = pace_facts(name), load("h200").l2
    assert l2.first_starts_cycles == pytest.approx(said["first_starts_cycles"], rel=of_starts)
    assert l2.pace_spread == pytest.approx(said["pace_spread"], rel=of_pace)


def test_the_profile_has_the_mean_of_two_units_for_gpcs_and_the_last_for_tiles_from_dram():
    """The first record's groups are half GPCs."""
    units, l2 = [pace_facts(name) for name in ("h200-2", "h200")], load("h200").l2
    assert l2.gpc_pace_spread == pytest.approx(
        np.mean([unit["gpc_pace_spread"] for unit in units]), rel=0.02)
    assert l2.dram_ahead_cycles == pytest.approx(units[1]["dram_ahead_cycles"], rel=0.02)


def test_the_profile_has_the_paces_of_blocks_alone_that_a_record_says():
    waves = json.loads((records.FOLDER / "pace" / "h200.json").read_text())["waves"]
    said, l2 = pace.facts(waves), load("h200").l2
    assert l2.pace_spread_alone == pytest.approx(said["pace_spread_alone"], rel=0.01)
    assert l2.gpc_pace_spread_alone == pytest.approx(said["gpc_pace_spread_alone"], rel=0.01)
    assert l2.pace_spread_alone < l2.pace_spread / 10


def test_spreads_within_and_of_gpcs_are_told_apart():
    """Two GPCs of a pace each, blocks of one age all alike, of the other spread."""
    gpcs, sm = [[0, 1, 2], [3, 4, 5]], [0, 1, 2, 3, 4, 5] * 2
    cycles = [100, 100, 100, 102, 102, 102, 190, 200, 210, 190, 200, 210]
    wave = {"blocks_per_sm": 2, "gpcs": gpcs, "sm": sm, "cycles": cycles, "clock_hz": 2e9,
            "start_ns": [0, 10, 20, 30, 40, 100, *[5000] * 6]}
    assert pace.ages(wave).tolist() == [0] * 6 + [1] * 6
    assert pace._of_age(wave, 0) == pytest.approx((0, 1 / 101))
    assert pace._of_age(wave, 1) == pytest.approx((np.std([190, 200, 210]) / 200, 0))
    assert pace.first_starts_cycles(wave) == 200
