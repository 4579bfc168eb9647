"""Launcher of merging.cu: SMs that read the same lines in step, or so many cycles apart.

SMs are those of a GH100 of 132. Importing this needs no CuPy.
"""

from functools import partial
from pathlib import Path

import numpy as np

from .counted import DURATION, LONE_SHARED_BYTES, MIB, SMS, Part, buffer, gpcs

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, STEPS, LINES_OF_A_CHUNK = 256, 1024, 32
HELD_CHUNKS = 64  # 256 KiB that stay in L2; new lines are STEPS chunks, each read once
HOW = ("merging.cu under ncu --cache-control all --clock-control none, one run: 1,024 chunks of "
       "4 KiB one after the other, of 256 KiB again and again or (new_lines) of 4 MiB once; each "
       "SM so many cycles late")
COUNTERS = {
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_read_requests": "lts__t_requests_srcunit_tex_op_read.sum",
    "sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "dram_read_bytes": "dram__bytes_read.sum", **DURATION,
}

OFTEN, SELDOM = (0, 60, 120, 240, 480, 960), (0, 240)  # cycles late, lines that are held
OFTEN_NEW, SELDOM_NEW = (0, 240, 480, 960, 1400), (0, 480)
# Two SMs: of a TPC, of a GPC, of a side, of two sides; and how late the second comes.
PAIRS = {(2, 3): (OFTEN, OFTEN_NEW), (2, 18): (OFTEN, SELDOM_NEW), (2, 34): (SELDOM, SELDOM_NEW),
         (2, 64): (SELDOM, SELDOM_NEW), (2, 106): (OFTEN, OFTEN_NEW), (2, 4): (SELDOM, SELDOM_NEW),
         (2, 0): (SELDOM, SELDOM_NEW)}
PACE, PACE_OF_MANY, MANY = 1500, 2500, 20  # cycles a chunk, and of more SMs than so many


def groups() -> list[list[int]]:
    """SMs that read in step."""
    _, one, two, *_ = gpcs()
    return [one[:4], one[:6], one[:8], one, one[::2], [2, 4, 6, 14], list(range(0, 16, 2)),
            one + two, list(range(SMS)), list(range(0, SMS, 2)), list(range(64))]


def parts() -> dict[str, Part]:
    """What is launched: pairs, groups, groups one after the other, and pairs by small steps."""
    walks = []

    def walk(sms, late, new=False, pace=PACE):
        sms, late = map(list, zip(*sorted(zip(sms, late, strict=True)), strict=True))
        walks.append({"sms": sms, "late_cycles": late, "new_lines": new, "pace_cycles": pace,
                      "lines": STEPS * LINES_OF_A_CHUNK})

    for new in (False, True):
        for pair, late in PAIRS.items():
            for cycles in late[new]:
                walk(pair, (0, cycles), new)
    for new in (False, True):
        for sms in groups():
            walk(sms, [0] * len(sms), new, PACE_OF_MANY if len(sms) > MANY else PACE)
    everyone = range(SMS)
    for apart in (4, 8, 16):
        walk(everyone, [apart * sm for sm in everyone], pace=3000)
    for pace in (3000, 6000):
        walk(everyone, [0] * SMS, pace=pace)
    for cycles in range(30, 161, 10):
        walk((2, 106), (0, cycles))
        walk((2, 3), (0, cycles))
    for cycles in range(300, 801, 50):
        walk((2, 106), (0, cycles), True)
    for cycles in range(0, 400, 50):  # a third SM after one of the other side had the line
        walk((0, 2, 106), (0, 3000, 3000 + cycles), True, 6000)
    for cycles in range(100, 400, 50):  # and of its own
        walk((4, 2, 106), (0, 3000, 3000 + cycles), True, 6000)
    return {"walks": Part(walks, "hbmeter_probe_merging", COUNTERS, _words)}


def _words(walk: dict) -> str:
    few = len(walk["sms"]) < 4
    who = f"SMs {', '.join(map(str, walk['sms']))}" if few else f"{len(walk['sms'])} SMs"
    late = walk["late_cycles"]
    when = f"{', '.join(map(str, late)) if few else f'up to {max(late)}'} cycles late"
    return f"{who}: {when if any(late) else 'in step'}{', new lines' * walk['new_lines']}"


def launcher(bench, part: str):
    """A function that launches one walk and waits for it."""
    function = bench.functions(SOURCE)("merging")
    function.max_dynamic_shared_size_bytes = LONE_SHARED_BYTES
    return partial(_launch, bench, function, buffer(bench.cupy, 4 * MIB),
                   bench.cupy.zeros(96, np.uint32))


def _launch(bench, function, base, sync, walk: dict) -> None:
    late = dict(zip(walk["sms"], walk["late_cycles"], strict=True))
    delay = bench.cupy.asarray(np.array([late.get(sm, -1) for sm in range(SMS)], np.int32))
    sync.fill(0)
    bench.cupy.cuda.runtime.deviceSynchronize()
    function((SMS,), (THREADS,), (
        base, np.int32(STEPS if walk["new_lines"] else HELD_CHUNKS), np.int32(STEPS), delay,
        np.int32(len(late)), np.uint32(walk["pace_cycles"]), sync, bench.sink,
    ), shared_mem=LONE_SHARED_BYTES)
    bench.cupy.cuda.runtime.deviceSynchronize()
