"""One program as a picture that changes: where tensors and tiles lie, and what each step does.

Coordinates are those of a panel of WIDTH × HEIGHT; HBM above, the chip of one thread block below.
"""

from dataclasses import asdict, dataclass
from itertools import count

from ...simulator.engines.numeric import random_inputs
from ...simulator.engines.steps import Step, steps
from ...simulator.printer import instruction_text
from ...simulator.program import Program, Role, Space
from .words import explain

WIDTH, HEIGHT = 620, 500
MARGIN, GAP, TILE_GAP = 16, 14, 9
HBM_TOP, HBM_HEIGHT = 52, 182
CHIP_TOP, ROW_HEIGHT = 292, 62
SMALLEST = 7.0  # of a drawn side: one-column statistics stay visible
LABEL = 46.0  # room for "written 0.8×" under a tensor, with the gap beside it
COMPUTE_TIME = 0.5  # of a step that moves nothing; one that moves a Br × d tile takes 1 more


@dataclass(frozen=True)
class Box:
    """A drawn tensor or tile of rows × cols elements; ``where`` is hbm, shared or registers."""

    number: int
    name: str
    where: str
    rows: int
    cols: int
    x: float
    y: float
    w: float
    h: float
    phase: int = -1  # of a tile


@dataclass(frozen=True)
class Panel:
    """A schedule's boxes, steps and the time at which each step ends."""

    schedule: str
    title: str
    tensors: tuple[Box, ...]
    tiles: tuple[Box, ...]
    steps: tuple[Step, ...]
    ends: tuple[float, ...]
    words: tuple[str, ...]
    texts: tuple[str, ...]
    phases: tuple[str, ...]
    tile_bytes: tuple[int, ...]
    tensor_bytes: tuple[int, ...]
    compulsory_bytes: int

    @property
    def bytes(self) -> int:
        """What crosses in all."""
        return sum(step.bytes for step in self.steps)

    def where(self, step: Step) -> str:
        """Which launch a step belongs to, and which of its thread blocks."""
        launch = f"kernel {step.phase + 1} of {len(self.phases)}: " * (len(self.phases) > 1)
        block = " and ".join(f"{name} {at}" for name, at in zip(("row", "column"), step.block,
                                                               strict=False))
        return f"{launch}{self.phases[step.phase]}" + f", block at {block}" * bool(block)

    def document(self) -> dict:
        """What the player needs, as JSON."""
        return {
            "schedule": self.schedule, "title": self.title,
            "compulsory": self.compulsory_bytes, "tensorBytes": self.tensor_bytes,
            "tensors": [asdict(box) for box in self.tensors],
            "tiles": [asdict(box) for box in self.tiles],
            "tileBytes": self.tile_bytes,
            "steps": [
                [step.kind, step.phase, list(step.block), step.tile, list(step.operands),
                 step.region, step.bytes, text, words, round(end, 3),
                 {name: _short(value) for name, value in step.statistics.items()},
                 self.where(step)]
                for step, end, words, text in zip(self.steps, self.ends, self.words, self.texts,
                                                  strict=True)
            ],
        }


def _short(value: float) -> str:
    return {float("-inf"): "−∞", float("inf"): "∞"}.get(value, f"{value:.3g}")


def panel(program: Program, title: str) -> Panel:
    """The panel of a program of one head. Raises InputError when it is too long to watch."""
    done = steps(program, random_inputs(program.problem))
    unit = program.tiles.br * program.problem.head_dim * program.problem.dtype_bytes
    ends, time = [], 0.0
    for step in done:
        time += COMPUTE_TIME + step.bytes / unit
        ends.append(time)
    return Panel(
        program.schedule, title, _place_tensors(program), _place_tiles(program), tuple(done),
        tuple(ends), tuple(explain(step, program) for step in done),
        tuple(instruction_text(program, step.address) for step in done),
        tuple(phase.name for phase in program.phases),
        tuple(tile.bytes for tile in program.tile_table),
        tuple(tensor.rows * tensor.cols * tensor.element_bytes for tensor in program.tensors),
        program.problem.compulsory_read_bytes + program.problem.compulsory_write_bytes,
    )


def times_moved(moved: int, whole: int) -> str:
    """How often a tensor of ``whole`` bytes has moved: 0.3×, 1×, 4×."""
    return f"{round(moved / whole, 1):g}×"


def _place_tensors(program: Program) -> tuple[Box, ...]:
    """In a row from the left, inputs first, at one scale."""
    order = {Role.INPUT: 0, Role.TABLE: 0, Role.SCRATCH: 1, Role.OUTPUT: 2}
    tensors = sorted(program.tensors, key=lambda tensor: order[tensor.role])
    room = WIDTH - 2 * MARGIN - GAP * (len(tensors) - 1)
    label = min(LABEL, room / len(tensors))
    tallest = (HBM_HEIGHT - 34) / max(tensor.rows for tensor in tensors)
    scale = next(scale for scale in (tallest * 0.97 ** i for i in count())
                 if sum(max(tensor.cols * scale, label) for tensor in tensors) < room + 1)
    boxes, x = [], float(MARGIN)
    for tensor in tensors:
        w, h = max(tensor.cols * scale, SMALLEST), max(tensor.rows * scale, SMALLEST)
        boxes.append(Box(tensor.index, tensor.name, "hbm", tensor.rows, tensor.cols, x,
                         HBM_TOP + 24, w, h))
        x += max(w, label) + GAP
    return tuple(boxes)


def _place_tiles(program: Program) -> tuple[Box, ...]:
    """The tiles of each phase: shared memory in one row, registers in the next."""
    boxes = []
    for number, phase in enumerate(program.phases):
        for line, space in enumerate(Space):
            tiles = [tile for tile in phase.tiles if tile.space == space]
            if not tiles:
                continue
            room = WIDTH - 2 * MARGIN - 120 - TILE_GAP * len(tiles)
            scale = min((ROW_HEIGHT - 20) / max(tile.rows for tile in tiles),
                        room / sum(max(tile.cols, 3) for tile in tiles))
            x = MARGIN + 108.0
            for tile in tiles:
                w, h = max(tile.cols * scale, SMALLEST), max(tile.rows * scale, SMALLEST)
                boxes.append(Box(tile.index, tile.name, space.value, tile.rows, tile.cols, x,
                                 CHIP_TOP + line * ROW_HEIGHT + 16, w, h, number))
                x += max(w, 6.6 * len(tile.name)) + TILE_GAP
    return tuple(boxes)
