"""Launcher of shared.cu: shared-memory bandwidth, and what the distance between lanes costs.

Importing this needs no CuPy.
"""

from pathlib import Path

import numpy as np

from .bench import Bench, Fact, clocks, curve, rates_per_clock, select

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, ITERATIONS, UNROLL = 1024, 4096, 8
STEP_BYTES = 1024
# Kernel: bytes a lane moves, and the distances of lanes to try, in bytes.
KINDS = {
    "load4": (4, tuple(4 * s for s in (*range(1, 13), 16, 17, 24, 31, 32, 33))),
    "load16": (16, tuple(16 * s for s in (1, 2, 3, 4, 5, 7, 8, 9, 16))),
    "store4": (4, (4, 8, 16, 32, 64, 128)),
    "store16": (16, (16, 32, 64, 128, 144)),
    "ldmatrix": (16, (16, 32, 48, 64, 80, 128, 144, 256, 272)),
}
NAMES = {"load4": "smem_read_4", "load16": "smem_read", "store4": "smem_write_4",
         "store16": "smem_write", "ldmatrix": "smem_ldmatrix"}
WHAT = {"load4": "loads of 4 bytes", "load16": "loads of 16 bytes", "store4": "stores of 4 bytes",
        "store16": "stores of 16 bytes", "ldmatrix": "ldmatrix.x4"}


def measure(bench: Bench) -> None:
    """Add this probe's points: one block of 1,024 threads an SM."""
    function = bench.functions(SOURCE)
    for kind, (width, strides) in KINDS.items():
        for lane_bytes in strides:
            bench.step(f"shared memory, {WHAT[kind]}, lanes {lane_bytes} bytes apart")
            conflicts = max(1, lane_bytes // 16)
            iterations = max(256, ITERATIONS * 4 // width // conflicts)
            samples = bench.time(
                function(kind), bench.sms, THREADS,
                (np.int32(lane_bytes), np.int32(iterations), bench.sink),
                31 * lane_bytes + width + 3 * 128 + (UNROLL - 1) * STEP_BYTES)
            work = bench.sms * THREADS * iterations * UNROLL * width
            bench.add(kind, work, "bytes", samples, lane_bytes=lane_bytes, sms=bench.sms)


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say: the rate without conflicts, the curve with them."""
    found = []
    for kind, (width, _) in KINDS.items():
        mine = select(points, kind)
        for point in select(mine, kind, lane_bytes=width):
            found.append(Fact(
                NAMES[kind], "bytes_per_clock_per_sm", rates_per_clock(point),
                f"{WHAT[kind]}, 32 warps an SM; value for lanes side by side, the curve against "
                "the bytes between lanes", clocks(point),
                curve(mine, "lane_bytes", rates_per_clock), "bytes_between_lanes",
                "smem.bytes_per_clock_per_sm"))
    return found
