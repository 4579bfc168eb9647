"""The L2 reader: L2 and DRAM traffic of a program with its thread blocks in flight.

Thread blocks are issued in grid order to slots (sm_count × blocks_per_sm) as these fall free. Each
slot has a clock: a tile costs its operations at the GPU's rates, a load its latency and bytes, and
a load that misses waits for DRAM. Where a block works a whole trip while it loads
(l2_moves.Running) that costs it next to nothing, and blocks that walk the same K and V drift apart,
each at a pace of its own, as far as misses let the first of them go; where it works for a shorter
time, or not at all, the first waits longest and the others catch up, and then wait with it
(l2_arrivals.py). Of the blocks on an SM the oldest runs fastest. GPCs have clocks of their own, the
further apart the more power DRAM takes.

The cache is l2_cache.py's: sectored, set-associative, in as many partitions as the profile says,
starting empty; its state survives phases. Dirty lines left at the end are reported apart, as the
hardware's counters do. Requests of several SMs for one line are merged where the profile says how
(l2_merge.py).
Atomic adds are made by the L2: the sector is fetched from DRAM when it is not there, and is dirty
then; blocks do not wait for them.

Rates and latencies are the profile's, paces those of logged blocks (kernels/paces.py), cycles of a
block's work the time model's; none is fitted to DRAM bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..grid_order import OrderLike, grids, issue, of_program
from ..program import Program
from ..tape import Record
from .heard import GoOn, run_heard
from .l2_blocks import SLOT, dirty_sectors, run_phase, write_before
from .l2_cache import PAGE_BYTES, SECTORS_PER_UNIT_MAX, WAYS, cache_of, room_of
from .l2_counts import COLUMNS, FETCHED, FILLED, MERGED, READ, WRITTEN, WRITTEN_BACK
from .l2_log import NO_EVENTS, Log
from .l2_machine import machine_of, sm_gpcs, sm_sides, sms_of_grid
from .l2_merge import remembered_requests
from .l2_moves import Running, instruction_cycles, moves
from .l2_repeat import UPDATED, plan_phase, stored_once
from .l2_units import unit_of

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

TENSOR_ALIGN_BYTES = 4096  # no two tensors share a unit
PAGES_BETWEEN = 64  # fewer physical pages than that lie between two tensors


@dataclass(frozen=True)
class L2Count:
    """Sectors by tensor, [tensor, (read, fetched from DRAM, written or added to, written back,
    fetched for atomic adds, read with another's request)]; a sector that several SMs read counts
    once for each.
    ``before_written_back``: sectors written back that were dirty before. Of the ``blocks`` in the
    program's grids the others repeat the simulated ones."""

    program: Program
    sectors: np.ndarray
    dirty: np.ndarray
    before_written_back: int
    sector_bytes: int
    model: str
    blocks: int
    blocks_simulated: int

    def _bytes(self, column: int) -> int:
        return int(self.sectors[:, column].sum()) * self.sector_bytes

    @property
    def dram_read_bytes(self) -> int:
        """Bytes fetched from DRAM, for loads and for atomic adds."""
        return self._bytes(FETCHED) + self._bytes(FILLED)

    @property
    def dram_write_bytes(self) -> int:
        """Bytes written back to DRAM before the end, with those that were dirty before."""
        return self._bytes(WRITTEN_BACK) + self.before_written_back * self.sector_bytes

    @property
    def dirty_bytes_at_end(self) -> int:
        """Bytes still dirty in L2 when the last kernel ends."""
        return int(self.dirty.sum()) * self.sector_bytes

    @property
    def sectors_asked(self) -> int:
        """Sectors that thread blocks asked for."""
        return int(self.sectors[:, READ].sum())

    @property
    def sectors_read(self) -> int:
        """Sectors read of L2, once those that share a request are merged."""
        return self.sectors_asked - int(self.sectors[:, MERGED].sum())

    @property
    def sectors_written(self) -> int:
        """Sectors that thread blocks wrote or added to."""
        return int(self.sectors[:, WRITTEN].sum())

    @property
    def hit_rate(self) -> float | None:
        """Share of the sectors read that were found in L2; None when nothing was read."""
        fetched = int(self.sectors[:, FETCHED].sum())
        return 1 - fetched / self.sectors_read if self.sectors_read else None

    @property
    def by_tensor(self) -> dict[str, dict[str, int]]:
        """DRAM bytes by tensor, in the program's order."""
        return {
            tensor.name: {
                "read_bytes": int(row[FETCHED] + row[FILLED]) * self.sector_bytes,
                "write_bytes": int(row[WRITTEN_BACK]) * self.sector_bytes,
            }
            for tensor, row in zip(self.program.tensors, self.sectors, strict=True)
        }


def model_text(gpu: "Profile") -> str:
    """The L2 model of a GPU in a line, for people who read its numbers."""
    parts = "one partition" if gpu.l2.partitions == 1 else f"{gpu.l2.partitions} partitions"
    merging = (f"up to {gpu.l2.merged_requests_max} requests of a GPC merged"
               if gpu.l2.merged_requests_max else "no request merging")
    return (f"{parts}, {WAYS}-way LRU, {gpu.l2.sector_bytes}-byte sectors, event clock; "
            f"{merging}")


def simulate(program: Program, gpu: "Profile", *, blocks_per_sm: int | Sequence[int],
             order: OrderLike = "row", running: Sequence[Running] = (),
             cold_phases: bool = False, dirty_before_bytes: float = 0,
             unit_bytes: int | None = None, skip_repeats: bool = True, scale: int = 1,
             seed: int = 0, warm: bool = False, log: Log | None = None,
             on_progress: GoOn = lambda share: None) -> L2Count:
    """Run a program's thread blocks on ``gpu`` (a Profile), its L2 empty at the start.

    ``blocks_per_sm`` is one number or one for each phase; ``order`` one of grid_order.py's (of
    block axes the last one runs first); ``running``: for each phase how a kernel runs it (by
    default at the dtype's peak). ``cold_phases`` empties the cache before each phase, as a profiler
    does that flushes it before each kernel: what is dirty then leaves uncounted;
    ``dirty_before_bytes`` of it are dirty then, by something else. ``unit_bytes`` is what the cache
    moves at a time (None: as l2_units.py has it): the line size is exact.
    ``skip_repeats``: count groups of thread blocks that repeat others without simulating them
    (l2_repeat.py). ``scale``: the program stands for one whose walks are so many times longer
    (at_scale.py), and is run on an L2 as many times smaller. ``seed``: another launch, whose
    tensors have other physical pages and which begins at other SMs. ``warm``: the L2 starts as the
    same call left it, which is simulated whole before and not counted. ``log`` gets what thread
    blocks do and when, without skipped ones; when it is full the run ends there, and so do the
    counts. ``on_progress`` gets the share that is done some times a second; what it raises, or
    Ctrl-C, ends the run.
    Raises InputError for an unknown order or prefetch, or units that the reader cannot hold.
    """
    order, gpu = of_program(order, program), _smaller(gpu, scale)
    unit_bytes = unit_bytes or unit_of(program, gpu, scale)
    _check(gpu, unit_bytes, bool(warm and (cold_phases or dirty_before_bytes or log)))
    issued = [issue(order, program.problem, *grid) for grid in grids(program)]
    residents = np.broadcast_to(blocks_per_sm, len(program.phases))
    running = running or [Running()] * len(program.phases)
    tensors = _in_memory(program, seed, scale)
    cache: Any = None
    for skipping in (False, skip_repeats) if warm else (skip_repeats,):
        sectors, plans = np.zeros((len(tensors), COLUMNS), np.int64), []
        for number, phase in enumerate(program.phase_records):
            resident = int(residents[number])
            if cold_phases or cache is None:
                cache = _cache(gpu, unit_bytes, tensors[-1]["base_bytes"], dirty_before_bytes,
                               seed, scale)
            plan = plan_phase(program, phase, gpu, resident, int(issued[number][0]), skipping)
            sectors += _run(program, phase, gpu, running[number], issued[number], resident, cache,
                            tensors, plan, (unit_bytes, scale, seed), log,
                            lambda done, at=phase: on_progress(_share(program, at, done)))
            plans.append(plan)
            if log and log.full:
                break
    dirty = dirty_sectors(cache, tensors, unit_bytes)[:-1]
    blocks = sum(int(plan["total"]) for plan in plans)
    sectors, dirty = sectors * scale, dirty * scale
    return L2Count(program, sectors[:-1], dirty, int(sectors[-1, WRITTEN_BACK]),
                   gpu.l2.sector_bytes, model_text(gpu), blocks,
                   blocks - sum(int(plan["skipped"]) for plan in plans))


def _check(gpu: "Profile", unit_bytes: int, both_warm_and_cold: bool) -> None:
    if both_warm_and_cold:
        raise InputError("a warm start has neither phases that start cold, nor what others left "
                         "dirty, nor a log")
    sector = gpu.l2.sector_bytes
    if unit_bytes % sector or unit_bytes // sector > SECTORS_PER_UNIT_MAX:
        raise InputError(f"{gpu.name}: l2.sector_bytes {sector} must divide the L2 "
                         f"reader's unit of {unit_bytes} B in at most {SECTORS_PER_UNIT_MAX}")
    if room_of(gpu.l2) < gpu.l2.partitions * unit_bytes * WAYS:
        raise InputError(f"{gpu.name}: an L2 of {gpu.l2.size_bytes:,} B is smaller than one set")


def _smaller(gpu: "Profile", scale: int) -> "Profile":
    """The GPU with a part of its L2."""
    if scale == 1:
        return gpu
    l2 = gpu.l2
    dirty = None if l2.dirty_bytes_max is None else l2.dirty_bytes_max // scale
    smaller = {"size_bytes": l2.size_bytes // scale, "dirty_bytes_max": dirty}
    return gpu.model_copy(update={"l2": l2.model_copy(update=smaller)})


def _in_memory(program: Program, seed: int, scale: int) -> np.ndarray:
    """The program's tensors, and one behind them for all that others wrote. Those that fill a
    physical page begin on one of their own, up to PAGES_BETWEEN behind the tensor before: other
    ones for each ``seed``, as each cudaMalloc finds other memory."""
    page, end = PAGE_BYTES // scale, 0
    random = np.random.default_rng(seed)
    tensors = program.tensor_records.copy()
    for record, tensor in zip(tensors, program.tensors, strict=True):
        size, gap = program.tensor_bytes(tensor), int(random.integers(PAGES_BETWEEN)) * page
        record["base_bytes"] = -(-end // page) * page + gap if size >= page else end
        end = record["base_bytes"] + -(-size // TENSOR_ALIGN_BYTES) * TENSOR_ALIGN_BYTES
    others = tensors[-1:].copy()
    others["base_bytes"] = -(-(end + (1 << 32)) // (1 << 32)) << 32
    return np.concatenate([tensors, others])


def _cache(gpu: "Profile", unit_bytes: int, others_at: int, dirty_bytes: float,
           seed: int, scale: int) -> np.ndarray:
    """An empty cache but for what others left dirty."""
    l2 = gpu.l2
    cache = cache_of(l2, unit_bytes, seed, scale)
    whole = np.uint64((1 << unit_bytes // l2.sector_bytes) - 1)
    if dirty_bytes:
        write_before(cache, others_at // unit_bytes, round(dirty_bytes / scale / unit_bytes),
                     sm_sides(gpu), whole)
    return cache


def _share(program: Program, phase: Record, done: float) -> float:
    """The share of a program that is done with a share of this phase; phases count alike."""
    before = (program.phase_records["first"] < phase["first"]).sum()
    return (before + done) / len(program.phases)


def _run(program: Program, phase: Record, gpu: "Profile", running: Running, order: np.ndarray,
         resident: int, cache: np.ndarray, tensors: np.ndarray, plan: Record,
         launch: tuple[int, int, int], log: Log | None,
         on_progress: Callable[..., object]) -> np.ndarray:
    """Sectors of a phase, [tensor, count]; ``launch``: unit_bytes, scale and seed."""
    unit_bytes, scale, seed = launch
    if running.cycles is None:
        cycles = instruction_cycles(program, phase, gpu) * scale
    else:
        cycles = np.array(running.cycles)
    steps = moves(program, phase, cycles, running)
    sms = sms_of_grid(gpu, int(plan["total"]), seed)
    gpcs = sm_gpcs(gpu, seed)[sms]
    machine = machine_of(gpu, resident, unit_bytes, phase["group"], scale, running.clock_spread)
    sectors = np.zeros((plan["groups"], len(tensors), COLUMNS), np.int64)
    stages = max(1, int(steps["ahead"].max(initial=0)))
    slots = np.zeros(plan["slots"], SLOT)
    slots["address"] = -1
    run_heard(run_phase, (
        steps, phase, tensors, program.tile_records, program.numbers,
        program.problem.head_count // phase["group"], order, sm_sides(gpu, seed)[sms], gpcs,
        remembered_requests(int(gpcs.max()) + 1), running.paces(resident),
        np.zeros((plan["slots"], len(program.vars)), np.int64),
        np.full((plan["slots"], len(program.tile_table), stages), -1.0), slots, cache, sectors,
        machine, plan, np.append(stored_once(program, phase), UPDATED),
        NO_EVENTS if log is None else log.left), plan, on_progress)
    if log is not None:
        log.keep(int(machine["logged"]), program.phase_records.tolist().index(phase.item()))
    return sectors.sum(axis=0)


def read_spread(program: Program, gpu: "Profile", seeds: int = 4,
                **options: Any) -> tuple[int, int]:
    """The least and most DRAM reads in bytes over so many seeds; ``options`` as ``simulate`` has
    them. Wide where K, V, Q and O just fit: there a GPU's own counters vary between launches."""
    found = [simulate(program, gpu, seed=seed, **options).dram_read_bytes for seed in range(seeds)]
    return min(found), max(found)
