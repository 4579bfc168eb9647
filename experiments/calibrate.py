"""L2 probes read back: facts derived from a record, and the cache model beside its scans.

A record holds what was measured, raw: {"provenance": {…}, "latency": [a repeat: {"sides", "homes"},
each {"stride_bytes", "smid", "cycles" [block, address]}], "scans": [{…, "counters": [a repeat]}]}.
Every function here derives; nothing derived is stored.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from ..kernels.probes.l2 import Scan
from ..simulator.engines import l2_machine, l2_scan
from ..simulator.errors import InputError
from . import ncu, records
from .files import read_json
from .remembered import remembered

FORMAT = "l2 1"
SCAN_BYTES_MAX = 1 << 40  # more than a GPU holds
PARTS = 60  # scans are sized in 60ths of the L2
KNEE_PARTS = 4  # this near to a curve's knee the model is not judged
BAR = 0.05  # |error| of the model elsewhere
JUDGED_SHARE = 0.05  # of the buffers: smaller DRAM traffic is not judged
READ, WRITE = "dram_read", "dram_write"
METRICS = {READ: ncu.DRAM_READ, WRITE: ncu.DRAM_WRITE}
MIB = 1 << 20


@dataclass(frozen=True)
class Record:
    """One file: its name, where it comes from, latencies and scans."""

    name: str
    provenance: dict
    latency: list[dict]
    scans: list[dict]

    @property
    def gpu(self) -> str:
        """The GPU's name as its driver gives it."""
        return self.provenance["gpu"]

    @property
    def unit_bytes(self) -> int:
        """What scans are sized in."""
        return self.provenance["l2_bytes"] // PARTS

    @cached_property
    def measured(self) -> list[tuple[Scan, dict[str, list]]]:
        """Each scan with its DRAM bytes, a value a repeat."""
        return [
            (scan_of(data), {name: [repeat[metric] for repeat in data["counters"]]
                             for name, metric in METRICS.items()})
            for data in self.scans
        ]


def load(path) -> Record:
    """A record file. Raises InputError for a file that is none, OSError when it cannot be read."""
    document = read_json(path, "a record of hbmeter calibrate")
    try:
        return record(Path(path).stem, document)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is not a record of hbmeter calibrate: {error!r}") from error


def record(name: str, document: dict) -> Record:
    """A document as measured or read; raises ValueError, KeyError or TypeError for another."""
    found = Record(name, document["provenance"], document["latency"], document["scans"])
    if found.provenance["format"] != FORMAT:
        raise ValueError(f"format {found.provenance['format']!r}, this hbmeter reads {FORMAT!r}")
    if not (found.latency and found.scans and found.gpu and found.unit_bytes):
        raise ValueError("no latencies or no scans")
    for repeat in found.latency:
        for part in ("sides", "homes"):
            shape = np.asarray(repeat[part]["cycles"], float).shape
            if len(shape) != 2 or shape[0] != len(repeat[part]["smid"]):
                raise ValueError(f"{part}: cycles are not [block, address]")
    for scan, counters in found.measured:
        if not all(0 <= size <= SCAN_BYTES_MAX for size in (scan.written_bytes, scan.read_bytes)):
            raise ValueError(f"a scan's bytes are not from 0 to {SCAN_BYTES_MAX:,}")
        if not all(value >= 0 for values in counters.values() for value in values):
            raise ValueError("a counter is negative")
    return found


def load_all() -> list[Record]:
    """Every record of this kind in ``recorded/``, by name; none is an empty list."""
    return [load(path) for path in sorted(records.FOLDER.glob(f"*{records.L2_SUFFIX}"))]


def text(document: dict) -> str:
    """A record as JSON, one line a repeat or scan, so that versions can be compared."""
    def lines(items):
        return ",\n  ".join(json.dumps(item, allow_nan=False) for item in items)

    provenance = json.dumps(document["provenance"], indent=1, ensure_ascii=False)
    return (f'{{"provenance": {provenance},\n "latency": [\n  {lines(document["latency"])}\n ],\n'
            f' "scans": [\n  {lines(document["scans"])}\n ]\n}}\n')


# ---- Names of scans ---------------------------------------------------------------------------


def scan_of(data: dict) -> Scan:
    """The scan of a record's entry."""
    return Scan(**{field.name: data[field.name] for field in fields(Scan) if field.name in data})


def pattern_of(scan: Scan) -> str:
    """private, shared, written, reread, mixed or idle."""
    if scan.wait_ns:
        return "idle"
    if not scan.passes:
        return "reread" if scan.rereads else "written"
    if scan.written_bytes:
        return "mixed"
    return "shared" if scan.shared else "private"


def size_of(scan: Scan) -> int:
    """Bytes of the buffer whose size a curve varies."""
    return scan.read_bytes if scan.passes else scan.written_bytes


def curve_of(scan: Scan) -> str:
    """What the scans of a curve have in common, in words."""
    pattern, reads = pattern_of(scan), f"read {scan.passes}×"
    if pattern == "idle":
        return f"waiting for {scan.wait_ns / 1e6:g} ms"
    if pattern == "mixed":
        return f"{scan.written_bytes / MIB:g} MiB written, then private, {reads}"
    if pattern in ("written", "reread"):
        return "written" + ", then read" * bool(scan.rereads)
    from_page = f", from page {scan.first_page}" * (scan.first_page > 0)
    blocks = f"{scan.blocks_per_sm} block{'s' * (scan.blocks_per_sm > 1)}/SM"
    return f"{pattern}, {reads}, {blocks}{from_page}"


def name_of(scan: Scan) -> str:
    """A scan in words."""
    return f"{curve_of(scan)}, {size_of(scan) / MIB:g} MiB"


# ---- Sides, homes, latencies --------------------------------------------------------------------


def sides(part: dict) -> np.ndarray | None:
    """The side (0 or 1) of each block's SM, the first block's 0; None when latencies do not fall
    into two patterns: SMs of a side find the same addresses near, those of the other the rest."""
    cycles = np.asarray(part["cycles"], float)
    about = cycles - cycles.mean(axis=0)  # what an address costs everybody says nothing
    lengths = np.linalg.norm(about, axis=1)
    if not lengths.all():
        return None
    agreement = about @ about[0] / (lengths * lengths[0])
    return (agreement < 0).astype(int) if np.abs(agreement).min() > 0.5 else None


def homes(part: dict, side: np.ndarray) -> np.ndarray:
    """The side that each address is near to."""
    cycles = np.asarray(part["cycles"], float)
    return (cycles[side == 0].mean(axis=0) > cycles[side == 1].mean(axis=0)).astype(int)


def partition_digits(record: Record) -> str | None:
    """Profile.l2.sm_partitions: a digit a block in launch order, by the first repeat."""
    found = sides(record.latency[0]["sides"])
    return None if found is None else "".join(map(str, found))


def side_of_sm(part: dict) -> dict[int, int] | None:
    """{SM: side}, the lowest SM's 0: comparable between launches of another block order."""
    found = sides(part)
    if found is None:
        return None
    flip = found[int(np.argmin(part["smid"]))]
    return {sm: int(side ^ flip) for sm, side in zip(part["smid"], found, strict=True)}


def home_bytes(record: Record) -> int | None:
    """Bytes of consecutive addresses that share a home, the most that fits all changes seen;
    the median of the repeats."""
    found = []
    for repeat in record.latency:
        part = repeat["homes"]
        side = sides(part)
        if side is None or not side.any():
            return None
        changes = np.flatnonzero(np.diff(homes(part, side))) + 1
        found.append(int(np.gcd.reduce(changes)) * part["stride_bytes"])
    return int(median(found)) or None


def near_and_far(record: Record) -> dict[str, tuple[float, float]] | None:
    """{"near", "far"}: (cycles, half the range of the repeats); medians over SMs and addresses."""
    found = {"near": [], "far": []}
    for repeat in record.latency:
        side = sides(repeat["sides"])
        if side is None or not side.any():
            return None
        cycles = np.asarray(repeat["sides"]["cycles"], float)
        near = side[:, None] == homes(repeat["sides"], side)[None]
        found["near"].append(float(np.median(cycles[near])))
        found["far"].append(float(np.median(cycles[~near])))
    return {name: (median(values), _half_range(values)) for name, values in found.items()}


def _half_range(values) -> float:
    return (max(values) - min(values)) / 2


# ---- DRAM bytes ---------------------------------------------------------------------------------


def dirty_bytes_max(record: Record) -> tuple[int, int] | None:
    """(Most bytes that stay dirty, half the range of the repeats): of S written and read again,
    from 28/60 of the L2 on and as long as all is found there, the median of S − what was written
    back, ``dirty_before`` left out of that. (When S is only written some is still on its way.)"""
    written = [(scan.written_bytes, counters[WRITE]) for scan, counters in record.measured
               if pattern_of(scan) == "reread" and scan.written_bytes >= 28 * record.unit_bytes
               and median(counters[READ]) < 0.02 * scan.written_bytes]
    if not written:
        return None
    others = dirty_before(record)
    repeats = [median(size - (gone[n] - others) for size, gone in written)
               for n in range(len(written[0][1]))]
    kept = median(size - (median(gone) - others) for size, gone in written)
    return round(kept), round(_half_range(repeats))


def dirty_before(record: Record) -> float:
    """Dirty bytes that the profiler leaves in L2 before each scan: what those write back that
    write nothing and read more than the L2 holds."""
    found = [median(counters[WRITE]) for scan, counters in record.measured
             if not scan.written_bytes and scan.read_bytes > PARTS * record.unit_bytes]
    return median(found) if found else 0.0


def background_write(record: Record) -> tuple[float, float] | None:
    """(DRAM bytes written a second while the SMs only wait, half the range of the repeats); None
    for none."""
    rates = [gone / scan.wait_ns * 1e9 for scan, counters in record.measured if scan.wait_ns
             for gone in counters[WRITE]]
    return (median(rates), _half_range(rates)) if rates and median(rates) else None


def knee(sizes, values) -> float | None:
    """The size at which ``values`` cross the middle between their least and most, sizes rising;
    None for a curve that hardly changes (by less than a fifth)."""
    values = list(values)
    if not values or max(values) - min(values) < 0.2:
        return None
    middle = (max(values) + min(values)) / 2
    for (a, low), (b, high) in pairwise(zip(sizes, values, strict=True)):
        if low < middle <= high:
            return a + (b - a) * (middle - low) / (high - low)
    return None


def knees(record: Record) -> dict[str, dict[str, float | None]]:
    """{curve: {boundary: bytes}}: of DRAM reads against what is read once, of write-backs against
    what is written. A curve that only writes has its knee where the L2 is full of dirty data."""
    found = {}
    for name, group in _curves(record).items():
        found[name] = {}
        for boundary in METRICS:
            points = [(size_of(scan), median(counters[boundary]) / _once(scan, boundary))
                      for scan, counters in group if _once(scan, boundary)]
            found[name][boundary] = knee(*zip(*points, strict=True)) if points else None
        if pattern_of(group[0][0]) == "written":
            limit = dirty_bytes_max(record)
            found[name] = {READ: None, WRITE: limit and float(limit[0])}
    return found


def _curves(record: Record) -> dict[str, list]:
    groups = {}
    for scan, counters in record.measured:
        if not scan.wait_ns:
            groups.setdefault(curve_of(scan), []).append((scan, counters))
    return {name: sorted(group, key=lambda item: size_of(item[0]))
            for name, group in groups.items()}


def _once(scan: Scan, boundary: str) -> int:
    """Bytes of the buffer that a boundary's traffic comes from; 0 for none."""
    if boundary == WRITE:
        return scan.written_bytes
    return size_of(scan) if scan.passes or scan.rereads else 0


# ---- The model ----------------------------------------------------------------------------------


def model_curves(gpu, record: Record) -> list[dict]:
    """One flat dict a scan and boundary: bytes measured (median) and by the cache model run over
    the same accesses, with the sides and limits of profile ``gpu`` and what is ``dirty_before``.
    ``error`` is relative to the measured; None where both are small (``JUDGED_SHARE``)."""
    ordered = [item for group in _curves(record).values() for item in group]
    sides_, before = l2_machine.sm_sides(gpu), round(dirty_before(record))
    with ThreadPoolExecutor() as pool:
        modelled = list(pool.map(lambda item: _model(gpu, sides_, before, item[0]), ordered))
    at = knees(record)
    return [
        _row(record, scan, boundary, counters[boundary], bytes_, at[curve_of(scan)][boundary])
        for (scan, counters), found in zip(ordered, modelled, strict=True)
        for boundary, bytes_ in zip(METRICS, found, strict=True)
        if _once(scan, boundary)
    ]


def _model(gpu, sm_sides, before: int, scan: Scan) -> tuple[int, int]:
    of_blocks = np.tile(sm_sides, scan.blocks_per_sm)
    options = dict(
        written_bytes=scan.written_bytes, rereads=scan.rereads, read_bytes=scan.read_bytes,
        first_page=scan.first_page, passes=scan.passes, shared=scan.shared,
        step_bytes=scan.step_bytes,
        dirty_before_bytes=before,
        cycles=l2_machine.chunk_cycles(gpu, scan.step_bytes, scan.blocks_per_sm))
    found = remembered(lambda: {"bytes": l2_scan.scan(gpu.l2, of_blocks, **options)},
                       l2=gpu.l2, sides=of_blocks.tolist(), scan=options)
    return tuple(found["bytes"])


def _row(record, scan: Scan, boundary: str, values: list, model: int, knee_bytes) -> dict:
    measured, size = median(values), size_of(scan)
    judged = max(measured, model) >= JUDGED_SHARE * (scan.written_bytes + scan.read_bytes)
    near = knee_bytes is not None and abs(size - knee_bytes) <= KNEE_PARTS * record.unit_bytes
    return {
        "gpu": record.gpu, "pattern": pattern_of(scan), "curve": curve_of(scan),
        "size_bytes": size, "written_bytes": scan.written_bytes, "boundary": boundary,
        "measured_bytes": measured, "spread_bytes": max(values) - min(values),
        "model_bytes": model,
        "error": (model - measured) / measured if judged and measured else None,
        "knee_bytes": knee_bytes, "near_knee": near,
    }


def judged(rows: list[dict]) -> list[dict]:
    """The rows that the bar is for: large enough and away from the knee."""
    return [row for row in rows if row["error"] is not None and not row["near_knee"]]


def summary(rows: list[dict]) -> list[dict]:
    """One dict a curve and boundary: its knee, the points judged, within the bar, the largest
    |error| and where."""
    groups = {}
    for row in rows:
        groups.setdefault((row["curve"], row["boundary"]), []).append(row)
    found = []
    for (curve, boundary), group in groups.items():
        mine = judged(group)
        worst = max(mine, key=lambda row: abs(row["error"]), default=None)
        found.append({
            "curve": curve, "boundary": boundary, "knee_bytes": group[0]["knee_bytes"],
            "points": len(group), "judged": len(mine),
            "within": sum(abs(row["error"]) <= BAR for row in mine),
            "worst": worst and worst["error"], "worst_size_bytes": worst and worst["size_bytes"],
        })
    return found


def derived(record: Record) -> dict:
    """Every fact that a record gives, as JSON."""
    by_sm = [side_of_sm(repeat["sides"]) for repeat in record.latency]
    latency, dirty = near_and_far(record), dirty_bytes_max(record)
    background = background_write(record)
    same = None if None in by_sm else sum(
        all(other.get(sm) == side for other in by_sm) for sm, side in by_sm[0].items())
    digits = partition_digits(record)
    return {
        "sm_partitions": digits,
        "sms_by_side": digits and [digits.count("0"), digits.count("1")],
        "sms_that_repeats_agree_on": same,
        "home_bytes": home_bytes(record),
        "latency_cycles": latency and {name: {"median": value, "spread": spread}
                                       for name, (value, spread) in latency.items()},
        "dirty_bytes_max": dirty and {"median": dirty[0], "spread": dirty[1]},
        "dirty_before_bytes": dirty_before(record),
        "background_write_bytes_per_s": background and {"median": background[0],
                                                        "spread": background[1]},
        "knees_bytes": knees(record),
    }
