"""Running kernels on a GPU: results, counted bytes, times and what the driver says of them.

The only module that imports CuPy, and only when something is run.
"""

from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import numpy as np

from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from .base import Kernel, Launch, is_statistic, tensor_shape
from .errors import Unavailable
from .tensor_map import tensor_map

STORAGE = {"fp32": "float32", "fp16": "float16", "bf16": "uint16"}  # bf16 as its bits
BF16_NAN = 0x7FFF
REFERENCE_BYTES = 1 << 30  # of one chunk of float64 scores
RESERVED_SHARED_BYTES = 1024  # of a block, by the system, where the driver does not say
LOGGED_BLOCKS = 1 << 13
SHARED_UNIT = 128  # bytes by which a block's shared memory is given


@dataclass(frozen=True)
class Result:
    """Every tensor that a kernel wrote (CuPy arrays; bf16 as its bits in uint16) and, when
    counted, the bytes it moved: {"Q": {"read_bytes": …, "write_bytes": …}, …}."""

    outputs: dict
    bytes: dict | None = None


@dataclass(frozen=True)
class Timing:
    """All samples of one kernel (all its launches together), in the order they were taken."""

    samples_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return median(self.samples_ms)


@dataclass(frozen=True)
class Attributes:
    """What the driver says of one entry point."""

    registers: int
    local_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    blocks_per_sm: int


@cache
def require_gpu():
    """CuPy, when it and a GPU are there. Raises Unavailable, with what to do, otherwise."""
    try:
        import cupy
    except ImportError as error:
        raise Unavailable(
            f"CuPy cannot be imported ({_brief(error)}): pip install 'hbmeter[cuda13]' "
            "(or 'hbmeter[cuda12]' for a CUDA 12 driver; only one of the two: pip list shows both)"
        ) from error
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(
            f"no usable GPU ({error}): an NVIDIA GPU with a driver at least as new as CuPy's CUDA "
            "is needed; nvidia-smi shows both"
        ) from error
    if devices < 1:
        raise Unavailable("no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES")
    return cupy


def _brief(error: Exception) -> str:
    """The first and the last line of CuPy's page of advice, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]
    return " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


# ---- Numbers ----------------------------------------------------------------------------------


def to_storage(values, dtype: str):
    """A float32 CuPy array in the dtype that kernels read."""
    cupy = require_gpu()
    if dtype != "bf16":
        return values.astype(STORAGE[dtype])
    bits = cupy.ascontiguousarray(values, dtype=cupy.float32).view(cupy.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to the nearest, ties to even
    return (rounded >> 16).astype(cupy.uint16)


def to_float(array):
    """A stored CuPy array (bf16 as its bits in uint16) as float32."""
    cupy = require_gpu()
    if array.dtype != cupy.uint16:
        return array.astype(cupy.float32)
    return (array.astype(cupy.uint32) << 16).view(cupy.float32)


def random_inputs(problem: Attention, seed: int = 0):
    """Standard normal Q, K, V, the same on every machine."""
    cupy = require_gpu()
    random = np.random.default_rng(seed)
    return tuple(
        to_storage(
            cupy.asarray(random.standard_normal(tensor_shape(name, problem), dtype=np.float32)),
            problem.dtype,
        )
        for name in "QKV"
    )


def reference(problem: Attention, q, k, v) -> dict:
    """Attention in float64, computed apart from any kernel: O, m, l and LSE."""
    cupy = require_gpu()
    names = {"O": problem.value_dim, "m": 1, "l": 1}
    rows = (problem.head_count, problem.seq)
    out = {name: cupy.empty((*rows, width)) for name, width in names.items()}
    flat = [to_float(x).reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    chunk = max(1, REFERENCE_BYTES // (8 * problem.kv_seq))
    for head in range(problem.head_count):
        keys, values = (x[head // problem.group].astype(cupy.float64) for x in flat[1:])
        for r0 in range(0, problem.seq, chunk):
            queries = flat[0][head, r0 : r0 + chunk].astype(cupy.float64)
            found = _reference_rows(cupy, problem, queries, keys, values, r0)
            for name, part in found.items():
                out[name][head, r0 : r0 + chunk] = part
    out["LSE"] = out["m"] + cupy.log(out["l"])
    return {name: x.reshape(tensor_shape(name, problem)) for name, x in out.items()}


def _reference_rows(cupy, problem: Attention, queries, keys, values, r0: int) -> dict:
    low, high = problem.mask_bounds.column_range(r0 + np.arange(len(queries)), problem.kv_seq)
    columns = cupy.arange(problem.kv_seq)
    seen = (columns >= cupy.asarray(low)[:, None]) & (columns < cupy.asarray(high)[:, None])
    scores = cupy.where(seen, queries @ keys.T * problem.softmax_scale, -cupy.inf)
    m = scores.max(axis=1, keepdims=True)
    weights = cupy.exp(scores - cupy.where(cupy.isfinite(m), m, 0.0))
    l = weights.sum(axis=1, keepdims=True)
    return {"O": weights @ values / cupy.where(l > 0, l, 1.0), "m": m, "l": l}


# ---- Launching --------------------------------------------------------------------------------


@cache
def _module(source: str, options: tuple[str, ...]):
    cupy = require_gpu()
    module = cupy.RawModule(code=source, options=options, backend="nvrtc")
    try:
        module.compile()
    except cupy.cuda.compiler.CompileException as error:
        missing = [line.strip() for line in str(error).splitlines() if "open source file" in line]
        if missing:
            raise Unavailable(
                f"the CUDA headers are missing ({missing[0]}): install the CUDA toolkit or "
                "pip install 'hbmeter[compile]', and set CUDA_PATH when it is not found"
            ) from error
        raise
    return module


def _functions(kernel: Kernel, problem: Attention, tiles: Tiles, order: str, count: bool,
               most_blocks_per_sm: int | None, log: bool = False) -> tuple:
    """The module, and (function, launch) of each launch, with its shared memory granted."""
    cupy = require_gpu()
    kernel.check(problem, tiles)
    launches = kernel.launches(problem, tiles, order)
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    allowed = properties["sharedMemPerBlockOptin"]
    needed = max(launch.shared_bytes for launch in launches)
    if needed > allowed:
        raise InputError(
            f"kernel {kernel.name} with {tiles} needs {needed:,} bytes of shared memory a thread "
            f"block; this GPU allows {allowed:,}; use smaller tiles"
        )
    if most_blocks_per_sm is not None:
        launches = [_crowded_out(launch, most_blocks_per_sm, properties) for launch in launches]
    options = kernel.options(problem, tiles, count, order)
    if log:
        options += (f"-DLOG_BLOCKS={LOGGED_BLOCKS}",)
    if kernel.only_arch:
        options += (_arch_option(kernel, properties),)
    module = _module(kernel.source, options)
    functions = [module.get_function(launch.entry) for launch in launches]
    for function, launch in zip(functions, launches, strict=True):
        function.max_dynamic_shared_size_bytes = launch.shared_bytes  # 48 KiB without
    return module, [
        (function, _resident(function, launch, properties) if launch.persistent else launch)
        for function, launch in zip(functions, launches, strict=True)]


def _resident(function, launch: Launch, properties: dict) -> Launch:
    """The launch with no more thread blocks than the GPU holds at once."""
    room = properties["multiProcessorCount"] * _blocks_per_sm(function, launch)
    return replace(launch, grid=min(launch.grid, room))


def _blocks_per_sm(function, launch: Launch) -> int:
    return require_gpu().cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function.kernel.ptr, launch.threads, launch.shared_bytes
    )


def _arch_option(kernel: Kernel, properties: dict) -> str:
    """What makes NVRTC use instructions of one architecture. (CuPy adds -arch=sm_90; of the two
    NVRTC obeys the one with the a.)"""
    arch = f"sm_{properties['major']}{properties['minor']}"
    if kernel.only_arch.rstrip("a") != arch:
        raise InputError(
            f"kernel {kernel.name} needs {kernel.only_arch}; this GPU allows {arch} code"
        )
    return f"-arch={kernel.only_arch}"


def _crowded_out(launch: Launch, most_blocks_per_sm: int, properties: dict) -> Launch:
    """The launch with so much shared memory that no more blocks than that share an SM."""
    reserved = properties.get("reservedSharedMemPerBlock", RESERVED_SHARED_BYTES)
    share = properties["sharedMemPerMultiprocessor"] // most_blocks_per_sm - reserved
    room = min(share, properties["sharedMemPerBlockOptin"]) // SHARED_UNIT * SHARED_UNIT
    return replace(launch, shared_bytes=max(launch.shared_bytes, room))


class Prepared:
    """A kernel with its arguments in place, ready to launch any number of times.

    Arguments as ``run`` has them; ``tensors`` holds inputs and outputs by name.
    """

    def __init__(self, kernel, problem, tiles, q, k, v, order, count, most_blocks_per_sm,
                 more=None, log=False):
        cupy = require_gpu()
        self.module, self.functions = _functions(kernel, problem, tiles, order, count,
                                                 most_blocks_per_sm, log)
        self.kernel, self.count = kernel, count
        inputs = _checked(kernel, problem, {"Q": q, "K": k, "V": v} | (more or {}))
        self.tensors = kernel.arrange(cupy, inputs, problem, tiles)
        self.used = kernel.used(problem, tiles)
        for name in (*kernel.outputs, *kernel.scratch):
            if name not in self.used:
                continue
            shape = kernel.tensor_shape(name, problem, tiles)
            self.tensors[name] = _unwritten(name, shape, problem.dtype)
        self.counters = cupy.zeros((len(kernel.tensors), 2), cupy.uint64)
        self.scalars = kernel.scalars(problem, tiles)
        self.arguments = [self._arguments(launch) for _, launch in self.functions]

    def _arguments(self, launch: Launch) -> tuple:
        maps = {name: tensor_map(self.tensors[name], *box) for name, *box in launch.boxes}
        values = self.tensors | self.scalars | maps
        extra = (self.counters,) if self.count else ()
        return tuple(values[name] for name in launch.arguments) + extra

    def launch(self):
        for (function, launch), arguments in zip(self.functions, self.arguments, strict=True):
            function((launch.grid,), (launch.threads,), arguments, shared_mem=launch.shared_bytes)

    def counted(self) -> dict:
        rows = zip(self.kernel.tensors, self.counters.get().tolist(), strict=True)
        return {name: {"read_bytes": r, "write_bytes": w} for name, (r, w) in rows
                if name in self.used}


def _unwritten(name: str, shape: tuple[int, ...], dtype: str):
    """A tensor full of NaN."""
    dtype = "float32" if is_statistic(name) else STORAGE[dtype]
    nan = BF16_NAN if dtype == "uint16" else np.nan
    return require_gpu().full(shape, nan, dtype)


def _checked(kernel: Kernel, problem: Attention, inputs: dict) -> dict:
    """The inputs, contiguous. Raises InputError for one that is missing, or of a shape or dtype
    that is not the problem's."""
    cupy = require_gpu()
    missing = [name for name in kernel.inputs if name not in inputs]
    if missing:
        raise InputError(f"kernel {kernel.name} needs {', '.join(missing)} too")
    for name in kernel.inputs:
        array, shape = inputs[name], tensor_shape(name, problem)
        wanted = "float32" if is_statistic(name) else STORAGE[problem.dtype]
        if array.shape != shape or array.dtype != wanted:
            raise InputError(
                f"{name} is {array.dtype} {array.shape}; the problem has {problem.dtype} {shape}"
            )
    return {name: cupy.ascontiguousarray(inputs[name]) for name in kernel.inputs}


def run(
    kernel: Kernel, problem: Attention, tiles: Tiles, q, k, v,
    order: str = "row", count: bool = False, most_blocks_per_sm: int | None = None,
    more: dict | None = None,
) -> Result:
    """Runs a kernel once. What it does not write stays NaN; ``count`` builds it with counters;
    ``most_blocks_per_sm`` keeps more thread blocks than that from sharing an SM; ``more`` are the
    kernel's other inputs by name (of a backward pass dO, O and LSE; of a softmax S, with ``q``,
    ``k`` and ``v`` None).

    Raises InputError for what the kernel or this GPU cannot run and Unavailable without a GPU.
    """
    prepared = Prepared(kernel, problem, tiles, q, k, v, order, count, most_blocks_per_sm, more)
    prepared.launch()
    require_gpu().cuda.runtime.deviceSynchronize()
    outputs = {name: prepared.tensors[name] for name in kernel.outputs}
    return Result(outputs, prepared.counted() if count else None)


def time_ms(
    kernel: Kernel, problem: Attention, tiles: Tiles, q, k, v,
    order: str = "row", warmup: int = 3, repeats: int = 10,
    most_blocks_per_sm: int | None = None, more: dict | None = None,
) -> Timing:
    """Times a kernel with CUDA events, one sample a repeat, caches as the last run left them."""
    cupy = require_gpu()
    prepared = Prepared(kernel, problem, tiles, q, k, v, order, False, most_blocks_per_sm, more)
    for _ in range(warmup):
        prepared.launch()
    samples = []
    for _ in range(repeats):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        prepared.launch()
        stop.record()
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop))
    return Timing(tuple(samples))


def attributes(
    kernel: Kernel, problem: Attention, tiles: Tiles, order: str = "row", count: bool = False,
    most_blocks_per_sm: int | None = None, log: bool = False,
) -> dict[str, Attributes]:
    """Registers, local and shared memory and thread blocks per SM of each entry point."""
    return {
        launch.entry: Attributes(
            registers=function.num_regs,
            local_bytes=function.local_size_bytes,
            static_shared_bytes=function.shared_size_bytes,
            dynamic_shared_bytes=launch.shared_bytes,
            blocks_per_sm=_blocks_per_sm(function, launch),
        )
        for function, launch in _functions(kernel, problem, tiles, order, count,
                                           most_blocks_per_sm, log)[1]
    }


def block_logs(
    kernel: Kernel, problem: Attention, tiles: Tiles, q, k, v,
    order: str = "row", most_blocks_per_sm: int | None = None, more: dict | None = None,
) -> dict[str, np.ndarray]:
    """When the thread blocks of each entry point began and ended, and where: [block, (SM, start,
    end)], ns since the first began, of the first LOGGED_BLOCKS; caches as a launch before left
    them. Arguments as ``run`` has them. The build that logs takes a register or two more."""
    cupy = require_gpu()
    prepared = Prepared(kernel, problem, tiles, q, k, v, order, False, most_blocks_per_sm, more,
                        log=True)
    prepared.launch()
    log = cupy.ndarray((LOGGED_BLOCKS, 3), cupy.uint32, prepared.module.get_global("block_log"))
    found = {}
    for (function, launch), arguments in zip(prepared.functions, prepared.arguments, strict=True):
        function((launch.grid,), (launch.threads,), arguments, shared_mem=launch.shared_bytes)
        raw = log[:launch.grid].get()
        raw[:, 1:] -= raw[0, 1] - np.uint32(1 << 20)  # the timer may pass 2^32: others by block 0
        times = raw[:, 1:].astype(np.int64)
        found[launch.entry] = np.column_stack([raw[:, 0], times - times[:, 0].min()])
    return found
