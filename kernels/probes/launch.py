"""Launcher of launch.cu: what a launch and the start of a thread block cost.

Importing this needs no CuPy.
"""

import time
from functools import cache
from pathlib import Path

import numpy as np

from .bench import REPEATS, STAMP_WORDS, Bench, Fact, select

SOURCE = Path(__file__).with_suffix(".cu")
LAUNCHES, LONE_LAUNCHES = 500, 100
WAIT_NS = 30_000_000  # longer than the host takes to queue all launches
TURNS, TURN_CYCLES = 8, 20_000  # blocks one after the other on an SM, and how long each lasts
BLOCK_THREADS = (128, 256, 512)
BLOCK_SHARED_BYTES = 160 << 10  # one block an SM; less where a block gets no more
GRIDS = (1 << 14, 1 << 17)  # of empty blocks


def measure(bench: Bench) -> None:
    """Add this probe's points."""
    function = bench.functions(SOURCE)
    empty = function("empty")
    bench.step("launches")
    bench.add("launch_gap", LAUNCHES, "launches", _queued(bench, function("wait"), empty))
    bench.add("launch_graph", LAUNCHES, "launches", _graph(bench, empty))
    bench.add("launch_alone", 1, "launches", _alone(bench, empty))
    bench.step("starts of thread blocks")
    for grid in GRIDS:
        for threads in BLOCK_THREADS:
            bench.add("empty_blocks", grid, "blocks", _timed(bench, lambda g=grid, t=threads: empty(
                (g,), (t,), ())), threads=threads, sms=bench.sms)
    _turns(bench, function("turns"))


@cache
def waiting():
    """The kernel of one thread that keeps the GPU waiting for so many nanoseconds (uint64)."""
    return Bench().functions(SOURCE)("wait")


def _timed(bench: Bench, run) -> list[dict]:
    samples = []
    for repeat in range(-1, REPEATS):
        start, stop = bench.cupy.cuda.Event(), bench.cupy.cuda.Event()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        if repeat >= 0:
            samples.append({"seconds": bench.cupy.cuda.get_elapsed_time(start, stop) / 1e3})
    return samples


def _queued(bench: Bench, wait, empty) -> list[dict]:
    """Launches that were all queued before the first began: what the GPU needs from one to the
    next."""
    samples = []
    for _ in range(REPEATS):
        start, stop = bench.cupy.cuda.Event(), bench.cupy.cuda.Event()
        began = time.perf_counter()
        wait((1,), (1,), (np.uint64(WAIT_NS),))
        start.record()
        for _ in range(LAUNCHES):
            empty((1,), (32,), ())
        stop.record()
        queued = time.perf_counter() - began
        stop.synchronize()
        samples.append({"seconds": bench.cupy.cuda.get_elapsed_time(start, stop) / 1e3,
                        "queued_s": queued})
    return samples


def _graph(bench: Bench, empty) -> list[dict]:
    stream = bench.cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(LAUNCHES):
            empty((1,), (32,), ())
        graph = stream.end_capture()
        return _timed(bench, graph.launch)


def _alone(bench: Bench, empty) -> list[dict]:
    """From before the call to after the wait for its end, by the host's clock: of each repeat the
    median launch."""
    samples = []
    for _ in range(REPEATS):
        taken = []
        for _ in range(LONE_LAUNCHES):
            bench.cupy.cuda.runtime.deviceSynchronize()
            began = time.perf_counter()
            empty((1,), (32,), ())
            bench.cupy.cuda.runtime.deviceSynchronize()
            taken.append(time.perf_counter() - began)
        samples.append({"seconds": float(np.median(taken))})
    return samples


def _turns(bench: Bench, turns) -> None:
    """Blocks that fill an SM each: cycles from the end of one to the start of the next."""
    shared_bytes = min(BLOCK_SHARED_BYTES, bench.block_shared_bytes)
    turns.max_dynamic_shared_size_bytes = shared_bytes
    for threads in BLOCK_THREADS:
        samples = []
        for _ in range(REPEATS):
            stamps = bench.cupy.zeros((TURNS * bench.sms, STAMP_WORDS), np.int64)
            turns((TURNS * bench.sms,), (threads,), (np.int32(TURN_CYCLES), stamps),
                  shared_mem=shared_bytes)
            samples.append(_gaps(stamps.get()))
        bench.add("block_turns", 1, "starts", samples, threads=threads, sms=bench.sms)


def _gaps(stamps: np.ndarray) -> dict:
    """Cycles between blocks that follow each other on an SM, and the spread of the first starts."""
    gaps, first = [], []
    for sm in np.unique(stamps[:, 4]):
        mine = stamps[stamps[:, 4] == sm]
        mine = mine[np.argsort(mine[:, 0])]
        gaps += (mine[1:, 0] - mine[:-1, 1]).tolist()
        first.append(int(mine[0, 2]))
    return {"gap_cycles": gaps[:: max(1, len(gaps) // 132)],
            "first_starts_ns": max(first) - min(first)}


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say."""
    found = []
    for name, how in (
            ("launch_gap", "empty kernels queued behind a busy GPU, time from one to the next"),
            ("launch_graph", "empty kernels in a CUDA graph, time from one to the next"),
            ("launch_alone", "an empty kernel from the call to the end of the wait for it, by the "
                             "host's clock, from Python")):
        found += [Fact(name, "seconds", tuple(s["seconds"] / point["work"]
                                              for s in point["samples"]), how)
                  for point in select(points, name)]
    for point in select(points, "block_turns", threads=256):
        found.append(Fact(
            "block_start", "cycles", tuple(float(np.median(s["gap_cycles"]))
                                           for s in point["samples"]),
            "from the end of a block of 256 threads that fills its SM to the start of the next"))
        found.append(Fact(
            "first_blocks", "seconds", tuple(s["first_starts_ns"] / 1e9 for s in point["samples"]),
            "from the first block's start to the start of the last SM's first block"))
    few, many = ([p for p in select(points, "empty_blocks", threads=128) if p["work"] == grid]
                 for grid in GRIDS)
    for a, b in zip(few, many, strict=True):
        rates = tuple((b["work"] - a["work"]) / (y["seconds"] - x["seconds"])
                      for x, y in zip(a["samples"], b["samples"], strict=True))
        found.append(Fact("blocks_started", "blocks_per_s", rates, "empty blocks of 128 threads, "
                          "more blocks over more time of two grids"))
    return found
