"""What the launchers of the probes share: builds, timed launches, points and facts.

A point is what was run, raw: {"series", "at": parameters, "work": how much a launch did, "unit",
"samples": [a dict a repeat]}. A sample of ``Bench.time`` has ``seconds`` (CUDA events around the
launch), ``cycles`` (of an SM's own clock, from its first block's start to its last one's end, the
median SM), ``slowest_cycles`` (the SM that took longest), ``clock_hz`` (that clock against the
GPU's timer) and ``span_s`` (from the first start to the last end anywhere, by that timer).

A fact is what points say of a GPU: an entry of a profile's ``measured`` section. Importing this
needs no CuPy.
"""

import hashlib
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from ..runner import require_gpu

FOLDER = Path(__file__).parent
OPTIONS = ("--std=c++17", f"-I{FOLDER}")
REPEATS = 7
PARTS_LOADED, PART_REPEATS = (1 / 8, 1 / 4, 1 / 2, 3 / 4), 60  # of the SMs, for curves of clocks
STAMP_WORDS = 5  # of a block: start and stop in cycles, in ns, and its SM


# ---- Facts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """One entry of ``measured``: ``values`` are repeats, ``curve`` (x, y) pairs of medians.

    ``peak`` is the key of the profile's own value that no right measurement passes; for FLOP/s
    that depends on ``clock_hz``, the SM's clock in each repeat."""

    name: str
    unit: str
    values: tuple[float, ...]
    how: str
    clock_hz: tuple[float, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()
    curve_of: str | None = None
    peak: str | None = None

    @property
    def value(self) -> float:
        """The median of the repeats."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the range of the repeats."""
        return (max(self.values) - min(self.values)) / 2


def select(points: list[dict], series: str, **at) -> list[dict]:
    """The points of a series whose parameters are ``at``."""
    return [point for point in points if point["series"] == series
            and all(point["at"].get(name) == value for name, value in at.items())]


def rates(point: dict) -> tuple[float, ...]:
    """Work a second, of each repeat."""
    return tuple(point["work"] / sample["seconds"] for sample in point["samples"])


def rates_per_clock(point: dict) -> tuple[float, ...]:
    """Work a clock and SM, of each repeat."""
    return tuple(point["work"] / (point["at"]["sms"] * sample["cycles"])
                 for sample in point["samples"])


def cycles_each(point: dict) -> tuple[float, ...]:
    """Cycles a piece of work, of each repeat, where one follows the other."""
    return tuple(sample["cycles"] / point["work"] for sample in point["samples"])


def clocks(point: dict) -> tuple[float, ...]:
    """The SM's clock in Hz, of each repeat."""
    return tuple(sample["clock_hz"] for sample in point["samples"])


def best(points: list[dict], measure=rates) -> dict | None:
    """The point of the highest median rate; None of none."""
    return max(points, key=lambda point: median(measure(point)), default=None)


def curve(points: list[dict], x: str, measure) -> tuple[tuple[float, float], ...]:
    """(parameter, best median) by rising parameter; nothing for a single parameter."""
    found = {}
    for point in points:
        value = median(measure(point))
        at = point["at"][x]
        found[at] = max(found.get(at, value), value)
    return tuple(sorted(found.items())) if len(found) > 1 else ()


def per_clock(fact: Fact, point: dict, curve_points: list[dict], x: str, name: str) -> Fact:
    """A rate's fact as FLOPs a clock and SM, which no clock changes, with its curve over ``x``."""
    return replace(fact, name=f"{fact.name}_per_clock", unit="flop_per_clock_per_sm",
                   values=rates_per_clock(point), curve=curve(curve_points, x, rates_per_clock),
                   curve_of=name)


def sustained(points: list[dict], name: str, what: str) -> list[Fact]:
    """The clock under a load that lasts: the later half of the samples; a curve over the SMs that
    are loaded, where so many were tried."""
    def later(point):
        return clocks(point)[len(point["samples"]) // 2:]

    return [Fact(f"{name}_clock", "hz", later(point),
                 f"an SM's clock against the GPU's timer while all run {what} for a second or so, "
                 "launch after launch, later half", (),
                 curve([*select(points, f"{name}_partial"), point], "sms", later), "sms",
                 "boost_clock_hz")
            for point in select(points, f"{name}_sustained")]


# ---- Runs -------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A GPU to run probes on: what it is, how far the run is, and the points so far.

    ``step`` is called with words for each series that begins."""

    step: object = lambda words: None
    points: list = field(default_factory=list)

    def __post_init__(self):
        self.cupy = require_gpu()
        device = self.cupy.cuda.Device()
        properties = self.cupy.cuda.runtime.getDeviceProperties(device.id)
        self.sms, self.l2_bytes = properties["multiProcessorCount"], properties["l2CacheSize"]
        self.memory_bytes = properties["totalGlobalMem"]
        self.block_shared_bytes = properties["sharedMemPerBlockOptin"]
        self.capability = int(device.compute_capability)
        self.sink = self.cupy.zeros(64, np.uint32)

    @property
    def arch(self) -> str:
        """What NVRTC compiles for: from 9.0 on with the instructions of this GPU alone."""
        return f"sm_{self.capability}" + "a" * (self.capability >= 90)

    def functions(self, source: Path):
        """name -> the kernel hbmeter_probe_name of a source file."""
        module, _ = _module(source, self.arch)
        return lambda name: module.get_function(f"hbmeter_probe_{name}")

    def add(self, series: str, work: float, unit: str, samples: list[dict], **at) -> None:
        """Keep a point."""
        self.points.append({"series": series, "at": at, "work": work, "unit": unit,
                            "samples": samples})

    def parts(self) -> tuple[int, ...]:
        """Numbers of SMs, PARTS_LOADED of all."""
        return tuple(dict.fromkeys(max(round(part * self.sms), 1) for part in PARTS_LOADED))

    def time(self, function, grid: int, threads: int, arguments, shared_bytes: int = 0,
             repeats: int = REPEATS, before=None) -> list[dict]:
        """Samples of a kernel that takes stamps last, after a launch that is not kept; ``before``
        is called, with the number of the repeat, before each."""
        if shared_bytes > 48 << 10:
            function.max_dynamic_shared_size_bytes = shared_bytes
        stamps = self.cupy.zeros((grid, STAMP_WORDS), np.int64)
        samples = []
        for repeat in range(-1, repeats):
            now = arguments if before is None else before(repeat)
            start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record()
            function((grid,), (threads,), (*now, stamps), shared_mem=shared_bytes)
            stop.record()
            stop.synchronize()
            if repeat >= 0:
                seconds = self.cupy.cuda.get_elapsed_time(start, stop) / 1e3
                samples.append(_sample(seconds, stamps.get()))
        return samples


def _sample(seconds: float, stamps: np.ndarray) -> dict:
    _, sm = np.unique(stamps[:, 4], return_inverse=True)
    first, last = np.full(sm.max() + 1, np.iinfo(np.int64).max), np.zeros(sm.max() + 1, np.int64)
    np.minimum.at(first, sm, stamps[:, 0])
    np.maximum.at(last, sm, stamps[:, 1])
    cycles, ns = stamps[:, 1] - stamps[:, 0], stamps[:, 3] - stamps[:, 2]
    return {"seconds": seconds, "cycles": int(np.median(last - first)),
            "slowest_cycles": int((last - first).max()),
            "clock_hz": round(float(cycles.sum() / max(ns.sum(), 1)) * 1e9),
            "span_s": int(stamps[:, 3].max() - stamps[:, 2].min()) / 1e9}


@cache
def _module(source: Path, arch: str):
    """(CuPy module compiled for exactly ``arch``, which CuPy's own compiling never is, and the
    folder that its binary is in as long as the process lives)."""
    folder = tempfile.TemporaryDirectory(prefix="hbmeter-")
    path = Path(folder.name) / f"{source.stem}.cubin"
    path.write_bytes(_cubin(source, arch))
    return require_gpu().RawModule(path=str(path)), folder


def _cubin(source: Path, arch: str) -> bytes:
    nvrtc = require_gpu().cuda.nvrtc
    program = nvrtc.createProgram(source.read_text(encoding="utf-8"), source.name, (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={arch}"))
        return nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(f"{source.name} does not compile for {arch} ({error}):\n{log}") from None
    finally:
        nvrtc.destroyProgram(program)


def source_hash() -> str:
    """Changes with any source or launcher of the probes."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in (".cu", ".cuh", ".py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
