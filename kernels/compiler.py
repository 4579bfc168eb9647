"""Compiling kernels without a GPU: NVRTC from wheels, and what the compiler says about them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..simulator.errors import InputError
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from .base import Kernel
from .errors import Unavailable

REMEDY = "pip install 'hbmeter[compile]'"
HEADERS = ("cuda_fp16.h", "vector_types.h", "crt/host_defines.h")


@dataclass(frozen=True)
class Resources:
    """What one entry point takes, of a thread (registers, stack, spills) and of a block."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True)
class Build:
    """A compiled kernel: its cubin, the resources of each entry point and what ptxas warns of."""

    cubin: bytes
    resources: dict[str, Resources]
    warnings: tuple[str, ...]


@cache
def _nvrtc():
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise Unavailable(f"compiling needs the NVRTC wheels ({error}): {REMEDY}") from error
    return nvrtc


@cache
def include_folders() -> tuple[Path, ...]:
    """Where the CUDA headers of the wheels are. Raises Unavailable when some are missing."""
    try:
        import nvidia
    except ImportError as error:
        raise Unavailable(f"the CUDA headers are missing: {REMEDY}") from error
    roots = [Path(root) for root in nvidia.__path__]
    folders = sorted({path for root in roots for path in root.glob("*/include")})
    for header in HEADERS:
        if not any((folder / header).exists() for folder in folders):
            raise Unavailable(f"the CUDA header {header} is missing: {REMEDY}")
    return tuple(folders)


def check_known(arch: str) -> None:
    """Raises InputError unless NVRTC compiles for ``arch`` ("sm_90a")."""
    nvrtc = _nvrtc()
    known = _call(nvrtc, nvrtc.nvrtcGetSupportedArchs)
    name = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if not name or int(name.group(1)) not in known:
        valid = ", ".join(f"sm_{number}" for number in known)
        raise InputError(f"arch {arch!r} is not one that this NVRTC compiles for: {valid} "
                         "(sm_90a and later also with an a)")


def check_arch(kernel: Kernel, arch: str) -> None:
    """Raises InputError unless NVRTC compiles for ``arch`` ("sm_90a") and the kernel runs there."""
    check_known(arch)
    if not kernel.runs_on(arch):
        needed = kernel.only_arch or f"sm_{kernel.least_arch} or later"
        raise InputError(f"kernel {kernel.name} needs {needed}, not {arch}")


def _call(nvrtc, function, *arguments):
    code, *values = function(*arguments)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {code.name}")
    return values[0] if values else None


def _text(nvrtc, size, read, program) -> bytes:
    buffer = bytearray(_call(nvrtc, size, program))
    _call(nvrtc, read, program, buffer)
    return bytes(buffer)


@cache
def build(
    kernel: Kernel, problem: Attention, tiles: Tiles, arch: str = "sm_90a", count: bool = False,
    order: str = "row",
) -> Build:
    """Compiles a kernel for ``arch``; no GPU or driver is needed.

    Raises InputError for what the kernel does not accept, Unavailable when wheels are missing,
    and RuntimeError with the compiler's log when the source does not compile.
    """
    kernel.check(problem, tiles)
    check_arch(kernel, arch)
    nvrtc, includes = _nvrtc(), include_folders()
    options = [
        *kernel.options(problem, tiles, count, order),
        *(f"-I{folder}" for folder in includes),
        f"-arch={arch}",
        "--ptxas-options=-v",
    ]
    file = f"{kernel.name}.cu".encode()
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram, kernel.source.encode(), file, 0, [], [])
    try:
        code, *_ = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"{file.decode()} does not compile for {arch} ({code.name}):\n{log}")
        cubin = _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    warnings = tuple(line for line in log.splitlines() if "Performance Loss" in line)
    return Build(cubin, parse_log(log), warnings)


def compile_cubin(
    kernel: Kernel, problem: Attention, tiles: Tiles, arch: str = "sm_90a", count: bool = False
) -> bytes:
    """The cubin of a kernel; see ``build``."""
    return build(kernel, problem, tiles, arch, count).cubin


def resources(
    kernel: Kernel, problem: Attention, tiles: Tiles, arch: str = "sm_90a", count: bool = False,
    order: str = "row",
) -> dict[str, Resources]:
    """Registers, spills, stack and static shared memory of each entry point; see ``build``."""
    return build(kernel, problem, tiles, arch, count, order).resources


def parse_log(log: str) -> dict[str, Resources]:
    """The resources that ``ptxas -v`` reports, by entry point."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        entry = part.split("'", 1)[0]
        found[entry] = Resources(
            registers=_number(r"Used (\d+) registers", part),
            spill_store_bytes=_number(r"(\d+) bytes spill stores", part),
            spill_load_bytes=_number(r"(\d+) bytes spill loads", part),
            stack_bytes=_number(r"(\d+) bytes stack frame", part),
            static_shared_bytes=_number(r"(\d+) bytes smem", part, default=0),
        )
    return found


def _number(pattern: str, text: str, default: int | None = None) -> int:
    match = re.search(pattern, text)
    if match:
        return int(match.group(1))
    if default is None:
        raise RuntimeError(f"the compiler's log has no {pattern!r}:\n{text}")
    return default
