"""At which clocks recorded times were sampled: how long calls had run since a rest before each.

A GPU keeps the clock of its first milliseconds for some 50 ms (rates.first_clock_s), then that of a
sustained load.
"""

from statistics import mean, median

from ..simulator.time_model import seconds_since_rest
from . import held_out_times, measure, tile_sweep

Samples = list[tuple[int, int]]  # (calls before it since a rest, its calls) of each
PREPARING = 2  # calls before the samples of tile_sweep.py: one to load, one to size a batch


def of(family: str, by_itself: bool, call_s: float) -> Samples:
    """Those of a point whose call takes so long: of hbmeter verify (``by_itself``), of a benchmark,
    whose contenders take turns ("bench"), or of tile_sweep.py's and held_out_times.py's."""
    if by_itself:
        return [(measure.WARM_UP + number, 1) for number in range(measure.SAMPLES)]
    if family == "bench":
        return [(0, 1)]  # the clock is what the contender before leaves: taken as rested
    calls = max(round(tile_sweep.BATCH_MS * 1e-3 / call_s), 1)
    return [(PREPARING + number * calls, calls) for number in range(held_out_times.SAMPLES)]


def end_s(samples: Samples, call_s: float) -> float:
    """Seconds after the rest when the last one ends."""
    before, calls = samples[-1]
    return (before + calls) * call_s


def median_s(samples: Samples, first_s: float, sustained_s: float, holds_s: float) -> float:
    """The median sample's seconds of a call, which takes ``first_s`` at the first clock, for
    ``holds_s`` after the rest, and ``sustained_s`` at the sustained one."""
    return median(
        mean(seconds_since_rest(first_s, sustained_s, holds_s, (before + number) * first_s)
             for number in range(calls))
        for before, calls in samples)
