"""Launcher of latency.cu: load-to-use latencies of shared memory, L1, L2 and device memory.

Importing this needs no CuPy.
"""

from pathlib import Path

import numpy as np

from .bench import REPEATS, Bench, Fact, curve, cycles_each, select

SOURCE = Path(__file__).with_suffix(".cu")
LINE_BYTES, WORDS = 128, 16  # of a line: 64-bit words
PARTS = 60  # footprints beyond L1 are sized in 60ths of the L2
L1_BYTES = tuple(kib << 10 for kib in (16, 32, 64, 96, 128, 160, 192, 224, 256, 384))
L2_PARTS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 72, 96, 128, 256)
PLATEAU = 16
HBM_BYTES = tuple(mib << 20 for mib in (32, 64, 256, 1024))  # spans: pages matter too
HBM_PLATEAU = 256 << 20
HOPS, WARMUP, NODES = 4096, 64, 1 << 16
LINES, LINE_STRIDE, LINE_HOPS = 512, 8192, 64
SHARED_WORDS = 1024


def measure(bench: Bench) -> None:
    """Add this probe's points."""
    function = bench.functions(SOURCE)
    bench.step("latency of shared memory")
    samples = bench.time(function("chase_shared"), 1, 1, (
        np.int32(SHARED_WORDS), np.int32(HOPS), bench.sink), SHARED_WORDS * 4)
    bench.add("smem_latency", HOPS, "loads", samples, footprint_bytes=SHARED_WORDS * 4)
    for size in L1_BYTES:
        _chase(bench, function, "l1_latency", size)
    for parts in L2_PARTS:
        _chase(bench, function, "l2_latency", parts * (bench.l2_bytes // PARTS), parts=parts)
    other = bench.cupy.zeros(8 * bench.l2_bytes, np.uint8)
    for span in HBM_BYTES:
        _chase(bench, function, "hbm_latency", span, other)
    _lines(bench, function)


def _ring(bench: Bench, span: int, nodes: int | None):
    """(buffer, addresses in the order of a random ring): 64-bit words on ``nodes`` of the lines of
    ``span`` bytes (None: on all), each holding the address of the next."""
    buffer = bench.cupy.zeros((span // LINE_BYTES, WORDS), np.uint64)
    order = np.random.default_rng(0).permutation(span // LINE_BYTES)[:nodes]
    addresses = (buffer.data.ptr + order * LINE_BYTES).astype(np.uint64)
    buffer[bench.cupy.asarray(order), 0] = bench.cupy.asarray(np.roll(addresses, -1))
    return buffer, addresses


def _chase(bench: Bench, function, series: str, span: int, other=None, **at) -> None:
    """A ring's latency: warm, read before by the SM that chases (or all of it, when it is too
    large to stay); or, where ``other`` is a buffer to fill the L2 with, from device memory."""
    bench.step(f"{series}, {span >> 10:,} KiB")
    buffer, addresses = _ring(bench, span, None if other is None else NODES)
    touch = function("touch")

    def before(repeat):
        warm = buffer if other is None else other
        blocks = 1 if other is None else 8 * bench.sms
        touch((blocks,), (1024,), (warm, np.uint64(warm.nbytes // 16), bench.sink))
        first = addresses[(repeat + 1) * (HOPS + WARMUP) % len(addresses)]
        return np.uint64(first), np.int32(warmup), np.int32(HOPS), bench.sink

    through_l1 = series == "l1_latency"
    warmup = len(addresses) if through_l1 else WARMUP
    chase = function("chase_l1" if through_l1 else "chase")
    samples = bench.time(chase, 1, 1, None, before=before)
    bench.add(series, HOPS, "loads", samples, footprint_bytes=span, **at)


def _lines(bench: Bench, function) -> None:
    """Each of some scattered lines: its first load, brought into L2 by others, and more loads."""
    bench.step("latency line by line")
    buffer = bench.cupy.zeros(LINES * LINE_STRIDE // 8, np.uint64)
    first = bench.cupy.arange(LINES, dtype=np.uint64) * LINE_STRIDE + buffer.data.ptr
    buffer[:: LINE_STRIDE // 8] = first
    cycles = bench.cupy.zeros((LINES, 2), np.int32)
    other = bench.cupy.zeros(8 * bench.l2_bytes, np.uint8)
    samples = []
    for _ in range(REPEATS):
        for warm in (other, buffer):
            function("touch")((8 * bench.sms,), (1024,), (
                warm, np.uint64(warm.nbytes // 16), bench.sink))
        function("lines")((1,), (1,), (np.uint64(buffer.data.ptr), np.int32(LINES),
                                       np.int32(LINE_STRIDE), np.int32(LINE_HOPS), cycles))
        found = cycles.get()
        samples.append({"first": found[:, 0].tolist(), "later": found[:, 1].tolist()})
    bench.add("line_latency", LINE_HOPS, "loads", samples, stride_bytes=LINE_STRIDE)


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say."""
    how = ("one thread chases pointers over {}, each load's address from the load before it, "
           "nothing else running")
    found = []
    for point in select(points, "smem_latency"):
        found.append(Fact("smem_latency", "cycles", cycles_each(point),
                          how.format("4 KiB of shared memory")))
    for series, where, at in (
            ("l1_latency", "lines in L1", {"footprint_bytes": 64 << 10}),
            ("l2_latency", "lines in L2, 16/60 of its size", {"parts": PLATEAU}),
            ("hbm_latency", "lines that no cache has, of 256 MiB", {
                "footprint_bytes": HBM_PLATEAU})):
        mine = select(points, series)
        found += [Fact(series, "cycles", cycles_each(point), how.format(where),
                       curve=curve(mine, "footprint_bytes", cycles_each),
                       curve_of="footprint_bytes") for point in select(mine, series, **at)]
    return found + _near_and_far(points)


def _near_and_far(points) -> list[Fact]:
    """Lines that the near side of the L2 holds, and those it fetches from the far side: a first
    load tells them apart, later ones of the same line all find it near."""
    near, far = [], []
    for point in select(points, "line_latency"):
        for sample in point["samples"]:
            sides = split(np.array(sample["first"]))
            if sides is None:
                return []
            near.append(float(np.median(sample["later"])) / point["work"])
            far.append(near[-1] + sides[1] - sides[0])
    if not near:
        return []
    return [Fact("l2_near_load_latency", "cycles", tuple(near), "one thread loads a line again "
                 "and again; median of 512 lines spread over the L2"),
            Fact("l2_far_load_latency", "cycles", tuple(far), "the near latency, and what the "
                 "first load of a far line takes longer than that of a near one; 512 lines that "
                 "other SMs brought into the L2")]


def split(cycles: np.ndarray) -> tuple[float, float] | None:
    """Medians below and above the widest gap; None when either side is under an eighth of all, or
    the gap under a tenth of the lower median or under twice what the lines of a side differ."""
    ordered = np.sort(cycles)
    at = int(np.argmax(np.diff(ordered))) + 1
    low, high = ordered[:at], ordered[at:]
    if min(len(low), len(high)) < len(ordered) // 8:
        return None
    inside = max(np.median(np.abs(part - np.median(part))) for part in (low, high))
    wide = high[0] - low[-1] > max(2 * inside, 0.1 * np.median(low))
    return (float(np.median(low)), float(np.median(high))) if wide else None
