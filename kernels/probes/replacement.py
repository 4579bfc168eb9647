"""Launcher of replacement.cu: what an L2 keeps of what one SM, or some, read and write.

SMs and their sides are those of a GH100 of 132. Importing this needs no CuPy.
"""

from functools import partial
from pathlib import Path

import numpy as np

from .counted import DRAM, DURATION, LONE_SHARED_BYTES, MIB, SMS, Part, buffer, gpcs

SOURCE = Path(__file__).with_suffix(".cu")
HOW = ("replacement.cu: one SM alone under ncu (alone), SMs of one side or both that walk a buffer "
       "by the clock, 2,400 cycles a step of 16 KiB (walks), and 1,024 lines timed after one SM "
       "read or wrote others (survival; of 1,024 loads some 12% are late for other reasons)")
COUNTERS = {
    "near_miss_sectors": "lts__t_sectors_srcunit_tex_lookup_miss.sum", **DRAM,
    "fabric_sectors": "lts__t_sectors_srcunit_ltcfabric.sum",
    "fabric_miss_sectors": "lts__t_sectors_srcunit_ltcfabric_lookup_miss.sum", **DURATION,
}
CHUNKS_OF_A_MIB, STEP_BYTES, VECTOR_BYTES, LINE_BYTES = 256, 16 << 10, 16, 128
KINDS = ("round", "random", "to and fro")
SIDES = (0, 1, 1, 1, 0, 0, 0, 1)  # of the GPCs

# alone: MiB again and again, and chunks beside 8 of them; hot and other MiB, and the hot of 16.
LIVE, ALONE_ONLY = (16, 20, 22, 24, 26, 28, 29, 30, 31, 32, 34), (29, 31)
BESIDE, WRITTEN_TOO = (0, 1, 2, 4, 8), (1, 4)  # beside 8
HOT = ((8, 24), (8, 40), (16, 40), (8, 96), (16, 96), (20, 64), (24, 64))
HOT_OF_16, TO_AND_FRO, PASSES, RANDOM_MIB = (8, 12), (24, 28, 30, 32, 36, 44, 60), 6, 200
ALONE_BYTES, OTHERS_FROM = 328 * MIB, 36 * CHUNKS_OF_A_MIB

# walks: MiB of the buffer, and what is read and written beside each step.
WALKED, WALKED_ONE_SIDE, WALK_PASSES, PACE = (24, 28, 32), (24, 26, 28, 30, 32), 3, 2400
BESIDE_BYTES = ((0, 0), (2048, 0), (0, 2048))

# survival: target lines in the first 8 MiB, MiB of others, and how both are touched.
TARGETS, TARGET_BYTES, SURVIVAL_BYTES = 1024, 8 * MIB, 160 * MIB
FINE = (0, 4, 8, 12, 16, 18, 20, 22, *range(24, 35), 36, 38, 40, 44, 48, 56, 64, 80, 96, 128, 150)
SOME = (8, 16, 20, 24, 26, 28, 30, 32, 34, 36, 40, 48, 64, 96, 128)
TOUCHED = {  # others, touches, sectors, written, others written, between, twice
    "one touch": (FINE, 1, 4, 0, 0, 0, 0), "two touches": (FINE, 2, 4, 0, 0, 0, 0),
    "four touches": (SOME, 4, 4, 0, 0, 0, 0), "one sector": (SOME, 1, 1, 0, 0, 0, 0),
    "written": (FINE, 1, 4, 1, 0, 0, 0), "written stream": (FINE, 1, 4, 0, 1, 0, 0),
    "written both": (SOME, 1, 4, 1, 1, 0, 0), "touched again after 8": (SOME, 1, 4, 0, 0, 8, 0),
    "touched again after 20": (SOME, 1, 4, 0, 0, 20, 0), "stream twice": (SOME, 1, 4, 0, 0, 0, 1),
}
NEAR_CYCLES, DRAM_CYCLES = 400, 600  # a load that takes less is near, one that takes more missed


def parts() -> dict[str, Part]:
    """What is launched."""
    alone = [_alone("round", live, 0, beside, 0, written,
                    PASSES * live * CHUNKS_OF_A_MIB // 8 * (8 + beside) // 4 * 4)
             for live in LIVE for beside in BESIDE if not beside or live not in ALONE_ONLY
             for written in ((False, True) if beside in WRITTEN_TOO else (False,))]
    alone += [_alone("random", other, hot, 0, share, False, RANDOM_MIB * CHUNKS_OF_A_MIB)
              for hot, other in HOT for share in HOT_OF_16]
    alone += [_alone("to and fro", live, 0, 0, 0, False, PASSES * live * CHUNKS_OF_A_MIB)
              for live in TO_AND_FRO]
    walks = [{"who": who, "live_bytes": live * MIB, "read_beside": read, "written_beside": written,
              "passes": WALK_PASSES, "place": _places(ring, live)}
             for who, ring in rings().items()
             for live in (WALKED_ONE_SIDE if who == "one side" else WALKED)
             for read, written in BESIDE_BYTES if who != "launch" or read]
    survival = [{"what": what, "others_bytes": size * MIB}
                for what, (sizes, *_) in TOUCHED.items() for size in sizes]
    return {"alone": Part(alone, "hbmeter_probe_alone", COUNTERS, _alone_words),
            "walks": Part(walks, "hbmeter_probe_walks", COUNTERS, _walk_words),
            "survival": Part(survival, "hbmeter_probe_survival", {}, _survival_words, 1,
                             _survival_shown)}


def _alone(kind, live, hot, beside, share, written, chunks) -> dict:
    return {"kind": kind, "live_bytes": live * MIB, "hot_bytes": hot * MIB, "beside_of_8": beside,
            "hot_of_16": share, "written": written, "chunks": chunks}


def rings() -> dict[str, list[int]]:
    """SMs in the order of their places on a walk."""
    sides = [sorted(sm for gpc, side in zip(gpcs(), SIDES, strict=True) if side == number
                    for sm in gpc) for number in (0, 1)]
    return {"one side": sides[0],
            "alternate": [sm for pair in zip(*sides, strict=False) for sm in pair],
            "two groups": sides[0] + sides[1], "launch": [sm for gpc in gpcs() for sm in gpc]}


def _places(ring: list[int], live: int) -> list[int]:
    """The step at which each SM begins, spread evenly; -1: it is idle."""
    place = [-1] * SMS
    for number, sm in enumerate(ring):
        place[sm] = number * live * MIB // STEP_BYTES // len(ring)
    return place


def _alone_words(walk: dict) -> str:
    size = f"{walk['live_bytes'] // MIB} MiB"
    if walk["kind"] == "random":
        size += f" and {walk['hot_bytes'] // MIB} hot, {walk['hot_of_16']} of 16"
    beside = f", {walk['beside_of_8']} beside 8" if walk["beside_of_8"] else ""
    return f"{walk['kind']}, {size}{beside}{', written' * walk['written']}"


def _walk_words(walk: dict) -> str:
    return (f"{walk['who']}, {walk['live_bytes'] // MIB} MiB"
            f"{', read beside' * bool(walk['read_beside'])}"
            f"{', written beside' * bool(walk['written_beside'])}")


def _survival_words(launch: dict) -> str:
    return f"{launch['what']}, {launch['others_bytes'] // MIB} MiB of others"


def _survival_shown(launch: dict) -> dict:
    return {what.replace("_", " "): launch[what]
            for what in ("near_of_near_homes", "near_of_far_homes", "dram_of_far_homes")}


# ---- Runs -------------------------------------------------------------------------------------


def launcher(bench, part: str):
    """A function that launches one entry of a part and waits for it."""
    function = bench.functions(SOURCE)
    if part == "survival":
        return _Survival(bench, function("homes"), function("survival"))
    kernel = function(part)
    kernel.max_dynamic_shared_size_bytes = LONE_SHARED_BYTES
    if part == "alone":
        return partial(_launch_alone, bench, kernel, buffer(bench.cupy, ALONE_BYTES))
    beside = SMS * max(map(_steps, parts()[part].launches)) * max(map(max, BESIDE_BYTES))
    return partial(_launch_walk, bench, kernel, *(
        buffer(bench.cupy, size) for size in (max(WALKED_ONE_SIDE) * MIB, beside, beside)))


def _launch_alone(bench, function, base, walk: dict) -> None:
    chunks = [np.uint32(walk[what] // MIB * CHUNKS_OF_A_MIB)
              for what in ("live_bytes", "hot_bytes")]
    function((SMS,), (1024,), (
        base, *chunks, np.uint32(OTHERS_FROM), np.int32(KINDS.index(walk["kind"])),
        np.uint32(walk["beside_of_8"] or walk["hot_of_16"]), np.int32(walk["written"]),
        np.uint32(walk["chunks"]), np.int32(0), bench.sink), shared_mem=LONE_SHARED_BYTES)
    bench.cupy.cuda.runtime.deviceSynchronize()


def _steps(walk: dict) -> int:
    return walk["live_bytes"] // STEP_BYTES * walk["passes"]


def _launch_walk(bench, function, shared, dead, out, walk: dict) -> None:
    place = bench.cupy.asarray(np.array(walk["place"], np.int32))
    bench.cupy.cuda.runtime.deviceSynchronize()
    function((SMS,), (256,), (
        shared, np.int32(walk["live_bytes"] // STEP_BYTES), np.int32(_steps(walk)), place,
        np.uint32(PACE), dead, out, np.int32(walk["read_beside"] // VECTOR_BYTES),
        np.int32(walk["written_beside"] // VECTOR_BYTES), bench.sink),
        shared_mem=LONE_SHARED_BYTES)
    bench.cupy.cuda.runtime.deviceSynchronize()


class _Survival:
    """Times target lines after others; where their homes are is measured once."""

    def __init__(self, bench, homes, survival):
        self.cupy, self.survival = bench.cupy, survival
        for function in (homes, survival):
            function.max_dynamic_shared_size_bytes = LONE_SHARED_BYTES
        lines = np.random.default_rng(5).permutation(TARGET_BYTES // LINE_BYTES)[:TARGETS]
        self.targets = self.cupy.asarray(np.sort(lines).astype(np.uint32))
        self.base = buffer(self.cupy, SURVIVAL_BYTES)
        self.others = self.cupy.zeros(SURVIVAL_BYTES // 4, np.float32)
        cycles = self.cupy.zeros(TARGETS, np.uint16)
        homes((SMS,), (32,), (self.base, self.targets, np.int32(TARGETS), np.int32(0), cycles),
              shared_mem=LONE_SHARED_BYTES)
        self.near_home = cycles.get() < np.median(cycles.get())

    def __call__(self, launch: dict) -> dict:
        """Shares of targets that were found near, or not at all, by where their homes are."""
        _, touches, sectors, written, others_written, between, twice = TOUCHED[launch["what"]]
        cycles = self.cupy.zeros(TARGETS, np.uint16)
        float(self.others.sum())  # pushes all out of the L2
        lines_of_a_mib = MIB // LINE_BYTES
        self.survival((SMS,), (1024,), (
            self.base, self.targets, np.int32(TARGETS), np.int32(touches), np.int32(sectors),
            np.int32(written), np.uint64(TARGET_BYTES // LINE_BYTES),
            np.int32(between * lines_of_a_mib),
            np.int32(launch["others_bytes"] // LINE_BYTES), np.int32(others_written),
            np.int32(twice), np.int32(0), cycles), shared_mem=LONE_SHARED_BYTES)
        found, near = cycles.get(), self.near_home
        return {"near_of_near_homes": _share(found[near] < NEAR_CYCLES),
                "near_of_far_homes": _share(found[~near] < NEAR_CYCLES),
                "dram_of_far_homes": _share(found[~near] >= DRAM_CYCLES)}


def _share(which: np.ndarray) -> float:
    return round(float(which.mean()), 4) if which.size else 0.0
