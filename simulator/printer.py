"""A tile program as text: what ``hbmeter schedules NAME`` shows and golden files hold."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from .masks import UNBOUNDED
from .ops import BY_CODE
from .program import Phase, Program, Tensor, Tile
from .tape import NO_TILE, NO_VAR, Kind

Entry = TypeVar("Entry")

_INDENT = "  "


def to_text(program: Program) -> str:
    """The whole program: header, tensors, then each phase with its grid, tiles and body."""
    lines = [*_header(program), "", "tensors", *_indented(map(_tensor, program.tensors))]
    for phase in program.phases:
        lines += ["", *_phase(program, phase)]
    return "\n".join(lines) + "\n"


def instruction_text(program: Program, address: int) -> str:
    """One instruction of the tape as text, e.g. ``K = load K[c0:+64, :]``."""
    return _Instruction(program, address).text()


def _header(program: Program) -> Iterator[str]:
    p = program.problem
    yield f"schedule {program.schedule}" + " (idealised: ignores capacity)" * program.idealised
    yield (
        f"problem batch {p.batch}, heads {p.heads}, kv_heads {p.kv_heads}, seq {p.seq}, "
        f"kv_seq {p.kv_seq}, head_dim {p.head_dim}, value_dim {p.value_dim}, dtype {p.dtype}, "
        f"mask {p.mask}"
    )
    yield f"tiles {program.tiles}, Bk {program.tiles.bk}"


def _tensor(tensor: Tensor) -> str:
    shape = f"[batch, heads, {tensor.rows}, {tensor.cols}]"
    if tensor.group > 1:
        shape = f"[batch, heads / {tensor.group}, {tensor.rows}, {tensor.cols}]"
    note = ", updated" * tensor.updated + ", packed" * tensor.packed
    note += f", in pages of {tensor.page_rows} rows" * bool(tensor.page_rows)
    return f"{tensor.role.value:<7} {tensor.name} {shape}, {tensor.element_bytes}-byte{note}"


def _tile(tile: Tile) -> str:
    stages = f", {tile.stages} stages" * (tile.stages > 1)
    kind = ", accumulator" * tile.accumulator
    return (
        f"{tile.space.value:<9} {tile.name} [{tile.rows}, {tile.cols}], "
        f"{tile.element_bytes}-byte, {tile.bytes} bytes{stages}{kind}"
    )


def _phase(program: Program, phase: Phase) -> Iterator[str]:
    axes = [f"{a.var.name} in 0 .. {a.extent} step {a.step} ({a.blocks})" for a in phase.axes]
    head = "head" if phase.group == 1 else f"{phase.group} heads"
    yield f"phase {phase.name}: a thread block for each {head}" + "".join(f" × {a}" for a in axes)
    yield from _indented(map(_tile, phase.tiles))
    yield ""
    depth = 1
    for address in range(phase.first, phase.end):
        kind = program.tape[address]["kind"]
        if kind == Kind.END:
            depth -= 1
            continue
        yield _INDENT * depth + instruction_text(program, address)
        depth += int(kind == Kind.LOOP)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (_INDENT + line for line in lines)


def _at(table: Sequence[Entry], number: int) -> Entry | None:
    """The entry, or None for a number out of range: broken programs are printed too."""
    return table[number] if 0 <= number < len(table) else None


class _Instruction:
    """One instruction, with the names of what its numbers stand for."""

    def __init__(self, program: Program, address: int) -> None:
        self.program, self.row = program, program.tape[address]
        inside = [p for p in program.phases if p.first <= address < p.end]
        self.axes = {axis.var.index: axis.var.name for p in inside for axis in p.axes}

    def text(self) -> str:
        kind = int(self.row["kind"])
        return getattr(self, Kind(kind).name.lower())() if kind in list(Kind) else f"kind {kind}?"

    def loop(self) -> str:
        row = self.row
        step, limit = int(row["step"]), int(row["limit"])
        start, never = self._start(step, limit)
        stop = self._clip(int(row["stop_add"]), limit)
        never = never or stop == "0" or (start.isdigit() and stop.isdigit()
                                         and int(start) >= int(stop))
        note = "  # never" * never
        back = f", backwards when {self.var('back_var')} is odd" * bool(row["back_var"] != NO_VAR)
        return f"for {self.var('var')} in {start} .. {stop} step {step}{back}:{note}"

    def _start(self, step: int, limit: int) -> tuple[str, bool]:
        """The first offset, and whether it lies beyond any length (an unbounded shift)."""
        add = int(self.row["start_add"])
        if add > UNBOUNDED // 2:
            return str(limit), True
        if add < -UNBOUNDED // 2:
            return "0", False
        if self.row["start_var"] == NO_VAR:
            return str(max(add, 0) // max(step, 1) * step), False
        start = self._shifted("start_var", add)
        start = f"max({start}, 0)" if add < 0 else start
        return (f"align_down({start}, {step})" if step > 1 else start), False

    def _clip(self, add: int, limit: int) -> str:
        if abs(add) > UNBOUNDED // 2 or self.row["stop_var"] == NO_VAR:
            return str(min(max(add, 0), limit))
        return f"clip({self._shifted('stop_var', add)}, 0, {limit})"

    def _shifted(self, field: str, add: int) -> str:
        return self.var(field) + (f" {'+-'[add < 0]} {abs(add)}" if add else "")

    def end(self) -> str:
        return "end"

    def let(self) -> str:
        row = self.row
        text = self._shifted("start_var", int(row["start_add"]))
        if row["start_var"] == NO_VAR:
            text = str(row["start_add"])
        if row["divide"] != 1:
            text = (f"({text})" if " " in text else text) + f" / {row['divide']}"
        text += f" * {row['times']}" * bool(row["times"] != 1)
        if row["listing"] >= 0:
            listing = self.program.listing_at(row["listing"])
            text = f"{'?' if listing is None else listing.name}[{text}]"
        return f"{self.var('var')} = {text}"

    def load(self) -> str:
        return f"{self.tile('tile')} = load {self._region()}"

    def store(self) -> str:
        return f"store {self._region()} = {self.tile('tile')}"

    def reduce(self) -> str:
        return f"reduce {self._region()} += {self.tile('tile')}"

    def fill(self) -> str:
        return f"{self.tile('tile')} = fill({self._constant()}) like {self._region()}"

    def compute(self) -> str:
        row = self.row
        if not 0 <= row["op"] < len(BY_CODE):
            return f"{self.tile('out')} = op {row['op']}?"
        op = BY_CODE[row["op"]]
        operands = [self.tile(name) for name in "ab" if row[name] != NO_TILE]
        if op.name == "mask":
            operands += [self.var("row_var"), self.var("col_var")]
        if row["constant"] >= 0:
            operands.append(self._constant())
        name, sign = (op.name[: -len("_add")], "+=") if op.accumulates else (op.name, "=")
        return f"{self.tile('out')} {sign} {name}({', '.join(operands)})"

    def _region(self) -> str:
        tensor = _at(self.program.tensors, self.row["tensor"])
        tile = _at(self.program.tile_table, self.row["tile"])
        if tensor is None or tile is None:
            return "no such tensor or tile"
        rows = self._span("row_var", tile.rows, tensor.rows)
        return f"{tensor.name}[{rows}, {self._span('col_var', tile.cols, tensor.cols)}]"

    def _span(self, field: str, length: int, whole: int) -> str:
        if self.row[field] == NO_VAR and length >= whole:
            return ":"
        return f"{self.var(field)}:+{length}"

    def _constant(self) -> str:
        constant = _at(self.program.constants, self.row["constant"])
        return "?" if constant is None else f"{constant:.6g}"

    def tile(self, field: str) -> str:
        """The tile's name."""
        tile = _at(self.program.tile_table, self.row[field])
        return "?" if tile is None else tile.name

    def var(self, field: str) -> str:
        """The variable's name; 0 for the variable that is always zero."""
        number = int(self.row[field])
        if number == NO_VAR:
            return "0"
        var = _at(self.program.vars, number)
        return self.axes.get(number) or ("?" if var is None else var.name)
