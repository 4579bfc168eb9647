"""Launcher of power.cu: the clock of tensor cores while device memory is read beside them.

A GPU has so much power for both: the more bytes a second come from DRAM, the lower the clock of SMs
that multiply (numbers must be random: equal ones cost little). For some 50 ms after a rest it has
more than it may draw for longer: launched without a pause the same load ends at a lower clock.
Importing this needs no CuPy.
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
SUSTAINED_READERS = (0, 64, 132, 264)  # beside a load that goes on
SUSTAINED_S, SUSTAINED_REST_S, SUSTAINED_REPEATS = 0.25, 0.3, 2
WINDOWS = 100  # its launches
SUSTAINED_BYTES_PER_S = 30e9  # of a reader, about
FALLS = 0.03  # of the clock, at least, where it is judged how long the first one holds
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
        for readers in SUSTAINED_READERS:
            bench.step(f"{name} for {SUSTAINED_S} s beside {readers} thread blocks that read")
            samples = [_sustained(bench, function, name, readers, buffer)
                       for _ in range(SUSTAINED_REPEATS)]
            bench.add("clock_sustained", readers, "blocks", samples, load=name, sms=bench.sms)


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


# ---- Sustained --------------------------------------------------------------------------------


def _sustained(bench: Bench, function, name: str, readers: int, buffer) -> dict:
    """One sample: the load's clock in each of its launches, the ms from the first one's start to
    the middle of each, and bytes read a second beside the later half."""
    reader, load, read_bytes = _launches(bench, function, name, readers, buffer)
    cycles, ns = ((load[:, :, at + 1] - load[:, :, at]).sum(axis=1) for at in (0, 2))
    begun, ended = load[:, :, 2].min(axis=1), load[:, :, 3].max(axis=1)
    rate, beside = 0.0, True
    if readers:
        starts, beside = reader[:, :, 2].min(axis=1), bool(ended[-1] <= reader[-1, :, 3].max())
        starts = starts[(starts >= begun[WINDOWS // 2]) & (starts <= ended[-1])]
        rate = read_bytes / max(float(np.diff(starts).mean()) if len(starts) > 1 else 1.0, 1.0)
    return {"seconds": int(ended[-1] - begun[0]) * 1e-9, "read_bytes_per_s": rate * 1e9,
            "clock_hz": np.rint(cycles / ns * 1e9).astype(int).tolist(),
            "at_ms": (((begun + ended) / 2 - begun[0]) * 1e-6).round(2).tolist(),
            "beside": beside}


def _launches(bench: Bench, function, name: str, readers: int, buffer) -> tuple:
    """Stamps [launch, block] of blocks that read (none of 0 readers) and of the load's, both
    launched again and again without a pause, and bytes read by a launch. Those are short: over a
    long one blocks fall behind each other, and find in L2 what the first ones read."""
    cupy, (_, _, threads, iterations, shared_bytes, _) = bench.cupy, LOADS[name]
    read = bench.functions(SOURCE)("stream")
    for one in (read, function):
        one.preferred_shared_memory_carveout = CARVEOUT
    function.max_dynamic_shared_size_bytes = max(shared_bytes, 1)
    blocks = min(readers, bench.sms)  # one an SM, the wider the more
    wide = READER_THREADS * -(-readers // max(blocks, 1))
    window_s = SUSTAINED_S / WINDOWS
    rate = min(readers * SUSTAINED_BYTES_PER_S, DRAM_BYTES_PER_S)
    count = int(rate * window_s / (max(blocks, 1) * max(wide, 1) * VECTOR_BYTES)) // UNROLL * UNROLL
    reader = cupy.zeros((int(WINDOWS * LONGER) if readers else 0, blocks, STAMP_WORDS), np.int64)
    load = cupy.zeros((WINDOWS, bench.sms, STAMP_WORDS), np.int64)
    each = np.int32(iterations * window_s / RUN_S)
    # Both live to the end: launches of streams that share a queue wait for each other.
    reads, loads = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.runtime.deviceSynchronize()
    time.sleep(SUSTAINED_REST_S)
    for at in range(max(len(reader), len(load))):
        if at < len(reader):
            with reads:
                read((blocks,), (wide,), (buffer, np.uint32(buffer.size // 4), np.int32(count),
                                          bench.sink, reader[at]))
        if at < len(load):
            with loads:
                function((bench.sms,), (threads,), (each, bench.sink, load[at]),
                         shared_mem=shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    return reader.get(), load.get(), blocks * wide * count * VECTOR_BYTES


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say: for each load its clock against bytes read beside it, in the first
    milliseconds after a rest (the value: at the most) and when it lasts (the value: without reads);
    and for how long the first clock holds."""
    found = []
    for name, (*_, what) in LOADS.items():
        if mine := select(points, "clock_reading", load=name):
            *_, (_, _, values) = pairs = _against_bytes(mine, clocks)
            found.append(_fact(f"{name}_clock_reading", values, pairs, (
                f"an SM's clock while all run {what}, for 12 ms, and thread blocks beside them "
                "read random numbers from device memory; the curve against bytes read a second")))
        if mine := select(points, "clock_sustained", load=name):
            (_, _, values), *pairs = _against_bytes(mine, _late_clocks)
            found.append(_fact(f"{name}_clock_sustained", values, pairs, (
                f"an SM's clock while all run {what}, launch after launch for {SUSTAINED_S} s, in "
                "the later half; the curve beside thread blocks that read random numbers from "
                "device memory, against bytes read a second")))
    held = tuple(seconds for point in select(points, "clock_sustained")
                 for sample in point["samples"] if (seconds := _held_s(sample)) is not None)
    if held:
        found.append(Fact(
            "first_clock", "seconds", held, "for how long after a rest tensor cores keep the clock "
            "of their first milliseconds, of loads that go on and whose clock falls, with and "
            "without reads of device memory beside them; as much of that clock and then of the "
            "later half's makes as many cycles"))
    return found


def _against_bytes(points: list[dict], clocks_of) -> list[tuple]:
    """(bytes read a second, median clock, the clocks) of each point, by rising bytes."""
    return sorted((median(sample["read_bytes_per_s"] for sample in point["samples"]),
                   median(clocks_of(point)), clocks_of(point)) for point in points)


def _fact(name: str, values: tuple[float, ...], pairs: list[tuple], how: str) -> Fact:
    return Fact(name, "hz", values, how, (), tuple(pair[:2] for pair in pairs), "dram_bytes_per_s",
                "boost_clock_hz")


def _late_clocks(point: dict) -> tuple[float, ...]:
    """Of each repeat, the median of the later half."""
    return tuple(median(sample["clock_hz"][len(sample["clock_hz"]) // 2:])
                 for sample in point["samples"])


def _held_s(sample: dict) -> float | None:
    """Seconds at the first clock that make as many cycles as were run above the last one; None
    where it falls too little to tell."""
    clock, at_s = np.array(sample["clock_hz"], float), np.array(sample["at_ms"]) * 1e-3
    half = len(clock) // 2
    first, last = np.median(clock[:6]), np.median(clock[half:])
    if first - last < FALLS * first:
        return None
    above = (clock - last)[:half] * np.diff(at_s[:half], prepend=0.0)
    return float(above.sum() / (first - last))
