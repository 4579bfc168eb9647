"""Launcher of phases.cu: blocks that walk one buffer by the clock, in step or spread over it.

Importing this needs no CuPy.
"""

from functools import partial
from pathlib import Path

import numpy as np

from .counted import DRAM, DURATION, MIB, Part, buffer

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, STEP_BYTES, VECTOR_BYTES, PACE, BLOCKS = 256, 16 << 10, 16, 3600, 132
BESIDE_BYTES = 2048  # a step, read or written once
HOW = ("phases.cu, 132 blocks, 3,600 cycles a step, under ncu --cache-control all --clock-control "
       "none, DRAM bytes and duration; two runs")

# MiB of the buffer: spread, each with reads and writes beside; in step alone; in step with both.
SPREAD, ALONE = (20, 24, 26, 28, 30, 32, 34), (24, 26, 28, 30, 32, 34, 36)
IN_STEP = (20, 24, 28, 30, 32)


def parts() -> dict[str, Part]:
    """What is launched."""
    scans = []

    def scan(size, passes, spread, read=0, written=0):
        scans.append({"read_bytes": size * MIB, "passes": passes, "spread": spread,
                      "read_beside": read, "written_beside": written})

    for size in SPREAD:
        scan(size, 4, True)
        scan(size, 4, True, read=BESIDE_BYTES)
        scan(size, 4, True, written=BESIDE_BYTES)
    for size in ALONE:
        scan(size, 6, False)
    for size in IN_STEP:
        scan(size, 4, False, read=BESIDE_BYTES)
        scan(size, 4, False, written=BESIDE_BYTES)
    return {"scans": Part(scans, "hbmeter_probe_phases", DRAM | DURATION, _words, repeats=2)}


def _words(scan: dict) -> str:
    return (f"{scan['read_bytes'] // MIB} MiB {'spread' if scan['spread'] else 'in step'}"
            f"{', read beside' * bool(scan['read_beside'])}"
            f"{', written beside' * bool(scan['written_beside'])}")


def _steps(scan: dict) -> int:
    return scan["read_bytes"] // STEP_BYTES * scan["passes"]


def launcher(bench, part: str):
    """A function that launches one scan and waits for it."""
    scans = parts()[part].launches
    beside = BLOCKS * BESIDE_BYTES * max(map(_steps, scans))
    buffers = [buffer(bench.cupy, size)
               for size in (max(s["read_bytes"] for s in scans), beside, beside)]
    return partial(_launch, bench, bench.functions(SOURCE)("phases"), *buffers)


def _launch(bench, function, shared, dead, out, scan: dict) -> None:
    function((BLOCKS,), (THREADS,), (
        shared, np.int32(scan["read_bytes"] // STEP_BYTES), np.int32(_steps(scan)),
        np.int32(scan["spread"]), np.uint32(PACE), dead, out,
        np.int32(scan["read_beside"] // VECTOR_BYTES),
        np.int32(scan["written_beside"] // VECTOR_BYTES), bench.sink))
    bench.cupy.cuda.runtime.deviceSynchronize()
