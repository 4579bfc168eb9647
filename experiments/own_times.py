"""A user's own times, as a CSV of (shape, time) or a torch profiler trace, against bound and
prediction."""

import csv
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from ..simulator import schedules
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from .claims_of_speed import LEAST_SECONDS, MOST_SECONDS

BEATS_BOUND = 0.02  # a run this much faster than the bound is no run
AGREES = 0.25  # relative difference that a prediction is allowed
MAX_FILE_BYTES = 512 << 20
MAX_SHOWN_MISTAKES = 8

# Column names of a time, and seconds in one of its unit.
TIME_COLUMNS = {
    unit: scale
    for scale, units in (
        (1.0, ("s", "seconds", "time_s", "seconds_median")),
        (1e-3, ("ms", "time_ms", "median_ms", "duration_ms", "milliseconds")),
        (1e-6, ("us", "µs", "time_us", "median_us", "duration_us", "microseconds")),
    )
    for unit in units
}
SHAPE = {"batch": int, "heads": int, "kv_heads": int, "seq": int, "kv_seq": int, "head_dim": int,
         "value_dim": int, "dtype": str, "mask": str}
OTHER_NAMES = {"b": "batch", "batch_size": "batch", "h": "heads", "num_heads": "heads",
               "num_kv_heads": "kv_heads", "n": "seq", "seqlen": "seq", "seq_len": "seq",
               "seqlen_q": "seq", "seqlen_k": "kv_seq", "d": "head_dim", "headdim": "head_dim"}
KERNELS = r"(?i)attention|flash|fmha|sdpa"  # of a torch profiler trace


@dataclass(frozen=True)
class OwnTime:
    """One measured call: where it stands, its shape, schedule, tiles (None: the tool's choice)."""

    where: str
    problem: Attention
    schedule: str
    tiles: Tiles | None
    seconds: float


def read_csv(path: str, schedule: str, defaults: dict) -> list[OwnTime]:
    """The rows of a CSV with a time column (see TIME_COLUMNS), ``seq``, and any of SHAPE, br, bc,
    stages, schedule, causal; other columns are ignored.

    ``schedule`` and ``defaults`` stand for columns that are absent. Raises InputError with every
    mistake of the file.
    """
    lines = _text(path).splitlines()
    reader = csv.DictReader(lines, dialect=_dialect(lines))
    try:
        names = [_column(name) for name in reader.fieldnames or ()]
        table = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise InputError(f"{path}: not a table in CSV: line {reader.line_num}: {error}") from None
    times = [name for name in names if name in TIME_COLUMNS]
    if not times:
        raise InputError(f"{path}: no column with a time; name one {', '.join(TIME_COLUMNS)}")
    if "seq" not in names and "seq" not in defaults:
        raise InputError(f"{path}: no column seq; it has {', '.join(names)[:200]}")
    rows, wrong = [], []
    for line, cells in table:
        where = f"{path} line {line}"
        row = {_column(name): (cell or "").strip() for name, cell in cells.items() if name}
        try:
            rows.append(_row(where, row, times[0], schedule, defaults))
        except (InputError, ValueError) as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        more = f"; and {len(wrong) - MAX_SHOWN_MISTAKES} more" * (len(wrong) > MAX_SHOWN_MISTAKES)
        raise InputError(f"{path}: {'; '.join(wrong[:MAX_SHOWN_MISTAKES])}{more}")
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    return rows


def _dialect(lines):
    class Dialect(csv.excel):
        delimiter = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","

    return Dialect


def _column(name: str) -> str:
    name = (name or "").strip().lower().replace("-", "_").replace(" ", "_")
    return OTHER_NAMES.get(name, name)


def _row(where, row, time_column, schedule, defaults) -> OwnTime:
    shape = dict(defaults)
    for name, kind in SHAPE.items():
        if row.get(name):
            shape[name] = _whole(name, row[name]) if kind is int else row[name]
    if row.get("causal") and "mask" not in row:
        shape["mask"] = "causal" if row["causal"].lower() in ("1", "true", "yes") else "full"
    tiles = None
    if row.get("br") and row.get("bc"):
        tiles = Tiles(_whole("br", row["br"]), _whole("bc", row["bc"]),
                      _whole("stages", row.get("stages") or "1"))
    seconds = _seconds(time_column, row.get(time_column, ""))
    name = row.get("schedule") or schedule
    shape["direction"] = schedules.direction(name)
    return OwnTime(where, Attention(**shape), name, tiles, seconds)


def _whole(name, text) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise InputError(f"{name} {text[:40]!r} must be a whole number from 1")
    return int(text)


def _seconds(name, text) -> float:
    """A time of the column's unit; a decimal comma is a point."""
    cleaned = text.replace(",", ".") if "." not in text else text.replace(",", "")
    try:
        seconds = float(cleaned) * TIME_COLUMNS[name]
    except ValueError:
        seconds = math.nan
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise InputError(f"{name} {text[:40]!r} must be a number above 0, of {LEAST_SECONDS:g} to "
                         f"{MOST_SECONDS:g} s")
    return seconds


def read_torch_trace(path: str, pattern: str | None) -> tuple[float, dict[str, float]]:
    """(seconds of all matching GPU kernels, seconds by kernel name) of a trace that torch's
    profiler exported (``export_chrome_trace``). Raises InputError when none matches."""
    try:
        document = json.loads(_text(path))
        events = document["traceEvents"] if isinstance(document, dict) else document
        kernels = [event for event in events if isinstance(event, dict)
                   and event.get("ph") == "X" and event.get("cat") in ("kernel", "Kernel")]
        found = re.compile(pattern or KERNELS)
    except re.error as error:
        raise InputError(f"--kernel {pattern!r} is not a regular expression: {error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path}: not a torch profiler trace; export one with "
                         "prof.export_chrome_trace(FILE)") from None
    by_name: dict[str, float] = {}
    for event in kernels:
        name, duration = str(event.get("name")), event.get("dur")
        if found.search(name) and isinstance(duration, (int, float)) and duration > 0:
            if duration > MOST_SECONDS * 1e6:
                raise InputError(f"{path}: dur {str(duration)[:40]} of {name[:60]!r} is no time "
                                 "in µs")
            by_name[name] = by_name.get(name, 0.0) + duration * 1e-6
    if not by_name:
        names = ", ".join(dict.fromkeys(str(event.get("name"))[:60] for event in kernels[:200]))
        raise InputError(f"{path}: no GPU kernel matches {found.pattern!r}; --kernel REGEX "
                         f"chooses of: {names[:400] or 'none in the trace'}")
    seconds = sum(by_name.values())
    if seconds < LEAST_SECONDS:
        raise InputError(f"{path}: its kernels take {seconds:.3g} s; at least {LEAST_SECONDS:g} s "
                         "was expected (dur is in µs)")
    return seconds, by_name


def _text(path: str) -> str:
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        return Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def compare(own: OwnTime, gpu) -> dict:
    """One measured time beside the bound of any kernel and the prediction for its tiles.

    ``verdict`` is "impossible", "agrees", "slower", "faster", or None where nothing is predicted;
    ``note`` says what usually causes it.
    """
    from ..simulator.bounds import pass_bound
    from ..simulator.point import traffic

    point = traffic(own.schedule, own.problem, gpu, own.tiles, engine="scratchpad", times=True)
    least, predicted = pass_bound(own.problem, gpu), point["time"]["predicted_s"]
    bound = least.bound_s
    row = {
        "where": own.where, "schedule": own.schedule, "problem": point["problem"],
        "tiles": point["tiles"], "measured_s": own.seconds, "bound_s": bound,
        "limiter": least.limiter, "predicted_s": predicted,
        "tflops": point["flops"] / own.seconds / 1e12, "verdict": None, "note": "",
    }
    if own.seconds < bound * (1 - BEATS_BOUND):
        return row | {"verdict": "impossible", "note": _impossible(own.problem, own.seconds, bound)}
    if predicted is None:
        return row
    error = predicted / own.seconds - 1
    if abs(error) <= AGREES:
        return row | {"verdict": "agrees"}
    if error < 0:
        return row | {"verdict": "slower", "note":
                      "launch overhead or other kernels inside the time, other tiles, spilling, "
                      "clocks throttled, a cold first run"}
    return row | {"verdict": "faster", "note": "a better schedule or other tiles than assumed "
                  "(--schedule, br and bc columns)"}


def _impossible(problem, seconds: float, bound: float) -> str:
    note = f"{bound / seconds:.2f}× faster than the bound: the time does not cover the whole run"
    if problem.mask == "full":
        note += ", or the mask was causal"
    if problem.dtype == "fp32":
        note += ", or its products were TF32"
    return note + " (no synchronisation, a wrong unit, fewer heads)"
