"""How a kernel runs a schedule's operations on an SM: what each costs and what overlaps.

A schedule says what is computed; two kernels of one schedule differ in the unit that multiplies, in
how often operands are read from shared memory again (register blocking), in instructions beside
the products, and in what runs under what. Kernels declare that, read off their own source and
machine code: nothing here is a time, and nothing is measured.
"""

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from .engines.dispatch import Pace
from .occupancy import estimate_registers, occupancy
from .ops import BY_CODE, Unit
from .program import Phase, Program, Space
from .tape import Kind

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

WARP = 32
WAVEFRONT_BYTES = 128  # what shared memory moves in a clock
# Usual younger_paces (experiments/recorded/residents, H200): of FMA kernels, those that convert,
FMA_PACES, CONVERTING_PACES = (0.94,), (0.55,)
# mma.sync with 32 rows a warp, with 16, these with two stages, and where all warps wait for each
# other four times a trip.
WIDE_WARPS_PACES, NARROW_WARPS_PACES = (0.78,), (1.0, 0.979, 0.961, 0.946)
NARROW_AHEAD_PACES, BACKWARD_PACES = (0.941, 0.916, 0.88), (0.99,)
SOFTMAX_PACES = (0.97,)  # of a softmax alone
STREAMING_THREADS = 256  # of a thread block that multiplies nothing
# Of a warp's 16-byte loads: a quarter warp each; where half a warp reads the same bytes (Nsight
# Compute counts 3.1 for as many of the one as of the other).
WIDE_LOAD_WAVEFRONTS, BROADCAST_WAVEFRONTS = 4, 2


@dataclass(frozen=True)
class Cost:
    """Of an operation: for each element of its first operand, or each multiply-add of a product.

    ``instructions`` are those of threads at the full rate (a warp a clock and subpartition),
    ``slow`` those at half of it (conversions, comparisons, integers), ``wavefronts`` those of
    shared memory. Of one execution, for each warp: ``waits`` of a long pipeline (shared memory,
    tensor core, shuffle), and ``chain`` instructions that each wait for the one before.
    """

    instructions: float = 0.0
    slow: float = 0.0
    wavefronts: float = 0.0
    waits: float = 0.0
    chain: float = 0.0


@dataclass(frozen=True)
class Execution:
    """A kernel's way of running one phase of a program.

    ``multiplier`` is the unit of its products: "fma", "mma_sync" or "wgmma". ``interleaved`` is
    the share of a tile's weights that a warp computes between the products with those before.
    ``operands_ahead``: a warp reads the next operands from shared memory while it multiplies.
    ``stalls``: cycles for which a warp may not go on after an instruction, whoever else wants to.
    ``apart``: its warps meet so seldom that none waits for the slowest at each unit.
    ``masks_edges``: only tiles that the mask's edge crosses are masked.
    ``ping_pong``: warpgroups take turns, so that every unit works under the others.
    ``prefetch`` is what runs between a load and its use: "none" (serial: a block then loads
    ``in_flight_bytes`` at a time), a "product" of the same trip, or a whole "trip" (double-
    buffered); loads of ``trips_ahead`` trips are on their way at once. ``loads_meet``: of serial
    ones, that all warps wait for all of a tile; ``loads_at_once``: that those of a trip are on
    their way together, the first trip's with all that a block loads once.
    ``younger_paces``: how fast a thread block runs beside the next older one on its SM, whose warps
    are served first, where 2, 3, … blocks share it (the last: more): a number, or speeds of all by
    age (dispatch.by_age); read off the starts and ends of thread blocks on an H200
    (experiments/residents.py), 1 where they were not recorded.
    """

    multiplier: str
    threads: int
    costs: dict[str, Cost] = field(repr=False)
    interleaved: float = 0.0
    operands_ahead: bool = False
    stalls: float = 0.0
    apart: bool = False
    masks_edges: bool = False
    ping_pong: bool = False
    prefetch: str = "none"
    trips_ahead: int = 1
    loads_meet: bool = False
    loads_at_once: bool = False
    in_flight_bytes: int | None = None
    instructions_per_byte: float = 0.25  # of loads and stores; half of them slow
    multicast: int = 1  # thread blocks that share what one of them loads
    spill_bytes: int = 0  # of a thread and trip, stored and loaded
    persistent: bool = False  # a grid of as many blocks as fit: the next tile's loads come early
    filled: float = 1.0  # of the elements of a tile, on average: threads skip the others
    younger_paces: tuple[Pace, ...] = (1.0,)
    loading_warps: int = 0  # of a thread block; they only load
    block_chain: int = 0  # instructions around a block's loop that each wait for the one before

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return -(-self.threads // WARP)

    def younger_pace(self, residents: int) -> Pace:
        """How fast a block runs beside the next older one of so many on an SM."""
        return self.younger_paces[min(max(residents - 2, 0), len(self.younger_paces) - 1)]


# ---- Products by FMA, a thread block of 16 × 16 threads ----------------------------------------


def fma_scores(rows: int, columns: int, depth: int, element_bytes: int) -> Cost:
    """Q Kᵀ of a rows × columns tile: thread (y, x) of 16 × 16 reads its rows and columns in
    16-byte vectors along the depth, converts them when narrower than fp32, and multiplies."""
    r, c, vector = rows / 16, columns / 16, 16 // element_bytes
    loads = (r + c) / (r * c * vector)
    convert = (r + c) / (r * c) if element_bytes < 4 else 0.0
    turn = 11 / (r * c * vector)  # of the loop: addresses, comparison, branch
    wavefronts = (BROADCAST_WAVEFRONTS * r + WIDE_LOAD_WAVEFRONTS * c) / (r * c * vector)
    return Cost(1 + loads, convert + turn, wavefronts / WARP, waits=depth / vector)


def fma_output(rows: int, width: int, depth: int, element_bytes: int, weight_bytes: int) -> Cost:
    """P V: a thread reads the weights of 4 keys for each of its rows in one load, and its columns
    of ``width`` in runs of neighbours, once for each key."""
    r, c = rows / 16, width / 16
    columns = max(width // 16, 1)  # below 16 some threads have none
    run = min(columns & -columns, 16 // element_bytes)
    loads = 4 * c / run
    wavefronts = (r * weight_bytes * BROADCAST_WAVEFRONTS / 4
                  + loads * max(run * element_bytes * WARP / WAVEFRONT_BYTES, 1))
    convert = 4 * c * (element_bytes < 4) + 4 * r * (weight_bytes < 4)
    work = r * 4 * c
    return Cost(1 + (r + loads) / work, (convert + 6) / work, wavefronts / work / WARP,
                waits=depth / 4)


def fma(scores: Cost | None, output: Cost | None, columns: int, threads: int = 256, *,
        element_bytes: int = 4) -> Execution:
    """Products on FMA units by 16 × 16 threads; a warp loads, converts and multiplies in turn.

    16 threads share a row of ``columns`` scores: maxima and sums go over them in 4 shuffles.
    """
    over_row = 8 * 16 / columns
    row = Cost(instructions=16.0)
    products = {"dot_t": scores, "dot_t_add": scores, "dot": output, "dot_add": output}
    return Execution(
        "fma", threads,
        {
            **{name: cost for name, cost in products.items() if cost is not None},
            "scale": Cost(1), "mask": Cost(slow=3), "row_max": Cost(0, 1 + over_row, waits=4),
            "row_sum": Cost(1 + over_row / 2, over_row / 2, waits=4),
            "exp_minus": Cost(7, 2, waits=1),
            "copy": Cost(1, 1, 4 / WAVEFRONT_BYTES, waits=1), "mul_rows": Cost(1),
            "div_rows": Cost(1), "maximum": row, "add": row, "log": row,
        },
        loads_meet=True, in_flight_bytes=4 * 16 * threads, instructions_per_byte=25 / 16,
        younger_paces=FMA_PACES if element_bytes == 4 else CONVERTING_PACES,
    )


def streaming(threads: int, vectors: int, *, slow: float = 1.0,
              trips_ahead: int = 1) -> Execution:
    """Elementwise work on what is read once, ``vectors`` of 16 bytes a thread on their way, of
    ``trips_ahead`` trips; an element takes one instruction an operation and ``slow`` ones to
    convert."""
    element = Cost(1, slow)
    return Execution("fma", threads, {name: element for name in (
        "mul", "scale", "mul_rows", "div_rows", "add")} | {"exp_minus": Cost(2, 1)},
        in_flight_bytes=16 * vectors * threads, instructions_per_byte=8 / 16,
        trips_ahead=trips_ahead)


def fma_backward(scores: Cost, rows: int, columns: int, widths: tuple[int, int],
                 element_bytes: int) -> Execution:
    """FlashAttention-2 backward on FMA units by 16 × 16 threads: S and dP as ``fma_scores``, the
    other products as ``fma_output``, with weights in fp32 through shared memory (dS twice)."""
    width = widths[0]
    of_keys = fma_output(columns, width, rows, element_bytes, 4)
    of_rows = fma_output(rows, width, columns, element_bytes, 4)
    how = fma(scores, of_rows, columns, element_bytes=element_bytes)
    return replace(how, costs=how.costs | {
        "t_dot_add": of_keys, "sub_rows": Cost(1), "mul": Cost(1, 0, 4 / WAVEFRONT_BYTES)})


def multiplier_of(kernel: tuple[Execution, ...]) -> str:
    """The unit of a kernel's products; launches without products stand as "fma"."""
    return next((how.multiplier for how in kernel if how.multiplier != "fma"), "fma")


def softmax_rows(columns: int, threads: int = 256) -> Execution:
    """Softmax of whole rows, a thread block a row, 8 elements a thread and turn: maximum and sum
    in one pass, weights in a second; two reductions over the block, each in 5 shuffles and two
    barriers, which cost every warp alike however short the row."""
    across = Cost(120 * threads / columns, 60 * threads / columns, waits=14)
    return Execution(
        "fma", threads,
        {"mask": Cost(1, 3), "row_max": across, "exp_minus": Cost(20, 11, 2 / WAVEFRONT_BYTES),
         "row_sum": Cost(waits=14), "div_rows": Cost(2, 1)},
        in_flight_bytes=16 * threads, instructions_per_byte=4 / 16,
    )


def softmax_alone(columns: int, step: int, threads: int, *, resident: bool = False) -> Execution:
    """Softmax of rows of ``columns`` in a few passes, ``step`` of them at a time, a thread block a
    row, all loads of a step on their way at once: a thread's maxima and sums meet over the block
    once a pass.

    A ``resident`` row waits in shared memory and is reduced as a whole.
    """
    steps = -(-columns // step)
    costs = {"mask": Cost(slow=1), "row_max": Cost(slow=1), "row_sum": Cost(1),
             "exp_minus": Cost(2), "div_rows": Cost(1, 0.5)}
    if resident:
        costs |= {"row_max": Cost(slow=1, waits=14), "row_sum": Cost(1, waits=14)}
    else:
        costs |= {"maximum": Cost(waits=14 / steps), "add": Cost(waits=14 / steps)}
    return Execution("fma", threads, costs, instructions_per_byte=4 / 16,
                     younger_paces=SOFTMAX_PACES,
                     filled=1.0 if resident else columns / (steps * step))


# ---- Products on tensor cores ------------------------------------------------------------------

_MMA = 16 * 8 * 16  # multiply-adds of one mma.sync
_FRAGMENT = 256  # elements of one ldmatrix.x4, 4 wavefronts
GROUP = 128  # threads of a warpgroup
_WGMMA_ROWS, _WGMMA_DEPTH = 64, 16  # of one wgmma, which has as many columns as asked
_BLOCK_CHAIN = 500  # half of what a block of mma.sync kernels runs before and after its loop
_SOFTMAX = {  # for a score: a maximum, an FFMA and ex2, an addition, half a conversion
    "row_max": Cost(slow=1, waits=2), "exp_minus": Cost(2, waits=1), "row_sum": Cost(1),
    "copy": Cost(slow=0.5), "div_rows": Cost(1, 1, waits=2), "log": Cost(slow=4, waits=2),
}


def _mma_product(rows: int, columns: float) -> Cost:
    """A warp's product of ``rows`` × ``columns`` on mma.sync, operands by ldmatrix: one fragment
    for each 16 rows and each 16 columns, 16 deep."""
    fragments = 1 / (_FRAGMENT * rows) + 1 / (_FRAGMENT * columns)
    return Cost(WARP / _MMA + WARP * fragments, 0.0, 4 * fragments, waits=2)


def mma_backward(share: Any, rows: int, columns: int, widths: tuple[int, int], threads: int, *,
                 stages: int) -> Execution:
    """FlashAttention-2 backward on mma.sync: five products shared out over all warps, ``share(rows,
    columns)`` of a result to each; P and dS change hands through shared memory.

    A trip and a block have instructions of their own as in ``mma_sync``; a wait more for each of
    P and dS, which all warps wait for.
    """
    width = max(widths)
    scores = _mma_product(*share(rows, columns))
    handed_on = Cost(0.5, 0.5, 2 / WAVEFRONT_BYTES, waits=1)
    return Execution(
        "mma_sync", threads,
        {"dot_t": scores, "t_dot_add": _mma_product(*share(columns, width)),
         "dot": _mma_product(*share(rows, width)), "mask": Cost(slow=4),
         "exp_minus": Cost(2, waits=1), "copy": handed_on, "sub_rows": Cost(1, chain=100),
         "mul": Cost(1)},
        operands_ahead=True, masks_edges=True,
        prefetch="trip" if stages > 1 else "none", loads_at_once=True,
        younger_paces=BACKWARD_PACES, block_chain=_BLOCK_CHAIN,
    )


def mma_decode(warp_keys: int, rows: int, depth: int, threads: int, *, stages: int) -> Execution:
    """Split-KV decode on mma.sync: every warp streams keys of its own, all of its buffers but one
    ahead, and has all rows; warps meet at the end only. With so few columns a warp's scores wait
    for a load and a product at each 16 of their ``depth``."""
    how = mma_sync(rows, warp_keys, threads, stages=2)
    scores = replace(how.costs["dot_t"], waits=2 * depth / 16)
    return replace(how, costs=how.costs | {"dot_t": scores, "dot_t_add": scores},
                   prefetch="trip" if stages > 1 else "none", trips_ahead=max(stages - 1, 1))


def mma_sync(rows_of_warp: int, columns: int, threads: int, *, stages: int) -> Execution:
    """FlashAttention-2 on mma.sync: operands by ldmatrix, weights stay in registers, O is rescaled
    only when a maximum has grown much.

    A warp owns ``rows_of_warp`` rows, 16 a strip, and reads all of K and V; Q comes from shared
    memory again for every column block of ``columns``. With one stage a product hides the other's
    load. A trip's own hundred instructions (addresses, bounds, barriers) follow from each other, as
    do half of the thousand that a block runs before and after its loop.
    """
    scores, output = _mma_product(rows_of_warp, columns), _mma_product(rows_of_warp, inf)
    return Execution(
        "mma_sync", threads,
        _SOFTMAX | {"mask": Cost(slow=4), "dot_t": scores, "dot_t_add": scores, "dot": output,
                    "dot_add": output,
                    "t_dot": scores, "t_dot_add": scores, "sub_rows": Cost(1), "mul": Cost(1),
                    "maximum": Cost(slow=100 * WARP / rows_of_warp, chain=100),
                    "log": Cost(2 * _BLOCK_CHAIN * WARP / rows_of_warp, 4, waits=2,
                                chain=_BLOCK_CHAIN)},
        interleaved=max(1 - 16 / columns, 0.0), operands_ahead=True, masks_edges=True,
        prefetch="trip" if stages > 1 else "product",
        younger_paces=WIDE_WARPS_PACES if rows_of_warp > 16 else
        NARROW_AHEAD_PACES if stages > 1 else NARROW_WARPS_PACES,
    )


def wgmma(columns: int, consumers: int, *, ping_pong: bool = True,
          multicast: int = 1) -> Execution:
    """FlashAttention-3: wgmma reads K and V from shared memory once for 64 rows (Q too, P from
    registers), TMA loads; consumer warpgroups beside one producer, in ping-pong. O is rescaled only
    when a maximum has grown much."""
    streamed, resident = 2 / WAVEFRONT_BYTES / 64, 2 / WAVEFRONT_BYTES / columns

    def product(wavefronts: float) -> Cost:
        return Cost(GROUP / (_WGMMA_ROWS * columns * _WGMMA_DEPTH), 0.0, wavefronts, waits=1)

    return Execution(
        "wgmma", GROUP * (consumers + 1),
        _SOFTMAX | {"mask": Cost(slow=4), "dot_t": product(streamed + resident),
                    "dot_add": product(streamed)},
        masks_edges=True, ping_pong=ping_pong, prefetch="trip", instructions_per_byte=0.01,
        multicast=multicast, persistent=True, loading_warps=GROUP // WARP,
    )


def generic(program: Program, gpu: "Profile") -> tuple[Execution, ...]:
    """The kernel to expect of a program that names none, phase by phase: tensor cores by mma.sync
    for 16-bit types where the GPU has them, else FMA; loads double-buffered with two stages.

    A warp takes 32 rows, which halves its reads of K and V, where its accumulators fit.
    """
    problem, tiles = program.problem, program.tiles
    peak = getattr(gpu.flops, problem.dtype)
    found = []
    for phase in program.phases:
        if phase.axes and phase.axes[0].step == 1:
            step = max(tile.cols for tile in phase.tiles)
            found.append(softmax_rows(-(-problem.kv_seq // step) * step))  # work is of whole steps
        elif not multiplies(program, phase):
            found.append(streaming(STREAMING_THREADS, 2))
        elif problem.dtype_bytes == 2 and peak and peak > gpu.flops.fp32:
            rows = 32 if tiles.br % 32 == 0 and tiles.br >= 128 and _fits(
                phase, tiles.br // 32 * WARP, gpu) else 16
            found.append(mma_sync(rows, tiles.bc, -(-tiles.br // rows) * WARP,
                                  stages=tiles.stages))
        else:
            element = problem.dtype_bytes
            found.append(fma(fma_scores(tiles.br, tiles.bc, problem.head_dim, element),
                             fma_output(tiles.br, problem.value_dim, tiles.bc, element, 4),
                             tiles.bc, element_bytes=element))
    return tuple(found)


def multiplies(program: Program, phase: Phase) -> bool:
    """Whether a phase has products."""
    ops = program.tape[phase.first:phase.end]
    return any(BY_CODE[row["op"]].unit == Unit.MATMUL for row in ops[ops["kind"] == Kind.COMPUTE])


def _fits(phase: Phase, threads: int, gpu: "Profile") -> bool:
    return estimate_registers(phase, threads) <= gpu.max_registers_per_thread


def estimate_residents(program: Program, gpu: "Profile",
                       kernel: tuple[Execution, ...]) -> tuple[int, ...]:
    """Thread blocks on an SM in each phase, with the threads of ``kernel``, estimated registers and
    the phase's shared memory; 0 where one does not fit."""
    return tuple(
        occupancy(gpu, how.threads, estimate_registers(phase, how.threads),
                  phase.bytes_in(Space.SHARED)).blocks_per_sm
        for phase, how in zip(program.phases, kernel, strict=True)
    )
