"""Recorded measurements against predictions: one row a point, a summary, and the bars to pass.

Words: *counted* bytes come from kernels built with counting on, *measured* ones from hardware
counters, *predicted* ones from the simulator. What is missing is None.
"""

from collections import Counter
from collections.abc import Iterable
from math import hypot
from statistics import mean, median

from .. import kernels
from ..hwprofiles import ProfileError, load
from ..simulator import schedules
from ..simulator.engines import scratchpad
from ..simulator.engines.heard import side_by_side
from ..simulator.execution import generic
from ..simulator.rounding import rounded_error
from ..simulator.time_model import l2_options
from . import grid_fresh, grid_newer, ncu
from .commands.check import LIMITS
from .grid import Point
from .ncu_csv import Profiled
from .records import Record
from .remembered import remembered

SM_READ_LIMIT = 1e-3  # |error| of SM reads on points that do not spill
STEADY = 0.05  # range of a counter over its repeats, of the median
SEEDS = 5  # launches that are predicted where a counter is not steady in other memory
BOUNDARIES = ("sm_read", "sm_write", "l2_read_sectors", "dram_read", "dram_write")


def gpu_profile(record: Record, name: str | None = None):
    """The profile of the record's GPU (or ``name``); None when hbmeter has none of it."""
    if name is not None:
        return load(name)
    try:
        return _of_unit(load(record.gpu), record.provenance.get("sm_partitions"))
    except ProfileError:
        return None


def _of_unit(profile, digits: str | None):
    """The profile with a record's own ``sm_partitions``. Its GPCs stand in the same order, but may
    begin elsewhere: where most SMs of each are on one side."""
    gpcs = profile.l2.sm_gpcs
    if digits is None or len(digits) != profile.sm_count:
        return profile
    if gpcs is not None:
        def on_one_side(order: str) -> int:
            pairs = Counter(zip(order, digits, strict=True))
            return sum(max(pairs[gpc, side] for side in set(digits)) for gpc in set(order))

        gpcs = max((gpcs[n:] + gpcs[:n] for n in range(len(gpcs))), key=on_one_side)
    l2 = profile.l2.model_copy(update={"sm_partitions": digits, "sm_gpcs": gpcs})
    return profile.model_copy(update={"l2": l2})


def comparison(record: Record, profile=None, on_done=lambda: None) -> list[dict]:
    """One flat dict a point: what was counted, predicted and measured (bytes, sectors, ms).

    ``profile`` of the GPU defaults to hbmeter's own; without any, L2 and DRAM are not predicted.
    ``on_done`` is called when a point is done.
    """
    profile = profile or gpu_profile(record)
    grid_fresh.points(), grid_newer.points()  # made here once: by each thread otherwise

    def row(data, go_on):
        return _row(record, data, profile, go_on)

    found = []
    for one in side_by_side(row, record.points):
        found.append(one)
        on_done()
    return found


def _row(record: Record, data: dict, profile, go_on) -> dict:
    point = Point.of(data)
    attributes, elsewhere = data["attributes"].values(), record.provenance.get("memory")
    blocks_per_sm = [max(entry["blocks_per_sm"], 1) for entry in attributes]
    row = {
        "gpu": record.gpu, "record": record.name,
        "kernel": point.kernel, "schedule": kernels.get(point.kernel).schedule,
        "shape": point.shape, "problem": data["problem"], "tiles": data["tiles"],
        "order": point.order, "blocks_per_sm": blocks_per_sm, "held_out": point.held_out,
        "fresh": point.fresh, "newer": point.newer,
        "registers": max(entry["registers"] for entry in attributes),
        "local_bytes": max(entry["local_bytes"] for entry in attributes),
        "compulsory_read": point.problem.compulsory_read_bytes,
        "compulsory_write": point.problem.compulsory_write_bytes,
    }
    row |= _counted(data["counted"])
    row |= _measured(data["counters"], point.problem.compulsory_write_bytes)
    row |= _results(point, data)
    row |= _predicted(point, row["schedule"], profile if data["counters"] else None, blocks_per_sm,
                      1 if steady(row, "dram_read") or elsewhere is None else SEEDS, go_on)
    row["counts_equal"] = row.pop("predicted_by_tensor") == data["counted"]
    row["sm_read_filled"] = kernels.get(point.kernel).filled_bytes(point.problem, point.tiles)
    row["dram_write_background"] = _background(profile, row["duration_ns_measured"])
    row["spills"] = bool(row["local_bytes"] or row["local_instructions_measured"])
    return row | _errors(row)


def _counted(counted: dict) -> dict:
    return {f"sm_{way}_counted": sum(tensor[f"{way}_bytes"] for tensor in counted.values())
            for way in ("read", "write")}


def _predicted(point: Point, schedule: str, profile, blocks_per_sm: list[int], seeds: int,
               go_on) -> dict:
    """Predictions with the thread blocks per SM that the driver reported for each launch, and
    the cache emptied before each, as the profiler does; L2 and DRAM only with a profile, the first
    of so many ``seeds``, and the range of DRAM reads over all."""
    program = schedules.build(schedule, point.problem, point.tiles)
    count = scratchpad.count(program)
    found = {
        "sm_read_predicted": count.read_bytes, "sm_write_predicted": count.write_bytes,
        "predicted_by_tensor": count.by_tensor, "l2_model": None,
        "l2_read_sectors_predicted": None, "l2_write_sectors_predicted": None,
        "dram_read_predicted": None, "dram_write_predicted": None, "dram_dirty_predicted": None,
        "dram_reads_predicted": None,
    }
    if profile is None:
        return found
    left = profile.measured.get("profiler_dirty")
    options = {"blocks_per_sm": blocks_per_sm, "cold_phases": True,
               "order": kernels.get(point.kernel).issue_order(point.order),
               "dirty_before_bytes": left.value if left else 0,
               **_running(point, program, profile, blocks_per_sm)}
    return found | remembered(
        lambda: _beyond_l2(program, profile, seeds, options, go_on),
        problem=point.problem, tiles=point.tiles, schedule=schedule, seeds=seeds,
        profile=profile.model_dump_json(), options=sorted(options.items()))


def _beyond_l2(program, profile, seeds: int, options: dict, go_on) -> dict:
    from ..simulator.engines import l2

    far, *others = (l2.simulate(program, profile, seed=seed, on_progress=go_on, **options)
                    for seed in range(seeds))
    return {
        "l2_model": far.model, "l2_read_sectors_predicted": far.sectors_read,
        "l2_write_sectors_predicted": far.sectors_written,
        "dram_read_predicted": far.dram_read_bytes, "dram_write_predicted": far.dram_write_bytes,
        "dram_dirty_predicted": far.dirty_bytes_at_end,
        "dram_reads_predicted": [one.dram_read_bytes for one in (far, *others)],
    }


def _running(point: Point, program, profile, blocks_per_sm) -> dict:
    """What the L2 reader asks of a kernel: how it runs, or a usual one where it does not say."""
    how = kernels.get(point.kernel).executions(point.problem, point.tiles)
    return l2_options(program, profile, how or generic(program, profile), blocks_per_sm)


def _measured(counters: list, compulsory_write: int) -> dict:
    """Medians over the repeats of sums over the launches, and the counters' own spreads of DRAM
    bytes: their ranges, in parts of what ``_errors`` divides by."""
    repeats = [[Profiled(x["kernel"], x["metrics"]) for x in launches] for launches in counters]
    names = {
        "sm_read": ncu.SM_READ, "sm_write": ncu.SM_WRITE,
        "l2_read_sectors": ncu.L2_READ_SECTORS, "l2_write_sectors": ncu.L2_WRITE_SECTORS,
        "dram_read": ncu.DRAM_READ, "dram_write": ncu.DRAM_WRITE,
        "local_instructions": ncu.LOCAL, "duration_ns": ncu.DURATION,
    }
    found = {f"{name}_measured": _median(ncu.total(launches, metric) for launches in repeats)
             for name, metric in names.items()}
    found["l2_hit_rate_measured"] = _median(ncu.hit_rate(launches) for launches in repeats)
    for name, least in (("dram_read", 0), ("dram_write", compulsory_write)):
        values = _present(ncu.total(launches, names[name]) for launches in repeats)
        base = max(found[f"{name}_measured"] or 0, least)
        several = len(values) > 1 and base
        found[f"{name}_spread"] = (max(values) - min(values)) / base if several else None
    return found


def steady(row: dict, boundary: str) -> bool:
    """Whether the counter of a boundary is the same in all repeats, to STEADY of it."""
    return (row.get(f"{boundary}_spread") or 0) <= STEADY


def _background(profile, duration_ns: float | None) -> float:
    """DRAM bytes that something else than SMs writes in so long."""
    rate = profile and profile.measured.get("dram_background_write")
    return rate.value * duration_ns * 1e-9 if rate and duration_ns else 0.0


def _present(values: Iterable) -> list:
    return [value for value in values if value is not None]


def _median(values: Iterable):
    present = _present(values)
    return median(present) if present else None


def _results(point: Point, data: dict) -> dict:
    error = data["error"]
    relative = [error[name]["relative"] for name in point.results]
    return {
        "time_ms": _median(data["times_ms"]), "times_ms": data["times_ms"],
        "relative_error": None if None in relative else max(relative),
        "relative_error_limit": _error_limit(point),
        "written": all(tensor["written"] for tensor in error.values()),
    }


def _error_limit(point: Point) -> float:
    """The dtype's limit, and beside it what a kernel adds that rounds its output more than once."""
    dtype = point.problem.dtype
    times = kernels.get(point.kernel).roundings(point.problem, point.tiles)
    return hypot(LIMITS[dtype], rounded_error(dtype, times) if times > 1 else 0.0)


def _errors(row: dict) -> dict:
    """Relative errors of the predictions, signed; of DRAM writes in parts of what was measured or
    of O, whichever is more (a small O stays in L2 and leaves nothing to divide by). Zeros that fill
    a box are in the counter of SM reads, though in no schedule, and what the GPU writes by itself
    is in that of DRAM writes."""
    found = {}
    beside = {"sm_read": row["sm_read_filled"], "dram_write": row["dram_write_background"]}
    for name in BOUNDARIES:
        predicted, measured = row[f"{name}_predicted"], row[f"{name}_measured"]
        base = measured
        if name == "dram_write" and measured is not None:
            base = max(measured, row["compulsory_write"])
        known = predicted is not None and base
        if known:
            predicted += beside.get(name, 0)
        found[f"{name}_error"] = (predicted - measured) / base if known else None
    return found


# ---- Summary and bars -------------------------------------------------------------------------


def summary(rows: list[dict]) -> list[dict]:
    """For each kernel, for all ("all"), for those held out by hash ("held out") and for those that
    were first measured when the L2 model was finished ("fresh", and "newer" kernels; those of them
    whose counter is "steady"), each boundary: points and median, mean and worst absolute relative
    error of the predictions; points that spill are left out and counted."""
    groups = {
        kernel: [row for row in rows if row["kernel"] == kernel]
        for kernel in dict.fromkeys(row["kernel"] for row in rows)
    } | {"all": rows, "held out": [row for row in rows if row["held_out"]]}
    for name in ("fresh", "newer"):
        if found := [row for row in rows if row[name]]:
            groups[name] = groups[f"{name}, steady"] = found
    found = []
    for kernel, of_kernel in groups.items():
        kept = [row for row in of_kernel if not row["spills"]]
        for boundary in BOUNDARIES:
            errors = [abs(e) for e in _present(
                row[f"{boundary}_error"] for row in kept
                if steady(row, boundary) or not kernel.endswith("steady"))]
            found.append({
                "kernel": kernel, "boundary": boundary, "points": len(errors),
                "median": median(errors) if errors else None,
                "mean": mean(errors) if errors else None,
                "worst": max(errors, default=None),
                "spilling_left_out": len(of_kernel) - len(kept),
            })
    return found


def failures(rows: list[dict]) -> list[str]:
    """The bars that points do not pass, in words; empty when all pass.

    Bars: results written and within the dtype's error limit (and what rounding them more than once
    adds); counted bytes equal to the schedule's for every tensor; SM reads within 0.1% of the
    counter on points that do not spill. DRAM has none: its error is reported.
    """
    found = []
    for row in rows:
        tiles = row["tiles"]
        where = f"{row['kernel']} {row['shape']} {tiles['br']}×{tiles['bc']} {row['order']}"
        error, limit = row["relative_error"], row["relative_error_limit"]
        if not row["written"]:
            found.append(f"{where}: part of an output was not written")
        if error is None or not error <= limit:
            got = "not finite" if error is None else f"{error:.3g}"
            found.append(f"{where}: error against float64 is {got}, limit {limit:g}")
        if not row["counts_equal"]:
            found.append(
                f"{where}: counted {row['sm_read_counted']:,} B read and "
                f"{row['sm_write_counted']:,} B written, the schedule says "
                f"{row['sm_read_predicted']:,} and {row['sm_write_predicted']:,} "
                "(in all; some tensor differs)"
            )
        sm_error = row["sm_read_error"]
        if sm_error is not None and abs(sm_error) > SM_READ_LIMIT and not row["spills"]:
            found.append(f"{where}: SM reads predicted {sm_error:+.2%} off the counter, limit "
                         f"{SM_READ_LIMIT:.1%}")
    return found


# ---- Text -------------------------------------------------------------------------------------


def unsteady_text(rows: list[dict]) -> str:
    """How far predictions of several launches cover what counters that are not steady read; empty
    where all are."""
    rows = [row for row in rows if len(row["dram_reads_predicted"] or ()) > 1]
    if not rows:
        return ""
    within = [row for row in rows
              if min(row["dram_reads_predicted"]) <= row["dram_read_measured"]
              <= max(row["dram_reads_predicted"])]
    off = [abs(median(row["dram_reads_predicted"]) / row["dram_read_measured"] - 1) for row in rows]
    points = f"{len(rows)} point{'s' * (len(rows) > 1)}"
    return (f"DRAM reads that differ by more than {STEADY:.0%} between repeats in other memory: "
            f"{points}; the measured median is in the range of {SEEDS} predicted launches at "
            f"{len(within)}, theirs is {mean(off):.1%} off on average")


def table_text(rows: list[dict]) -> str:
    """The rows as text."""
    from .output import si, table

    header = ["kernel", "batch×heads seq d dtype mask", "Br×Bc", "order", "SM read counted",
              "predicted", "measured", "error", "SM write pred.", "measured",
              "L2 sectors pred.", "measured", "DRAM read pred.", "measured", "error",
              "DRAM write pred.", "measured", "time ms", "O error"]
    cells = [
        [row["kernel"] + "*" * row["spills"], row["shape"],
         f"{row['tiles']['br']}×{row['tiles']['bc']}", row["order"],
         si(row["sm_read_counted"]), si(row["sm_read_predicted"]), si(row["sm_read_measured"]),
         percent(row["sm_read_error"], 3),
         si(row["sm_write_predicted"]), si(row["sm_write_measured"]),
         si(row["l2_read_sectors_predicted"], ""), si(row["l2_read_sectors_measured"], ""),
         si(row["dram_read_predicted"]), si(row["dram_read_measured"]),
         percent(row["dram_read_error"], 1),
         si(row["dram_write_predicted"]), si(row["dram_write_measured"]),
         "–" if row["time_ms"] is None else f"{row['time_ms']:.3f}",
         "–" if row["relative_error"] is None else f"{row['relative_error']:.1e}"]
        for row in rows
    ]
    return table(header, cells, left=4)


def percent(value: float | None, digits: int) -> str:
    """A signed percentage; – for None."""
    return "–" if value is None else f"{100 * value:+.{digits}f}%"


def summary_text(rows: list[dict]) -> str:
    """The summary as text."""
    from .output import table

    def plain(value):
        return "–" if value is None else f"{100 * value:.3f}%"

    cells = [
        [line["kernel"], line["boundary"].replace("_", " ").replace("sm", "SM").replace("l2", "L2")
         .replace("dram", "DRAM"), line["points"], plain(line["median"]), plain(line["mean"]),
         plain(line["worst"])]
        for line in summary(rows)
    ]
    return table(["kernel", "boundary", "points", "median |error|", "mean", "worst"], cells, left=2)
