"""Is a tile program well formed? Checks that need no numbers, only shapes and offsets.

``verify`` first reads the tape (loops matched, operands of the right phase and shape), then walks
one head block by block: nothing is used before it is loaded, no region begins beyond its tensor,
extents agree at ragged ends, every output and scratch element is stored exactly once, scratch is
read only in a later phase than it was written, tensors that are re-read and rewritten are
rewritten by the block that read them, and tensors that thread blocks add to were stored in an
earlier phase and are not read before the next. It does not prove the result: the numeric engine
does.
"""

from inspect import signature

import numpy as np

from .engines.dataflow import ROW_STATE, TENSOR_STATE, Fault, result_shape, walk_phase
from .errors import InputError
from .ops import BY_CODE, Op
from .printer import instruction_text
from .program import Phase, Program, Role, Space, Tensor
from .tape import NO_TILE, NO_VAR, Kind, Record


class ProgramError(InputError):
    """A tile program that is not well formed; names schedule, phase and instruction."""


_GIVEN = (Role.INPUT, Role.TABLE)  # there before the first phase
_MESSAGES = {
    Fault.BEYOND: "the region begins beyond its tensor",
    Fault.UNSET: "uses a tile before anything is loaded or filled into it",
    Fault.EXTENT: "the tile holds another extent than the region or result has",
    Fault.SHAPES: "the shapes of the operands do not agree",
    Fault.NOT_STORED: "uses what has not been stored everywhere before (in an earlier phase, "
                       "or by this block for an updated tensor)",
    Fault.NOT_LOADED: "stores a region again without loading it in between",
    Fault.OTHER_BLOCK: "touches a region that another thread block of this phase stored",
    Fault.PART_OF_REGION: "an updated tensor is loaded and stored by the same regions of whole "
                           "rows, and this is another region",
    Fault.BEYOND_LIST: "looks up a number beyond its list",
}


def verify(program: Program, smem_bytes_per_block: int | None = None) -> None:
    """Check ``program``; with ``smem_bytes_per_block`` also that it fits in shared memory.

    Time as for a scratchpad count, memory linear in rows and columns. Idealised programs are not
    held to a capacity. Raises ProgramError, which names what is wrong and where.
    """
    for index, (phase, last) in enumerate(zip(program.phases, _ends(program), strict=True)):
        if phase.first != last:
            raise _error(program, f"phase {index} begins at {phase.first}, not {last}")
        _check_structure(program, phase)
    if program.phases[-1].end != len(program.tape):
        raise _error(program, "instructions after the last phase")
    _check_capacity(program, smem_bytes_per_block)
    _Walk(program).run()


def _ends(program: Program) -> list[int]:
    return [0, *(phase.end for phase in program.phases[:-1])]


def _error(program: Program, problem: str, phase: Phase | None = None, address: int | None = None,
           where: str = "") -> ProgramError:
    text = f"schedule {program.schedule}"
    if phase is not None:
        text += f", phase {phase.name}"
    if address is not None:
        text += f", instruction {address} `{instruction_text(program, address)}`"
    return ProgramError(f"{text}: {problem}{where}")


def _check_capacity(program: Program, smem_bytes_per_block: int | None) -> None:
    if smem_bytes_per_block is None or program.idealised:
        return
    for phase in program.phases:
        needed = phase.bytes_in(Space.SHARED)
        if needed > smem_bytes_per_block:
            raise _error(
                program, f"its tiles take {needed} bytes of shared memory, a thread block has "
                f"{smem_bytes_per_block}", phase
            )


# --- the tape as it is written ----------------------------------------------------------------


def _check_structure(program: Program, phase: Phase) -> None:
    """Loops matched, variables in scope, operands of this phase and of shapes that agree."""
    scope = [axis.var.index for axis in phase.axes]
    open_loops: list[int] = []
    for address in range(phase.first, phase.end):
        row = program.tape[address]
        if row["kind"] == Kind.END:
            if not open_loops or not _closes(program.tape, address, open_loops.pop()):
                raise _error(program, "does not close the innermost loop", phase, address)
            del scope[scope.index(row["var"]):]  # with what was made inside
            continue
        check = _CHECKS.get(row["kind"])
        problem = check(program, phase, row, scope) if check else "no such kind of instruction"
        if problem:
            raise _error(program, problem, phase, address)
        if row["kind"] == Kind.LOOP:
            open_loops.append(address)
        if row["kind"] in (Kind.LOOP, Kind.LET):
            scope.append(int(row["var"]))
    if open_loops:
        raise _error(program, "a loop is not closed", phase, open_loops[-1])


def _closes(tape: np.ndarray, end: int, loop: int) -> bool:
    """Whether END and LOOP name each other and step the same variable."""
    same = all(tape[end][name] == tape[loop][name] for name in ("var", "step"))
    return same and tape[end]["partner"] == loop and tape[loop]["partner"] == end


def _loop_problem(program: Program, phase: Phase, row: Record, scope: list[int]) -> str | None:
    partner = int(row["partner"])
    if not phase.first < partner < phase.end or program.tape[partner]["kind"] != Kind.END:
        return "the loop has no end in this phase"
    if row["step"] < 1:
        return f"step {row['step']} is not positive"
    return _variable_problem(program, row, scope) or _scope_problem(
        row, ("start_var", "stop_var", "back_var"), scope
    )


def _let_problem(program: Program, phase: Phase, row: Record, scope: list[int]) -> str | None:
    if row["divide"] < 1:
        return f"divides by {row['divide']}"
    return _variable_problem(program, row, scope) or _scope_problem(row, ("start_var",), scope)


def _variable_problem(program: Program, row: Record, scope: list[int]) -> str | None:
    if row["var"] in scope or not 2 <= row["var"] < len(program.vars):
        return "its variable is in use already"
    return None


def _scope_problem(row: Record, fields: tuple[str, ...], scope: list[int]) -> str | None:
    if any(row[field] != NO_VAR and row[field] not in scope for field in fields):
        return "uses a variable of a loop or axis that it is not inside"
    return None


def _region_problem(program: Program, phase: Phase, row: Record, scope: list[int]) -> str | None:
    if not 0 <= row["tensor"] < len(program.tensors):
        return "no such tensor"
    tensor = program.tensors[row["tensor"]]
    if row["kind"] in (Kind.STORE, Kind.REDUCE) and tensor.role in _GIVEN:
        return f"stores the {tensor.role.value} {tensor.name}"
    if row["kind"] == Kind.STORE and tensor.group > phase.group:
        return f"{tensor.group} query heads would store the same slice of {tensor.name}"
    if tensor.group < phase.group:
        return f"a thread block for {phase.group} query heads has no one slice of {tensor.name}"
    if row["kind"] == Kind.REDUCE and _also_moved(program, phase, row["tensor"]):
        return f"adds to {tensor.name}, which this phase loads or stores too"
    return _tile_problem(phase, [int(row["tile"])]) or _scope_problem(
        row, ("row_var", "col_var"), scope
    )


def _also_moved(program: Program, phase: Phase, tensor: int) -> bool:
    """Whether a phase loads or stores a tensor, or it is one that is re-read and rewritten."""
    body = program.tape[phase.first:phase.end]
    moves = np.isin(body["kind"], (Kind.LOAD, Kind.STORE)) & (body["tensor"] == tensor)
    return moves.any() or program.tensors[tensor].updated


def _fill_problem(program: Program, phase: Phase, row: Record, scope: list[int]) -> str | None:
    if not 0 <= row["constant"] < len(program.constants):
        return "no such constant"
    return _region_problem(program, phase, row, scope)


def _tile_problem(phase: Phase, tiles: list[int]) -> str | None:
    own = {tile.index for tile in phase.tiles}
    return None if own.issuperset(tiles) else "uses a tile of another phase"


def _compute_problem(program: Program, phase: Phase, row: Record, scope: list[int]) -> str | None:
    if not 0 <= row["op"] < len(BY_CODE):
        return "no such operation"
    op = BY_CODE[row["op"]]
    tiles = [int(row[name]) for name in ("out", "a", "b") if row[name] != NO_TILE]
    if len(tiles) - 1 != _tile_operands(op):
        return f"{op.name} takes {_tile_operands(op)} tiles"
    if op.name == "scale" and not 0 <= row["constant"] < len(program.constants):
        return "no such constant"
    if op.name != "scale" and row["constant"] >= 0:
        return f"{op.name} takes no constant"
    problem = _tile_problem(phase, tiles) or _scope_problem(row, ("row_var", "col_var"), scope)
    if problem:
        return problem
    out, a, *rest = (program.tile_table[i] for i in tiles)
    b = rest[0] if rest else a
    fault, rows, cols = result_shape(row["op"], a.rows, a.cols, b.rows, b.cols)
    if fault != Fault.NONE or (rows, cols) != (out.rows, out.cols):
        shapes = " and ".join(f"[{t.rows}, {t.cols}]" for t in (a, *rest))
        return f"the shapes of the tiles do not agree: {shapes} into [{out.rows}, {out.cols}]"
    return None


def _tile_operands(op: Op) -> int:
    """How many tiles an operation reads, its output not counted."""
    arguments = getattr(op.compute, "nin", None) or len(signature(op.compute).parameters)
    return arguments - op.accumulates - (op.name in ("scale", "mask", "keep"))


_CHECKS = {
    Kind.LOOP: _loop_problem, Kind.LET: _let_problem, Kind.LOAD: _region_problem,
    Kind.STORE: _region_problem, Kind.REDUCE: _region_problem,
    Kind.FILL: _fill_problem, Kind.COMPUTE: _compute_problem,
}


# --- the program as it runs, one head ---------------------------------------------------------


class _Walk:
    """The state of the walk over all phases."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tensors = np.zeros(len(program.tensors), TENSOR_STATE)
        lengths = [tensor.rows + 1 for tensor in program.tensors]
        self.tensors["base"] = np.cumsum([0, *lengths[:-1]])
        self.tensors["updated"] = [tensor.updated for tensor in program.tensors]
        self.tensors["readable"] = [tensor.role in _GIVEN for tensor in program.tensors]
        self.rows = np.zeros(sum(lengths), ROW_STATE)
        # Column hashes, summed up: with the plain count they tell once from gaps and overlaps.
        widest = max(tensor.cols for tensor in program.tensors)
        hashes = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, widest)
        self.hashes = np.concatenate([[0], np.cumsum(hashes)])

    def run(self) -> None:
        """Walk every phase; then every output and scratch tensor must be stored."""
        for number, record in enumerate(self.program.phase_records):
            self._run_phase(number, record)
            for tensor, state in zip(self.program.tensors, self.tensors, strict=True):
                if not state["updated"] and not self._gaps(tensor):
                    state["readable"] = 1
        for tensor in self.program.tensors:
            gap = self._gaps(tensor) if tensor.role not in _GIVEN else None
            if gap:
                raise _error(self.program, gap)

    def _run_phase(self, number: int, record: Record) -> None:
        program, variables = self.program, np.zeros(len(self.program.vars), np.int64)
        fault, address = walk_phase(
            program.tape, record["first"], record["end"], record["extent0"], record["step0"],
            record["extent1"], record["step1"], number, program.tensor_records,
            program.tile_records, self.tensors, self.rows, self.hashes, variables,
            np.zeros_like(variables), program.numbers,
        )
        if fault != Fault.NONE:
            phase = program.phases[number]
            raise _error(program, _MESSAGES[Fault(fault)], phase, address,
                         self._where(phase, address, variables))

    def _where(self, phase: Phase, address: int, variables: np.ndarray) -> str:
        """The variables around an instruction, with their values."""
        places = [f"{axis.var.name} = {variables[axis.var.index]}" for axis in phase.axes]
        for row in self.program.tape[phase.first:address]:
            if row["kind"] == Kind.LOOP and row["partner"] > address:
                name = self.program.vars[row["var"]].name
                places.append(f"{name} = {variables[row['var']]}")
        return f" (at {', '.join(places)})" if places else ""

    def _gaps(self, tensor: Tensor) -> str | None:
        """The first row of a tensor that is not stored exactly once, in words."""
        base = self.tensors[tensor.index]["base"]
        mine = self.rows[base:base + tensor.rows]
        columns, hashes = np.cumsum(mine["columns"]), np.cumsum(mine["hashes"])
        wrong = (columns != tensor.cols) | (hashes != self.hashes[tensor.cols])
        if not wrong.any():
            return None
        row = int(np.argmax(wrong))
        return (
            f"{tensor.role.value} tensor {tensor.name} is not stored exactly once: row {row} has "
            f"{columns[row]} stores for {tensor.cols} columns"
        )
