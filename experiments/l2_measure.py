"""Measures the L2 of this machine's GPU: latency of atomics, and scans under Nsight Compute."""

import json
import sys
import tempfile
from pathlib import Path

from ..kernels.errors import Unavailable
from ..kernels.probes import l2 as probes
from ..kernels.probes.l2 import Scan
from ..simulator.errors import InputError
from . import calibrate, ncu, records
from .measure import Progress
from .probe_child import PROGRESS

CHILD = f"{__package__}.probe_child"
REPEATS = 3
# Alone: asked for SM counters too, ncu left 2.3 MiB of its own dirty in the L2 of an H200.
METRICS = (ncu.DRAM_READ, ncu.DRAM_WRITE)
NOTES = {
    "clocks": "left alone (ncu --clock-control none)",
    "cache_control": "caches flushed before each scan (ncu --cache-control all)",
}

# Latency: which addresses, and every how many-th block is kept.
SIDE_PROBE = {"count": 64, "stride_bytes": 8192, "every": 1}
HOME_PROBE = {"count": 2048, "stride_bytes": 128, "every": 12}

# Sizes in 60ths of the L2: MiB on an H200.
FINE = (8, 16, 24, 28, 32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 56, 60, 64, 96, 128)
COARSE = (32, 36, 40, 42, 44, 46, 48, 52, 56, 64)
SHARED = (8, 16, 24, 26, 27, 28, 29, 30, 31, 32, 33, 34, 36, 40, 48, 64)
PAGES = (0, 37, 90)  # where buffers that all read begin: other sets fill first
WRITTEN = (16, 24, 28, 32, 36, 40, 44, 48, 56, 64, 96, 128)
REREAD = (24, 28, 32, 36, 40, 42, 44, 46, 48, 52, 56, 64)
MIXED = (16, 24, 32, 36, 40, 44, 48, 56, 64)
WAIT_NS = 100_000_000


def plan(l2_bytes: int) -> list[Scan]:
    """All scans, sized for an L2."""
    unit = l2_bytes // calibrate.PARTS
    scans = [Scan(read_bytes=s * unit, passes=5) for s in FINE]
    scans += [Scan(read_bytes=s * unit, passes=5, blocks_per_sm=4) for s in COARSE]
    scans += [Scan(read_bytes=s * unit, passes=2) for s in COARSE]
    scans += [Scan(read_bytes=s * unit, passes=2, shared=True, threads=1024, first_page=page)
              for page in PAGES for s in SHARED]
    scans += [Scan(written_bytes=s * unit, threads=512) for s in WRITTEN]
    scans += [Scan(written_bytes=s * unit, rereads=1, threads=512) for s in REREAD]
    for written, passes in ((8, 5), (24, 5), (24, 1)):
        scans += [Scan(written_bytes=written * unit, read_bytes=s * unit, passes=passes,
                       threads=512) for s in MIXED]
    return [*scans, Scan(wait_ns=WAIT_NS)]


def measure() -> dict:
    """A record document of this GPU. Raises Unavailable without a GPU, CuPy, ncu or counters."""
    from ..kernels import runner

    cupy = runner.require_gpu()
    path = ncu.find_for("the L2 probes")
    progress = Progress(sys.stderr)
    try:
        latency = _latency(progress)
        scans = plan(probes.l2_bytes())
        counters = [_count(path, scans, repeat, progress) for repeat in range(REPEATS)]
    finally:
        progress.end()
    notes = {**NOTES, "format": calibrate.FORMAT, "l2_bytes": probes.l2_bytes()}
    return {
        "provenance": records.provenance(cupy, ncu.version(path), probes.source_hash(), notes),
        "latency": latency,
        "scans": [scan.document | {"counters": [repeat[number] for repeat in counters]}
                  for number, scan in enumerate(scans)],
    }


def _latency(progress: Progress) -> list[dict]:
    """Raw cycles of each repeat: of all SMs to scattered addresses, of some to every line."""
    progress.start("latency", REPEATS)
    found = []
    for repeat in range(REPEATS):
        progress.step(repeat, "atomics of every SM")
        found.append({"sides": _cycles(**SIDE_PROBE), "homes": _cycles(**HOME_PROBE)})
    return found


def _cycles(count: int, stride_bytes: int, every: int) -> dict:
    smid, cycles = probes.latency(count, stride_bytes)
    return {"stride_bytes": stride_bytes, "smid": smid[::every].tolist(),
            "cycles": cycles[::every].tolist()}


def _count(path: str, scans: list[Scan], repeat: int, progress: Progress) -> list[dict]:
    """Counters of each scan, from one run of all of them."""
    progress.start(f"scans under ncu, repeat {repeat + 1} of {REPEATS}", len(scans))

    def on_line(line: str) -> None:
        if line.startswith(PROGRESS):
            number = int(line.removeprefix(PROGRESS))
            progress.step(number, calibrate.name_of(scans[number]))

    with tempfile.TemporaryDirectory(prefix="hbmeter-") as folder:
        spec = Path(folder) / "scans.json"
        spec.write_text(json.dumps([scan.document for scan in scans]), encoding="utf-8")
        try:
            answer = ncu.profile(path, CHILD, [str(spec)], METRICS, on_line)
        except InputError as error:  # a table that cannot be read is no mistake of the user
            raise Unavailable(f"ncu gave no counters: {error}") from error
    names = [launch.function for launch in answer.launches]
    if names != [probes.SCAN_ENTRY] * len(scans):
        raise Unavailable(f"ncu profiled {len(names)} launches, {len(scans)} scans were run")
    if lacking := {ncu.DRAM_READ, ncu.DRAM_WRITE} & {*answer.dropped}:
        raise Unavailable(f"this GPU has no counter {', '.join(sorted(lacking))}")
    return [ncu.asked_for(launch.metrics) for launch in answer.launches]
