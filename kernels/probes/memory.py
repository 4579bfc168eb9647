"""Launcher of memory.cu: bandwidth of device memory, and of L2 against the bytes read again.

Importing this needs no CuPy.
"""

from pathlib import Path

import numpy as np

from .bench import REPEATS, Bench, Fact, best, clocks, curve, rates, rates_per_clock, select

SOURCE = Path(__file__).with_suffix(".cu")
VECTOR_BYTES, UNROLL = 16, 8
THREADS, TILE_THREADS = 1024, 256
L2_COUNT = 2000  # vectors a thread: about 4 GB in all on an H200
WRITE_COUNT, ADD_COUNT = 1000, 2000
BUFFER_BYTES = 4 << 30  # of device memory that is read, written or copied
PARTS = 60  # footprints are sized in 60ths of the L2
STEP_BYTES = 4096  # and are whole multiples of this: an SM's slice, or all
PRIVATE = (3, 5, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 68, 80, 100, 128, 192, 256)
TOGETHER = (1, 4, 16, 32, 48, 64, 128)
SHARED = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 128)
PLATEAU = 16  # within each of two partitions, whatever they copy
# Blocks an SM, and KiB of each of a block's two tiles.
TILES_KIB = ((1, 4), (1, 8), (1, 12), (1, 16), (1, 24), (1, 32), (1, 48), (1, 64), (2, 48))
FEW_SMS = (1, 2, 4, 8, 16, 33, 66, 99)
# Ways through a large buffer: blocks an SM (None: as many as there are pieces), threads, whether
# the blocks' accesses lie side by side.
WAYS = {"slices": (2, 1024, False), "side by side": (2, 1024, True), "small blocks": (8, 256, True),
        "block a piece": (None, 256, True)}


def measure(bench: Bench) -> None:
    """Add this probe's points."""
    function = bench.functions(SOURCE)
    _device_memory(bench, function)
    size = max(max(PRIVATE) * (bench.l2_bytes // PARTS), bench.sms * STEP_BYTES)
    buffer = bench.cupy.zeros(size, np.uint8)
    _l2_reads(bench, function("read_in_step"), buffer)
    _l2_writes(bench, function, buffer)


def _path(size, region_step=0, offset=0, stride=THREADS):
    """PATH of memory.cu as kernel arguments."""
    return tuple(np.uint32(value) for value in (size, region_step, offset, stride))


def _device_memory(bench: Bench, function) -> None:
    size = min(BUFFER_BYTES, bench.memory_bytes // 8)
    source, target = (bench.cupy.ones(size // 4, np.uint32) for _ in range(2))
    for name, (blocks, threads, beside) in WAYS.items():
        grid, path, count = _sweep(size, blocks and blocks * bench.sms, threads, beside)
        done = grid * threads * count * VECTOR_BYTES
        at = {"way": name, "grid": grid, "threads": threads, "sms": bench.sms}
        bench.step(f"device memory, {name}")
        for series, factor, arguments in (
                ("hbm_read", 1, (source, *path, np.int32(count), bench.sink)),
                ("hbm_write", 1, (target, *path, np.int32(count))),
                ("hbm_copy", 2, (source, target, *path, np.int32(count)))):
            samples = bench.time(function(series.removeprefix("hbm_")), grid, threads, arguments)
            bench.add(series, factor * done, "bytes", samples, **at)
    bench.step("device memory, adds")
    grid, floats = 2 * bench.sms, size // 4
    count = floats // (grid * THREADS) // UNROLL * UNROLL
    samples = bench.time(function("add_floats"), grid, THREADS, (
        target, *_path(floats, 0, THREADS, grid * THREADS), np.int32(count)))
    bench.add("hbm_add", grid * THREADS * count * 4, "bytes", samples, sms=bench.sms, grid=grid,
              threads=THREADS)
    for sms in _few(bench):
        bench.step(f"device memory, {sms} SMs")
        count = min(L2_COUNT, size // (sms * THREADS * VECTOR_BYTES)) // UNROLL * UNROLL
        path = _path(count * THREADS, count * THREADS)
        samples = bench.time(function("read_in_step"), sms, THREADS,
                             (source, *path, np.int32(count), bench.sink))
        bench.add("hbm_read_few", sms * THREADS * count * VECTOR_BYTES, "bytes", samples, sms=sms)
    _tiles(bench, function("read_tiles"), source, size)
    bench.step("device memory, the driver's own copy")
    bench.add("hbm_copy", 2 * size, "bytes", _driver_copy(bench, source, target, size),
              way="driver")


def _tiles(bench: Bench, read, source, size: int) -> None:
    """Reads of tiles, two at a time of each block: what is in flight is known."""
    for blocks, kib in TILES_KIB:
        tile, grid = kib << 10, blocks * bench.sms
        bench.step(f"device memory, {blocks} x 2 tiles of {kib} KiB an SM")
        count = size // 2 // (grid * tile)
        samples = bench.time(read, grid, TILE_THREADS, (
            source, np.int32(tile // VECTOR_BYTES), np.int32(count), bench.sink), 2 * tile)
        bench.add("hbm_read_in_flight", grid * tile * count, "bytes", samples, sms=bench.sms,
                  grid=grid, tile_bytes=tile, in_flight_bytes=2 * grid * tile)


def _few(bench: Bench) -> tuple[int, ...]:
    """Numbers of SMs up to all."""
    return (*(sms for sms in FEW_SMS if sms < bench.sms), bench.sms)


def _sweep(size: int, grid: int | None, threads: int, beside: bool):
    """(grid, path, count) of one way through at most ``size`` bytes, every vector once."""
    vectors = size // VECTOR_BYTES
    grid = grid or vectors // (threads * UNROLL)
    count = vectors // (grid * threads) // UNROLL * UNROLL
    if beside:
        return grid, _path(vectors, 0, threads, grid * threads), count
    return grid, _path(count * threads, count * threads, 0, threads), count


def _driver_copy(bench: Bench, source, target, size: int) -> list[dict]:
    runtime, samples = bench.cupy.cuda.runtime, []
    for repeat in range(-1, REPEATS):
        start, stop = bench.cupy.cuda.Event(), bench.cupy.cuda.Event()
        start.record()
        runtime.memcpyAsync(target.data.ptr, source.data.ptr, size, runtime.memcpyDeviceToDevice,
                            bench.cupy.cuda.get_current_stream().ptr)
        stop.record()
        stop.synchronize()
        if repeat >= 0:
            samples.append({"seconds": bench.cupy.cuda.get_elapsed_time(start, stop) / 1e3})
    return samples


def _l2_reads(bench: Bench, read, buffer) -> None:
    unit, grid = bench.l2_bytes // PARTS, bench.sms
    done = grid * THREADS * L2_COUNT * VECTOR_BYTES
    slices = {max(parts * unit // grid // STEP_BYTES, 1): parts for parts in (*PRIVATE, PLATEAU)}
    for steps, parts in slices.items():
        vectors = steps * STEP_BYTES // VECTOR_BYTES
        _l2_point(bench, read, buffer, "l2_read_private", grid,
                  _path(vectors, vectors, 0, THREADS % vectors), done,
                  footprint_bytes=vectors * grid * VECTOR_BYTES, parts=parts)
    for series, sizes in (("l2_read_shared", SHARED), ("l2_read_together", TOGETHER)):
        for parts in sizes:
            vectors = parts * unit // STEP_BYTES * STEP_BYTES // VECTOR_BYTES
            offset = vectors // grid // 64 * 64 if series == "l2_read_shared" else 0
            _l2_point(bench, read, buffer, series, grid, _path(vectors, 0, offset), done,
                      footprint_bytes=vectors * VECTOR_BYTES, parts=parts)
    vectors = PLATEAU * unit // VECTOR_BYTES
    for sms in _few(bench):
        path = _path(vectors, 0, vectors // sms // 64 * 64, THREADS)
        _l2_point(bench, read, buffer, "l2_read_few", sms, path,
                  sms * THREADS * L2_COUNT * VECTOR_BYTES, sms=sms, parts=PLATEAU)


def _l2_point(bench, read, buffer, series, grid, path, done, **at) -> None:
    bench.step(f"{series}, {at['parts']}/{PARTS} of the L2")
    samples = bench.time(read, grid, THREADS, (buffer, *path, np.int32(L2_COUNT), bench.sink))
    bench.add(series, done, "bytes", samples, **{"sms": bench.sms, **at})


def _l2_writes(bench: Bench, function, buffer) -> None:
    grid, size = 2 * bench.sms, PLATEAU * (bench.l2_bytes // PARTS)
    at = {"sms": bench.sms, "footprint_bytes": size, "parts": PLATEAU}
    for series, each_bytes, name, count in (("l2_write", VECTOR_BYTES, "write", WRITE_COUNT),
                                            ("l2_add", 4, "add_floats", ADD_COUNT)):
        bench.step(series)
        path = _path(size // each_bytes, 0, THREADS, grid * THREADS % (size // each_bytes))
        samples = bench.time(function(name), grid, THREADS, (buffer, *path, np.int32(count)))
        bench.add(series, grid * THREADS * count * each_bytes, "bytes", samples, **at)


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say."""
    return [fact for fact in (*_hbm_facts(points), *_in_flight(points), *_l2_facts(points)) if fact]


def _hbm_facts(points):
    kernels = [p for p in points if p["at"].get("way") != "driver"]
    for name, series, among, how in (
            ("hbm_read", "hbm_read", kernels, "reads of a large buffer, 16 bytes a load, the "
             "best of four grids"),
            ("hbm_write", "hbm_write", kernels, "writes of a large buffer, 16 bytes a store, the "
             "best of four grids"),
            ("hbm_copy_kernel", "hbm_copy", kernels, "copy kernel over large buffers, reads and "
             "writes counted, the best of four grids"),
            ("hbm_add", "hbm_add", kernels, "adds to floats of a large buffer, a "
             "red.global.add.f32 a thread; bytes added"),
            ("hbm_copy", "hbm_copy", select(points, "hbm_copy", way="driver"),
             "the driver's device-to-device copy of a large buffer, reads and writes counted")):
        found = best(select(among, series))
        yield found and Fact(name, "bytes_per_s", rates(found), how, peak="hbm_bytes_per_s")


def _in_flight(points):
    series = select(points, "hbm_read_in_flight")
    found = best(series)
    if found:
        yield Fact("hbm_read_in_flight", "bytes_per_s", rates(found), "blocks load tiles of a "
                   "large buffer into shared memory, two at a time each; the curve against the "
                   "bytes of all of these", clocks(found), curve(series, "in_flight_bytes", rates),
                   "in_flight_bytes", peak="hbm_bytes_per_s")


def _l2_facts(points):
    how = ("every SM reads {}, 16 bytes a load past L1; value at 16/60 of the L2's size, "
           "the curve against all bytes read again and again")
    for name, what in (("l2_read_private", "its own slice"),
                       ("l2_read_shared", "all of one buffer, each from another place on"),
                       ("l2_read_together", "all of one buffer, beginning at the same place")):
        for point in select(points, name, parts=PLATEAU):
            yield Fact(name, "bytes_per_s", rates(point), how.format(what), clocks(point),
                       curve(select(points, name), "footprint_bytes", rates), "footprint_bytes")
    for level, where in (("l2", "in L2"), ("hbm", "in device memory")):
        few = select(points, f"{level}_read_few")
        for point in select(few, f"{level}_read_few", sms=1):
            yield Fact(f"{level}_read_one_sm", "bytes_per_clock_per_sm", rates_per_clock(point),
                       f"one SM alone reads a buffer {where}; the curve for that many SMs, of "
                       "each", clocks(point), curve(few, "sms", rates_per_clock), "sms")
    for name, how in (("l2_write", "every SM writes a buffer in L2, 16 bytes a store"),
                      ("l2_add", "every SM adds to floats in L2, a red.global.add.f32 a thread")):
        for point in select(points, name):
            yield Fact(name, "bytes_per_s", rates(point), how, clocks(point))
