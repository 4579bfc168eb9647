"""What several claims read of the recorded measurements."""

from statistics import median

from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from .. import ncu, records
from ..ncu_csv import Profiled


def problem_of(data: dict) -> Attention:
    """The problem of a recorded point."""
    shape = dict(data["problem"])
    if "pass" in shape:
        shape["direction"] = shape.pop("pass")
    return Attention(**shape)


def tiles_of(data: dict) -> Tiles:
    """The tiles of a recorded point."""
    tiles = data["tiles"]
    return Tiles(tiles["br"], tiles["bc"], tiles["stages"])


def points() -> list[dict]:
    """Every recorded point of hbmeter verify, of all records."""
    return [point for record in records.load_all() for point in record.points]


def counter(data: dict, metric: str) -> float | None:
    """Median over the repeats of a counter's sum over the launches of a recorded point; None when
    the counter is missing."""
    sums = [ncu.total([Profiled(x["kernel"], x["metrics"]) for x in launches], metric)
            for launches in data["counters"]]
    sums = [value for value in sums if value is not None]
    return median(sums) if sums else None


def median_s(entry: dict) -> float | None:
    """Median seconds of a contender or point; None when it was not timed."""
    return median(entry["times_ms"]) / 1e3 if "times_ms" in entry else None
