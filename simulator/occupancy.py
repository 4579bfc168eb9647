"""Thread blocks that fit on an SM, and the estimate of registers for a tile program.

Allocation rules: CUDA C++ Programming Guide, "Hardware Multithreading", and cuda_occupancy.h:
registers are given to whole warps in units, shared memory to whole blocks in units, with some
bytes a block kept by the system from compute capability 8.0 on.
"""

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from .program import Phase, Program, Space

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

THREAD_CHOICES = (128, 256, 512)
OTHER_REGISTERS = 24  # addresses, loop counters, temporaries: an estimate
REGISTER_BYTES = 4


@dataclass(frozen=True)
class Occupancy:
    """Blocks per SM, every resource that allows no more, resident warps over the maximum, and the
    blocks that each resource alone allows."""

    blocks_per_sm: int
    limiters: tuple[str, ...]
    share_of_warps: float
    limits: dict[str, int]


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(gpu: "Profile", threads: int, registers_per_thread: int,
              smem_bytes: int) -> Occupancy:
    """Blocks of ``threads`` that one SM of ``gpu`` (a Profile) holds at once.

    ``smem_bytes`` is what the block asks for (static and dynamic), without the system's share.
    0 blocks when one resource cannot hold even one.
    """
    warps = ceil(threads / gpu.warp_size)
    smem = _round_up(smem_bytes + gpu.smem.reserved_bytes_per_block,
                     gpu.smem.allocation_unit_bytes)
    warp_registers = _round_up(max(registers_per_thread, 1) * gpu.warp_size,
                               gpu.register_allocation_unit)
    parts = gpu.subpartitions_per_sm
    warps_by_registers = gpu.registers_per_sm // parts // warp_registers * parts
    limits = {
        "threads": gpu.max_threads_per_sm // gpu.warp_size // warps,
        "blocks": gpu.max_blocks_per_sm,
        "registers": warps_by_registers // warps,
        "shared memory": gpu.smem.bytes_per_sm // smem if smem else gpu.max_blocks_per_sm,
    }
    if registers_per_thread > gpu.max_registers_per_thread:
        limits["registers"] = 0
    if smem_bytes > gpu.smem.bytes_per_block_max:
        limits["shared memory"] = 0
    if threads > gpu.max_threads_per_block:
        limits["threads"] = 0
    fewest = min(limits.values())
    limiters = tuple(name for name, blocks in limits.items() if blocks == fewest)
    return Occupancy(fewest, limiters, fewest * warps / gpu.max_warps_per_sm, limits)


@dataclass(frozen=True)
class BlockResources:
    """What one thread block of a program needs: shared memory counted, the rest estimated."""

    smem_bytes: int
    threads: int
    registers_per_thread: int


def estimate_registers(phase: Phase, threads: int) -> int:
    """Registers of a thread when so many of them share the accumulators of a phase evenly."""
    size = sum(tile.bytes for tile in phase.tiles
               if tile.space == Space.REGISTERS and tile.accumulator)
    return ceil(size / REGISTER_BYTES / threads) + OTHER_REGISTERS


def estimate_resources(program: Program, gpu: "Profile") -> BlockResources:
    """Shared memory of the program's tiles, and an estimate of threads and registers.

    Register tiles are spread evenly over the fewest threads (128, 256 or 512) that keep each
    below the GPU's limit. A tile that is a rounded copy of another (P of S) takes its registers.
    """
    for threads in THREAD_CHOICES:
        registers = max(estimate_registers(phase, threads) for phase in program.phases)
        if registers <= gpu.max_registers_per_thread:
            break
    return BlockResources(program.smem_bytes_per_block, threads, registers)
