"""Launcher of blocks.cu: how blocks that start and end at once share DRAM and L2.

Importing this needs no CuPy.
"""

from pathlib import Path

import numpy as np

from .bench import REPEATS, STAMP_WORDS, Bench, Fact, curve, select

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, WAVES, WORK_CYCLES, VECTOR_BYTES = 128, 6, 20_000, 16
LOADED = (8 << 10, 16 << 10, 32 << 10, 64 << 10, 96 << 10)  # bytes that a block begins with
STORED = (0, 16 << 10, 32 << 10, 64 << 10)  # and that it ends with
HBM_BYTES, L2_BYTES = 1 << 30, 8 << 20  # of all slices: read once, and again and again
SHARED_BYTES = 160 << 10  # one block an SM; less where a block gets no more


def measure(bench: Bench) -> None:
    """Add this probe's points: every SM a block at a time, WAVES one after the other."""
    visit = bench.functions(SOURCE)("visit")
    shared = visit.max_dynamic_shared_size_bytes = min(SHARED_BYTES, bench.block_shared_bytes)
    grid = WAVES * bench.sms
    for series, most, sizes in (("block_load_hbm", min(HBM_BYTES, bench.memory_bytes // 8), LOADED),
                                ("block_load_l2", L2_BYTES, LOADED),
                                ("block_store", L2_BYTES, STORED)):
        bench.step(f"blocks, {series}")
        for size in (size for size in sizes if size <= shared):
            buffer = bench.cupy.zeros(most, np.uint8)
            vectors = size // VECTOR_BYTES
            load, store = (0, vectors) if series == "block_store" else (vectors, 0)
            slices = most // max(size, VECTOR_BYTES)
            samples = [_visit(bench, visit, buffer, repeat * grid % slices, slices, load, store,
                              shared) for repeat in range(REPEATS + 1)]
            bench.add(series, size, "bytes", samples[1:], bytes=size, sms=bench.sms)


def _visit(bench, visit, buffer, first, slices, load, store, shared) -> dict:
    """Median cycles of loading and storing, without the first wave."""
    grid = WAVES * bench.sms
    visits = bench.cupy.zeros((grid, 2), np.int64)
    stamps = bench.cupy.zeros((grid, STAMP_WORDS), np.int64)
    visit((grid,), (THREADS,), (
        buffer, buffer, np.uint32(first), np.uint32(slices), np.int32(load),
        np.int32(store), np.int32(WORK_CYCLES), visits, stamps), shared_mem=shared)
    at, stamps = visits.get()[bench.sms:], stamps.get()[bench.sms:]
    return {"load_cycles": float(np.median(at[:, 0] - stamps[:, 0])),
            "store_cycles": float(np.median(stamps[:, 1] - at[:, 1]))}


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say: bytes over the cycles beyond those of the smallest."""
    found = []
    for series, what, how in (
            ("block_load_hbm", "load_cycles", "blocks, one an SM, that begin at once with loads "
             "from device memory"),
            ("block_load_l2", "load_cycles", "the same from L2"),
            ("block_store", "store_cycles", "blocks, one an SM, that end at once with stores")):
        mine = sorted(select(points, series), key=lambda point: point["work"])
        if len(mine) < 2:
            continue
        low, high = mine[0], mine[-1]
        values = tuple(
            (high["work"] - low["work"]) / max(b[what] - a[what], 1)
            for a, b in zip(low["samples"], high["samples"], strict=True))
        found.append(Fact(
            series, "bytes_per_clock_per_sm", values, f"{how}; more bytes over more cycles, of the "
            "largest and the smallest; the curve against bytes has each block's latency in it", (),
            curve([p for p in mine if p["work"]], "bytes", lambda point, what=what: [
                point["work"] / max(sample[what], 1) for sample in point["samples"]]), "bytes"))
    return found
