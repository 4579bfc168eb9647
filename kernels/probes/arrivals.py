"""Launcher of arrivals.cu: how long tiles take to arrive, from L2 and from DRAM.

Importing this needs no CuPy.
"""

from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from .counted import MIB, Part, buffer

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, VECTOR_BYTES = 256, 16
BLOCKS, LOADS, APART_CYCLES = 8, 512, 3000  # few, so that none waits for another
TILE_BYTES = (4 << 10, 8 << 10, 16 << 10, 32 << 10)
L2_BYTES, DRAM_BYTES = MIB, 1024 * MIB  # read again and again, and once
SHARES = 11  # 0, 10, … 100%
HOW = ("arrivals.cu: 8 blocks of 256 threads, each of another GPC or part of one, load tiles into "
       "shared memory by cp.async, 3000 cycles apart, and wait for each; cycles that a tile takes, "
       "at eleven shares of the loads from the fastest to the slowest")


def parts() -> dict[str, Part]:
    """What is launched: tiles from L2 and from DRAM."""
    loads = [{"source": source, "bytes": size} for source in ("l2", "dram") for size in TILE_BYTES]
    return {"loads": Part(loads, "hbmeter_probe_arrive", {}, _words, repeats=3, shown=_shown)}


def _words(load: dict) -> str:
    return f"tiles of {load['bytes'] >> 10} KiB from {load['source']}"


def _shown(load: dict) -> dict:
    cycles = np.median(np.atleast_2d(load["cycles"]), axis=0)
    return {"fastest": cycles[0], "median": cycles[SHARES // 2], "nine in ten": cycles[-2]}


def facts(loads: list[dict]) -> dict:
    """What a profile's ``l2`` section has of it: cycles of a tile of no bytes from L2, bytes a
    clock that larger ones take, and how much later tiles come from DRAM, by shares of them; the
    slowest of all is left to chance: where the next two shares point."""
    cycles = {(load["source"], load["bytes"]): np.median(load["cycles"], axis=0) for load in loads}
    middle = SHARES // 2
    least, most = TILE_BYTES[0], TILE_BYTES[-1]
    rate = (most - least) / (cycles["l2", most][middle] - cycles["l2", least][middle])
    first = median(cycles["l2", size][middle] - size / rate for size in TILE_BYTES)
    late = np.median([cycles["dram", size] - cycles["l2", size][middle] for size in TILE_BYTES],
                     axis=0)
    late[-1] = 2 * late[-2] - late[-3]
    return {"tile_cycles": float(first), "tile_bytes_per_clock": float(rate),
            "dram_late_cycles": late.tolist()}


# ---- Runs -------------------------------------------------------------------------------------


def launcher(bench, part: str):
    """A function that launches one entry: quantiles of its loads' cycles."""
    return partial(_launch, bench, bench.functions(SOURCE)("arrive"),
                   buffer(bench.cupy, DRAM_BYTES))


def _launch(bench, function, base, load: dict) -> dict:
    slices = (L2_BYTES if load["source"] == "l2" else DRAM_BYTES) // load["bytes"]
    waits = bench.cupy.zeros((BLOCKS, LOADS), np.uint32)
    if load["source"] == "dram":  # what passes last stays: all else is gone
        bench.cupy.copyto(base[DRAM_BYTES // 2:], 0)
    for _ in range(2 if load["source"] == "l2" else 1):
        every = bench.sms // BLOCKS
        function((every * BLOCKS,), (THREADS,), (
            base, np.uint32(slices), np.int32(load["bytes"] // VECTOR_BYTES), np.int32(LOADS),
            np.int32(APART_CYCLES), np.int32(every), waits), shared_mem=load["bytes"])
    cycles = np.quantile(waits.get(), np.linspace(0, 1, SHARES))
    return {"cycles": [round(float(x), 1) for x in cycles]}
