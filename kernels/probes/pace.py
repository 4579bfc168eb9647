"""Launcher of pace.cu: when blocks of equal work start, and how unequal their pace is.

Importing this needs no CuPy.
"""

from functools import partial
from pathlib import Path

import numpy as np

from . import places
from .bench import STAMP_WORDS
from .counted import Part, buffer

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, TILES, TILE_BYTES = 128, 256, 16 << 10
BLOCKS_PER_SM, STREAMS, ROUNDS = (1, 2, 4), (1, 16, 32, 64, None), (16, 32)  # None: one a block
HOW = ("pace.cu: a wave of blocks of equal work, which walk streams of 256 tiles of 16 KiB with "
       "loads ahead and mma.sync m16n8k16 on each, after another kernel; of each block the SM, its "
       "start by the GPU's timer (ticks of 32 ns) and its cycles; GPCs by clusters")


def parts() -> dict[str, Part]:
    """What is launched: blocks on an SM, streams that they share, less and more work a tile."""
    waves = [{"blocks_per_sm": blocks, "streams": streams, "rounds": rounds}
             for blocks in BLOCKS_PER_SM for streams in STREAMS for rounds in ROUNDS]
    return {"waves": Part(waves, "hbmeter_probe_pace", {}, _words, shown=_shown)}


def _words(wave: dict) -> str:
    streams = "a stream a block" if wave["streams"] is None else f"{wave['streams']} stream(s)"
    return f"{wave['blocks_per_sm']} blocks an SM, {streams}, {wave['rounds']} rounds a tile"


def _shown(wave: dict) -> dict:
    spreads = np.array([_of_age(wave, age) for age in range(wave["blocks_per_sm"])])
    return {"cycles a tile": float(np.median(wave["cycles"])) / TILES,
            "first starts": first_starts_cycles(wave),
            "sd in GPC, oldest": spreads[0, 0], "youngest": spreads[-1, 0],
            "sd of GPCs, oldest": spreads[0, 1], "the youngest": spreads[-1, 1]}


# ---- Facts ------------------------------------------------------------------------------------


def first_starts_cycles(wave: dict) -> float:
    """Cycles from the first block's start to that of the last SM's first block."""
    first: dict[int, int] = {}
    for sm, start in zip(wave["sm"], wave["start_ns"], strict=True):
        first[sm] = min(start, first.get(sm, start))
    return (max(first.values()) - min(first.values())) * wave["clock_hz"] / 1e9


def ages(wave: dict) -> np.ndarray:
    """How many blocks came to its SM before each."""
    seen: dict[int, int] = {}
    found = []
    for sm in wave["sm"]:
        found.append(seen.get(sm, 0))
        seen[sm] = found[-1] + 1
    return np.array(found)


def _of_age(wave: dict, age: int) -> tuple[float, float]:
    """Of the blocks of an age: standard deviation of their cycles within GPCs, and of the GPCs'
    medians, over the mean."""
    cycles, sm, mine = np.array(wave["cycles"], float), np.array(wave["sm"]), ages(wave) == age
    groups = [cycles[mine & np.isin(sm, gpc)] for gpc in wave["gpcs"]]
    groups = [group for group in groups if len(group)]
    medians = np.array([np.median(group) for group in groups])
    within = np.concatenate([group - middle for group, middle in zip(groups, medians, strict=True)])
    return float(within.std() / medians.mean()), float(medians.std() / medians.mean())


def _late(waves: list[dict]) -> list[float]:
    """Cycles a tile by which the oldest blocks are slower when all tiles come from DRAM, each
    block its own, than when all blocks read the same, over the blocks that share an SM: with the
    most work a tile, so that DRAM has room."""
    cycles = {(wave["blocks_per_sm"], wave["streams"]):
              float(np.median(np.array(wave["cycles"])[ages(wave) == 0])) / TILES
              for wave in waves if wave["rounds"] == max(ROUNDS)}
    return [(cycles[blocks, None] - cycles[blocks, 1]) / blocks for blocks in BLOCKS_PER_SM
            if {(blocks, None), (blocks, 1)} <= {*cycles}]


def facts(waves: list[dict]) -> dict[str, float]:
    """What a profile's ``l2`` section has of it: first starts; by how much of the mean pace blocks
    of a GPC, and GPCs, are faster or slower, were they spread evenly (sqrt(3) standard deviations):
    medians of waves and ages, of blocks that share an SM and of those that do not; and what tiles
    from DRAM cost that were loaded a trip ahead."""
    starts = float(np.median([first_starts_cycles(wave) for wave in waves]))
    found = {"first_starts_cycles": starts}
    if late := _late(waves):
        found["dram_ahead_cycles"] = float(np.median(late))
    for alone, names in ((False, ("pace_spread", "gpc_pace_spread")),
                         (True, ("pace_spread_alone", "gpc_pace_spread_alone"))):
        spreads = [_of_age(wave, age) for wave in waves for age in range(wave["blocks_per_sm"])
                   if (wave["blocks_per_sm"] == 1) == alone]
        if spreads:
            medians = np.sqrt(3) * np.median(spreads, axis=0)
            found |= dict(zip(names, map(float, medians), strict=True))
    return found


# ---- Runs -------------------------------------------------------------------------------------


def launcher(bench, part: str):
    """A function that launches one wave: what each block logged."""
    function = bench.functions(SOURCE)
    streams = max(BLOCKS_PER_SM) * bench.sms
    return partial(_launch, bench, function("pace"),
                   buffer(bench.cupy, streams * TILES * TILE_BYTES), places.gpcs(bench, function))


def _launch(bench, function, base, gpcs, wave: dict) -> dict:
    shared = bench.block_shared_bytes // wave["blocks_per_sm"] - (2 << 10)
    function.max_dynamic_shared_size_bytes = shared
    grid = bench.sms * wave["blocks_per_sm"]
    stamps = bench.cupy.zeros((grid, STAMP_WORDS), np.int64)
    bench.sink.fill(0)  # another kernel: no block finds its instructions at hand
    function((grid,), (THREADS,), (
        base, np.int32(wave["streams"] or grid), np.int32(TILES), np.int32(wave["rounds"]),
        bench.sink, stamps), shared_mem=shared)
    start, stop, start_ns, stop_ns, sm = stamps.get().T
    clock_hz = (stop - start).sum() / max((stop_ns - start_ns).sum(), 1) * 1e9
    return {"clock_hz": round(float(clock_hz)), "gpcs": gpcs, "sm": sm.tolist(),
            "start_ns": (start_ns - start_ns.min()).tolist(), "cycles": (stop - start).tolist()}
