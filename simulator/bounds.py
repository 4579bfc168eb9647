"""A time that no run beats: the slowest of the roofs that the work must pass under.

Roofline model (Williams, Waterman, Patterson 2009) with datasheet peaks, or measured rates where
these are higher. ``pass_bound`` holds for every schedule: the products and exponentials of unmasked
pairs, and compulsory bytes. ``program_bound`` holds for kernels that move one program's tiles: also
what crosses shared memory and the SM boundary, DRAM bytes that cannot stay in the L2, its launches,
and its waves (whole thread blocks on the busiest SM).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .engines import scratchpad
from .engines.executions import executions
from .ops import BY_CODE, Unit
from .problem import Attention
from .program import Program, Role, Space
from .tape import Kind

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

ALU_INSTRUCTIONS = 3  # of one score at least: its part of the maximum, the exponent, the sum
WIDEST_PORT_BYTES_PER_CLOCK = 128.0  # from L2 into one SM, where a profile has no measurement


@dataclass(frozen=True)
class Bound:
    """Seconds for each roof; ``limiter`` is the slowest. A roof the GPU lacks is left out."""

    seconds: dict[str, float]

    @property
    def limiter(self) -> str:
        """The roof that takes longest."""
        return max(self.seconds, key=self.seconds.__getitem__)

    @property
    def bound_s(self) -> float:
        """Seconds that no run can beat."""
        return self.seconds[self.limiter]


def pass_bound(problem: Attention, gpu: "Profile") -> Bound:
    """The bound of the problem's pass on ``gpu`` (a Profile); the same for every schedule.

    Of the backward pass only the four products count that every schedule computes: P may be read.
    The softmax alone has exponentials and no products.
    What a kernel writes may stay in L2 as far as it fits.
    """
    moved = problem.compulsory_read_bytes + _beyond_l2(problem.compulsory_write_bytes, gpu)
    seconds = {"dram": moved / gpu.hbm_bytes_per_s}
    peak = getattr(gpu.flops, problem.dtype)
    if peak is not None:
        seconds["matmul"] = _product_flops(problem) / peak
    if problem.direction != "backward":
        pairs = problem.pairs * problem.head_count
        clocks_per_s = gpu.sm_count * gpu.boost_clock_hz
        seconds["exp"] = pairs / (gpu.exp_per_clock_per_sm * clocks_per_s)
        seconds["alu"] = ALU_INSTRUCTIONS * pairs / (gpu.flops.fp32 / 2)
    return Bound(seconds)


def _product_flops(problem: Attention) -> float:
    return {"forward": 1, "backward": 2, "softmax": 0}[problem.direction] * problem.forward_flops


def program_bound(program: Program, gpu: "Profile", multiplier: str | None = None) -> Bound:
    """The bound of kernels that run ``program`` as it is, on ``gpu`` (a Profile).

    ``multiplier`` "fma" says that the products run on FMA units; otherwise they may run at the
    dtype's peak. An idealised program has no launches, thread blocks or shared memory.
    """
    problem = program.problem
    seconds = dict(pass_bound(problem, gpu).seconds)
    if multiplier == "fma":
        seconds["matmul"] = _product_flops(problem) / gpu.flops.fp32
    count = scratchpad.count(program)
    moved = count.read_bytes + count.write_bytes
    port = _fastest(gpu, "l2_read_one_sm", WIDEST_PORT_BYTES_PER_CLOCK)
    seconds["SM boundary"] = moved / (port * gpu.sm_count * gpu.boost_clock_hz)
    l2 = _fastest(gpu, "l2_read_shared", 0.0)
    if l2:
        seconds["L2"] = moved / l2
    seconds["dram"] = _dram_bytes(count, gpu) / gpu.hbm_bytes_per_s
    if not program.idealised:
        shared = shared_memory_bytes(count)
        per_s = gpu.smem.bytes_per_clock_per_sm * gpu.sm_count * gpu.boost_clock_hz
        seconds["shared memory"] = shared / per_s
        seconds["launches"] = len(program.phases) * _smallest(gpu, ("launch_graph", "launch_gap"))
        seconds["waves"] = _waves(program, gpu, seconds)
    return Bound(seconds)


def _fastest(gpu: "Profile", name: str, otherwise: float) -> float:
    """The highest value ever measured under a name (of its curve too)."""
    found = gpu.measured.get(name)
    if found is None:
        return otherwise
    return max(found.value, *(value for _, value in found.curve or ()), 0.0)


def _smallest(gpu: "Profile", names: Iterable[str]) -> float:
    return min((gpu.measured[name].value for name in names if name in gpu.measured), default=0.0)


def _dram_bytes(count: scratchpad.ScratchpadCount, gpu: "Profile") -> float:
    """Bytes that must come from DRAM or go there: every input once; of what is written what the L2
    cannot keep, and of a tensor that one phase writes and another reads that both ways."""
    program, loaded = count.program, count.by_tensor
    moved = _beyond_l2(program.problem.compulsory_write_bytes, gpu)
    for tensor in program.tensors:
        size = program.tensor_bytes(tensor)
        if tensor.role in (Role.INPUT, Role.TABLE):
            moved += min(size, loaded[tensor.name]["read_bytes"])  # a mask may leave some out
        elif tensor.role == Role.SCRATCH:
            moved += 2 * _beyond_l2(size, gpu)
    return moved


def _beyond_l2(size: int, gpu: "Profile") -> int:
    """Bytes of ``size`` written ones that the L2 cannot keep."""
    return max(size - gpu.l2.size_bytes, 0)


def shared_memory_bytes(count: scratchpad.ScratchpadCount) -> int:
    """Bytes that enter shared memory and are read there, once at least."""
    program, moved, shared = count.program, count.phase_bytes, 0
    for number, phase in enumerate(program.phases):
        tape = program.tape[phase.first:phase.end]
        loads = tape[tape["kind"] == Kind.LOAD]
        tensors = {int(row["tensor"]) for row in loads
                   if program.tile_table[row["tile"]].space == Space.SHARED}
        shared += 2 * sum(int(moved[number, tensor, 0]) for tensor in tensors)
    return shared


def _waves(program: Program, gpu: "Profile", seconds: dict[str, float]) -> float:
    """Products and exponentials when thread blocks are whole: the busiest SM has at least so many
    of the largest, and the GPU waits for it.

    With P SMs and work sorted downwards, k + 1 of the k·P + 1 largest share an SM.
    """
    total = 0.0
    for unit, roof in ((Unit.MATMUL, "matmul"), (Unit.EXP, "exp")):
        if roof not in seconds:
            continue
        shares = [_busiest_share(program, number, gpu.sm_count, unit)
                  for number in range(len(program.phases))]
        work = np.array([share[0] for share in shares])
        if work.sum():
            stretched = sum(w * stretch for w, (_, stretch) in zip(work, shares, strict=True))
            total = max(total, seconds[roof] * stretched / work.sum())
    return total


def _busiest_share(program: Program, number: int, sm_count: int, unit: Unit) -> tuple[float, float]:
    """(work of a phase on a unit, its largest sum on one SM over the mean on all)."""
    phase = program.phases[number]
    tape = program.tape[phase.first:phase.end]
    cost = np.zeros(len(tape))
    for address in np.flatnonzero(tape["kind"] == Kind.COMPUTE):
        row = tape[address]
        if BY_CODE[row["op"]].unit == unit:
            first, out = (program.tile_table[row[name]] for name in ("a", "out"))
            cost[address] = first.rows * first.cols * (out.cols if unit == Unit.MATMUL else 1)
    work = executions(program, number) @ cost
    heads = program.problem.head_count // phase.group
    if not work.any():
        return 0.0, 1.0
    ranked = np.sort(np.unique(work))[::-1]
    counts = np.array([(work == value).sum() for value in ranked]) * heads
    most, before = 0.0, 0
    for value, number_of in zip(ranked, counts, strict=True):
        last = before + number_of - 1  # index of the last block of this size
        most = max(most, (last // sm_count + 1) * value)
        before += number_of
    return float(work.sum() * heads), max(most * sm_count / (work.sum() * heads), 1.0)
