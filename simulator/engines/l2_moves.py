"""A phase as the L2 reader runs it: what moves and when it may, without the computes between.

A load is issued when all before it is done, or ahead of that: as soon as its buffer is free, which
is when the last compute that read the tile of ``stages`` loads ago is done.
"""

from typing import TYPE_CHECKING

import numpy as np

from ..ops import BY_CODE, Unit
from ..program import Program
from ..tape import INSTRUCTION, Kind, Record

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

# How many loads of its tile ago freed a load's buffer (0: it waits for all before it), cycles of
# work since the move before, for a load cycles of work until its tile is read for the last time;
# and the instruction itself.
MOVE = np.dtype([("ahead", np.int64), ("work", np.float64), ("held", np.float64),
                 *INSTRUCTION.descr])
PREFETCHES = ("none", "product", "trip")  # execution.Execution.prefetch
_KEPT = (Kind.LOOP, Kind.END, Kind.LET, Kind.LOAD, Kind.STORE, Kind.REDUCE)


def moves(program: Program, phase: Record, cycles: np.ndarray, prefetch: str | None) -> np.ndarray:
    """The phase (a PHASE record) as MOVE records; ``cycles`` of each instruction of the program.

    ``prefetch``: what a thread block computes between a load and its use: "none", a "product" of
    the same trip, or a whole "trip"; None: a trip for tiles with more than one stage.
    """
    tape = program.tape
    addresses = np.arange(int(phase["first"]), int(phase["end"]))
    kept = addresses[np.isin(tape["kind"][addresses], _KEPT)]
    found = np.zeros(len(kept), MOVE)
    for name in INSTRUCTION.names:  # type: ignore[union-attr]
        found[name] = tape[name][kept]
    loops = np.isin(found["kind"], (Kind.LOOP, Kind.END))
    found["partner"][loops] = np.searchsorted(kept, found["partner"][loops])
    work = np.concatenate([[0.0], np.cumsum(cycles[addresses])])  # before each address
    done = work[kept - addresses[0]]
    found["work"] = np.diff(done, prepend=0.0)
    for move, address in zip(found, kept, strict=True):
        if move["kind"] == Kind.LOAD:
            stages = program.tile_table[int(move["tile"])].stages
            ahead = {None: stages > 1, "none": False}.get(prefetch, True)
            move["ahead"] = stages if ahead else 0
            move["held"] = work[_last_use(tape, address, phase["end"]) + 1 - addresses[0]] - work[
                address - addresses[0]]
    return found


def _last_use(tape: np.ndarray, address: int, end: int) -> int:
    """The last compute that reads the tile loaded at ``address`` before it is loaded again or its
    loop ends; the load itself when there is none."""
    tile, last = tape[address]["tile"], address
    for later in range(address + 1, int(end)):
        row = tape[later]
        if row["kind"] == Kind.END or (row["kind"] == Kind.LOAD and row["tile"] == tile):
            break
        if row["kind"] == Kind.COMPUTE and tile in (row["a"], row["b"]):
            last = later
    return last


def instruction_cycles(program: Program, gpu: "Profile",
                       matmul_flops_per_s: float | None) -> np.ndarray:
    """Cycles of each instruction when it has an SM to itself: 0 but for computes, whose whole
    tiles run at the GPU's rate for their unit."""
    per_sm_clock = gpu.sm_count * gpu.boost_clock_hz
    matmul = (matmul_flops_per_s or getattr(gpu.flops, program.problem.dtype)
              or gpu.flops.fp32)
    rates = {Unit.MATMUL: matmul / per_sm_clock, Unit.EXP: gpu.exp_per_clock_per_sm,
             Unit.ALU: gpu.flops.fp32 / 2 / per_sm_clock}
    cycles = np.zeros(len(program.tape))
    for address in np.flatnonzero(program.tape["kind"] == Kind.COMPUTE):
        row = program.tape[address]
        op = BY_CODE[row["op"]]
        if op.unit == Unit.NONE:
            continue
        first, out = program.tile_table[row["a"]], program.tile_table[row["out"]]
        work = first.rows * first.cols * op.flops_per_element
        if op.unit == Unit.MATMUL:
            work *= out.cols
        cycles[address] = work / rates[op.unit]
    return cycles
