"""A stand-in for Nsight Compute: prints a synthetic table for the points it is given.

The tests put it on PATH as ``ncu``. It runs no kernel; each counter is what the simulator predicts
(times FAKE_NCU_FACTOR), so the numbers say nothing about hardware. FAKE_NCU_LACKS names metrics
that it does not know, FAKE_NCU_MODE ``denied`` refuses counters, ``short`` loses a launch.
"""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

ID = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name")


def main(arguments):
    if arguments == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2099.1.0.0 (build 1)")
        return 0
    options = dict(pairwise(arguments))
    metrics = options["--metrics"].split(",")
    absent = [m for m in metrics if m in os.environ.get("FAKE_NCU_LACKS", "").split(",")]
    if os.environ.get("FAKE_NCU_MODE") == "denied":
        print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
              "Performance Counters on the target device 0.")
        return 1
    if absent:
        print(f"==ERROR== Failed to find metric {absent[0]}")
        return 1
    with open(options["--log-file"], "w", encoding="utf-8") as file:
        file.write("\n".join(table(metrics, arguments[-2])) + "\n")
    return 0


def table(metrics, points):
    from hbmeter.experiments import ncu  # what only answers or refuses needs none of it

    yield "==PROF== Connected to process 42"
    yield line([*ID, *metrics])
    yield line([""] * len(ID) + ["nsecond" if m == ncu.DURATION else "" for m in metrics])
    rows = list(launches(points))
    if os.environ.get("FAKE_NCU_MODE") == "short":
        rows.pop()
    for number, (entry, values) in enumerate(rows):
        cells = [str(values.get(m, "n/a")) for m in metrics]
        yield line([str(number), "42", "python", "127.0.0.1", f"{entry}(const int *, int)", *cells])


def launches(points):
    from hbmeter import kernels
    from hbmeter.experiments import ncu
    from hbmeter.experiments.grid import Point
    from hbmeter.simulator import schedules
    from hbmeter.simulator.engines import scratchpad

    factor = float(os.environ.get("FAKE_NCU_FACTOR", "1"))
    for number, document in enumerate(json.loads(Path(points).read_text(encoding="utf-8"))):
        print(f"hbmeter-point {number}")
        point = Point.of(document)
        kernel = kernels.get(point.kernel)
        program = schedules.build(kernel.schedule, point.problem, point.tiles)
        moved = scratchpad.count(program).phase_bytes.sum(axis=1)
        calls = kernel.launches(point.problem, point.tiles, point.order)
        for launch, (read, written) in zip(calls, moved, strict=True):
            yield launch.entry, {
                ncu.SM_READ: round(read * factor), ncu.SM_WRITE: written, ncu.LOCAL: 0,
                ncu.DRAM_READ: read // 2, ncu.DRAM_WRITE: written // 2, ncu.DURATION: 1000,
            }


def line(cells):
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
