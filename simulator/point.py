"""One point: what a schedule moves over each boundary of a GPU's memory hierarchy."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import blocks, schedules
from .blocks import Candidate
from .bounds import pass_bound, program_bound
from .engines import NAMES as ENGINES
from .engines import scratchpad
from .engines.heard import side_by_side
from .errors import InputError, unknown_name
from .execution import estimate_residents, generic
from .grid_order import Order, OrderLike, of_program
from .problem import Attention
from .program import Program
from .tiles import Tiles
from .time_model import covers, l2_options, predict

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

DECODE_ROWS = 64
SEEDS_MAX = 10_000
COMPARED = {
    "forward": ("standard", "standard_minimal", "flash1", "flash2"),
    "backward": ("standard_backward", "standard_backward_minimal", "flash1_backward",
                 "flash2_backward"),
    "softmax": ("softmax_safe", "softmax_online", "softmax_fused"),
}


def traffic(schedule: str, problem: Attention, gpu: "Profile", tiles: Tiles | None = None, *,
            order: OrderLike = "row", blocks_per_sm: int | None = None, engine: str = "l2",
            times: bool = False, seed: int = 0, seeds: int = 1, warm: bool = False,
            log: Any = None,
            on_progress: Callable[[float], object] = lambda share: None) -> dict[str, Any]:
    """The bytes of one schedule on one GPU (a Profile), as ``hbmeter traffic --json`` prints them.

    ``tiles`` default to the least-traffic choice that fits; ``blocks_per_sm`` to the occupancy of
    the tiles' shared memory and estimated registers; ``order`` is one of grid_order.py's, or lists
    the grid's thread blocks as they are issued; ``engine`` is one of ENGINES. Long runs call
    ``on_progress`` with the share that is done. With ``times`` the bound is that of the program
    and a time is predicted where the model covers the schedule (ten times slower than counting
    alone); without, it is that of any schedule. ``seed`` is one launch of many, whose physical
    pages and first SMs are its own; over ``seeds`` of them DRAM reads are given as a range, which
    is wide where the working set just fits the L2. ``warm``: the L2 starts as the same call left
    it, else empty. ``log`` (an engines.l2_log.Log) gets what thread
    blocks do and when, as l2.simulate has it. Parts that are not computed are None.
    Raises InputError when the tiles do not fit, a name is not known or a listed order is none.

    >>> from hbmeter.hwprofiles import load
    >>> from hbmeter.simulator import Attention, Tiles, traffic
    >>> point = traffic("flash2", Attention(heads=8, seq=1024), load("h200"), Tiles(128, 64))
    >>> point["sm"]["read_bytes"], point["dram"]["read_bytes"]
    (142606336, 25165824)
    """
    _check_launch(gpu, engine, blocks_per_sm, seed, seeds)
    tiles = tiles or blocks.choose_tiles(schedule, problem, gpu)
    candidate = blocks.fitting_candidate(schedule, problem, tiles, gpu)
    program = candidate.program
    problem = program.problem  # with what the schedule says of it: values that are keys
    order = of_program(order, program)
    asked = blocks_per_sm
    if blocks_per_sm is None:
        blocks_per_sm = max(candidate.occupancy.blocks_per_sm, 1)
    count = scratchpad.count(program)
    result = {
        "gpu": gpu.name,
        "schedule": schedule,
        "problem": describe(problem),
        "tiles": describe_tiles(program),
        "order": str(order),
        "blocks_per_sm": blocks_per_sm,
        "flops": problem.flops,
        "flops_executed": count.flops,
        "smem_bytes_per_block": program.smem_bytes_per_block,
        "footprint_bytes": program.footprint_bytes,
        "sm": {"read_bytes": count.read_bytes, "write_bytes": count.write_bytes,
               "by_tensor": count.by_tensor},
        "l2": None,
        "dram": None,
        "compulsory": {"read_bytes": problem.compulsory_read_bytes,
                       "write_bytes": problem.compulsory_write_bytes},
        "time": _time(candidate, asked, order, times),
    }
    if engine != "scratchpad":
        result |= _beyond_l2(program, gpu, engine, seed, seeds, log, blocks_per_sm=blocks_per_sm,
                             order=order, warm=warm, on_progress=on_progress)
    return result


def _check_launch(gpu: "Profile", engine: str, blocks_per_sm: int | None, seed: int,
                  seeds: int) -> None:
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if blocks_per_sm is not None and not 1 <= blocks_per_sm <= gpu.max_blocks_per_sm:
        raise InputError(f"blocks_per_sm {blocks_per_sm} must be a whole number from 1 to "
                         f"{gpu.max_blocks_per_sm}, the most of {gpu.name}")
    for name, value, least in (("seed", seed, 0), ("seeds", seeds, 1)):
        if not least <= value <= SEEDS_MAX:
            raise InputError(f"{name} {value} must be a whole number from {least} to {SEEDS_MAX:,}")


def _time(candidate: Candidate, asked: int | None, order: Order, times: bool) -> dict[str, Any]:
    """Bound and, with ``times`` and where a model covers the program, predicted time; ``asked``
    are the thread blocks on an SM, else the occupancy's."""
    program, gpu = candidate.program, candidate.gpu
    bound = program_bound(program, gpu) if times else pass_bound(program.problem, gpu)
    found: Any = None
    if times and covers(program):
        kernel = generic(program, gpu)
        residents = asked or [max(m, 1) for m in estimate_residents(program, gpu, kernel)]
        found = predict(program, gpu, kernel, blocks_per_sm=residents, order=order)
        seconds = found.seconds
    elif times and "splits" in schedules.options(program.schedule):
        from .splits import SplitPoint

        found = SplitPoint(candidate, asked or max(candidate.occupancy.blocks_per_sm, 1))
        seconds = found.predicted_s
    return {"bound_s": bound.bound_s, "limiter": bound.limiter,
            "predicted_s": found and seconds, "predicted_limiter": found and found.limiter}


def _beyond_l2(program: Program, gpu: "Profile", engine: str, seed: int, seeds: int, log: Any,
               **options: Any) -> dict[str, Any]:
    """L2 and DRAM of one launch, and DRAM reads over ``seeds``; ``options`` of l2.simulate."""
    from .at_scale import at_scale
    from .engines import l2

    options |= {"unit_bytes": gpu.l2.line_bytes if engine == "l2-line" else None,
                "skip_repeats": engine == "l2",
                **l2_options(program, gpu, generic(program, gpu), options["blocks_per_sm"])}
    if engine == "l2" and log is None:
        program, options["scale"] = at_scale(program, gpu, options["blocks_per_sm"],
                                             options["order"])
    count = l2.simulate(program, gpu, seed=seed, log=log, **options)
    spread = l2.read_spread(program, gpu, seeds, **options) if seeds > 1 else None
    return {
        "l2": {"sectors_read": count.sectors_read, "sectors_written": count.sectors_written,
               "hit_rate": count.hit_rate, "model": count.model, "blocks": count.blocks,
               "blocks_simulated": count.blocks_simulated, "scale": options.get("scale", 1),
               "seed": seed,
               "start": "warm" if options["warm"] else "cold"},
        "dram": {"read_bytes": count.dram_read_bytes, "write_bytes": count.dram_write_bytes,
                 "dirty_bytes_at_end": count.dirty_bytes_at_end, "by_tensor": count.by_tensor,
                 "read_bytes_over_seeds": spread and {"seeds": seeds, "least": spread[0],
                                                      "most": spread[1]}},
    }


def describe_tiles(program: Program) -> dict[str, Any]:
    """Sizes of a program's tiles, and the number of splits and the page size where it has them."""
    tiles, options = program.tiles, schedules.options(program.schedule)
    found: dict[str, Any] = {"br": tiles.br, "bc": tiles.bc, "stages": tiles.stages}
    if "splits" in options:
        found["splits"] = program.phases[0].axes[1].blocks  # none is empty
    if "page" in options:
        found["page"] = tiles.page
    if "kv_order" in options and tiles.kv_order != "forward":
        found["kv_order"] = tiles.kv_order
    return found


def describe(problem: Attention) -> dict[str, Any]:
    """The problem as the command line names it."""
    names = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "value_dim", "dtype",
             "mask")
    found = {name: getattr(problem, name) for name in names} | {"pass": problem.direction}
    return found | ({"dropout": problem.dropout} if problem.dropout else {})


def compared(problem: Attention) -> tuple[str, ...]:
    """What ``compare`` compares: the schedules of the problem's pass, and split_kv for decode: a
    longer cache, and few enough queries to be rows of one tile."""
    names = COMPARED[problem.direction]
    if problem.dropout:  # of the standard ones who drops out has a kernel for it
        names = (f"standard_separate{'_backward' * (problem.direction == 'backward')}", *names)
    few = problem.seq < problem.kv_seq and problem.seq * problem.group <= DECODE_ROWS
    return (*names, "split_kv") if few and problem.direction == "forward" else names


def compare(problem: Attention, gpu: "Profile", *, names: tuple[str, ...] | None = None,
            order: OrderLike = "row", blocks_per_sm: int | None = None, engine: str = "l2",
            times: bool = False,
            on_done: Callable[[str], object] = lambda name: None) -> list[dict[str, Any]]:
    """``traffic`` of several schedules on one problem, each with its least-traffic tiles.

    ``names`` default to ``compared``. They run side by side (the engines hold
    no lock); ``on_done`` gets each name as it ends.

    >>> from hbmeter.hwprofiles import load
    >>> from hbmeter.simulator import Attention, compare
    >>> points = compare(Attention(seq=4096), load("h200"), engine="scratchpad")
    >>> min(points, key=lambda point: point["sm"]["read_bytes"])["schedule"]
    'flash2'
    """
    names = compared(problem) if names is None else names
    names = tuple(name for name in names if schedules.takes(name, problem))
    tiles = {name: blocks.choose_tiles(name, problem, gpu) for name in names}  # or fails at once

    def point(name: str, go_on: Any) -> dict[str, Any]:
        found = traffic(name, problem, gpu, tiles[name], order=order, engine=engine,
                        blocks_per_sm=blocks_per_sm, times=times, on_progress=go_on)
        on_done(name)
        return found

    return list(side_by_side(point, names))
