"""One predicted point as ``hbmeter predict`` prints it."""

from dataclasses import dataclass, replace

from .. import kernels
from ..kernels.errors import Unavailable
from ..simulator import schedules
from ..simulator.bounds import program_bound
from ..simulator.errors import InputError
from ..simulator.execution import Execution, estimate_residents, generic
from ..simulator.problem import Attention
from ..simulator.rates import first_clock_s
from ..simulator.splits import require_option
from ..simulator.tiles import Tiles
from ..simulator.time_model import Prediction, covers, predict, seconds_since_rest
from . import compiled_blocks
from .remembered import remembered

SUSTAINED_DIFFERS = 0.01  # by more than that from the time after a rest, it is said


@dataclass(frozen=True)
class Asked:
    """What is to be predicted: a kernel, or (None) the usual kind for a schedule."""

    kernel: object
    schedule: str
    tiles: Tiles
    order: str
    blocks_per_sm: int | None


def point(args, problem: Attention, gpu) -> Asked:
    """From the command line; absent tiles are the kernel's default or the predicted fastest."""
    if args.kernel is None:
        order = _kv_order(args, args.schedule)  # refused before tiles are looked for
        tiles = replace(_tiles(args, problem, gpu), **order)
        return Asked(None, args.schedule, tiles, args.order, args.blocks_per_sm)
    kernel = kernels.get(args.kernel)
    offered = kernel.tile_choices(problem)
    choices = [t for t in offered if args.br in (None, t.br) and args.bc in (None, t.bc)
               and args.stages in (None, t.stages)]
    if None in (args.br, args.bc) and not choices:
        raise _no_default(kernel, problem, offered)
    given = None not in (args.br, args.bc)
    tiles = Tiles(args.br, args.bc, args.stages or 1) if given else choices[0]
    tiles = replace(tiles, **_kv_order(args, kernel.schedule))
    kernel.check(problem, tiles)
    if kernel.executions(problem, tiles) is None:
        raise InputError(f"kernel {kernel.name} does not say what its operations cost; predict "
                         f"its schedule {kernel.schedule} instead")
    return Asked(kernel, kernel.schedule, tiles, args.order, args.blocks_per_sm)


def _no_default(kernel, problem: Attention, offered) -> InputError:
    """Why none of a kernel's own tiles is left; raises what the kernel says of the problem."""
    if not offered:
        taken = Attention(1, 1, 128, 64, dtype=kernel.dtypes[0], direction=kernel.direction)
        kernel.check(problem, kernel.tile_choices(taken)[0])
    own = "; ".join(map(str, offered)) or "none"
    return InputError(f"kernel {kernel.name} has no such default tiles (for this problem: {own}); "
                      "give --br and --bc")


def _kv_order(args, schedule: str) -> dict[str, str]:
    """What --kv-order changes of the tiles. Raises InputError for a schedule that takes none."""
    if args.kv_order in (None, "forward"):
        return {}
    require_option(schedule, "kv_order")
    return {"kv_order": args.kv_order}


def _tiles(args, problem: Attention, gpu) -> Tiles:
    from ..simulator.blocks import explore

    found = explore(args.schedule, problem, gpu, br=args.br, bc=args.bc, stages=args.stages)
    _require_covered(found.candidates[0].program)
    if "fastest" not in found.marks:
        raise InputError(f"no time is predicted for schedule {args.schedule} with these tiles: "
                         "hbmeter blocks says what fits")
    return found.marks["fastest"]


def _require_covered(program) -> None:
    if covers(program):
        return
    instead = ("the papers' idealised count has no thread blocks" if program.idealised else
               "its splits have a model of their own: hbmeter splits, or --kernel")
    raise InputError(f"no time is predicted for schedule {program.schedule}: {instead}")


def _residents(asked: Asked, problem: Attention, gpu, how: tuple[Execution, ...]):
    """(blocks per SM of each phase, where from, spilled bytes)."""
    program = schedules.build(asked.schedule, problem, asked.tiles)
    if asked.blocks_per_sm is not None:
        return [asked.blocks_per_sm] * len(how), "as asked", 0
    if asked.kernel is not None:
        sizes = {"br": asked.tiles.br, "bc": asked.tiles.bc, "stages": asked.tiles.stages}
        try:
            built = compiled_blocks.launches(asked.kernel, problem, gpu, Tiles(**sizes))
        except Unavailable:
            pass  # no compiler here: the estimate
        else:
            if min(built.residents) < 1:
                raise InputError(f"kernel {asked.kernel.name} with {asked.tiles} does not fit on "
                                 f"an SM of {gpu.name}: it needs {max(built.smem_bytes):,} B of "
                                 f"shared memory and {max(built.registers)} registers a thread; "
                                 "use smaller tiles")
            return built.residents, "compiled registers", max(built.spills)
    return [max(m, 1) for m in estimate_residents(program, gpu, how)], "estimated registers", 0


@dataclass(frozen=True)
class _Found:
    """Predictions of one call, after a rest and under sustained load (None: as after a rest, or the
    profile does not say); for how long the clock after a rest holds; where blocks per SM are from.
    """

    first: Prediction
    sustained: Prediction | None
    holds_s: float
    residents_from: str

    @property
    def seconds(self) -> float:
        """Of a call after a rest, however long it is."""
        if self.sustained is None:
            return self.first.seconds
        return seconds_since_rest(self.first.seconds, self.sustained.seconds, self.holds_s)

    @property
    def sustained_s(self) -> float | None:
        """Of one under sustained load, where that differs."""
        if self.sustained is None:
            return None
        found = self.sustained.seconds
        return found if abs(found / self.seconds - 1) > SUSTAINED_DIFFERS else None

    def calibrated(self, factor: float, known: Prediction) -> "_Found":
        """The same, with a ``factor`` that was measured on a run that is predicted as ``known``."""
        under = self.sustained and self.sustained.calibrated(factor, known)
        return replace(self, first=self.first.calibrated(factor, known), sustained=under)


def _predict(asked: Asked, problem: Attention, gpu) -> _Found:
    program = schedules.build(asked.schedule, problem, asked.tiles)
    if asked.kernel is None:
        _require_covered(program)
    how = (generic(program, gpu) if asked.kernel is None
           else asked.kernel.executions(problem, asked.tiles))
    residents, source, spills = _residents(asked, problem, gpu, how)
    how = tuple(replace(x, spill_bytes=spills) for x in how)
    order = asked.order if asked.kernel is None else asked.kernel.issue_order(asked.order)
    holds_s = first_clock_s(gpu)
    first, *under = (predict(program, gpu, how, blocks_per_sm=residents, order=order,
                             count_dram=True, remember=remembered, sustained=sustained)
                     for sustained in (False, True)[:1 if holds_s is None else 2])
    return _Found(first, under[0] if under else None, holds_s or 0.0, source)


def document(asked: Asked, problem: Attention, gpu, known: Attention | None,
             known_ms: float | None) -> dict:
    """The JSON document: seconds by phase and unit, bound, zero-shot, and calibrated with the time
    of a ``known`` problem; under sustained load where that differs."""
    found = _predict(asked, problem, gpu)
    first, program = found.first, schedules.build(asked.schedule, problem, asked.tiles)
    multiplier = None if asked.kernel is None else first.multiplier
    bound = program_bound(program, gpu, multiplier)
    factor = calibrated = None
    if known is not None:
        there = _predict(asked, known, gpu).first
        work = sum(phase.seconds for phase in there.phases)
        factor = (known_ms * 1e-3 - there.seconds + work) / work
        if factor <= 0:
            raise InputError(f"--known-ms {known_ms:g} is less than the launch of an empty kernel")
        calibrated = found.calibrated(factor, there)
    return {
        "runs": asked.kernel.name if asked.kernel else f"{asked.schedule}, a usual kernel",
        "gpu": gpu.name, "order": asked.order, "residents_from": found.residents_from,
        "tiles": {"br": asked.tiles.br, "bc": asked.tiles.bc, "stages": asked.tiles.stages},
        "bound_s": bound.bound_s, "bound_by": bound.limiter, "zero_shot_s": found.seconds,
        "sustained_s": found.sustained_s, "first_clock_s": found.holds_s or None,
        "limiter": first.limiter, "tflop_per_s": problem.flops / found.seconds / 1e12,
        "factor": factor,
        "calibrated_s": calibrated and calibrated.seconds,
        "calibrated_sustained_s": calibrated and calibrated.sustained_s,
        "phases": [
            {"name": phase.name, "predicted_s": phase.seconds, "limiter": phase.limiter,
             "blocks": phase.blocks, "waves": phase.waves, "blocks_per_sm": phase.blocks_per_sm,
             "units_s": phase.unit_seconds} for phase in first.phases
        ],
    }
