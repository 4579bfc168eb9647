"""Into how many splits to cut the keys of decode: counts and a predicted time for every number.

The model, stated and not fitted to any kernel:

- Thread blocks run in waves of SMs × blocks per SM. A wave begins with the DRAM latency and takes
  as long as the slowest of these:
  - latency: a block has the loads of its stages on their way and gets them after the DRAM latency
    (Little's law; with one stage its loads take turns), and the operations of a column block wait
    for each other: each for one pipeline (the latency of shared memory stands for it), a product
    for two (its operands, then the multiplier) for each 16 of the depth it sums over;
  - the port from L2 into an SM, shared by its blocks;
  - DRAM, which reads every input once, at the rate measured for reads where the profile has it,
    and serves the SMs evenly: those that hold a block more than others end later, alone;
  - the products, padded to whole tiles, at the dtype's peak, shared by the blocks of an SM.
- Several splits add the combine phase: a launch, two L2 latencies (statistics, then parts), and
  the parts through the ports of the SMs that its blocks fill.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import schedules
from .blocks import Candidate, fitting_candidate
from .engines.l2_machine import HBM_LATENCY_CYCLES, L2_LATENCY_CYCLES, SM_BYTES_PER_CLOCK
from .errors import InputError
from .ops import BY_CODE, Unit
from .problem import Attention
from .program import Program
from .tape import Kind, Record
from .tiles import Tiles

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

PIPELINE_CYCLES = 29.0  # shared memory, where a profile has no latency: A100 and H800
LAUNCH_GAP_S = 1.3e-6  # from one kernel to the next, where a profile has none: an H200's
MMA_DEPTH = 16  # that one tensor-core instruction sums over
TOLD_APART = 0.05  # predictions nearer than this share are taken as equal
NEARLY_ALL = 0.9  # of the SMs
MAX_COLUMN_BLOCKS = 1 << 20  # that are split in every way: some two thousand ways


@dataclass(frozen=True)
class Rates:
    """What a GPU gives, measured where its profile has it."""

    dram_bytes_per_s: float
    port_bytes_per_s: float  # from L2 into one SM
    hbm_latency_s: float
    l2_latency_s: float
    pipeline_latency_s: float
    launch_gap_s: float
    matmul_flops_per_s: float | None

    @classmethod
    def of(cls, gpu: "Profile", dtype: str) -> "Rates":
        """Of a Profile."""

        def measured(name: str, otherwise: float) -> float:
            return gpu.measured[name].value if name in gpu.measured else otherwise

        clock, latency = gpu.boost_clock_hz, gpu.latency_cycles
        return cls(
            dram_bytes_per_s=measured("hbm_read", gpu.hbm_bytes_per_s),
            port_bytes_per_s=measured("l2_read_one_sm", SM_BYTES_PER_CLOCK) * clock,
            hbm_latency_s=measured("hbm_latency", latency.hbm or HBM_LATENCY_CYCLES) / clock,
            l2_latency_s=measured("l2_latency", latency.l2 or L2_LATENCY_CYCLES) / clock,
            pipeline_latency_s=(latency.smem or PIPELINE_CYCLES) / clock,
            launch_gap_s=measured("launch_gap", LAUNCH_GAP_S),
            matmul_flops_per_s=getattr(gpu.flops, dtype),
        )


@dataclass(frozen=True)
class SplitPoint:
    """One number of splits: its program on one GPU, and the seconds that the model predicts."""

    candidate: Candidate
    blocks_per_sm: int

    @property
    def program(self) -> Program:
        """The tile program."""
        return self.candidate.program

    @property
    def splits(self) -> int:
        """Thread blocks along the keys."""
        return self.program.phases[0].axes[1].blocks

    @property
    def keys(self) -> int:
        """Keys of a split; the last may have fewer."""
        return self.program.phases[0].axes[1].step

    @cached_property
    def blocks(self) -> int:
        """Thread blocks of the attention phase."""
        phase = self.program.phases[0]
        rows, splits = phase.axes
        return self.program.problem.head_count // phase.group * rows.blocks * splits.blocks

    @property
    def slots(self) -> int:
        """Thread blocks that the GPU holds at once."""
        return self.candidate.gpu.sm_count * self.blocks_per_sm

    @property
    def waves(self) -> float:
        """Blocks over slots; what it lacks to a whole number is idle."""
        return self.blocks / self.slots

    @property
    def part_bytes(self) -> int:
        """Bytes of partial results: written once, read once."""
        return sum(moved["write_bytes"] for name, moved in self.candidate.count.by_tensor.items()
                   if name.endswith("_part"))

    @cached_property
    def rates(self) -> Rates:
        """What the GPU gives."""
        return Rates.of(self.candidate.gpu, self.program.problem.dtype)

    @cached_property
    def attention_s(self) -> float:
        """Whole waves, and the last one."""
        whole, rest = divmod(self.blocks, self.slots)
        seconds = whole * max(self._wave(self.slots).values()) if whole else 0.0
        return seconds + (max(self._wave(rest).values()) if rest else 0.0)

    @property
    def combine_s(self) -> float:
        """The second phase; 0 with one split."""
        if self.splits == 1:
            return 0.0
        rates = self.rates
        phase = self.program.phases[1]
        blocks = self.program.problem.head_count // phase.group * phase.axes[0].blocks
        ports = min(blocks, self.candidate.gpu.sm_count) * rates.port_bytes_per_s
        moved = self.part_bytes + self.program.problem.compulsory_write_bytes
        return rates.launch_gap_s + 2 * rates.l2_latency_s + moved / ports

    @property
    def predicted_s(self) -> float:
        """A launch and both phases."""
        return self.rates.launch_gap_s + self.attention_s + self.combine_s

    @property
    def limiter(self) -> str:
        """What the largest wave waits for."""
        parts = self._wave(min(self.blocks, self.slots))
        return max(parts, key=parts.__getitem__)

    def _wave(self, resident: int) -> dict[str, float]:
        """Seconds of each part for ``resident`` blocks, spread over the SMs."""
        rates, gpu, problem = self.rates, self.candidate.gpu, self.program.problem
        loaded = int(self.candidate.count.phase_bytes[0, :, 0].sum())
        from_dram = min(loaded, problem.compulsory_read_bytes)
        bytes_a_block = loaded / self.blocks
        alone_s, beside = self._block_alone_s(bytes_a_block), -(-resident // gpu.sm_count)
        blocks_per_s = self.blocks / from_dram * rates.dram_bytes_per_s
        parts = {
            "latency": alone_s,
            "SM port": rates.hbm_latency_s + bytes_a_block * beside / rates.port_bytes_per_s,
            "DRAM": rates.hbm_latency_s + resident / blocks_per_s,
        }
        if beside > 1:  # until the SMs with fewer blocks are done, all get the same
            fullest = resident - (beside - 1) * gpu.sm_count
            rest = min(blocks_per_s, fullest * rates.port_bytes_per_s / bytes_a_block,
                       fullest * beside / alone_s)
            parts["DRAM"] += fullest / rest - fullest / blocks_per_s
        if rates.matmul_flops_per_s is not None:
            flops = problem.forward_flops / self.blocks * _padding(self.program)
            parts["products"] = flops * beside * gpu.sm_count / rates.matmul_flops_per_s
        return parts

    def _block_alone_s(self, bytes_a_block: float) -> float:
        """Seconds of a thread block that waits for nothing but latencies."""
        rates, trips = self.rates, -(-self.keys // self.program.tiles.bc)
        body = list(_column_block(self.program))
        loads = [_tile_bytes(self.program, row) for row in body if row["kind"] == Kind.LOAD]
        stages = self.program.tiles.stages
        in_flight = sum(loads) * stages if stages > 1 else sum(loads) / len(loads)
        loading = bytes_a_block / in_flight * rates.hbm_latency_s
        steps = sum(_dependent_steps(self.program, row) for row in body)
        return rates.hbm_latency_s + max(loading, trips * steps * rates.pipeline_latency_s)


def _column_block(program: Program) -> Iterator[np.void]:
    """The instructions of the loop over column blocks."""
    tape = program.tape
    first = next(a for a in range(len(tape)) if tape[a]["kind"] == Kind.LOOP)
    return iter(tape[first + 1:tape[first]["partner"]])


def _tile_bytes(program: Program, row: Record) -> int:
    tile = program.tile_table[int(row["tile"])]
    return tile.rows * tile.cols * tile.element_bytes


def _dependent_steps(program: Program, row: Record) -> int:
    """Pipelines that an instruction waits for, one after the other."""
    if row["kind"] != Kind.COMPUTE:
        return 0
    if BY_CODE[row["op"]].unit != Unit.MATMUL:
        return 1
    depth = program.tile_table[int(row["a"])].cols
    return 2 * -(-depth // MMA_DEPTH)


def _padding(program: Program) -> float:
    """Rows of the tiles that products run on, over the rows that there are."""
    rows = program.phases[0].axes[0]
    return rows.blocks * rows.step / rows.extent


def every(schedule: str, problem: Attention, gpu: "Profile", tiles: Tiles,
          blocks_per_sm: int | None = None) -> tuple[SplitPoint, ...]:
    """A SplitPoint for each number of splits that cuts the keys in a way of its own, from 1 up.

    ``blocks_per_sm`` defaults to the occupancy of the tiles. Raises InputError for a schedule
    without splits and for tiles that do not fit with any number.
    """
    require_option(schedule, "splits")
    built = schedules.build(schedule, problem, replace(tiles, splits=1))
    steps = -(-built.phases[0].axes[1].extent // tiles.bc)
    if steps > MAX_COLUMN_BLOCKS:
        raise InputError(f"kv_seq {problem.kv_seq} in column blocks of Bc {tiles.bc} can be split "
                         f"in too many ways; at most {MAX_COLUMN_BLOCKS} column blocks are tried")
    points: dict[int, SplitPoint] = {}
    for number in _numbers(steps):
        program = schedules.build(schedule, problem, replace(tiles, splits=number))
        candidate = Candidate(program, gpu)
        if candidate.why_not is None:
            resident = blocks_per_sm or candidate.occupancy.blocks_per_sm
            point = SplitPoint(candidate, resident)
            points.setdefault(point.splits, point)
    if not points:
        fitting_candidate(schedule, problem, replace(tiles, splits=steps), gpu)  # says why
        raise InputError(f"{schedule}: {tiles} do not fit {gpu.name}: {candidate.why_not}")
    return tuple(points.values())


def _numbers(steps: int) -> Iterator[int]:
    """Of the numbers of splits that give a split the same column blocks of ``steps``, the least."""
    number = 1
    while True:
        yield number
        longest = -(-steps // number)
        if longest == 1:
            return
        number = -(-steps // (longest - 1))  # the first that makes it shorter


def best(points: tuple[SplitPoint, ...]) -> SplitPoint:
    """The fastest as predicted; of those that the model does not tell apart, the fewest splits
    that fill nearly every SM, else the most that there are."""
    fastest = min(point.predicted_s for point in points)
    alike = [p for p in points if p.predicted_s <= fastest * (1 + TOLD_APART)]
    full = [p for p in alike if p.blocks >= NEARLY_ALL * p.candidate.gpu.sm_count]
    return min(full, key=lambda p: p.splits) if full else max(alike, key=lambda p: p.splits)


def require_option(schedule: str, option: str) -> None:
    """Raise InputError for a schedule that does not take ``option`` ("splits", "page" or
    "kv_order")."""
    if option not in schedules.options(schedule):
        having = [name for name in schedules.names() if option in schedules.options(name)]
        do = "do" if len(having) > 1 else "does"
        raise InputError(f"schedule {schedule} takes no {option}; {', '.join(having)} {do}")


def choose_tiles(schedule: str, problem: Attention, gpu: "Profile", given: dict[str, Any]) -> Tiles:
    """Tiles of a decode schedule: sizes in ``given`` are kept. Absent ones are the schedule's own,
    with a Bc and stages that fit, and the number of splits that is predicted to be fastest.

    Raises InputError when the given sizes do not fit, saying what would.
    """
    default: Tiles = schedules.get(schedule).DEFAULT_TILES
    choices = [replace(default, **(size | given)) for size in _shrinking(default)]
    for tiles in choices:
        tried = tiles if "splits" in given else replace(tiles, splits=1 << 20)
        program = schedules.build(schedule, problem, tried)
        if Candidate(program, gpu).why_not is None:
            break
    else:
        return fitting_candidate(schedule, problem, choices[-1], gpu).tiles  # or says why not
    if "splits" in given:
        return tiles
    return replace(tiles, splits=best(every(schedule, problem, gpu, tiles)).splits)


def _shrinking(default: Tiles) -> Iterator[dict[str, int]]:
    """Stages, then Bc, then Br, from the default's down."""
    br, bc = default.br, default.bc
    while br >= MMA_DEPTH:
        while bc >= MMA_DEPTH:
            for stages in range(default.stages, 0, -1):
                yield {"br": br, "bc": bc, "stages": stages}
            bc //= 2
        br, bc = br // 2, default.bc
