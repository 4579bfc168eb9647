"""A user's own Nsight Compute export of one attention call against the prediction for it."""

import re

from ..simulator.errors import InputError
from . import ncu, ncu_csv
from .ncu_csv import Profiled

SM_TOLERANCE = 0.02
DRAM_TOLERANCE = 0.15

# (boundary, metric, part and key of a traffic point, tolerance or None, usual causes)
_BOUNDARIES = (
    ("SM read", ncu.SM_READ, ("sm", "read_bytes"), SM_TOLERANCE,
     "other tiles or schedule than the kernel's, loads that hit in L1 (less), spilling or "
     "uncoalesced loads (more)"),
    ("SM write", ncu.SM_WRITE, ("sm", "write_bytes"), SM_TOLERANCE,
     "partial sectors of uncoalesced stores (more), spilling, extra outputs of the kernel"),
    ("L2 sectors read", ncu.L2_READ_SECTORS, ("l2", "sectors_read"), None,
     "thread blocks closer in time or less close than modelled: their requests are merged"),
    ("DRAM read", ncu.DRAM_READ, ("dram", "read_bytes"), DRAM_TOLERANCE,
     "grid order or blocks per SM other than assumed (--order, --blocks-per-sm), caches not "
     "flushed before the kernel (ncu --cache-control none), thread blocks that lock together"),
    ("DRAM write", ncu.DRAM_WRITE, ("dram", "write_bytes"), None,
     "output still dirty in L2 at the end of the kernel is not in the counter"),
)


def launches_of(path, pattern: str | None) -> list[Profiled]:
    """The launches of an export whose kernel name matches ``pattern`` (a regular expression).

    Raises InputError when none does, or the export has no counter of any boundary.
    """
    launches = ncu_csv.read(path)
    try:
        kept = [x for x in launches if re.search(pattern or "", x.kernel)]
    except re.error as error:
        raise InputError(f"--kernel {pattern!r} is not a regular expression: {error}") from None
    if not kept:
        names = ", ".join(dict.fromkeys(x.function for x in launches))
        raise InputError(f"--kernel {pattern!r} matches no launch of {path}; it has {names}")
    metrics = [metric for _, metric, *_ in _BOUNDARIES]
    if all(ncu.total(kept, metric) is None for metric in metrics):
        raise InputError(f"{path} has no counter of any boundary; export with: ncu --metrics "
                         f"{','.join(metrics)} --csv --page raw --print-units base …")
    return kept


def predict(schedule: str, problem, gpu, tiles, order: str, blocks_per_sm: int | None) -> dict:
    """What ``simulator.traffic`` says, with the cache emptied before each launch as ncu does."""
    from ..simulator import schedules
    from ..simulator.engines import l2
    from ..simulator.point import traffic

    point = traffic(schedule, problem, gpu, tiles, order=order, blocks_per_sm=blocks_per_sm)
    program = schedules.build(schedule, problem, tiles)
    if len(program.phases) > 1:
        cold = l2.simulate(program, gpu, blocks_per_sm=point["blocks_per_sm"], order=order,
                           cold_phases=True)
        point["l2"] |= {"sectors_read": cold.sectors_read, "hit_rate": cold.hit_rate,
                        "sectors_written": cold.sectors_written}
        point["dram"] |= {"read_bytes": cold.dram_read_bytes, "by_tensor": cold.by_tensor,
                          "write_bytes": cold.dram_write_bytes,
                          "dirty_bytes_at_end": cold.dirty_bytes_at_end}
    return point


def compare(launches: list[Profiled], point: dict, calls: int = 1) -> list[dict]:
    """One dict a boundary: predicted, measured, relative error, and what to look at.

    ``point`` is what ``predict`` gives; ``calls`` attention calls share the counters.
    ``agrees`` is None where nothing can be said.
    """
    spills = bool(ncu.total(launches, ncu.LOCAL))
    return [_boundary(launches, point, calls, spills, *line) for line in _BOUNDARIES]


def _boundary(launches, point, calls, spills, name, metric, where, tolerance, causes) -> dict:
    part, key = where
    predicted = point[part] and point[part][key]
    measured = ncu.total(launches, metric)
    row = {"boundary": name, "metric": metric, "predicted": predicted, "measured": None,
           "rounding": None, "error": None, "agrees": None, "note": causes}
    if measured is None:
        return row | {"note": f"not in the export: add {metric} to ncu --metrics"}
    measured /= calls
    rounding = ncu.rounding(launches, metric) / calls
    row |= {"measured": measured, "rounding": rounding}
    if predicted is None or not measured:
        return row
    off = abs(predicted - measured)
    row["error"] = (predicted - measured) / measured
    if tolerance is not None:
        row["agrees"] = off <= tolerance * measured + rounding
    if row["agrees"]:
        row["note"] = ""
    elif spills and row["agrees"] is False:
        row["note"] = "the kernel spills registers (local memory); " + causes
    return row
