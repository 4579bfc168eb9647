"""One choice of tiles as a kernel's compiler sees it: registers, spills, occupancy, time."""

from dataclasses import dataclass, replace

from ..kernels import compiler
from ..simulator import schedules
from ..simulator.errors import InputError
from ..simulator.occupancy import occupancy
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from ..simulator.time_model import predict


@dataclass(frozen=True)
class Launches:
    """Of each launch of a kernel: registers and spilled bytes (stored and loaded) of a thread,
    shared memory of a block, and blocks per SM."""

    registers: list[int]
    spills: list[int]
    smem_bytes: list[int]
    residents: list[int]


def arch_of(kernel, gpu) -> str:
    """What to compile ``kernel`` for to run on ``gpu`` (a Profile), such as "sm_90"."""
    if gpu.vendor != "nvidia":
        raise InputError(f"{gpu.name}: kernels are CUDA; compiling needs an NVIDIA GPU's profile")
    arch = "sm_" + gpu.compute_capability.replace(".", "")
    if kernel.only_arch is None:
        return arch
    if kernel.only_arch.rstrip("a") != arch:
        raise InputError(f"kernel {kernel.name} needs {kernel.only_arch}; {gpu.name} is {arch}")
    return kernel.only_arch


def launches(kernel, problem: Attention, gpu, tiles: Tiles) -> Launches:
    """What the compiler says. Raises InputError for tiles that the kernel or the architecture does
    not take, Unavailable without NVRTC."""
    kernel.check(problem, tiles)
    built = compiler.resources(kernel, problem, tiles, arch_of(kernel, gpu))
    found = Launches([], [], [], [])
    for launch in kernel.launches(problem, tiles):
        entry = built[launch.entry]
        found.registers.append(entry.registers)
        found.spills.append(entry.spill_store_bytes + entry.spill_load_bytes)
        found.smem_bytes.append(launch.shared_bytes + entry.static_shared_bytes)
        found.residents.append(occupancy(gpu, launch.threads, entry.registers,
                                         found.smem_bytes[-1]).blocks_per_sm)
    return found


def compiled(kernel, problem: Attention, gpu, sizes: dict) -> dict:
    """{"why_not", "registers", "spill_bytes", "smem_bytes", "blocks_per_sm", "predicted_s",
    "predicted_limiter"} of the tiles that ``sizes`` has (br, bc, stages): the most of any launch,
    of blocks per SM the least. Raises Unavailable without NVRTC."""
    tiles = Tiles(sizes["br"], sizes["bc"], sizes["stages"])
    nothing = dict.fromkeys(("registers", "spill_bytes", "smem_bytes", "blocks_per_sm",
                             "predicted_s", "predicted_limiter"))
    try:
        built = launches(kernel, problem, gpu, tiles)
    except InputError as error:
        return nothing | {"why_not": str(error)}
    found = nothing | {
        "why_not": None, "registers": max(built.registers), "spill_bytes": max(built.spills),
        "smem_bytes": max(built.smem_bytes), "blocks_per_sm": min(built.residents),
    }
    if min(built.residents) < 1:
        return found | {"why_not": f"does not fit on an SM of {gpu.name}"}
    declared = kernel.executions(problem, tiles)
    if declared is not None:
        how = tuple(
            replace(execution, spill_bytes=spill) for execution, spill
            in zip(declared, built.spills, strict=True)
        )
        time = predict(schedules.build(kernel.schedule, problem, tiles), gpu, how,
                       blocks_per_sm=built.residents)
        found |= {"predicted_s": time.seconds, "predicted_limiter": time.limiter}
    return found
