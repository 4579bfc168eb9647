"""Launcher of occupancy.cu: blocks per SM as the runtime says, for random launches. Nothing runs.

Importing this needs no CuPy.
"""

import random
from pathlib import Path

from .bench import Bench, Fact

SOURCE = Path(__file__).with_suffix(".cu")
REGISTERS = (24, 33, 40, 47, 56, 63, 65, 72, 90, 96, 111, 128, 129, 144, 168, 185, 200, 232, 255)
LAUNCHES = 300
THREADS = (32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
SHARED = (0, 1 << 10, 8 << 10, 32 << 10, 64 << 10, 112 << 10, 227 << 10)  # up to


def measure(bench: Bench) -> None:
    """Add this probe's points: the runtime's answer for each launch."""
    bench.step("occupancy of random launches")
    function, driver = bench.functions(SOURCE), bench.cupy.cuda.driver
    kernels = [function(f"hold{registers}") for registers in REGISTERS]
    for kernel in kernels:
        kernel.max_dynamic_shared_size_bytes = bench.block_shared_bytes
    draw = random.Random(6)
    for _ in range(LAUNCHES):
        kernel = draw.choice(kernels)
        threads = min(1024, draw.choice(THREADS) + draw.choice((0, 0, 0, 1, -31)))
        shared = min(draw.randint(0, draw.choice(SHARED)), bench.block_shared_bytes)
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel.kernel.ptr, threads, shared)
        bench.add("occupancy", 1, "launches", [{"blocks_per_sm": blocks}], threads=threads,
                  registers=kernel.num_regs, shared_bytes=shared + kernel.shared_size_bytes)


def facts(points: list[dict]) -> list[Fact]:
    """None: occupancy follows from the profile's own numbers."""
    return []
