"""Launcher of power.cu: the clock of tensor cores while device memory is read beside them.

A GPU has so much power for both: the more bytes a second come from DRAM, the lower the clock of SMs
that multiply (numbers must be random: equal ones cost little). Importing this needs no CuPy.
"""

import time
from pathlib import Path
from statistics import median

import numpy as np

from . import tensor, wgmma
from .bench import STAMP_WORDS, Bench, Fact, clocks, select

SOURCE = Path(__file__).with_suffix(".cu")
BUFFER_BYTES = 4 << 30
READER_THREADS, VECTOR_BYTES, UNROLL = 256, 16, 8
READERS = (16, 32, 64, 96, 132, 264)  # thread blocks that read
READER_BYTES_PER_S, DRAM_BYTES_PER_S = 75e9, 4.4e12  # of a block, of all: about, at most
RUN_S, REST_S, REPEATS = 12e-3, 30e-3, 3  # of a load; before each run
LONGER = 1.6  # so that reads outlast what runs beside them
CARVEOUT = 100  # per cent of an SM's memory shared: both kernels must ask for the same
# Name: (probe, kernel, threads, iterations in RUN_S or so, shared bytes, what it is).
LOADS = {
    "mma_fp16": (tensor, "mma_rows32", 256, 27_000, 0, "mma.sync fp16, 32 rows a warp, B from "
                 "shared memory by ldmatrix"),
    "wgmma_fp16": (wgmma, "wgmma_fp16_n256_shared", 256, 4_600, 81_920, "wgmma fp16, n 256"),
}


def measure(bench: Bench) -> None:
    """Add this probe's points."""
    buffer = random_numbers(bench)
    for name, (probe, kernel, *_) in LOADS.items():
        if probe is wgmma and bench.capability != wgmma.CAPABILITY:
            continue
        function = bench.functions(probe.SOURCE)(kernel)
        for readers in READERS:
            bench.step(f"{name} beside {readers} thread blocks that read device memory")
            samples = [_run(bench, function, name, readers, buffer) for _ in range(REPEATS)]
            bench.add("clock_reading", readers, "blocks", samples, load=name, sms=bench.sms)


def random_numbers(bench: Bench):
    """A large buffer of them."""
    buffer = bench.cupy.zeros(min(BUFFER_BYTES, bench.memory_bytes // 8) // 4, np.uint32)
    vectors = np.uint32(buffer.size // 4)
    bench.functions(SOURCE)("fill")((8 * bench.sms,), (READER_THREADS,), (buffer, vectors))
    return buffer


def _run(bench: Bench, function, name: str, readers: int, buffer) -> dict:
    """One sample: bytes read a second, and the load's clock."""
    reader, load, read_bytes = run(bench, function, name, readers, buffer)
    cycles, ns = (load[:, at + 1] - load[:, at] for at in (0, 2))
    seconds = int(reader[:, 3].max() - reader[:, 2].min()) * 1e-9
    return {"seconds": seconds, "read_bytes_per_s": read_bytes / seconds,
            "clock_hz": round(float(cycles.sum() / ns.sum()) * 1e9),
            "beside": bool(load[:, 3].max() <= reader[:, 3].max())}


def run(bench: Bench, function, name: str, readers: int, buffer) -> tuple:
    """Stamps of the blocks that read (none of 0 readers) and of the load's, and bytes read."""
    cupy = bench.cupy
    _, _, threads, iterations, shared_bytes, _ = LOADS[name]
    read = bench.functions(SOURCE)("stream")
    for one in (read, function):
        one.preferred_shared_memory_carveout = CARVEOUT
    function.max_dynamic_shared_size_bytes = max(shared_bytes, 1)
    rate = min(readers * READER_BYTES_PER_S, DRAM_BYTES_PER_S)
    count = int(rate * RUN_S * LONGER / (max(readers, 1) * READER_THREADS * VECTOR_BYTES))
    count = count // UNROLL * UNROLL
    stamps = [cupy.zeros((grid, STAMP_WORDS), np.int64) for grid in (readers, bench.sms)]
    cupy.cuda.runtime.deviceSynchronize()
    time.sleep(REST_S)
    if readers:
        with cupy.cuda.Stream(non_blocking=True):
            read((readers,), (READER_THREADS,), (buffer, np.uint32(buffer.size // 4),
                                                 np.int32(count), bench.sink, stamps[0]))
    with cupy.cuda.Stream(non_blocking=True):
        function((bench.sms,), (threads,), (np.int32(iterations), bench.sink, stamps[1]),
                 shared_mem=shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    reader, load = (stamp.get() for stamp in stamps)
    return reader, load, readers * READER_THREADS * count * VECTOR_BYTES


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say: for each load the clock at the most bytes, and the curve to there."""
    found = []
    for name, (*_, what) in LOADS.items():
        mine = select(points, "clock_reading", load=name)
        pairs = sorted((median(sample["read_bytes_per_s"] for sample in point["samples"]),
                        median(clocks(point)), clocks(point)) for point in mine)
        if pairs:
            found.append(Fact(
                f"{name}_clock_reading", "hz", pairs[-1][2], f"an SM's clock while all run {what}, "
                "for 12 ms, and thread blocks beside them read random numbers from device memory; "
                "the curve against bytes read a second", (),
                tuple(pair[:2] for pair in pairs), "dram_bytes_per_s", "boost_clock_hz"))
    return found
