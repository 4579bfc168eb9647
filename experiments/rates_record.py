"""Rates and latencies of a GPU read back: facts derived from a record, and which of them stand.

A record holds what was run, raw: {"provenance": {…}, "probes": {name: [points]}}, points as in
``kernels.probes.bench``. Facts are derived by the probes' own launchers; nothing derived is stored.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from math import log2
from pathlib import Path
from statistics import median

from ..kernels import probes
from ..kernels.probes.bench import Fact
from ..simulator.errors import InputError
from ..simulator.occupancy import occupancy
from . import records
from .files import read_json

FORMAT = "rates 1"
WHAT = "a record of hbmeter calibrate"
SLACK = 0.01  # above a peak: of clocks and timers
PER_CLOCK = "flop_per_clock_per_sm"
POINT_KEYS = {"series", "at", "work", "unit", "samples"}


@dataclass(frozen=True)
class Record:
    """One file: its name, where it comes from, raw points by probe."""

    name: str
    provenance: dict
    probes: dict[str, list[dict]]

    @property
    def gpu(self) -> str:
        """The GPU's name as its driver gives it."""
        return self.provenance["gpu"]

    @cached_property
    def facts(self) -> list[Fact]:
        """What the points say, by this version of the probes."""
        return [fact for name, points in self.probes.items() if name in probes.names()
                for fact in probes.get(name).facts(points)]


def recognises(path) -> bool:
    """Whether a file says that it is a record of this kind, whole or not."""
    try:
        return str(read_json(path, WHAT)["provenance"]["format"]).startswith("rates")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load(path) -> Record:
    """A record file. Raises InputError for a file that is none, OSError when it cannot be read."""
    document = read_json(path, WHAT)
    try:
        return record(Path(path).stem, document)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path} is not {WHAT}: {error!r}") from error


def record(name: str, document: dict) -> Record:
    """A document as measured or read; raises ValueError, KeyError or TypeError for another."""
    found = Record(name, document["provenance"], document["probes"])
    if found.provenance["format"] != FORMAT:
        raise ValueError(f"format {found.provenance['format']!r}, this hbmeter reads {FORMAT!r}")
    for points in found.probes.values():
        for point in points:
            if missing := POINT_KEYS - {*point}:
                raise ValueError(f"a point lacks {', '.join(sorted(missing))}")
            if not point["samples"]:
                raise ValueError(f"a point of {point['series']} has no samples")
    if not found.gpu or not found.facts:
        raise ValueError("it names no GPU or holds no measurement")
    return found


def load_all() -> list[Record]:
    """Every record of this kind in ``recorded/``, by name; none is an empty list."""
    return [load(path) for path in sorted(records.FOLDER.glob(f"*{records.RATES_SUFFIX}"))]


def text(document: dict) -> str:
    """A record as JSON, one line a point, so that versions can be compared."""
    parts = [
        json.dumps(name) + ": [\n   "
        + ",\n   ".join(json.dumps(point, allow_nan=False) for point in points) + "\n  ]"
        for name, points in document["probes"].items() if points
    ]
    provenance = json.dumps(document["provenance"], indent=1, ensure_ascii=False)
    return f'{{"provenance": {provenance},\n "probes": {{\n  ' + ",\n  ".join(parts) + "\n }\n}\n"


def occupancy_misses(record: Record, gpu) -> tuple[int, int]:
    """(Launches whose blocks per SM ``gpu``'s rules do not give as the runtime said, launches)."""
    asked = record.probes.get("occupancy", [])
    misses = [
        point for point in asked
        if occupancy(gpu, point["at"]["threads"], point["at"]["registers"],
                     point["at"]["shared_bytes"]).blocks_per_sm
        != point["samples"][0]["blocks_per_sm"]
    ]
    return len(misses), len(asked)


# ---- Against the datasheet ----------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A fact beside the profile: the most that is possible (None: not known), what the datasheet
    says of the same thing, and why the fact is refused (None: it stands)."""

    fact: Fact
    most: float | None
    datasheet: float | None
    refusal: str | None


def judge(facts: list[Fact], gpu=None) -> list[Judged]:
    """Each fact beside profile ``gpu``; beside nothing without one. What passes a peak was not
    measured but mistaken: work left out by a compiler, or counted twice."""
    return [_judged(fact, gpu) for fact in facts]


def _judged(fact: Fact, gpu) -> Judged:
    most = limit(fact, gpu) if gpu else None
    datasheet = _value(gpu, fact.peak) if gpu and fact.unit != PER_CLOCK else None
    refusal = None
    if not all(0 < value < float("inf") for value in fact.values):
        refusal = "not a positive number: the run was cut short or its clock stood still"
    elif most is not None and fact.value > most * (1 + SLACK):
        refusal = (f"{fact.value / most:.3g} times the most that {gpu.name} can do "
                   f"({most:.4g} {fact.unit}): work was left out or counted twice")
    return Judged(fact, most, datasheet, refusal)


def limit(fact: Fact, gpu) -> float | None:
    """The most that a GPU can do of what a fact measures, at the clock it was measured at.

    A datasheet's FLOP/s hold for a clock that it does not always name; what an SM does a clock is
    a power of two, so the power of two nearest to datasheet / SMs / boost clock is taken.
    """
    value = _value(gpu, fact.peak)
    if value is None or not fact.peak.startswith("flops."):
        return value
    a_clock = 2 ** round(log2(value / gpu.sm_count / gpu.boost_clock_hz))
    if fact.unit == PER_CLOCK:
        return a_clock
    return a_clock * gpu.sm_count * median(fact.clock_hz)


def _value(gpu, key: str | None) -> float | None:
    """A profile's value by its dotted key."""
    for part in key.split(".") if key else ():
        gpu = getattr(gpu, part)
    return gpu if key else None
