"""The papers' two-level model: bytes between the scratchpad (SRAM) and HBM, and FLOPs.

Every load and store of a thread block crosses the SM boundary once; an atomic add crosses it one
way, as bytes written (red.global returns nothing; the L2 does the sum). No instruction depends on
the batch or head index except through addresses, so one head is walked and multiplied: exact for
any batch and heads. Likewise the trips of an innermost loop, and the thread blocks along an axis
that no loop's bounds depend on, move equal bytes but for the last, ragged one: the first is walked
for all the others. Bytes are what FlashAttention (arXiv 2205.14135, section 3.2) calls HBM
accesses.
"""

from dataclasses import dataclass

import numpy as np

from ..jit import borrowing, njit
from ..ops import (
    OP_A_TRANSPOSED,
    OP_B_TRANSPOSED,
    OP_FLOPS,
    OP_IS_MATMUL,
    OP_IS_REDUCTION,
    OP_UNIT,
    Unit,
)
from ..program import Program
from ..tape import NO_VAR, Kind, Record
from .walk import END, LET, LOOP, assign, enter_loop, next_trip, region

_LOAD, _FILL, _COMPUTE = (int(k) for k in (Kind.LOAD, Kind.FILL, Kind.COMPUTE))
_N_UNITS = len(Unit)


@dataclass(frozen=True)
class ScratchpadCount:
    """Bytes over the SM boundary and FLOPs, over all phases, batch and heads.

    ``phase_bytes`` has [phase, tensor, (read, write)] in bytes; ``phase_flops`` [phase, unit].
    FLOPs are those executed: whole tiles, masked entries included.
    """

    program: Program
    phase_bytes: np.ndarray
    phase_flops: np.ndarray

    @property
    def read_bytes(self) -> int:
        """Bytes loaded by thread blocks."""
        return int(self.phase_bytes[:, :, 0].sum())

    @property
    def write_bytes(self) -> int:
        """Bytes stored by thread blocks."""
        return int(self.phase_bytes[:, :, 1].sum())

    @property
    def by_tensor(self) -> dict[str, dict[str, int]]:
        """{"Q": {"read_bytes": …, "write_bytes": …}, …} in the program's order."""
        totals = self.phase_bytes.sum(axis=0)
        return {
            tensor.name: {"read_bytes": int(read), "write_bytes": int(write)}
            for tensor, (read, write) in zip(self.program.tensors, totals, strict=True)
        }

    @property
    def flops(self) -> dict[str, int]:
        """{"matmul": …, "exp": …, "alu": …}: operations executed."""
        totals = self.phase_flops.sum(axis=0)
        return {unit.name.lower(): int(totals[unit]) for unit in Unit if unit != Unit.NONE}


def count(program: Program) -> ScratchpadCount:
    """Count a program's bytes and FLOPs; linear in the tiles that one head touches."""
    uniform = _uniform_loops(program)
    bytes_moved = np.zeros((len(program.phases), len(program.tensors), 2), np.int64)
    flops = np.zeros((len(program.phases), _N_UNITS), np.int64)
    for number, phase in enumerate(program.phase_records):
        _count_phase(
            program.tape, uniform, phase["first"], phase["end"], *_blocks(program, phase, 0),
            *_blocks(program, phase, 1), program.tensor_records, program.tile_records,
            np.zeros(len(program.vars), np.int64), np.zeros(len(program.vars), np.int64),
            program.numbers, bytes_moved[number], flops[number],
        )
    heads = program.problem.head_count // program.phase_records["group"]
    return ScratchpadCount(program, bytes_moved * heads[:, None, None], flops * heads[:, None])


def _blocks(program: Program, phase: Record, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of the thread blocks to walk along an axis, and how many blocks each stands for.

    Where nothing but places in tensors depends on the axis, all blocks move the same bytes except
    the last, ragged one: the first stands for all the others.
    """
    offsets = np.arange(0, phase[f"extent{axis}"], phase[f"step{axis}"])
    body = program.tape[phase["first"]:phase["end"]]
    steers = ((body["start_var"] == axis) | (body["stop_var"] == axis)).any()
    if len(offsets) < 3 or steers or not _fills_its_steps(
            program, body, axis, phase[f"step{axis}"], phase[f"extent{axis}"]):
        return offsets, np.ones_like(offsets)
    return offsets[[0, -1]], np.array([len(offsets) - 1, 1])


def _fills_its_steps(program: Program, body: np.ndarray, var: int, step: int, limit: int) -> bool:
    """Is every region of ``body`` that ``var`` places as long as ``step`` on that side, in a
    tensor that reaches to ``limit``? Then only the last step can reach past a tensor's end."""
    tiles, tensors = program.tile_records, program.tensor_records
    regions = body[body["tensor"] >= 0]
    return all(
        (tiles[moved["tile"]][side] == step).all()
        and (tensors[moved["tensor"]][side] >= limit).all()
        for name, side in (("row_var", "rows"), ("col_var", "cols"))
        for moved in [regions[regions[name] == var]]
    )


def _uniform_loops(program: Program) -> np.ndarray:
    """For each address: is it a LOOP whose trips all move the same bytes, except the last?

    True for innermost loops that go forwards, whose variable places regions of its step only.
    """
    tape, uniform = program.tape, np.zeros(len(program.tape), np.bool_)
    for address in np.flatnonzero(tape["kind"] == Kind.LOOP):
        loop = tape[address]
        body = tape[address + 1:loop["partner"]]
        sets_none = (body["var"] == NO_VAR).all()  # no loop inside
        forwards = loop["back_var"] == NO_VAR  # the ragged end comes last
        uniform[address] = sets_none and forwards and _fills_its_steps(
            program, body, loop["var"], loop["step"], loop["limit"])
    return uniform


@njit
def _count_phase(tape: np.ndarray, uniform: np.ndarray, first: int, end: int, offsets0: np.ndarray,
                 times0: np.ndarray, offsets1: np.ndarray, times1: np.ndarray, tensors: np.ndarray,
                 tiles: np.ndarray, variables: np.ndarray, stops: np.ndarray, numbers: np.ndarray,
                 bytes_moved: np.ndarray, flops: np.ndarray) -> None:
    shape = np.zeros((len(tiles), 2), np.int64)  # rows and columns that each tile holds now
    for i, r0 in enumerate(offsets0):
        for j, c0 in enumerate(offsets1):
            variables[0], variables[1] = r0, c0
            _count_block(tape, uniform, first, end, tensors, tiles, variables, stops, numbers,
                         shape, bytes_moved, flops, times0[i] * times1[j])


@borrowing
def _count_block(tape: np.ndarray, uniform: np.ndarray, first: int, end: int, tensors: np.ndarray,
                 tiles: np.ndarray, variables: np.ndarray, stops: np.ndarray, numbers: np.ndarray,
                 shape: np.ndarray, bytes_moved: np.ndarray, flops: np.ndarray,
                 blocks: int) -> None:
    pc, trips = first, 1  # trips that the instruction at pc stands for, in each of the blocks
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            address = pc
            pc = enter_loop(tape, pc, variables, stops)
            if uniform[address] and pc == address + 1:
                trips = max((stops[row.var] - 1 - variables[row.var]) // row.step, 1)
            continue
        if row.kind == END:
            if trips > 1:  # on to the last trip
                variables[row.var] += (trips - 1) * row.step
                trips = 1
            pc = next_trip(tape, pc, variables, stops)
            continue
        if row.kind == LET:
            assign(row, variables, numbers)
        elif row.kind == _COMPUTE:
            _count_compute(row, shape, flops, trips * blocks)
        else:
            _, _, rows, cols = region(row, variables, tensors, tiles)
            if row.kind != _FILL:
                direction = 0 if row.kind == _LOAD else 1
                moved = rows * cols * tensors[row.tensor].element_bytes
                bytes_moved[row.tensor, direction] += moved * trips * blocks
            if row.kind == _LOAD or row.kind == _FILL:
                shape[row.tile, 0], shape[row.tile, 1] = rows, cols
        pc += 1


@borrowing
def _count_compute(row: Record, shape: np.ndarray, flops: np.ndarray, trips: int) -> None:
    rows, cols = shape[row.a, 0], shape[row.a, 1]
    work = rows * cols
    if OP_IS_MATMUL[row.op]:
        if OP_A_TRANSPOSED[row.op]:
            rows = cols
        cols = shape[row.b, 0] if OP_B_TRANSPOSED[row.op] else shape[row.b, 1]
        work *= cols
    elif OP_IS_REDUCTION[row.op]:
        cols = 1
    flops[OP_UNIT[row.op]] += work * OP_FLOPS[row.op] * trips
    shape[row.out, 0], shape[row.out, 1] = rows, cols
