"""Speed of the line cache beside other cache simulators: the same lines, in turn, in one run.

Times are CPU seconds of this process, which has one thread: what else runs here counts little.

pycachesim and libCacheSim are used when they are installed, and the same loops in C when there is a
compiler; none is a dependency. All are 50 MiB of 128-byte lines, 16-way LRU but for libCacheSim,
whose LRU is fully associative. Hits are checked: a fast wrong count is no count.
"""

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from ..kernels.errors import Unavailable
from ..simulator.engines.lru_lines import RUN, SECTORS, WAYS, LineCache

LINE_BYTES, N_SETS = 128, 25_600
CACHE_BYTES = LINE_BYTES * WAYS * N_SETS
WHOLE = (1 << SECTORS) - 1
ROUNDS, SAMPLE_SECONDS = 5, 0.02
OURS, IN_C = "hbmeter", "same loops in C"
BULK = ("pycachesim, list", "pycachesim, ranges")
BARS = {"lines a second on tiles": 1e9, "over pycachesim's bulk call": 25.0, "of C": 0.8}


def tiles() -> np.ndarray:
    """One head of a FlashAttention-2 forward loop: n 8,192, d 128, fp16, Br 128, Bc 64."""
    row_bytes, rows, br, bc = 128 * 2, 8192, 128, 64
    matrix, of_q, of_kv = (count * row_bytes // LINE_BYTES for count in (rows, br, bc))
    runs = []
    for block in range(rows // br):
        runs.append((block * of_q, of_q))
        for column in range(rows // bc):
            runs += [((1 + which) * matrix + column * of_kv, of_kv) for which in (0, 1)]
        runs.append((3 * matrix + block * of_q, of_q))
    return np.array([(first, lines, WHOLE) for first, lines in runs], RUN)


def scattered(count: int = 2_000_000) -> np.ndarray:
    """Single lines, uniform over 200 MiB."""
    lines = np.random.default_rng(1).integers(0, (200 << 20) // LINE_BYTES, count)
    return np.array([(line, 1, WHOLE) for line in lines.tolist()], RUN)


def stream() -> np.ndarray:
    """As many lines as ``tiles``, each once, in runs of 16 KiB."""
    first = np.arange(0, int(tiles()["lines"].sum()), 128)
    return np.array([(line, 128, WHOLE) for line in first.tolist()], RUN)


TRACES = {"tiles": tiles, "stream": stream, "scattered": scattered}


# ---- Contenders: each takes runs and gives a function that returns the lines that hit ----


def _hbmeter(runs):
    return lambda: LineCache(N_SETS).read(runs) // SECTORS


def _in_c(runs):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unavailable("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "lru_lines.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", library,
                   Path(__file__).with_name("lru_lines.c")]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise Unavailable(f"{compiler}: {built.stderr.strip().splitlines()[-1]}")
        read_runs = ctypes.CDLL(str(library)).read_runs
    read_runs.restype = ctypes.c_int64
    read_runs.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]

    def run():
        words = np.zeros(WAYS * N_SETS, np.uint32)
        return read_runs(runs.ctypes.data, len(runs), words.ctypes.data, N_SETS) // SECTORS

    return run


def _pycachesim(loads):
    def run():
        memory, cache = MainMemory(), Cache("L2", N_SETS, WAYS, LINE_BYTES, "LRU")
        memory.load_to(cache)
        memory.store_from(cache)
        simulator = CacheSimulator(cache, memory)
        for address, n_bytes in loads:
            simulator.load(address, length=n_bytes)
        return next(simulator.stats())["HIT_count"]

    try:
        from cachesim import Cache, CacheSimulator, MainMemory
    except ImportError as error:
        raise Unavailable("pycachesim is not installed") from error
    return run


def _pycachesim_ranges(runs):
    return _pycachesim([(first * LINE_BYTES, lines * LINE_BYTES)
                        for first, lines, _ in runs.tolist()])


def _pycachesim_list(runs):
    return _pycachesim([((_lines(runs) * LINE_BYTES).tolist(), 1)])


def _libcachesim(runs):
    try:
        import libcachesim
    except ImportError as error:
        raise Unavailable("libCacheSim is not installed") from error
    lines = _lines(runs)
    fields = [("time", "<u4"), ("object", "<u8"), ("bytes", "<u4"), ("next", "<i8")]
    requests = np.zeros(len(lines), fields)  # its oracleGeneral format
    requests["time"], requests["object"] = np.arange(len(lines)), lines
    requests["bytes"], requests["next"] = LINE_BYTES, -1
    trace = tempfile.NamedTemporaryFile(suffix=".oracleGeneral")  # noqa: SIM115, lives with run
    requests.tofile(trace.name)

    def run():
        reader = libcachesim.TraceReader(trace.name,
                                         libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        missed, _ = libcachesim.LRU(cache_size=CACHE_BYTES).process_trace(reader)
        return round((1 - missed) * len(lines))

    run.trace = trace
    return run


def _lines(runs) -> np.ndarray:
    """The lines of runs, one by one."""
    return np.concatenate([np.arange(first, first + lines) for first, lines, _ in runs.tolist()])


CONTENDERS = {OURS: _hbmeter, IN_C: _in_c, BULK[0]: _pycachesim_list,
              BULK[1]: _pycachesim_ranges, "libCacheSim": _libcachesim}


# ---- The race ----


def measure(report) -> list[dict]:
    """One dict a trace and contender: lines, hits, seconds of each round, or why it is not there.

    ``report`` is a Progress.
    """
    report.start("cache simulators", len(TRACES))
    rows = []
    for number, (trace, make) in enumerate(TRACES.items()):
        report.step(number, trace)
        rows += _race(trace, make())
    report.end()
    return rows


def _race(trace: str, runs) -> list[dict]:
    lines = int(runs["lines"].sum())
    rows, entries = {}, {}
    for name, prepare in CONTENDERS.items():
        rows[name] = {"trace": trace, "contender": name, "lines": lines, "hits": None,
                      "seconds": [], "why_not": None}
        try:
            run = prepare(runs)
            rows[name]["hits"] = int(run())  # compiles, too
            once = _seconds(run, 1)
            entries[name] = run, max(1, int(SAMPLE_SECONDS / once))
        except Unavailable as error:
            rows[name]["why_not"] = str(error)
    for _ in range(ROUNDS):
        for name, (run, repeats) in entries.items():
            rows[name]["seconds"].append(_seconds(run, repeats))
    return list(rows.values())


def _seconds(run, repeats: int) -> float:
    """CPU seconds of one run over ``repeats``; the contender before may have left the allocator
    work, which short runs do not pay."""
    if repeats > 1:
        run()
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def rate(row: dict) -> float | None:
    """Lines a CPU second, by the median round."""
    return row["lines"] / median(row["seconds"]) if row["seconds"] else None


def wrong(rows: list[dict]) -> list[str]:
    """What is wrong with the hits: 16-way counts that differ, or tiles that do not all stay."""
    found = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        hits = {row["contender"]: row["hits"] for row in rows
                if row["trace"] == trace and row["hits"] is not None}
        fully = hits.pop("libCacheSim", None)
        if len(set(hits.values())) > 1:
            found.append(f"{trace}: hits differ: {hits}")
        if trace != "scattered" and fully not in (None, hits[OURS]):
            found.append(f"{trace}: libCacheSim {fully} hits, hbmeter {hits[OURS]}")
    return found


def bars(rows: list[dict]) -> dict[str, tuple[float | None, float]]:
    """(Measured on tiles, bar) of each of BARS; None where a contender is not there."""
    speed = {row["contender"]: rate(row) for row in rows if row["trace"] == "tiles"}
    bulk = max((speed[name] for name in BULK if speed[name]), default=None)
    values = (speed[OURS], bulk and speed[OURS] / bulk, speed[IN_C] and speed[OURS] / speed[IN_C])
    return {name: (value, bar) for (name, bar), value in zip(BARS.items(), values, strict=True)}
