"""Launcher of sets.cu: the lines of some sets of an L2, and touches of them that are timed.

A set is found from one of its lines, the target: of many random lines those that push it out are
kept, fewer and fewer, until as many are left as a set has ways; then every other line is tried in
the place of one of them. Importing this needs no CuPy.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from . import places
from .counted import LONE_SHARED_BYTES, MIB, Part, buffer

SOURCE = Path(__file__).with_suffix(".cu")
HOW = ("sets.cu: sides of SMs by latency of atomics, GPCs by clusters; sets of 128 MiB, each from "
       "one line by group testing with one SM; of each set some of its lines, touched at random "
       "every 5,100 cycles by SMs of one side or both, cycles of each touch")
LINES, LINE_BYTES, PAGE_LINES, WAYS = 128 * MIB // 128, 128, (2 << 20) // 128, 16
# A load that takes less hit near, hit far, or missed and has a near home; else it has a far one.
NEAR_CYCLES, FAR_CYCLES, MISS_CYCLES = 420, 518, 640
POOL, GROUPS, FEW, ATTEMPTS, FAILURES, CHUNK, AT_ONCE = 420_000, 24, 60, 3, 7, 6000, 200
NO_LINE, WRITES, PERIOD_CYCLES = 0xFFFFFFFF, 1 << 31, 5100
TOUCHES, HOME_LINES, HOME_ROUNDS = 600, 24, 6
# Who touches how many lines of a set, and the share of touches that write.
TRACES = (("one", 20, 0.0), ("one", 20, 0.15), ("one", 17, 0.3), ("both sides", 20, 0.0),
          ("both sides", 24, 0.3), ("four", 20, 0.15), ("four", 24, 0.4))
WHO = {"one": (1, 0), "both sides": (1, 1), "four": (2, 2)}  # SMs of the first side, of the other
SETS = 8


def parts() -> dict[str, Part]:
    """What is measured: where SMs are, and sets from so many first lines."""
    return {"sms": Part([{"repeat": 0}], "hbmeter_probe_places", {}, _sms_words, shown=_sms_shown),
            "sets": Part([{"seed": seed} for seed in range(SETS)], "hbmeter_probe_touches", {},
                         _set_words, shown=_set_shown)}


def _sms_words(entry: dict) -> str:
    return "SMs"


def _sms_shown(entry: dict) -> dict:
    return {"SMs": len(entry["launch_order"]), "of side 0": entry["sides"].count("0"),
            "largest GPC": max(map(len, entry["gpcs"]))}


def _set_words(entry: dict) -> str:
    return f"set {entry['seed']}"


def _set_shown(entry: dict) -> dict:
    touches = sum(len(trace["cycles"]) for trace in entry["traces"])
    return {"lines of 128 MiB": len(entry["lines"]), "of home 0": entry["homes"].count("0"),
            "touches": touches}


def launcher(bench, part: str):
    """A function that measures one entry of a part."""
    return partial(_places, bench) if part == "sms" else _Sets(bench)


def _places(bench, entry: dict) -> dict:
    """The order in which a launch reaches SMs, their sides, and their GPCs."""
    function, side = bench.functions(SOURCE), places.sides()
    return {"launch_order": places.launch_order(bench, function),
            "sides": "".join(str(side[sm]) for sm in range(bench.sms)),
            "gpcs": places.gpcs(bench, function)}


# ---- Sets -------------------------------------------------------------------------------------


class _Sets:
    """One buffer, in which sets are found and touched."""

    def __init__(self, bench):
        self.cupy, self.sms, function = bench.cupy, bench.sms, bench.functions(SOURCE)
        self.evictions, self.touches = function("evictions"), function("touches")
        for kernel in (self.evictions, self.touches):
            kernel.max_dynamic_shared_size_bytes = LONE_SHARED_BYTES
        self.base = buffer(self.cupy, LINES * LINE_BYTES)
        side = places.sides()
        self.of_side = [[sm for sm in sorted(side) if side[sm] == number] for number in (0, 1)]

    def __call__(self, entry: dict) -> dict:
        random = np.random.default_rng(entry["seed"])
        pool = random.permutation(LINES).astype(np.uint32)
        for target in pool[:ATTEMPTS].tolist():
            some = self._reduced(target, pool[pool != target][:POOL], random)
            if len(some) == WAYS:
                break
        else:
            return {"lines": [], "homes": "", "traces": []}
        lines = [target, *some.tolist(), *self._others(target, some, pool)]
        homes = self._homes(lines[:HOME_LINES])
        return {"lines": [[line // PAGE_LINES, line % PAGE_LINES] for line in lines],
                "homes": "".join(map(str, homes)),
                "traces": [self._trace(lines, *trace, random) for trace in TRACES]}

    def _pushed_out(self, target: int, lines: np.ndarray, tests: list[tuple[int, int, int, int]],
                    votes: int = 3) -> np.ndarray:
        """Whether lines[first:end] without [hole:hole_end] push the target out, for each test
        (first, end, hole, hole_end), by most of some votes."""
        there = self.cupy.asarray(lines.astype(np.uint32))
        table = self.cupy.asarray(np.array(tests, np.uint32))
        late = np.zeros(len(tests), int)
        for _ in range(votes):
            cycles = self.cupy.zeros(len(tests), np.uint16)
            self.evictions((self.sms,), (1024,), (
                self.base, np.uint32(target), there, table, np.int32(len(tests)),
                np.int32(self.of_side[0][0]), cycles), shared_mem=LONE_SHARED_BYTES)
            late += cycles.get() > NEAR_CYCLES
        return late * 2 > votes

    def _all_push_out(self, target: int, lines: np.ndarray) -> bool:
        return bool(self._pushed_out(target, lines, [(0, len(lines), 0, 0)])[0])

    def _reduced(self, target: int, lines: np.ndarray, random) -> np.ndarray:
        """Few of the lines that still push the target out: its set's, as many as there are ways."""
        if not self._all_push_out(target, lines):
            return lines[:0]
        failures = 0
        while len(lines) > WAYS and failures < FAILURES:
            before, lines = len(lines), random.permutation(lines)
            edges = np.linspace(0, len(lines), min(GROUPS, len(lines)) + 1 if len(lines) > FEW
                                else len(lines) + 1).astype(int)
            holes = list(pairwise(edges.tolist()))
            late = self._pushed_out(target, lines, [(0, len(lines), *hole) for hole in holes], 1)
            spare = [hole for hole, is_late in zip(holes, late, strict=True) if is_late]
            while spare:  # all of them, or only some
                kept = np.delete(lines, np.concatenate([np.arange(*hole) for hole in spare]))
                if self._all_push_out(target, kept):
                    lines = kept
                    break
                spare = spare[:len(spare) // 2]
            failures += len(lines) == before
        return lines

    def _others(self, target: int, some: np.ndarray, pool: np.ndarray) -> list[int]:
        """All other lines that push the target out together with all of ``some`` but one."""
        rest = pool[~np.isin(pool, [target, *some])]
        open_, found = np.array_split(rest, len(rest) // CHUNK), []
        while open_:
            now, open_ = open_[:AT_ONCE], open_[AT_ONCE:]
            lists = [np.append(some[1:], part) for part in now]
            edges = np.cumsum([0, *map(len, lists)]).tolist()
            late = self._pushed_out(target, np.concatenate(lists),
                                    [(*ends, 0, 0) for ends in pairwise(edges)], 5)
            for part in (part for part, is_late in zip(now, late, strict=True) if is_late):
                if len(part) == 1:
                    found.append(int(part[0]))
                else:
                    open_ += np.array_split(part, 2)
        return found

    def _homes(self, lines: list[int]) -> list[int]:
        """0: a line's home is on the side of the SM that reads them all round and round, more than
        there are ways: it misses near; 1: its home is far: it hits there, or misses for longer."""
        touches = [(self.of_side[0][0], line, False) for _ in range(HOME_ROUNDS) for line in lines]
        cycles = np.median(self._timed(touches).reshape(HOME_ROUNDS, -1)[2:], axis=0)
        return ((cycles < FAR_CYCLES) | (cycles > MISS_CYCLES)).astype(int).tolist()

    def _trace(self, lines: list[int], who: str, count: int, written: float, random) -> dict:
        first, other = WHO[who]
        sms = self.of_side[0][:first] + self.of_side[1][:other]
        line, sm = random.integers(count, size=TOUCHES), random.integers(len(sms), size=TOUCHES)
        writes = random.random(TOUCHES) < written
        cycles = self._timed([(sms[s], lines[x], w) for s, x, w in zip(sm, line, writes,
                                                                     strict=True)])
        side = (sm >= first).astype(int)
        return {"who": who, "lines": count, "written_share": written, "sms": sms,
                "sm": _digits(sm), "side": _digits(side), "written": _digits(writes),
                "line": line.tolist(), "cycles": cycles.tolist()}

    def _timed(self, touches: list[tuple[int, int, bool]]) -> np.ndarray:
        """Cycles of each touch (SM, line, whether it writes), one every PERIOD_CYCLES."""
        sms = sorted({sm for sm, *_ in touches})
        mine = [[i for i, touch in enumerate(touches) if touch[0] == sm] for sm in sms]
        most = max(map(len, mine)) + 1
        table = np.full((len(sms), most, 2), NO_LINE, np.uint32)
        slots = np.full(self.sms, -1, np.int32)
        for slot, numbers in enumerate(mine):
            slots[sms[slot]] = slot
            for place, i in enumerate(numbers):
                _, line, writes = touches[i]
                table[slot, place] = (i + 2) * PERIOD_CYCLES, line | WRITES * bool(writes)
        cycles = self.cupy.zeros((len(sms), most), np.uint16)
        self.touches((self.sms,), (32,), (
            self.base, self.cupy.asarray(slots), self.cupy.asarray(table), np.int32(most),
            np.int32(len(sms)), self.cupy.zeros(1, np.uint32), cycles),
            shared_mem=LONE_SHARED_BYTES)
        took, found = cycles.get(), np.zeros(len(touches), int)
        for slot, numbers in enumerate(mine):
            found[numbers] = took[slot, :len(numbers)]
        return found


def _digits(values: np.ndarray) -> str:
    return "".join(map(str, values.astype(int).tolist()))
