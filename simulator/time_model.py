"""Predicted time of a program: thread blocks that queue for the units of an SM, wave after wave.

Every thread block's work on each unit follows from the program's operations (engines/executions.py)
and the kernel's costs (execution.py). Groups of warps, one warp for each subpartition, are the
customers of a closed queueing network whose service centres are the SM's units (queueing.py).
Thread blocks go to SMs in grid order, each SM as fast as its residents allow (engines/dispatch.py).
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from . import queueing, schedules
from .engines.dispatch import makespan
from .engines.executions import executions
from .execution import WAVEFRONT_BYTES, Execution, generic
from .grid_order import ROW, order_number
from .ops import BY_CODE, Unit
from .program import Program, Role
from .rates import rates
from .tape import Kind

UNITS = ("matmul", "exp", "issue", "alu", "shared memory", "SM boundary", "DRAM")
_MATMUL, _EXP, _ISSUE, _ALU, _SMEM, _BOUNDARY, _DRAM = range(len(UNITS))
WAVES_DISPATCHED = 8  # of equal thread blocks
_MOVES = (Kind.LOAD, Kind.STORE, Kind.REDUCE)


@dataclass(frozen=True)
class PhaseTime:
    """One launch: seconds, and the seconds that each unit works for it when all SMs share alike."""

    name: str
    seconds: float
    unit_seconds: dict[str, float]
    blocks: int
    blocks_per_sm: int
    waves: float

    @property
    def limiter(self) -> str:
        """The busiest unit; latency when none is busy for half of the time."""
        unit = max(self.unit_seconds, key=self.unit_seconds.get)
        return unit if 2 * self.unit_seconds[unit] >= self.seconds else f"latency, then {unit}"


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a call in a stream that never runs dry, a gap for each launch included.

    A call that is timed by itself takes ``first_launch_s`` more: the stream waits for the host.
    """

    seconds: float
    phases: tuple[PhaseTime, ...]
    first_launch_s: float
    multiplier: str

    @property
    def limiter(self) -> str:
        """What limits the phase that takes longest."""
        return max(self.phases, key=lambda phase: phase.seconds).limiter

    def calibrated(self, factor: float) -> "Prediction":
        """The same, all times but that of launching scaled by a factor measured on one run."""
        scaled = tuple(replace(phase, seconds=phase.seconds * factor) for phase in self.phases)
        work = sum(phase.seconds for phase in self.phases)
        return replace(self, seconds=self.seconds + work * (factor - 1), phases=scaled)


def predict(program: Program, gpu, kernel: tuple[Execution, ...] | None = None, *,
            blocks_per_sm, order: str = "row", dram_bytes=None) -> Prediction:
    """Time of ``program`` on ``gpu`` (a Profile) when a kernel runs it as ``kernel`` says.

    ``kernel`` has an Execution for each phase (default: execution.generic), ``blocks_per_sm`` a
    number for each or one for all; ``dram_bytes`` are the L2 reader's by phase, else a rule's
    (``_dram_bytes``).
    """
    kernel = kernel or generic(program, gpu)
    residents = np.broadcast_to(blocks_per_sm, len(program.phases))
    moved = dram_bytes or [None] * len(program.phases)
    found = tuple(
        _Phase(program, number, gpu, how).time(int(resident), order, dram)
        for number, (how, resident, dram) in enumerate(zip(kernel, residents, moved, strict=True))
    )
    one = rates(gpu, kernel[0].multiplier, program.problem.dtype)
    return Prediction(sum(phase.seconds for phase in found) + len(found) * one.launch_gap_s, found,
                      one.launch_alone_s, kernel[0].multiplier)


def covers(program: Program) -> bool:
    """Whether the model is held against measurements of such programs: kernels (not the papers'
    idealised counts) of the forward pass over many queries. Splits of decode have their own model
    (splits.py)."""
    forward = program.problem.direction == "forward"
    splits = "splits" in schedules.options(program.schedule)
    return forward and not program.idealised and not splits


class _Phase:
    """The costs of one phase's instructions under a kernel, and how often blocks run them."""

    def __init__(self, program: Program, number: int, gpu, how: Execution):
        self.program, self.gpu, self.how = program, gpu, how
        self.phase = program.phases[number]
        self.rates = rates(gpu, how.multiplier, program.problem.dtype)
        self.tape = program.tape[self.phase.first:self.phase.end]
        self.counts = self._counts(number)
        self.heads = program.problem.head_count // self.phase.group
        self.blocks = len(self.counts) * self.heads
        self.active = min(gpu.sm_count, self.blocks)
        self.groups = how.warps / gpu.subpartitions_per_sm  # of warps, in one thread block

    def _counts(self, number: int) -> np.ndarray:
        """Executions of each instruction by each thread block; of masking, only those of tiles
        that the mask's edge crosses where the kernel looks."""
        counts = executions(self.program, number)
        if not self.how.masks_edges or self.program.problem.visibility.listed:
            return counts
        problem = self.program.problem
        for address, row in enumerate(self.tape):
            masks = row["kind"] == Kind.COMPUTE and BY_CODE[row["op"]].name == "mask"
            if masks and row["row_var"] == 0 and len(self.phase.axes) == 1:
                tile, step = self.program.tile_table[row["out"]], self.phase.axes[0].step
                first = np.arange(len(counts)) * step
                last = np.minimum(first + tile.rows, problem.seq) - 1
                low, _ = problem.mask_bounds.column_range(last, problem.kv_seq)
                _, high = problem.mask_bounds.column_range(first, problem.kv_seq)
                clear = np.maximum(high // tile.cols - -(-low // tile.cols), 0)
                counts[:, address] = np.maximum(counts[:, address] - clear, 0)
        return counts

    def time(self, resident: int, order: str, dram_bytes: float | None) -> PhaseTime:
        """Seconds with ``resident`` thread blocks on an SM."""
        demands, delays = self._costs()
        from_dram = self._dram_bytes(resident, order)
        if dram_bytes is None:
            dram_bytes = sum(from_dram.values())
        totals = self.counts @ demands + self._spills()
        totals[:, _DRAM] = dram_bytes / self.blocks / self.rates.gpu_dram_bytes * self.active
        waited = (self._waited(demands, totals) + self._spills()) / self.groups
        seen = waited - self._hidden(demands) / self.groups
        delay = self.counts @ delays + self.rates.block_start
        delay += self._exposed_loads(seen, demands)
        by_itself = queueing.alone(seen.mean(axis=0), delay.mean(), self.how.strips)
        cycles = queueing.residence(
            waited.mean(axis=0), totals.mean(axis=0) / self.groups, by_itself,
            max(int(self.groups), 1), max(ceil(resident * self.groups), 1))
        customers = np.arange(1, resident + 1) * self.groups
        weights = seen.sum(axis=1) + delay
        beside = np.interp(customers, np.arange(1, len(cycles) + 1), cycles)
        total = self._makespan(weights / weights.mean(), order, beside)
        busy = totals.mean(axis=0) * self.blocks / self.active / self.rates.clock_hz
        return PhaseTime(self.phase.name, float(total) / self.rates.clock_hz,
                         dict(zip(UNITS, busy.tolist(), strict=True)), self.blocks, resident,
                         self.blocks / (self.gpu.sm_count * resident))

    def _makespan(self, weights: np.ndarray, order: str, beside: np.ndarray) -> float:
        """Cycles of the whole grid; of many equal blocks only the last waves are dispatched one by
        one, since every wave before them takes the same."""
        if not np.allclose(weights, 1.0, rtol=1e-9):
            number = order_number(order, self.program.problem)
            return makespan(weights, self.heads, number, self.gpu.sm_count, beside)
        slots = self.gpu.sm_count * len(beside)
        skipped = max(self.blocks // slots - WAVES_DISPATCHED, 0)
        rest = self.blocks - skipped * slots
        return skipped * beside[-1] + makespan(np.ones(1), rest, ROW, self.gpu.sm_count, beside)

    def _costs(self) -> tuple[np.ndarray, np.ndarray]:
        """Of one execution of each instruction by a thread block: cycles on each unit with an SM
        to itself, and cycles that its warps wait."""
        demands = np.zeros((len(self.tape), len(UNITS)))
        delays = np.zeros(len(self.tape))
        for address, row in enumerate(self.tape):
            if row["kind"] == Kind.COMPUTE:
                demands[address], delays[address] = self._compute(row)
            elif row["kind"] in _MOVES:
                demands[address] = self._move(self._bytes(row))
        return demands, delays

    def _compute(self, row):
        op, cycles, rate = BY_CODE[row["op"]], np.zeros(len(UNITS)), self.rates
        cost = self.how.costs.get(op.name)
        if cost is None:
            return cycles, 0.0
        first, out = (self.program.tile_table[row[name]] for name in ("a", "out"))
        work = first.rows * first.cols
        if op.unit == Unit.MATMUL:
            work *= out.cols
            cycles[_MATMUL] = 2 * work / rate.matmul_flops
        elif op.unit == Unit.EXP:
            cycles[_EXP] = work / rate.exp
        cycles[_ISSUE] = work * (cost.instructions + cost.slow) / rate.instructions
        cycles[_ALU] = 2 * work * cost.slow / rate.instructions
        cycles[_SMEM] = work * cost.wavefronts / rate.wavefronts
        if self.how.multiplier == "fma":  # products are instructions; fp64 ones are slow on some
            cycles[_ISSUE] = max(cycles[_ISSUE], cycles[_MATMUL])
        return cycles, cost.waits * rate.pipeline_latency + cost.chain * rate.chain_latency

    def _move(self, size: int) -> np.ndarray:
        cycles, rate, how = np.zeros(len(UNITS)), self.rates, self.how
        instructions = size * how.instructions_per_byte
        cycles[_ISSUE] = instructions / rate.instructions
        cycles[_ALU] = instructions / rate.instructions
        cycles[_SMEM] = size / WAVEFRONT_BYTES / rate.wavefronts
        cycles[_BOUNDARY] = size / how.multicast / rate.boundary_bytes(self.active)
        return cycles

    def _dram_bytes(self, resident: int, order: str) -> dict[int, float]:
        """DRAM bytes of each tensor without simulating the L2: what is touched moves once, but for
        outputs and what is smaller than the L2 and lives between phases; of bytes read again, what
        the heads in flight do not keep in L2 is read once a pass, and blocks of a head that are in
        flight together walk it together."""
        l2, found = self.gpu.l2, {}
        reads, writes = self._moved((Kind.LOAD,)), self._moved((Kind.STORE, Kind.REDUCE))
        sizes = {index: self.program.tensor_bytes(self.program.tensors[index])
                 for index in {*reads, *writes}}
        slots, blocks = self.gpu.sm_count * resident, len(self.counts)
        heads = self.heads if order != "row" else min(self.heads, slots / blocks + 1)
        walkers = max(min(slots / heads, blocks), 1)
        again = sum(sizes[index] for index in reads if reads[index] > sizes[index])
        kept = l2.size_bytes / (l2.partitions if blocks > 1 else 1)
        missed = max(1 - kept / max(again * heads / self.heads, 1), 0)
        for index, size in sizes.items():
            once = 0.0
            tensor = self.program.tensors[index]
            if index in reads and (tensor.role == Role.INPUT or size > l2.size_bytes):
                once += size
            if index in writes and size > l2.size_bytes:
                once += size
            passes = reads.get(index, 0) / size / walkers
            found[index] = once + missed * size * max(passes - 1, 0)
        return found

    def _moved(self, kinds) -> dict[int, float]:
        """Bytes over the SM boundary of each tensor, whole tiles."""
        found = {}
        executed = self.counts.sum(axis=0) * self.heads
        for address in np.flatnonzero(np.isin(self.tape["kind"], kinds)):
            index = int(self.tape[address]["tensor"])
            size = self._bytes(self.tape[address]) * int(executed[address])
            found[index] = found.get(index, 0) + size
        return found

    def _spills(self) -> np.ndarray:
        """[block, unit] cycles of registers that the compiler spilled, once a trip: words to and
        from L1, which is the memory that shared memory is."""
        size = self.how.spill_bytes * self.how.threads
        once = np.zeros(len(UNITS))
        once[_ISSUE] = size / 4 / self.rates.instructions
        once[_SMEM] = size / WAVEFRONT_BYTES / self.rates.wavefronts
        return self._trips()[:, None] * once

    def _trips(self) -> np.ndarray:
        """How often each thread block loads a tile, of the tile that it loads most often."""
        return self.counts[:, self.tape["kind"] == Kind.LOAD].max(axis=1, initial=1)

    def _bytes(self, row) -> int:
        tile, tensor = self.program.tile_table[row["tile"]], self.program.tensors[row["tensor"]]
        return tile.rows * tile.cols * tensor.element_bytes

    def _waited(self, demands: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """[block, unit] cycles at which warps wait for a unit: loads ahead of their use are not
        waited for; of slow instructions only what the issue does not show; the FMA units' products
        are their issue; in ping-pong only the busiest unit shows."""
        if self.how.ping_pong:
            return np.where(totals == totals.max(axis=1, keepdims=True), totals, 0.0)
        seen = demands
        if self.how.prefetch != "none":
            seen = np.where((self.tape["kind"] == Kind.LOAD)[:, None], 0.0, demands)
        waited = self.counts @ seen
        waited[:, _ALU] /= 2
        if self.how.multiplier == "fma":
            waited[:, _MATMUL] = 0.0
        waited[:, _DRAM] = 0.0 if self.how.prefetch != "none" else totals[:, _DRAM]
        return waited

    def _hidden(self, demands: np.ndarray) -> np.ndarray:
        """[block, unit] cycles that a warp by itself does not see: it reads the operands of the
        next products from shared memory under these, or these run under the reads."""
        shorter = np.zeros_like(demands)
        if self.how.operands_ahead:
            both = demands[:, [_MATMUL, _SMEM]]
            rows = np.arange(len(demands))
            shorter[rows, np.where(both[:, 0] < both[:, 1], _MATMUL, _SMEM)] = both.min(axis=1)
        return self.counts @ shorter

    def _exposed_loads(self, seen: np.ndarray, demands: np.ndarray) -> np.ndarray:
        """Cycles that each thread block waits for loads beyond what runs meanwhile: nothing, one
        of a trip's two products, or the whole trip."""
        loads = np.flatnonzero(self.tape["kind"] == Kind.LOAD)
        waits, how = np.zeros(len(self.counts)), self.how
        if not len(loads):
            return waits
        trips = self._trips()
        meanwhile = np.zeros(len(self.counts))
        if how.prefetch == "trip":
            meanwhile = seen.sum(axis=1) / trips
        elif how.prefetch == "product":
            products = demands[:, [_MATMUL, _SMEM]].max(axis=1) * (demands[:, _MATMUL] > 0)
            meanwhile = self.counts @ products / self.groups / trips / 2
        if how.prefetch != "none":  # nothing runs under the first of each, and Q is in DRAM
            sizes = sum(self._bytes(self.tape[address]) for address in loads)
            waits += self.rates.dram_latency + sizes / self.rates.boundary_bytes(self.active)
        for address in loads:
            size = self._bytes(self.tape[address])
            turns = ceil(size / how.in_flight_bytes) if how.in_flight_bytes else 1
            arrival = turns * self.rates.l2_latency
            if how.prefetch != "none":
                arrival += size / how.multicast / self.rates.boundary_bytes(self.active)
            waits += self.counts[:, address] * np.maximum(arrival - meanwhile, 0)
        return waits
