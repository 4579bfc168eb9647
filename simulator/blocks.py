"""Block-size exploration: which (Br, Bc, stages) fit a GPU, and what they move.

Reference points: B = M/3d keeps one block each of Q, K and V on chip; Bc = M/4d with
Br = min(M/4d, d) is FlashAttention's rule (arXiv 2205.14135, Algorithm 1), which counts O too.
M is the shared memory of a block in elements.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from . import schedules
from .engines import scratchpad
from .errors import InputError
from .execution import estimate_residents, generic
from .grid_order import Order, OrderLike, Swizzle, fits, read
from .occupancy import BlockResources, Occupancy, estimate_resources, occupancy
from .problem import Attention
from .program import Program
from .tiles import Tiles
from .time_model import Prediction, covers, predict

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

STEP = 16  # rows or columns of one tensor-core instruction
LARGEST = 256
STAGES = (1, 2)


@dataclass(frozen=True)
class Candidate:
    """One choice of tiles on one GPU, its thread blocks issued in an ``order`` (grid_order.py).
    Shared memory is counted, threads and registers estimated."""

    program: Program
    gpu: "Profile"
    order: Order = "row"

    @property
    def tiles(self) -> Tiles:
        """The tile sizes."""
        return self.program.tiles

    @cached_property
    def resources(self) -> BlockResources:
        """Shared memory, threads and registers of a thread block."""
        return estimate_resources(self.program, self.gpu)

    @cached_property
    def occupancy(self) -> Occupancy:
        """Blocks per SM and what limits them."""
        need = self.resources
        return occupancy(self.gpu, need.threads, need.registers_per_thread, need.smem_bytes)

    @cached_property
    def count(self) -> scratchpad.ScratchpadCount:
        """Bytes at the SM boundary."""
        return scratchpad.count(self.program)

    @property
    def sm_bytes(self) -> int:
        """Bytes read and written at the SM boundary."""
        return self.count.read_bytes + self.count.write_bytes

    @cached_property
    def prediction(self) -> Prediction | None:
        """Predicted time with a kernel of the usual kind (execution.generic); None for programs
        that the time model does not cover, or when such a kernel would spill."""
        if self.why_not is not None or not covers(self.program):
            return None
        kernel = generic(self.program, self.gpu)
        residents = estimate_residents(self.program, self.gpu, kernel)
        if min(residents) < 1:
            return None
        return predict(self.program, self.gpu, kernel, blocks_per_sm=residents, order=self.order)

    @property
    def why_not(self) -> str | None:
        """Why it does not fit, or None when it does."""
        need, gpu = self.resources, self.gpu
        if self.program.idealised:
            return None
        if not fits(self.order, self.program):
            return "another number of thread blocks than the order lists"
        if need.smem_bytes > gpu.smem.bytes_per_block_max:
            return (f"{need.smem_bytes:,} B of shared memory, "
                    f"{gpu.smem.bytes_per_block_max:,} allowed")
        if need.registers_per_thread > gpu.max_registers_per_thread:
            return (f"about {need.registers_per_thread} registers a thread, "
                    f"{gpu.max_registers_per_thread} allowed")
        if self.occupancy.blocks_per_sm < 1:
            return f"too many {' and '.join(self.occupancy.limiters)} for one SM"
        return None


@dataclass(frozen=True)
class Exploration:
    """All candidates of one schedule; ``marks`` maps a name to the tiles it stands for."""

    candidates: tuple[Candidate, ...]
    marks: dict[str, Tiles]

    @property
    def fitting(self) -> tuple[Candidate, ...]:
        """Candidates that fit."""
        return tuple(c for c in self.candidates if c.why_not is None)


def explore(schedule: str, problem: Attention, gpu: "Profile", *, br: int | None = None,
            bc: int | None = None, stages: int | None = None,
            order: OrderLike = "row") -> Exploration:
    """Every Br × Bc in steps of 16 with 1 and 2 stages, and the M/3d and M/4d points beside them.

    A size that is given is kept; then the two rules are left out unless they have it too. An
    ``order`` that lists thread blocks fits only tiles whose grid has as many; InputError when it
    fits none.

    >>> from hbmeter.hwprofiles import load
    >>> from hbmeter.simulator import Attention, explore
    >>> found = explore("flash2", Attention(head_dim=128), load("a100-80gb"))
    >>> str(found.marks["M/3d"]), len(found.fitting) < len(found.candidates)
    ('Br 208, Bc 208', True)
    """
    given = {"br": br, "bc": bc, "stages": stages}
    issued = read(order)
    marks = {
        name: tiles for name, tiles in rule_points(problem, gpu).items()
        if all(value in (None, getattr(tiles, side)) for side, value in given.items())
    }
    sizes = range(STEP, LARGEST + 1, STEP)
    grid = {
        Tiles(rows, cols, copies)
        for rows in (sizes if br is None else (br,))
        for cols in (sizes if bc is None else (bc,))
        for copies in (STAGES if stages is None else (stages,))
    }
    grid |= set(marks.values())
    ordered = sorted(grid, key=lambda t: (t.br, t.bc, t.stages))
    candidates = tuple(
        Candidate(schedules.build(schedule, problem, tiles), gpu, issued) for tiles in ordered
    )
    fitting = [c for c in candidates if c.why_not is None]
    if isinstance(issued, Swizzle) and not fitting:
        raise InputError(f"order {issued} lists {len(issued.blocks):,} thread blocks; no tiles "
                         f"that fit {gpu.name} have such a grid")
    square = [c for c in fitting if c.tiles.br == c.tiles.bc]
    if square:
        marks["largest square that fits"] = max(square, key=_square_rank).tiles
    if fitting:
        marks["least traffic"] = min(fitting, key=_traffic_rank).tiles
        timed = [c for c in fitting if c.prediction is not None]
        if timed:
            marks["fastest"] = min(timed, key=_time_rank).tiles
    return Exploration(candidates, marks)


def rule_points(problem: Attention, gpu: "Profile") -> dict[str, Tiles]:
    """Tiles of the two rules, rounded down to whole steps of 16 where they are that large."""
    elements = gpu.smem.bytes_per_block_max // problem.dtype_bytes
    d = max(problem.head_dim, problem.value_dim)
    third, quarter = _whole_steps(elements // (3 * d)), _whole_steps(elements // (4 * d))
    return {
        "M/3d": Tiles(third, third),
        "M/4d": Tiles(_whole_steps(min(quarter, d)), quarter),
    }


def _whole_steps(size: int) -> int:
    return size // STEP * STEP if size >= STEP else max(size, 1)


def _square_rank(candidate: Candidate) -> tuple[int, ...]:
    return candidate.tiles.br, -candidate.tiles.stages


def _traffic_rank(candidate: Candidate) -> tuple[int, ...]:
    """Fewest bytes, then more blocks per SM, then larger Bc, then fewer stages."""
    tiles = candidate.tiles
    return (candidate.sm_bytes, -candidate.occupancy.blocks_per_sm, -tiles.bc, tiles.stages,
            tiles.br)


def _time_rank(candidate: Candidate) -> tuple[float, ...]:
    """Least predicted time, then fewest bytes."""
    predicted = candidate.prediction
    return predicted.seconds if predicted else inf, *_traffic_rank(candidate)


def why_faster(fast: Candidate, lean: Candidate) -> str:
    """Why ``fast`` is predicted faster than ``lean``, which moves fewer bytes (or as many)."""
    quick, slow = fast.prediction, lean.prediction
    if quick is None or slow is None:
        raise InputError("no time is predicted for these tiles")
    words = []
    for candidate, found in ((lean, slow), (fast, quick)):
        phase = max(found.phases, key=lambda phase: phase.seconds)
        unit = max(phase.unit_seconds, key=phase.unit_seconds.__getitem__)
        words.append(f"{candidate.tiles.br}×{candidate.tiles.bc} has "
                     f"{phase.blocks_per_sm} block(s) an SM in {phase.waves:.1f} waves and keeps "
                     f"its busiest unit ({unit}) at work for "
                     f"{phase.unit_seconds[unit] / phase.seconds:.0%} of the time")
    return (f"{fast.sm_bytes / lean.sm_bytes:.2f} times the bytes of the least-traffic tiles in "
            f"{quick.seconds / slow.seconds:.2f} of their time: {words[0]}; {words[1]}.")


def choose_tiles(schedule: str, problem: Attention, gpu: "Profile", br: int | None = None,
                 bc: int | None = None, stages: int | None = None, *, splits: int | None = None,
                 page: int | None = None, kv_order: str | None = None,
                 on_progress: Callable[[float], object] = lambda share: None) -> Tiles:
    """Tiles for one point: sizes that are given are kept, absent ones chosen for least traffic
    (of a schedule that takes splits, as splits.py says). ``on_progress`` gets the share that is
    done: under a listed mask, small tiles are long lists.

    Raises InputError when the given sizes do not fit, saying what would, and for splits, a page
    size or an order of K and V that the schedule does not take.
    """
    from .splits import choose_tiles as choose_split_tiles
    from .splits import require_option

    sizes = {"br": br, "bc": bc, "stages": stages, "splits": splits, "page": page,
             "kv_order": kv_order}
    given: dict[str, Any] = {name: size for name, size in sizes.items()
                             if size not in (None, "forward")}
    for name in ("splits", "page", "kv_order"):
        if name in given:
            require_option(schedule, name)
    if "splits" in schedules.options(schedule):
        return choose_split_tiles(schedule, problem, gpu, given)
    base = Tiles(STEP, STEP, **{n: given[n] for n in ("stages", "kv_order") if n in given})
    if br is not None and bc is not None:
        return fitting_candidate(schedule, problem, replace(base, br=br, bc=bc), gpu).tiles
    every = range(STEP, LARGEST + 1, STEP)
    choices = [replace(base, br=rows, bc=cols)
               for rows in ([br] if br is not None else every)
               for cols in ([bc] if bc is not None else every)]
    work = [1 / (tiles.br * tiles.bc) for tiles in choices]
    ranked: dict[Tiles, tuple[int, ...]] = {}
    for number, tiles in enumerate(choices):
        on_progress(sum(work[:number]) / sum(work))
        candidate = Candidate(schedules.build(schedule, problem, tiles), gpu)
        if candidate.why_not is None:
            ranked[tiles] = _traffic_rank(candidate)
    if not ranked:
        smallest = Candidate(schedules.build(schedule, problem, choices[0]), gpu)
        raise InputError(f"{schedule}: no tile fits {gpu.name}: {_describe(smallest)}")
    return min(ranked, key=ranked.__getitem__)


def fitting_candidate(schedule: str, problem: Attention, tiles: Tiles, gpu: "Profile") -> Candidate:
    """These tiles on ``gpu``. Raises InputError when their shared memory is more than a block's."""
    candidate = Candidate(schedules.build(schedule, problem, tiles), gpu)
    fits = candidate.resources.smem_bytes <= gpu.smem.bytes_per_block_max
    if not fits and not candidate.program.idealised:
        raise InputError(f"{_describe(candidate)}; {_largest_that_fits(candidate)}")
    return candidate


def _describe(candidate: Candidate) -> str:
    gpu, tiles = candidate.gpu, candidate.tiles
    return (f"{candidate.program.schedule}: {tiles} need {candidate.resources.smem_bytes:,} B of "
            f"shared memory, {gpu.name} allows {gpu.smem.bytes_per_block_max:,}")


def _largest_that_fits(candidate: Candidate) -> str:
    """What to change: the largest Bc, else the largest Br, that fits with the rest as it is."""
    tiles, program = candidate.tiles, candidate.program
    for name, label in (("bc", "Bc"), ("br", "Br")):

        def too_large(step: int, name: str = name) -> bool:
            size: dict[str, Any] = {name: step * STEP}
            smaller = replace(tiles, **size)
            built = schedules.build(program.schedule, program.problem, smaller)
            return built.smem_bytes_per_block > candidate.gpu.smem.bytes_per_block_max

        steps = range(1, (getattr(tiles, name) - 1) // STEP + 1)
        fitting = bisect_left(steps, True, key=too_large)  # shared memory grows with either size
        if fitting:
            return f"the largest {label} that fits is {fitting * STEP}"
    return "no smaller Br or Bc alone fits"
