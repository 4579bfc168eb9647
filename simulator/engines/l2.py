"""The L2 reader: L2 and DRAM traffic of a program with its thread blocks in flight.

Thread blocks are issued in grid order to slots (sm_count × blocks_per_sm) as these fall free. Each
slot has a clock: a tile costs its operations at the GPU's rates, a load its latency and bytes, and
a load that misses waits for DRAM. Where a block computes while it loads (``prefetch``) that costs
it nothing, and blocks that walk the same K and V drift apart, each at a pace of its own; where it
waits, the first of them waits longest and the others catch up. Of the blocks on an SM the oldest
runs fastest.

The cache is l2_cache.py's: sectored, set-associative, in as many partitions as the profile says,
starting empty; its state survives phases. Dirty lines left at the end are reported apart, as the
hardware's counters do. Requests of several SMs for one line are merged where the profile says how
(l2_merge.py).
Atomic adds are made by the L2: the sector is fetched from DRAM when it is not there, and is dirty
then; blocks do not wait for them.

Rates and latencies are the profile's; none is fitted to attention kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..grid_order import OrderLike, grids, issue, of_program
from ..program import Program
from ..tape import Record
from .dispatch import Pace, by_age
from .heard import GoOn, run_heard
from .l2_blocks import MACHINE, SLOT, dirty_sectors, run_phase, write_before
from .l2_cache import SECTORS_PER_UNIT_MAX, UNIT_BYTES, WAYS, cache_of, log2_of, room_of
from .l2_counts import COLUMNS, FETCHED, FILLED, MERGED, READ, WRITTEN, WRITTEN_BACK
from .l2_log import NO_EVENTS, Log
from .l2_merge import remembered_requests
from .l2_moves import PREFETCHES, instruction_cycles, moves
from .l2_repeat import UPDATED, plan_phase, stored_once

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

# Cycles where a profile has no latencies: the H800's (Luo et al., arXiv 2402.13499).
L2_LATENCY_CYCLES, HBM_LATENCY_CYCLES = 263.0, 479.0
# Pace beside the next older block on the SM (recorded/residents, H200): mma.sync, 32 rows a warp.
YOUNGER_PACES = (0.78,)
GROUP_SMS = 16  # SMs of a GPC
SM_BYTES_PER_CLOCK = 64.0  # from L2, where a profile has no L2 bandwidth: the width of the port


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
             order: OrderLike = "row", matmul_flops_per_s: float | None = None,
             prefetch: Sequence[str | None] | None = None,
             younger_paces: Sequence[Sequence[Pace]] | None = None, cold_phases: bool = False,
             dirty_before_bytes: float = 0, unit_bytes: int = UNIT_BYTES,
             skip_repeats: bool = True, scale: int = 1, seed: int = 0, warm: bool = False,
             log: Log | None = None, on_progress: GoOn = lambda share: None) -> L2Count:
    """Run a program's thread blocks on ``gpu`` (a Profile), its L2 empty at the start.

    ``blocks_per_sm`` is one number or one for each phase; ``order`` one of grid_order.py's (of
    block axes the last one runs first). Of the kernel: ``matmul_flops_per_s``,
    the rate of the units that it uses, when that is not the dtype's peak; ``prefetch``, for each
    phase what a block computes between a load and its use ("none", a "product", a whole "trip";
    default: a trip where tiles have two stages); ``younger_paces``, for each phase how fast a block
    runs beside older ones where 2, 3, … share an SM (the last: more; dispatch.by_age).
    ``cold_phases`` empties the cache before each phase, as a profiler does that flushes it before
    each kernel: what is dirty then leaves uncounted; ``dirty_before_bytes`` of it are dirty then,
    by something else. ``unit_bytes`` is what the cache moves at a time: the line size is exact.
    ``skip_repeats``: count groups of thread blocks that repeat others without simulating them
    (l2_repeat.py). ``scale``: the program stands for one whose walks are so many times longer
    (at_scale.py), and is run on an L2 as many times smaller. ``seed``: another launch, whose
    physical pages and first SMs are others. ``warm``: the L2 starts as the same call left it, which
    is simulated whole before and not counted. ``log`` gets what thread blocks do and when, without
    skipped ones; when it is full the run ends there, and so do the counts. ``on_progress`` gets the
    share that is done some times a second; what it raises, or Ctrl-C, ends the run.
    Raises InputError for an unknown order or prefetch, or units that the reader cannot hold.
    """
    prefetch = [None] * len(program.phases) if prefetch is None else list(prefetch)
    order, gpu = of_program(order, program), _smaller(gpu, scale)
    _check(gpu, prefetch, unit_bytes, bool(warm and (cold_phases or dirty_before_bytes or log)))
    issued = [issue(order, program.problem, *grid) for grid in grids(program)]
    cycles = instruction_cycles(program, gpu, matmul_flops_per_s) * scale
    residents = np.broadcast_to(blocks_per_sm, len(program.phases))
    younger = younger_paces or [YOUNGER_PACES] * len(program.phases)
    tensors = _with_others(program)
    cache: Any = None
    for skipping in (False, skip_repeats) if warm else (skip_repeats,):
        sectors, plans = np.zeros((len(tensors), COLUMNS), np.int64), []
        for number, phase in enumerate(program.phase_records):
            resident = int(residents[number])
            if cold_phases or cache is None:
                cache = _cache(gpu, unit_bytes, tensors[-1]["base_bytes"], dirty_before_bytes,
                               seed, scale)
            plan = plan_phase(program, phase, gpu, resident, int(issued[number][0]), skipping)
            steps = moves(program, phase, cycles, prefetch[number])
            sms = sms_of_grid(gpu, int(plan["total"]), seed)
            sectors += _run(program, phase, issued[number], steps, tensors,
                            _paces(resident, younger[number]), sm_sides(gpu, seed)[sms],
                            sm_gpcs(gpu, seed)[sms], cache,
                            _machine(gpu, resident, unit_bytes, phase["group"], scale), plan, log,
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


def _check(gpu: "Profile", prefetch: Sequence[str | None], unit_bytes: int,
           both_warm_and_cold: bool) -> None:
    if both_warm_and_cold:
        raise InputError("a warm start has neither phases that start cold, nor what others left "
                         "dirty, nor a log")
    for what in prefetch:
        if what is not None and what not in PREFETCHES:
            raise InputError(f"prefetch {what!r} is not known; it is one of "
                             f"{', '.join(PREFETCHES)}")
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


def _with_others(program: Program) -> np.ndarray:
    """The program's tensors, and one behind them for all that others wrote."""
    tensors = program.tensor_records
    others = tensors[-1:].copy()
    others["base_bytes"] = -(-(program.footprint_bytes + (1 << 32)) // (1 << 32)) << 32
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


def _paces(residents: int, younger_paces: Sequence[Pace]) -> np.ndarray:
    """[blocks on an SM, age rank]: by how much slower than alone each works, together as fast as
    one alone."""
    paces = np.ones((residents + 1, residents))
    for present in range(2, residents + 1):
        rates = by_age(younger_paces[min(present - 2, len(younger_paces) - 1)], present)
        paces[present, :present] = rates.sum() / rates
    return paces


def _share(program: Program, phase: Record, done: float) -> float:
    """The share of a program that is done with a share of this phase; phases count alike."""
    before = (program.phase_records["first"] < phase["first"]).sum()
    return (before + done) / len(program.phases)


def _run(program: Program, phase: Record, order: np.ndarray, steps: np.ndarray,
         tensors: np.ndarray, paces: np.ndarray, sides: np.ndarray, gpcs: np.ndarray,
         cache: np.ndarray, machine: Record, plan: Record, log: Log | None,
         on_progress: Callable[..., object]) -> np.ndarray:
    """Sectors of a phase, [tensor, count]."""
    sectors = np.zeros((plan["groups"], len(tensors), COLUMNS), np.int64)
    stages = max(1, int(steps["ahead"].max(initial=0)))
    slots = np.zeros(plan["slots"], SLOT)
    slots["address"] = -1
    run_heard(run_phase, (
        steps, phase, tensors, program.tile_records, program.numbers,
        program.problem.head_count // phase["group"], order, sides, gpcs,
        remembered_requests(int(gpcs.max()) + 1), paces,
        np.zeros((plan["slots"], len(program.vars)), np.int64),
        np.full((plan["slots"], len(program.tile_table), stages), -1.0), slots, cache, sectors,
        machine, plan, np.append(stored_once(program, phase), UPDATED),
        NO_EVENTS if log is None else log.left), plan, on_progress)
    if log is not None:
        log.keep(int(machine["logged"]), program.phase_records.tolist().index(phase.item()))
    return sectors.sum(axis=0)


def sm_sides(gpu: "Profile", seed: int = 0) -> np.ndarray:
    """The partition of each SM in the order that thread blocks reach them; where the profile has
    none, groups of GROUP_SMS take turns. With another ``seed`` another group comes first, as with
    every launch on an H200."""
    sides = np.arange(gpu.sm_count) // GROUP_SMS % gpu.l2.partitions
    measured = gpu.l2.sm_partitions
    if measured is not None and len(measured) == gpu.sm_count:
        sides = np.array([int(digit) for digit in measured])
    return np.roll(sides, -GROUP_SMS * seed)


def sm_gpcs(gpu: "Profile", seed: int = 0) -> np.ndarray:
    """The GPC of each SM in the same order; where the profile has none, GROUP_SMS each."""
    groups = np.arange(gpu.sm_count) // GROUP_SMS
    measured = gpu.l2.sm_gpcs
    if measured is not None and len(measured) == gpu.sm_count:
        groups = np.array([int(digit) for digit in measured])
    return np.roll(groups, -GROUP_SMS * seed)


def sms_of_grid(gpu: "Profile", blocks: int, seed: int = 0) -> np.ndarray:
    """Which of the SMs above so many blocks reach: all, or where there are fewer blocks than SMs as
    many of each GPC, but for some that come first (l2.first_sms)."""
    first = min(gpu.l2.first_sms or 0, blocks)
    if blocks >= gpu.sm_count:
        return np.arange(gpu.sm_count)
    gpcs = sm_gpcs(gpu, seed)[first:]
    rank = np.array([(gpcs[:at] == gpc).sum() for at, gpc in enumerate(gpcs)])
    taken = np.argsort(rank, kind="stable")[:blocks - first]
    return np.concatenate([np.arange(first), first + np.sort(taken)])


def read_spread(program: Program, gpu: "Profile", seeds: int = 4,
                **options: Any) -> tuple[int, int]:
    """The least and most DRAM reads in bytes over so many seeds; ``options`` as ``simulate`` has
    them. Wide where K, V, Q and O just fit: there a GPU's own counters vary between launches."""
    found = [simulate(program, gpu, seed=seed, **options).dram_read_bytes for seed in range(seeds)]
    return min(found), max(found)


def _machine(gpu: "Profile", blocks_per_sm: int, unit_bytes: int, group: int,
             scale: int = 1) -> Record:
    machine = np.zeros(1, MACHINE)[0]
    latency, clock = gpu.latency_cycles, gpu.boost_clock_hz
    machine["l2_latency"] = _measured(gpu, "l2_latency", latency.l2 or L2_LATENCY_CYCLES)
    machine["hbm_latency"] = _measured(gpu, "hbm_latency", latency.hbm or HBM_LATENCY_CYCLES)
    machine["sm_bytes_per_cycle"] = _l2_bytes_per_cycle(gpu) / blocks_per_sm
    machine["dram_bytes_per_cycle"] = _measured(gpu, "hbm_read", gpu.hbm_bytes_per_s) / clock
    machine["unit_shift"] = log2_of("unit", unit_bytes)
    machine["sector_shift"] = log2_of("l2.sector_bytes", gpu.l2.sector_bytes)
    machine["group"], machine["scale"] = group, scale
    machine["sharing_max"] = gpu.l2.merged_requests_max or 1
    machine["to_coalescer"] = gpu.l2.coalescer_cycles or 0
    machine["first_starts"] = gpu.l2.first_starts_cycles or 0
    machine["pace_spread"], machine["gpc_pace_spread"] = pace_spreads(gpu, blocks_per_sm)
    machine["far_more"] = max(
        _measured(gpu, "l2_far_latency", 0) - _measured(gpu, "l2_near_latency", 0), 0)
    return machine


def pace_spreads(gpu: "Profile", blocks_per_sm: int) -> tuple[float, float]:
    """By how much of the mean pace blocks of equal work are faster or slower, so many on an SM:
    those of a GPC, and GPCs."""
    l2 = gpu.l2
    shared = (l2.pace_spread or 0.0, l2.gpc_pace_spread or 0.0)
    if blocks_per_sm > 1 or l2.pace_spread_alone is None:
        return shared
    return l2.pace_spread_alone, l2.gpc_pace_spread_alone or 0.0


def chunk_cycles(gpu: "Profile", chunk_bytes: int,
                 blocks_per_sm: int) -> tuple[float, float, float]:
    """Cycles of a block that reads a chunk and waits for it: when it hits, and when it misses,
    where ``blocks_per_sm`` do so; and of DRAM for a sector (l2_scan.scan)."""
    machine = _machine(gpu, blocks_per_sm, UNIT_BYTES, 1)
    busy = chunk_bytes / machine["sm_bytes_per_cycle"]
    hit, miss = (max(machine[name] + busy / blocks_per_sm, busy)
                 for name in ("l2_latency", "hbm_latency"))
    return float(hit), float(miss), gpu.l2.sector_bytes / float(machine["dram_bytes_per_cycle"])


def _measured(gpu: "Profile", name: str, otherwise: float) -> float:
    found = gpu.measured.get(name)
    return otherwise if found is None else found.value


def _l2_bytes_per_cycle(gpu: "Profile") -> float:
    """What one SM reads of L2 in a cycle when all do: specified, else measured."""
    specified, measured = gpu.l2.read_bytes_per_clock, gpu.measured.get("l2_read")
    if specified is not None:
        return specified / gpu.sm_count
    if measured is not None:
        return measured.value / gpu.boost_clock_hz / gpu.sm_count
    return SM_BYTES_PER_CLOCK
