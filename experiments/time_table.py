"""Recorded times against bounds and predictions: errors, choices of tiles, and limiters.

A point is held out by its hash (grid.py), as for the L2 model: the time model was developed on the
other third. It is *fresh* if it was first measured when the model was finished
(held_out_times.py); those of an earlier list than the last were looked at since and count as
developed on. *Zero-shot* uses nothing measured on the kernel. *Calibrated* multiplies by one factor
a build (kernel, head_dim, dtype, tiles, blocks per SM): measured over predicted on the one small
shape that is timed for it, in the same run for points of held_out_times.py and benchmarks, else in
the tile sweep (tile_sweep.py); the small shapes' own points are then left out.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import mean, median

import numpy as np

from .. import kernels
from ..simulator import schedules
from ..simulator.bounds import program_bound
from ..simulator.engines.heard import side_by_side
from ..simulator.execution import Execution, multiplier_of, multiplies
from ..simulator.occupancy import occupancy
from ..simulator.problem import Attention
from ..simulator.rates import first_clock_s
from ..simulator.tiles import Tiles
from ..simulator.time_model import Prediction, predict
from . import bench, busy_units, held_out_times, records, samples, tile_sweep
from .grid import Point
from .remembered import remembered
from .verify import gpu_profile

MODES = ("zero-shot", "calibrated")
BENCH_CALIBRATES = 2048  # keys of the benchmark's full shape that calibrates its other ones
PARTS = ("developed on", "held out", "fresh")


@dataclass(frozen=True)
class Timed:
    """A recorded point: milliseconds (median), whether it was timed call by call, and blocks per
    SM of each launch as the driver gave them."""

    point: Point
    source: str
    ms: float
    fastest_ms: float
    by_itself: bool
    blocks_per_sm: tuple[int, ...]
    gpu: object
    attributes: dict = field(default_factory=dict, repr=False, compare=False)
    fresh: bool = False
    _predicted: list = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def part(self) -> str:
        """Which of PARTS it belongs to."""
        if self.fresh:
            return PARTS[2]
        return PARTS[0 if self.family.startswith("held") else self.point.held_out]

    @cached_property
    def program(self):
        """The schedule's program for this point."""
        schedule = kernels.get(self.point.kernel).schedule
        return schedules.build(schedule, self.point.problem, self.point.tiles)

    @property
    def prediction(self) -> Prediction:
        """Zero-shot."""
        if not self._predicted:  # (before Python 3.12 cached_property has one lock for all points)
            self._predicted.append(self._predict())
        return self._predicted[0]

    @cached_property
    def sustained(self) -> Prediction:
        """The same, under sustained load."""
        return self._predict(sustained=True)

    def _predict(self, **clocks) -> Prediction:
        return predict(self.program, self.gpu, executions(self.point),
                       blocks_per_sm=self.blocks_per_sm, order=issue_order(self.point),
                       count_dram=True, remember=remembered, **clocks)

    @property
    def bound(self):
        """What no run of this program beats."""
        multiplier = multiplier_of(executions(self.point))
        return program_bound(self.program, self.gpu, multiplier)

    @property
    def build(self) -> tuple:
        """What a calibration factor belongs to: a kernel, compiled for tiles, at an occupancy of
        the launches that multiply."""
        phases = zip(self.program.phases, self.blocks_per_sm, strict=True)
        residents = tuple(m for phase, m in phases if multiplies(self.program, phase))
        return (*self.compiled, residents, self.family)

    @property
    def family(self) -> str:
        """Runs that one calibrating run stands for: a benchmark keeps the GPU busy for minutes, and
        its clocks lower than the others'."""
        if self.source.startswith("held"):
            return self.source
        return "bench" if self.source.startswith("bench") else "tiles"

    @property
    def calibrates(self) -> bool:
        """Whether it is the run that calibrated predictions of its build know."""
        problem = self.point.problem
        if self.family == "bench":
            return problem.seq == BENCH_CALIBRATES and problem.mask == "full"
        if self.family.startswith("held"):
            return held_out_times.calibrates(self.point)
        return self.point in tile_sweep.calibrators() and not self.by_itself

    @property
    def compiled(self) -> tuple:
        """What is compiled once: kernel, widths, dtype and tiles."""
        problem = self.point.problem
        return (self.point.kernel, problem.head_dim, problem.value_dim, problem.dtype,
                self.point.tiles)

    def factor(self) -> float:
        """Measured over predicted, without launching."""
        work = self._as_timed(lambda found: sum(phase.seconds for phase in found.phases))
        launching = self.seconds() - work
        return (self.ms * 1e-3 - launching) / work

    def seconds(self, factor: float | None = None, known: "Timed | None" = None) -> float:
        """The prediction as this point was timed; with a ``factor`` calibrated on a ``known``
        run."""
        def found(prediction):
            if known is not None:
                prediction = prediction.calibrated(factor, known.prediction)
            return prediction.seconds + prediction.first_launch_s * self.by_itself

        return self._as_timed(found)

    def _as_timed(self, seconds_of) -> float:
        """``seconds_of`` a prediction, at the clocks that the samples of this point met."""
        first = seconds_of(self.prediction)
        series = samples.of(self.family, self.by_itself, first)
        holds_s = first_clock_s(self.gpu)
        if holds_s is None or samples.end_s(series, first) <= holds_s:
            return first
        return samples.median_s(series, first, seconds_of(self.sustained), holds_s)


def issue_order(point: Point) -> str:
    """The order in which the point's kernel issues its tiles."""
    return kernels.get(point.kernel).issue_order(point.order)


def executions(point: Point) -> tuple[Execution, ...] | None:
    """What the point's kernel declares, or None."""
    return kernels.get(point.kernel).executions(point.problem, point.tiles)


def timed() -> list[Timed]:
    """Every recorded point of a kernel that declares its executions, of a GPU with a profile."""
    found = [
        _timed(Point.of(data), f"verify {record.name}", data, True, profile)
        for record in records.load_all() if (profile := gpu_profile(record))
        for data in record.points
    ]
    for kind, documents in (("tiles", tile_sweep.recorded()),
                            ("held out", held_out_times.recorded())):
        for record in documents:
            profile = _profile(record)
            fresh = kind == "held out" and held_out_times.is_fresh(record)
            found += [replace(_timed(Point.of(data), f"{kind} {record['name']}", data, False,
                                     profile), fresh=fresh)
                      for data in record["points"]]
    found += _bench(found)
    return [x for x in found if executions(x.point) is not None]


def _bench(others: list[Timed]) -> list[Timed]:
    """The points of recorded benchmarks whose build another record has the registers of."""
    built = {x.compiled: x.attributes for x in others}
    found = []
    for record in bench.recorded():
        profile = _profile(record)
        for data in record["points"]:
            problem = Attention(**data["problem"])
            for name in bench.OURS[problem.direction]:
                kernel, entry = kernels.get(name), data["contenders"].get(name, {})
                if "times_ms" not in entry:
                    continue
                sizes = entry.get("tiles")  # older records have the default ones, unsaid
                tiles = Tiles(**sizes) if sizes else kernel.tile_choices(problem)[0]
                point, times = Point(name, problem, tiles), entry["times_ms"]
                x = Timed(point, f"bench {record['name']}", median(times), min(times), False, (1,),
                          profile)
                if x.compiled in built:
                    found.append(replace(x, blocks_per_sm=_residents(x, built[x.compiled])))
    return found


def _residents(x: Timed, attributes: dict) -> tuple[int, ...]:
    """Blocks per SM of each launch, whose threads depend on more than the build does."""
    launches = kernels.get(x.point.kernel).launches(x.point.problem, x.point.tiles)
    return tuple(max(occupancy(
        x.gpu, launch.threads, attributes[launch.entry]["registers"],
        launch.shared_bytes + attributes[launch.entry]["static_shared_bytes"]).blocks_per_sm, 1)
        for launch in launches)


def _profile(record: dict):
    return gpu_profile(records.Record(record["name"], record["provenance"], record["points"]))


def _timed(point: Point, source: str, data: dict, by_itself: bool, gpu) -> Timed:
    resident = tuple(max(x["blocks_per_sm"], 1) for x in data["attributes"].values())
    times = data["times_ms"]
    return Timed(point, source, median(times), min(times), by_itself, resident, gpu,
                 data["attributes"])


def rows(points: list[Timed], *, bounds: bool = True) -> list[dict]:
    """One flat dict a point: measured, bound (None without ``bounds``, which take longest),
    predicted in both modes, and their errors.

    Calibrating points have no calibrated prediction, nor has a build without one.
    """
    _predict(points)
    factors = {x.build: (x.factor(), x) for x in points if x.calibrates}
    found = []
    for x in points:
        tiles, zero = x.point.tiles, x.seconds()
        bound = x.bound if bounds else None
        row = {
            "source": x.source, "kernel": x.point.kernel, "shape": x.point.shape,
            "order": x.point.order, "br": tiles.br, "bc": tiles.bc, "stages": tiles.stages,
            "blocks_per_sm": x.blocks_per_sm, "part": x.part,
            "held_out": x.part != PARTS[0],
            "measured_s": x.ms * 1e-3, "fastest_s": x.fastest_ms * 1e-3,
            "bound_s": bound and bound.bound_s, "bound_by": bound and bound.limiter,
            "predicted_s": zero,
            "limiter": x.prediction.limiter, "error": zero * 1e3 / x.ms - 1,
            "calibrated_s": None, "calibrated_error": None,
        }
        if x.build in factors and not x.calibrates:
            seconds = x.seconds(*factors[x.build])
            row |= {"calibrated_s": seconds, "calibrated_error": seconds * 1e3 / x.ms - 1}
        found.append(row)
    return found


def _predict(points: list[Timed]) -> None:
    """Their predictions, for which the L2 reader takes threads; what several runs timed, once."""
    alike = defaultdict(list)
    for x in points:
        alike[x.point, x.blocks_per_sm, id(x.gpu)].append(x)
    list(side_by_side(lambda runs, _: runs[0].prediction, alike.values()))
    for first, *others in alike.values():
        for x in others:
            x._predicted.append(first.prediction)


def judged(points: list[Timed]) -> list[Timed]:
    """Those that the model was not developed on, and the runs that calibrate their predictions."""
    return [x for x in points if x.part != PARTS[0] or x.calibrates]


def summary(table: list[dict]) -> list[dict]:
    """For each of PARTS, each kernel and all: mean, bias and worst error."""
    found = []
    for mode, key in zip(MODES, ("error", "calibrated_error"), strict=True):
        for name in PARTS:
            part = [r for r in table if r["part"] == name and r[key] is not None]
            if not part:
                continue
            for kernel in (*dict.fromkeys(r["kernel"] for r in part), "all"):
                errors = [r[key] for r in part if kernel in (r["kernel"], "all")]
                found.append({
                    "mode": mode, "points": name,
                    "kernel": kernel, "count": len(errors), "mean": mean(map(abs, errors)),
                    "bias": mean(errors), "worst": max(map(abs, errors)),
                })
    return found


def choices(table: list[dict]) -> list[dict]:
    """Of each shape whose tiles were all measured: how much slower the predicted best runs than
    the measured best, in both modes, and the rank correlation over tiles (zero-shot)."""
    shapes = defaultdict(list)
    for row in table:
        if row["source"].startswith("tiles"):
            shapes[row["kernel"], row["shape"], row["order"]].append(row)
    found = []
    for (kernel, shape, order), rows_of_shape in shapes.items():
        measured = [r["measured_s"] for r in rows_of_shape]
        line = {"kernel": kernel, "shape": shape, "order": order, "tiles": len(rows_of_shape),
                "rank_correlation": _rank_correlation(
                    measured, [r["predicted_s"] for r in rows_of_shape])}
        for mode, key in zip(MODES, ("predicted_s", "calibrated_s"), strict=True):
            known = [r for r in rows_of_shape if r[key] is not None]
            best = min(known, key=lambda r: r[key])["measured_s"] if known else None
            line[mode] = best and best / min(measured) - 1
        found.append(line)
    return found


def _rank_correlation(a, b) -> float:
    """Spearman's, without ties."""
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def beaten(table: list[dict], slack: float = 0.02) -> list[dict]:
    """Rows whose fastest run was faster than the bound by more than ``slack``: none, or the bound
    is wrong."""
    return [row for row in table if row["fastest_s"] < row["bound_s"] * (1 - slack)]


# ---- Limiters --------------------------------------------------------------------------------

SAME_UNIT = {"tensor": "matmul", "fma": "issue"}  # counters' names as predictions have them


def limiters() -> list[dict]:
    """Of every point whose units were read: the busiest unit predicted and measured.

    FMA kernels multiply with the instructions that they issue: one unit.
    """
    found = []
    for record in busy_units.recorded():
        profile = _profile(record)
        for data in record["points"]:
            point = Point.of(data)
            resident = _resident(point, profile)
            prediction = predict(
                schedules.build(kernels.get(point.kernel).schedule, point.problem, point.tiles),
                profile, executions(point), blocks_per_sm=resident, order=issue_order(point))
            unit, shares = busy_units.busiest(data["launches"])
            busy = defaultdict(float)
            for phase in prediction.phases:
                for name, seconds in phase.unit_seconds.items():
                    busy[name] += seconds
            if multiplier_of(executions(point)) == "fma":
                busy["matmul"] = 0.0
            predicted = max(busy, key=busy.get)
            found.append({
                "kernel": point.kernel, "shape": point.shape, "held_out": point.held_out,
                "br": point.tiles.br, "bc": point.tiles.bc, "predicted": predicted,
                "measured": SAME_UNIT.get(unit, unit), "per_cent": shares[unit],
                "predicted_per_cent": max(
                    share for name, share in shares.items()
                    if SAME_UNIT.get(name, name) == predicted),
            })
    return found


def _resident(point: Point, profile) -> list[int]:
    """Blocks per SM of each launch, from a record that has the build, else from its shared
    memory and estimated registers."""
    known = _recorded_residents().get(_build(point))
    if known is not None:
        return known
    from ..simulator.blocks import Candidate

    schedule = kernels.get(point.kernel).schedule
    program = schedules.build(schedule, point.problem, point.tiles)
    return [max(Candidate(program, profile).occupancy.blocks_per_sm, 1)] * len(program.phases)


def _build(point: Point) -> tuple:
    return point.kernel, point.problem.head_dim, point.problem.dtype, point.tiles


@cache
def _recorded_residents() -> dict[tuple, list[int]]:
    """Of each build, as the first record of it says."""
    found: dict[tuple, list[int]] = {}
    of_sweeps = (data for record in tile_sweep.recorded() for data in record["points"])
    of_verify = (data for record in records.load_all() for data in record.points
                 if data.get("blocks_per_sm") is None)
    for data in (*of_sweeps, *of_verify):
        residents = [max(x["blocks_per_sm"], 1) for x in data["attributes"].values()]
        found.setdefault(_build(Point.of(data)), residents)
    return found
