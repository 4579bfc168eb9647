"""Time of one launch: the work of its thread blocks on each unit, who queues for it, and when.

Every thread block's work follows from the program's operations (engines/executions.py) and the
kernel's costs (execution.py). Groups of warps, one warp for each subpartition, are the customers of
a closed queueing network whose service centres are the SM's units (queueing.py). Thread blocks go
to SMs in grid order, each SM as fast as its residents allow (engines/dispatch.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from . import block_alone, dram_rule, queueing
from .engines.dispatch import makespan
from .engines.executions import executions
from .engines.l2_machine import pace_spreads
from .execution import WAVEFRONT_BYTES, Execution
from .grid_order import Order, issue
from .ops import BY_CODE, Unit
from .problem import Attention
from .program import Program, Tile
from .rates import power_load, rates
from .tape import Kind, Record
from .units import ALU, BOUNDARY, DRAM, EXP, ISSUE, MATMUL, SMEM, UNITS

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

Remember = Callable[..., dict[str, float]]  # of a computation and what it is asked for
_MOVES = (Kind.LOAD, Kind.STORE, Kind.REDUCE)
MANY_ROUNDS = 32  # of a grid over all SMs, of which the last one is little


@dataclass(frozen=True)
class PhaseTime:
    """One launch: seconds (the longer of those of its SMs' work and of its DRAM traffic alone), and
    the seconds that each unit works for it when all SMs share alike."""

    name: str
    seconds: float
    work_s: float
    dram_s: float
    unit_seconds: dict[str, float]
    blocks: int
    blocks_per_sm: int
    waves: float

    @property
    def limiter(self) -> str:
        """The busiest unit; latency when none is busy for half of the time."""
        unit = max(self.unit_seconds, key=self.unit_seconds.__getitem__)
        return unit if 2 * self.unit_seconds[unit] >= self.seconds else f"latency, then {unit}"


def clear_tiles(problem: Attention, tile: Tile, blocks: int, by_rows: bool) -> np.ndarray:
    """[row block or column block] how many tiles of its walk the mask's edge does not cross."""
    mask, first = problem.mask_bounds, np.arange(blocks) * (tile.rows if by_rows else tile.cols)
    if by_rows:
        last = np.minimum(first + tile.rows, problem.seq) - 1
        low, _ = mask.column_range(last, problem.kv_seq)
        _, high = mask.column_range(first, problem.kv_seq)
        return _above_zero(high // tile.cols - -(-low // tile.cols))
    low = np.clip(first + tile.cols - mask.hi_shift, 0, problem.seq)
    high = np.clip(first + 1 - mask.lo_shift, 0, problem.seq)
    high[first + tile.cols > problem.kv_seq] = 0
    return _above_zero(high // tile.rows - -(-low // tile.rows))


def _above_zero(counts: np.ndarray) -> np.ndarray:
    positive: np.ndarray = np.maximum(counts, 0)
    return positive


def _equal(weights: np.ndarray) -> bool:
    return bool(np.allclose(weights, weights[0], rtol=1e-9))


def phase_time(phase: "Phase", resident: int, order: Order, dram_bytes: float | None) -> PhaseTime:
    """Twice: how busy the GPU is decides its clock and who shares the L2. Under sustained load once
    more: at its clock less is read in a second, which takes less power."""
    found = phase.time(resident, order, dram_bytes)
    for _ in range(1 + phase.sustained):
        before = phase.rates, phase.sharing
        phase.settle(found)
        if (phase.rates, phase.sharing) == before:
            break
        found = phase.time(resident, order, dram_bytes)
    return found


class Phase:
    """The costs of one phase's instructions under a kernel, and how often blocks run them."""

    def __init__(self, program: Program, number: int, gpu: "Profile", how: Execution,
                 count_dram: bool = False, remember: Remember = dram_rule.at_once,
                 sustained: bool = False) -> None:
        self.program, self.gpu, self.how, self.sustained = program, gpu, how, sustained
        self.count_dram, self.remember = count_dram, remember
        self.from_dram: dict[int, float] | None = None  # by a tensor's index, found once
        self.phase = program.phases[number]
        self.rates = rates(gpu, how.multiplier, program.problem.dtype)
        self.tape = program.tape[self.phase.first:self.phase.end]
        self.counts = self._counts(number)
        self.heads = program.problem.head_count // self.phase.group
        self.per_head = len(self.counts)
        if (self.counts == self.counts[0]).all():
            self.counts = self.counts[:1]  # stands for all
        self.blocks = self.per_head * self.heads
        self.active = min(gpu.sm_count, self.blocks)
        self.at_work = self.sharing = float(self.active)  # SMs, on average; of those that share L2
        self.own_rows = 1.0  # of a thread block's tile, on average
        for axis in self.phase.axes[:1]:
            self.own_rows = axis.extent / (axis.blocks * axis.step)
        self.moved = self.bytes_moved(_MOVES)
        # Of warps that compute, in one thread block.
        self.groups = (how.warps - how.loading_warps) / gpu.subpartitions_per_sm

    def _counts(self, number: int) -> np.ndarray:
        """Executions of each instruction by each thread block; of masking, only those of tiles
        that the mask's edge crosses where the kernel looks."""
        counts = executions(self.program, number)
        if not self.how.masks_edges or self.program.problem.visibility.listed:
            return counts
        problem = self.program.problem
        for address, row in enumerate(self.tape):
            masks = row["kind"] == Kind.COMPUTE and BY_CODE[row["op"]].name == "mask"
            if masks and len(self.phase.axes) == 1 and 0 in (row["row_var"], row["col_var"]):
                tile = self.program.tile_table[row["out"]]
                clear = clear_tiles(problem, tile, len(counts), by_rows=row["row_var"] == 0)
                counts[:, address] = np.maximum(counts[:, address] - clear, 0)
        return counts

    def settle(self, found: PhaseTime) -> None:
        """Take the clock from how busy the GPU's multipliers, its SMs' units and its DRAM were, and
        the SMs that share the L2 from how many were at work."""
        seconds = np.array([found.unit_seconds[unit] for unit in UNITS])
        shares = seconds * self.active / self.gpu.sm_count / found.seconds
        dram = seconds[DRAM] * self.dram_rate * self.rates.clock_hz / found.seconds
        multiplier = self.how.multiplier
        load = power_load(self.gpu, multiplier, shares, dram)
        self.rates = rates(self.gpu, multiplier, self.program.problem.dtype,
                           min(shares[MATMUL], 1), load, dram, self.sustained)
        self.sharing = self.at_work

    def time(self, resident: int, order: Order, dram_bytes: float | None) -> PhaseTime:
        """Seconds with ``resident`` thread blocks on an SM."""
        if self.from_dram is None:
            self.from_dram = dram_rule.of_launch(self, resident, order)
        demands, delays, from_dram = *self.costs(), self.from_dram
        self.dram_rate = self.rates.dram_bytes(dram_rule.written_share(self, from_dram))
        if dram_bytes is None:
            dram_bytes = sum(from_dram.values())
        totals = self.counts @ demands + self.spills()
        totals[:, BOUNDARY] += dram_rule.added_beyond(self, from_dram)
        totals[:, DRAM] = dram_bytes / self.blocks / self.dram_rate * self.active
        weights, beside = self.alone_and_beside(resident, (demands, delays), totals,
                                                self._latencies(from_dram))
        work = self._makespan(weights / weights.mean(), order, beside, from_dram)
        if not _equal(weights):  # equal ones keep SMs in step
            together = self.blocks * beside[-1] / resident / work
            self.at_work = min(max(together, 1.0), float(self.active))
        started = self._started(resident, work)
        dram = self.rates.dram_latency + dram_bytes / dram_rule.rate_in_flight(
            self, resident, started, dram_bytes)
        hertz = self.rates.clock_hz
        busy = totals.mean(axis=0) * self.blocks / self.active / hertz
        return PhaseTime(
            self.phase.name, max(started, dram) / hertz, started / hertz, dram / hertz,
            dict(zip(UNITS, busy.tolist(), strict=True)), self.blocks, resident,
            self.blocks / (self.gpu.sm_count * resident))

    def alone_and_beside(
            self, resident: int, costs: tuple[np.ndarray, np.ndarray], totals: np.ndarray,
            latencies: dict[int, float] | None) -> tuple[np.ndarray, np.ndarray]:
        """[block] cycles of each by itself, and [m − 1] of the mean one while m share its SM, of
        ``costs`` and what blocks keep units busy in all (``totals`` [block, unit]); loads wait for
        each tensor's ``latencies``, or (None) not at all."""
        demands, delays = costs
        waited = (self._waited(demands, totals) + self.spills()) / self.groups
        seen = waited - block_alone.hidden(self, demands) / self.groups
        delay = self.counts @ delays + self.how.block_chain * self.rates.chain_latency
        if latencies is not None:
            delay += block_alone.exposed_loads(self, seen, demands, latencies)
        if self.how.ping_pong:
            delay += self._out_of_step(waited, self.counts @ delays)
        alone = block_alone.by_itself(self, seen.mean(axis=0), float(delay.mean()), demands)
        beside = self._beside(resident, waited.mean(axis=0), totals.mean(axis=0), alone)
        return seen.sum(axis=1) + delay, beside

    def _beside(self, resident: int, waited: np.ndarray, totals: np.ndarray,
                alone: float) -> np.ndarray:
        """[m − 1] cycles of the mean block while m share its SM. A subpartition has a whole number
        of warps: blocks of fewer go on like those of the fullest one."""
        own = np.where(np.arange(len(UNITS)) == DRAM, 0.0, totals)
        cycles = queueing.residence(
            waited, own / self.groups, alone,
            1 if self.how.ping_pong or self.how.apart else max(int(self.groups), 1),
            max(ceil(resident * self.groups), 1), meet=np.arange(len(UNITS)) < BOUNDARY)
        groups = [ceil(m * self.groups) for m in range(1, resident + 1)]
        found: np.ndarray = cycles[np.array(groups) - 1]
        return found

    def _started(self, resident: int, work: float) -> float:
        """Cycles of ``work`` after the first blocks' starts, and at least of all blocks' starts:
        the GPU starts one after the other."""
        grid = self.active if self.how.persistent else self.blocks
        first = min(grid, self.gpu.sm_count * resident)
        return max(first / self.rates.blocks_started + work, grid / self.rates.blocks_started)

    def _makespan(self, weights: np.ndarray, order: Order, beside: np.ndarray,
                  from_dram: dict[int, float]) -> float:
        """Cycles of the whole grid. Equal blocks keep SMs in step: what they begin with and end
        with shares the DRAM with all others', and after many rounds all SMs have done as the
        fullest."""
        equal = _equal(weights)
        begin, load, end = self._around(from_dram, equal)
        once = 0.0  # before all
        if self.how.persistent:
            once, begin, load = begin + load, 0.0, 0.0
        heads, sms = self.heads, self.gpu.sm_count
        first = min(self.gpu.l2.first_sms or 0, sms)
        if equal and self.blocks > MANY_ROUNDS * sms * len(beside):
            weights, heads, sms, first = np.ones(1), ceil(self.blocks / sms), 1, 0
        elif equal:
            weights = np.ones(self.per_head)
        issued = issue(order, self.program.problem, heads, len(weights))
        return once + makespan(weights, heads, issued, sms, beside, begin + end, load,
                               self.how.younger_pace(len(beside)), first,
                               pace_spreads(self.gpu, len(beside))[0], self._parts(len(beside)),
                               together=self.how.prefetch != "none")

    def _parts(self, resident: int) -> int:
        """Of an SM's subpartitions, that blocks of fewer warps have for themselves: 1 are all."""
        parts = round(1 / min(self.groups, 1))
        return parts if resident % parts == 0 else 1

    def _around(self, from_dram: dict[int, float], in_step: bool) -> tuple[float, float, float]:
        """Cycles from room for a thread block until its first loads begin to arrive, until all of
        them are there, and of its stores."""
        rate, latencies = self.rates, self._latencies(from_dram)
        latency, load, end, dram = 0.0, 0.0, 0.0, 0.0
        for row in self._outer_moves():
            size, tensor = self.bytes_of(row), int(row["tensor"])
            share = min(from_dram[tensor] / max(self.moved[tensor], 1), 1)
            if row["kind"] == Kind.STORE:
                end += size / rate.block_store_bytes
                dram += size * share
            elif self.how.prefetch != "none":
                load += size / rate.boundary_bytes(self.sharing)
                dram += size * share
                latency = max(latency, latencies[tensor])
        if in_step:
            load = max(load, dram * self.active / self.dram_rate)
        if self.how.multiplier == "wgmma":  # whose tiles TMA loads
            latency += rate.tma_start
        return rate.block_start + latency, load, end

    def _outer_moves(self) -> list[Record]:
        """What a thread block loads before it stores anything, and what it stores last: a move of
        each tensor."""
        runs = self.counts.max(axis=0) > 0
        stores, loads = (np.flatnonzero((self.tape["kind"] == kind) & runs)
                         for kind in (Kind.STORE, Kind.LOAD))
        if len(stores):
            loads = loads[loads < stores[0]]
        first = {int(self.tape[address]["tensor"]): address for address in loads[::-1]}
        last = {int(self.tape[address]["tensor"]): address for address in stores}
        return [self.tape[address] for address in (*first.values(), *last.values())]

    def _out_of_step(self, waited: np.ndarray, delays: np.ndarray) -> np.ndarray:
        """Cycles of each thread block in which its warpgroups' turns do not fill the busiest unit:
        their first products wait for each other, and over the last softmax there is none."""
        apart = waited.sum(axis=1) - waited.max(axis=1) + delays
        first = (self.groups - 1) * waited[:, MATMUL] / 2  # of a trip's two products
        cycles: np.ndarray = (apart + first) / self.trips()
        return cycles

    def costs(self) -> tuple[np.ndarray, np.ndarray]:
        """Of one execution of each instruction by a thread block: cycles on each unit with an SM
        to itself, and cycles that its warps wait."""
        demands = np.zeros((len(self.tape), len(UNITS)))
        delays = np.zeros(len(self.tape))
        for address, row in enumerate(self.tape):
            if row["kind"] == Kind.COMPUTE:
                demands[address], delays[address] = self._compute(row)
            elif row["kind"] in _MOVES:
                demands[address] = self._move(row)
        return demands, delays + self.how.stalls * demands[:, ISSUE] / self.groups

    def _compute(self, row: Record) -> tuple[np.ndarray, float]:
        op, cycles, rate = BY_CODE[row["op"]], np.zeros(len(UNITS)), self.rates
        cost = self.how.costs.get(op.name)
        if cost is None:
            return cycles, 0.0
        first, out = (self.program.tile_table[row[name]] for name in ("a", "out"))
        work = first.rows * first.cols * (self.how.filled if first.cols > 1 else 1.0)
        if op.unit == Unit.MATMUL:
            work *= out.cols
            cycles[MATMUL] = 2 * work / rate.matmul_flops
        elif op.unit == Unit.EXP:
            cycles[EXP] = work / rate.exp
        cycles[ISSUE] = work * (cost.instructions + cost.slow) / rate.instructions
        cycles[ALU] = 2 * work * cost.slow / rate.instructions
        cycles[SMEM] = work * cost.wavefronts / rate.wavefronts
        if self.how.multiplier == "fma":  # products are instructions; fp64 ones are slow on some
            cycles[ISSUE] = max(cycles[ISSUE], cycles[MATMUL])
        own = (cycles[ISSUE] + cycles[ALU] / 2) / self.groups  # of a chain, under its latencies
        chain = max(cost.chain * rate.chain_latency - own, 0.0)
        return cycles, cost.waits * rate.pipeline_latency + chain

    def _move(self, row: Record) -> np.ndarray:
        cycles, rate, how = np.zeros(len(UNITS)), self.rates, self.how
        size = self.bytes_of(row)
        instructions = size * how.instructions_per_byte
        cycles[ISSUE] = instructions / rate.instructions
        cycles[ALU] = instructions / rate.instructions
        cycles[SMEM] = size / WAVEFRONT_BYTES / rate.wavefronts
        cycles[BOUNDARY] = size / how.multicast / rate.boundary_bytes(
            self.sharing, row["kind"], self._together(row))
        return cycles

    def _together(self, row: Record) -> bool:
        """Whether thread blocks load the same tile at the same time: they walk it alike."""
        return self.program.problem.mask == "full" and row["row_var"] > 0

    def bytes_moved(self, kinds: tuple[Kind, ...]) -> dict[int, float]:
        """Bytes over the SM boundary of each tensor, whole tiles."""
        found: dict[int, float] = {}
        executed = self.counts.mean(axis=0) * self.blocks
        for address in np.flatnonzero(np.isin(self.tape["kind"], kinds)):
            index = int(self.tape[address]["tensor"])
            size = self.bytes_of(self.tape[address]) * float(executed[address])
            found[index] = found.get(index, 0) + size
        return found

    def spills(self) -> np.ndarray:
        """[block, unit] cycles of registers that the compiler spilled, once a trip: words to and
        from L1, which is the memory that shared memory is."""
        size = self.how.spill_bytes * self.how.threads
        once = np.zeros(len(UNITS))
        once[ISSUE] = size / 4 / self.rates.instructions
        once[SMEM] = size / WAVEFRONT_BYTES / self.rates.wavefronts
        cycles: np.ndarray = self.trips()[:, None] * once
        return cycles

    def trips(self) -> np.ndarray:
        """How often each thread block loads a tile, of the tile that it loads most often."""
        trips: np.ndarray = self.counts[:, self.tape["kind"] == Kind.LOAD].max(axis=1, initial=1)
        return trips

    def bytes_of(self, row: Record) -> float:
        """Of a move, on average: of a thread block's own rows, and of a tensor's columns, only
        those that there are."""
        tile = self.program.tile_table[int(row["tile"])]
        tensor = self.program.tensors[int(row["tensor"])]
        columns = min(tensor.cols / ceil(tensor.cols / tile.cols), tile.cols)
        rows = tile.rows * (self.own_rows if row["row_var"] == 0 else 1.0)
        return rows * columns * tensor.element_bytes

    def seen(self, demands: np.ndarray) -> np.ndarray:
        """[instruction, unit] cycles of one execution at which warps wait for a unit: loads ahead
        of their use are not waited for; of slow instructions only what the issue does not show;
        the FMA units' products are their issue; wgmma reads its operands itself, while it
        multiplies."""
        seen, loads = demands.copy(), self.tape["kind"] == Kind.LOAD
        if self.how.prefetch != "none":
            seen[loads] = 0.0
        elif self.how.loads_meet:  # each group waits for what all of them load
            seen[loads, BOUNDARY] *= max(self.groups, 1.0)
        if self.how.multiplier == "wgmma":
            products = demands[:, MATMUL] > 0
            seen[products, MATMUL] = demands[products][:, [MATMUL, SMEM]].max(axis=1)
            seen[products, SMEM] = 0.0
        if self.how.multiplier == "fma":
            seen[:, MATMUL] = 0.0
        seen[:, ALU] /= 2
        return seen

    def _waited(self, demands: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """[block, unit] the same of whole blocks; loads one by one wait for DRAM's turn."""
        waited: np.ndarray = self.counts @ self.seen(demands)
        waits = self.how.prefetch == "none" and not self.how.loads_at_once
        waited[:, DRAM] = totals[:, DRAM] if waits else 0.0
        return waited

    def _latencies(self, from_dram: dict[int, float]) -> dict[int, float]:
        """Cycles to each tensor's first byte: that of DRAM for the share that comes from there."""
        near, far = self.rates.l2_latency, self.rates.dram_latency
        loaded = self.bytes_moved((Kind.LOAD,))
        return {index: near + (far - near) * min(from_dram[index] / max(size, 1), 1)
                for index, size in loaded.items()}

