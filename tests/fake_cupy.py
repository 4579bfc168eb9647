"""A GPU as the probes' launchers see it, without one: arrays are NumPy's, kernels only stamp."""

import re
from types import SimpleNamespace

import numpy as np
from hbmeter.kernels import probes

SMS, CYCLES = 132, 1_000_000
PROPERTIES = {"name": b"NVIDIA H200", "multiProcessorCount": SMS, "l2CacheSize": 1_310_720,
              "totalGlobalMem": 1 << 24, "sharedMemPerBlockOptin": 232_448}
SOURCES = "".join(path.read_text(encoding="utf-8") for path in probes.FOLDER.glob("*.cu"))


class Array(np.ndarray):
    """A NumPy array that knows its address, as CuPy's do."""

    data = property(lambda self: SimpleNamespace(ptr=self.ctypes.data))

    def get(self):
        """A copy on the host."""
        return np.array(self)


class Function:
    """A kernel: says what it was launched with, and stamps blocks as a GPU of 1 GHz would."""

    num_regs, shared_size_bytes, max_dynamic_shared_size_bytes = 64, 0, 0

    def __init__(self, name, launches):
        self.name, self.launches, self.kernel = name, launches, SimpleNamespace(ptr=0)
        declared = re.search(rf"\b{name}\(([^)]*)\)", SOURCES)  # else made by a macro
        names = declared and declared.group(1).replace("PATH", "a, b, c, d")
        self.parameters = declared and len(names.split(",")) * bool(names)

    def __call__(self, grid, block, arguments, shared_mem=0):
        assert shared_mem <= max(48 << 10, self.max_dynamic_shared_size_bytes)
        assert 0 < block[0] <= 1024 and grid[0] > 0
        assert self.parameters in (None, len(arguments)), self.name
        self.launches.append(self.name)
        Event.now_ms += 1 + grid[0] / SMS
        stamps = arguments[-1] if arguments else None
        if getattr(stamps, "shape", ())[1:] == (5,):
            stamps[:, 1] = stamps[:, 3] = CYCLES
            stamps[:, 4] = np.arange(len(stamps)) % SMS
        elif self.name == "hbmeter_probe_lines":  # a quarter of them far
            stamps[:] = [350, 64 * 280]
            stamps[::4, 0] = 520


class Event:
    """By a clock that launches move on."""

    now_ms = 0.0

    def record(self):
        """Now, later than ever before."""
        Event.now_ms += 0.001
        self.at_ms = Event.now_ms

    def synchronize(self):
        """Nothing to wait for."""


class Stream:
    """Captures nothing."""

    ptr = 0
    __enter__ = begin_capture = lambda self: self

    def __init__(self, non_blocking=False):
        self.graph = SimpleNamespace(launch=lambda: None)

    def __exit__(self, *error):
        """Nothing to do."""

    def end_capture(self):
        """The graph."""
        return self.graph


def cupy(launches: list):
    """What ``runner.require_gpu`` would return; ``launches`` collects the kernels' names."""
    def made(function):
        return lambda *args, **options: function(*args, **options).view(Array)

    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: PROPERTIES, deviceSynchronize=lambda: None,
        memcpyAsync=lambda *args: None, memcpyDeviceToDevice=3, driverGetVersion=lambda: 1,
        runtimeGetVersion=lambda: 1)
    driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *args: 2)
    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(id=0, compute_capability="90"), runtime=runtime,
        driver=driver, Event=Event, Stream=Stream, get_current_stream=Stream,
        get_elapsed_time=lambda start, stop: stop.at_ms - start.at_ms)
    module = SimpleNamespace(compile=lambda: None,
                             get_function=lambda name: Function(name, launches))
    return SimpleNamespace(
        __version__="0", zeros=made(np.zeros), ones=made(np.ones), arange=made(np.arange),
        asarray=made(np.asarray), cuda=cuda, RawModule=lambda **options: module,
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None))
