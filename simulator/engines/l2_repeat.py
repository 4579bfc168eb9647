"""Simulate what repeats once: groups of thread blocks that move what those before them moved.

The blocks of a phase are issued in groups: whole heads, runs of row blocks, or waves where the head
index runs fastest, and sectors are counted by the group of the block that moves them. When the last
groups have moved what as many before them did over the DRAM boundary, and blocks yet to come are
like theirs, the phase goes on at a later group, and those between count as these did, the period.

Thread blocks have paces of their own, so groups differ by noise, and what they move may change
slowly as blocks drift apart. So a period is a third of all groups so far at least, which leaves the
first third to what is not yet settled: what changes at a rate that still matters would be seen. It
moves TURNOVER L2s at least, so that nothing older is left in the cache. The sums of two periods
must agree, and be sure of it: the squared differences of their groups, one by one, say how far sums
of such noise may be apart (TOLERANCE, both).

Blocks in flight and the cache stay as they are: to them a later head is the next head. The last
wave is always simulated. Sectors of tensors that are stored once leave as often as they are
written. Heads one after the other repeat under every mask, waves of heads side by side only where
all blocks do the same work: under a causal mask each wave reads more than the last.

Nothing here knows the cache or the clock: only counts, and which blocks are in flight.
"""

from bisect import bisect_left
from math import gcd, lcm
from typing import TYPE_CHECKING

import numpy as np

from ..grid_order import HEAD, LISTED, ROW, section_heads
from ..jit import borrowing, njit
from ..program import Program
from ..tape import Kind, Record
from .l2_counts import COLUMNS, FETCHED, FILLED, SECTOR_BYTES, WRITTEN, WRITTEN_BACK

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

TOLERANCE = 0.005  # of the DRAM traffic of a period: how much it may differ, all counts added
TOLERANCE_OF_HEADS = 0.0005  # where heads share the L2, and may drift apart slowly
# The least of a period: one of so many parts of the groups so far, waves of heads side by side or
# of one long head, spans one after the other, and L2 sizes of DRAM traffic.
PARTS, WAVES, SPANS, TURNOVER = 3, 4, 8, 2.0
WAVE_GAP = 1 / 16  # of a wave: _evenly
GROUPS_MAX = 4096
WAVES_OF_A_HEAD = 6  # waves of a head from which it is cut into groups of about a wave

# Where a phase stands and how its blocks are grouped, in blocks in the order of issue: a span is
# some heads (or all, where the head index runs fastest), cut into ``pieces`` of ``piece`` blocks.
PLAN = np.dtype([(name, np.int64) for name in (
    "total", "slots", "order", "span", "piece", "pieces", "groups",
    "period",  # groups: a repeat over spans is a multiple; 0: there is one span
    "alike",  # whether all blocks of a span do the same work
    "window",  # groups: about a wave; repeats are looked for so often
    "least", "least_over_spans",  # groups of a period
    "lead", "tail",  # groups of a span that are always simulated
    "tolerance_ppm",  # of a period's DRAM traffic
    "turnover_sectors", "skipping", "checked", "summed", "issued", "skipped", "stop")])
ONCE, UPDATED = 1, 0  # how often a tensor's elements are stored in a phase


def plan_phase(program: Program, phase: Record, gpu: "Profile", blocks_per_sm: int, order: int,
               skipping: bool) -> Record:
    """How a phase's blocks are grouped, as a PLAN record; ``phase`` is its PHASE record,
    ``order`` is its number (grid_order.issue). Without ``skipping`` all blocks are simulated."""
    plan = np.zeros(1, PLAN)[0]
    blocks1 = -(-int(phase["extent1"]) // int(phase["step1"]))
    per_head = -(-int(phase["extent0"]) // int(phase["step0"])) * blocks1
    heads = program.problem.head_count // int(phase["group"])
    plan["total"], plan["order"], plan["skipping"] = per_head * heads, order, skipping
    plan["slots"] = min(gpu.sm_count * blocks_per_sm, per_head * heads)
    plan["alike"] = blocks_alike(program, phase)
    section = 1 if order == ROW else section_heads(order) or heads
    if order == ROW or (section < heads and heads % section == 0):
        sharing = program.problem.group // int(phase["group"])  # heads that read the same K and V
        _group_heads(plan, heads, per_head, blocks1, sharing, section)
    else:
        plan["alike"] &= section >= heads and order != LISTED  # the last section is another
        _group_waves(plan, heads, blocks1)
    plan["pieces"] = -(-plan["span"] // plan["piece"])
    plan["groups"] = -(-plan["total"] // plan["span"]) * plan["pieces"]
    plan["turnover_sectors"] = TURNOVER * gpu.l2.size_bytes // gpu.l2.sector_bytes
    return plan


def _group_heads(plan: Record, heads: int, per_head: int, blocks1: int, sharing: int,
                 section: int) -> None:
    """Heads, or sections of some, one after the other: a group is a head or section, several where
    there are very many, or a wave of a long head."""
    slots = int(plan["slots"])
    if section > 1:
        heads, per_head, plan["alike"] = heads // section, per_head * section, False
        sharing = lcm(sharing, section) // section
    together = -(-heads // (GROUPS_MAX * sharing)) * sharing if heads > GROUPS_MAX else 1
    span = piece = together * per_head
    wave = -(-slots // blocks1) * blocks1
    if plan["alike"] and together == 1 and per_head >= WAVES_OF_A_HEAD * wave:
        piece = max(wave, -(-per_head * heads // (GROUPS_MAX * blocks1)) * blocks1)
    pieces = -(-span // piece)
    period = pieces * (sharing if together == 1 else 1)
    window = max(-(-7 * slots // (8 * piece)), 1)  # about a wave
    plan["span"], plan["piece"], plan["period"], plan["window"] = span, piece, period, window
    plan["least"] = -(-WAVES * slots // piece)
    plan["least_over_spans"] = period * max(
        _evenly(span * period // pieces, slots), -(-window // period), SPANS)
    plan["tail"] = -(-slots // piece) + (pieces > 1)
    plan["tolerance_ppm"] = round(TOLERANCE * 1e6)


def _group_waves(plan: Record, heads: int, blocks1: int) -> None:
    """Heads side by side: a group is a wave where all blocks do the same work (of whole rows of
    blocks, whose last may be ragged); else there is one group, and nothing repeats."""
    total, slots = int(plan["total"]), int(plan["slots"])
    row = heads * blocks1
    unit = row if blocks1 > 1 else 1
    piece = -(-max(slots, -(-total // GROUPS_MAX)) // unit) * unit if plan["alike"] else total
    plan["span"], plan["piece"] = total, piece
    plan["window"] = plan["least"] = max(-(-WAVES * slots // piece), 1)
    plan["lead"] = -(-row // piece) if plan["order"] != HEAD else 0  # the ragged row comes first
    plan["tail"] = -(-max(slots, row) // piece) + 1
    plan["tolerance_ppm"] = round(TOLERANCE_OF_HEADS * 1e6)


def _evenly(length: int, slots: int) -> int:
    """How many runs of ``length`` blocks, one after the other, begin all over a wave: they leave
    out no part of it larger than WAVE_GAP, or the more, the less beginnings matter: where a run is
    many waves long, or a wave holds many runs."""
    cycle = slots // gcd(length, slots)
    weight = min(length / slots, slots / length)

    def even(runs: int) -> bool:
        if runs == cycle:
            return True
        starts = np.sort(np.arange(runs) * length % slots)
        gap = np.diff(starts, append=starts[0] + slots).max()
        return gap * weight <= WAVE_GAP * slots

    return bisect_left(range(1, cycle), True, key=even) + 1


def blocks_alike(program: Program, phase: Record) -> bool:
    """Whether all thread blocks of a head do the same work, but for ragged edges: neither loop
    bounds, once they are clipped, nor derived variables depend on the block axes."""
    tape = program.tape[phase["first"]:phase["end"]]
    lets, loops = (tape[tape["kind"] == kind] for kind in (Kind.LET, Kind.LOOP))
    if np.isin(lets["start_var"], (0, 1)).any() or np.isin(loops["back_var"], (0, 1)).any():
        return False
    for axis in (0, 1):
        last = (int(phase[f"extent{axis}"]) - 1) // int(phase[f"step{axis}"])
        offset = last * int(phase[f"step{axis}"])
        if any(_bounds(loop, axis, 0) != _bounds(loop, axis, offset) for loop in loops):
            return False
    return True


def _bounds(loop: Record, axis: int, offset: int) -> tuple[int, int]:
    """A loop's clipped start and stop with an axis at ``offset`` and all other variables at 0."""
    start = (offset if loop["start_var"] == axis else 0) + int(loop["start_add"])
    stop = (offset if loop["stop_var"] == axis else 0) + int(loop["stop_add"])
    return max(start, 0) // int(loop["step"]), min(max(stop, 0), int(loop["limit"]))


def stored_once(program: Program, phase: Record) -> np.ndarray:
    """ONCE or UPDATED for each tensor: what a phase reads back and rewrites, or adds to, is
    UPDATED, and so is what it stores in parts of sectors."""
    tape = program.tape[phase["first"]:phase["end"]]
    added = set(tape["tensor"][tape["kind"] == Kind.REDUCE].tolist())
    for row in tape[tape["kind"] == Kind.STORE]:
        tensor, tile = program.tensors[row["tensor"]], program.tile_records[row["tile"]]
        row_bytes = tensor.cols * tensor.element_bytes
        whole = tile["cols"] >= tensor.cols
        runs = ((tile["rows"] * row_bytes, tensor.rows * row_bytes) if whole
                else (tile["cols"] * tensor.element_bytes, row_bytes))
        if any(run % SECTOR_BYTES for run in runs):
            added.add(tensor.index)
    return np.array([UPDATED if tensor.updated or tensor.index in added else ONCE
                     for tensor in program.tensors])


@njit
def group_of(block: int, plan: Record) -> int:
    """The group of the block that is issued as number ``block``."""
    return block // plan.span * plan.pieces + block % plan.span // plan.piece


@njit
def _first_block(group: int, plan: Record) -> int:
    return group // plan.pieces * plan.span + group % plan.pieces * plan.piece


@borrowing
def next_block(block: int, plan: Record, addresses: np.ndarray, groups: np.ndarray,
               sectors: np.ndarray, sums: np.ndarray, stored: np.ndarray) -> int:
    """The block to issue now that all before ``block`` are issued: it, or one after those that
    need no simulation, whose groups are then counted in ``sectors``.

    ``addresses`` and ``groups`` of the slots' blocks (an address below 0: idle); ``sectors`` and
    ``sums`` (of the groups before) [group, tensor, count]; ``stored``: ONCE or UPDATED for each
    tensor.
    """
    plan.issued = block
    group = group_of(block, plan)
    if not plan.skipping or block != _first_block(group, plan):
        return block
    done = group
    for slot in range(len(groups)):
        if addresses[slot] >= 0 and groups[slot] < done:
            done = groups[slot]
    if done - plan.checked < plan.window:
        return block
    plan.checked = done
    _sum_up(done, plan, sectors, sums)
    if _dram_sectors(sums[done]) < 2 * plan.turnover_sectors:
        return block
    period, end = _find_repeat(done, group, plan, sectors, sums, stored)
    repeats = (end - group) // period if period else 0
    if repeats < 1:
        return block
    for later in range(group, group + repeats * period):
        _count_as(sectors[done - period + (later - done) % period], sectors[later], stored)
    after = _first_block(group + repeats * period, plan)
    plan.skipped += after - block
    return after


@borrowing
def _sum_up(done: int, plan: Record, sectors: np.ndarray, sums: np.ndarray) -> None:
    """Bring ``sums`` up to the groups that are done."""
    for group in range(plan.summed, done):
        for tensor in range(sectors.shape[1]):
            for column in range(COLUMNS):
                before = sums[group, tensor, column]
                sums[group + 1, tensor, column] = before + sectors[group, tensor, column]
    plan.summed = done


@borrowing
def _dram_sectors(counts: np.ndarray) -> int:
    """Sectors over the DRAM boundary."""
    total = 0
    for tensor in range(len(counts)):
        total += counts[tensor, FETCHED] + counts[tensor, FILLED] + counts[tensor, WRITTEN_BACK]
    return total


@borrowing
def _find_repeat(done: int, group: int, plan: Record, sectors: np.ndarray, sums: np.ndarray,
                 stored: np.ndarray) -> tuple[int, int]:
    """(Groups of the shortest period that repeats the one before and ends with ``done``, the group
    that it holds up to); 0 when there is none."""
    if plan.period:
        least = max(plan.least_over_spans, -(-done // (PARTS * plan.period)) * plan.period)
        for period in range(least, done // 2 + 1, plan.period):
            if _repeats(done, period, plan, sectors, sums, stored):
                return period, plan.groups - plan.tail
    if plan.alike:
        span = group // plan.pieces * plan.pieces
        seen = done - span - plan.lead
        for period in range(max(plan.least, -(-seen // PARTS)), seen // 2 + 1):
            if _repeats(done, period, plan, sectors, sums, stored):
                return period, span + plan.pieces - plan.tail
    return 0, 0


@borrowing
def _repeats(done: int, period: int, plan: Record, sectors: np.ndarray, sums: np.ndarray,
             stored: np.ndarray) -> bool:
    """Whether the last ``period`` groups moved what as many before them did: their sums, and the
    groups one by one, whose differences may be noise of which the sums are sure enough."""
    start = done - period
    moved = _dram_sectors(sums[done]) - _dram_sectors(sums[start])
    if moved < plan.turnover_sectors:
        return False
    of_sums = 0
    for tensor in range(len(stored)):
        for column in (FETCHED, FILLED, WRITTEN_BACK):
            if column == WRITTEN_BACK and stored[tensor] == ONCE:
                continue
            now = sums[done, tensor, column] - sums[start, tensor, column]
            before = sums[done - period, tensor, column] - sums[start - period, tensor, column]
            of_sums += abs(now - before)
    tolerated = plan.tolerance_ppm * 1e-6 * moved
    if of_sums > tolerated:
        return False
    squares = 0.0
    for group in range(start, done):
        of_group = 0
        for tensor in range(len(stored)):
            for column in (FETCHED, FILLED):
                of_group += abs(sectors[group, tensor, column]
                                - sectors[group - period, tensor, column])
        squares += float(of_group) ** 2
    return squares <= tolerated ** 2


@borrowing
def _count_as(model: np.ndarray, counts: np.ndarray, stored: np.ndarray) -> None:
    """Set a group's counts to another's; what is stored once leaves as often as it is written."""
    for tensor in range(len(stored)):
        for column in range(COLUMNS):
            counts[tensor, column] = model[tensor, column]
        if stored[tensor] == ONCE:
            counts[tensor, WRITTEN_BACK] = model[tensor, WRITTEN]
