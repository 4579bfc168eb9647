"""How fast a thread block runs beside the next older one on its SM, measured on an H200.

From the starts and ends of thread blocks (experiments/recorded/residents, whose test compares):
warps of the oldest block are served first, and the fuller the pipe that blocks share, the more so.
Where 2, 3, … blocks share an SM; for more than were measured the last holds. A pace is that of each
block over the next older one's, or speeds of all by age where these are not powers of one. Blocks
of two warps have half of an SM's subpartitions each, so two of them are the oldest.
"""

from dataclasses import replace
from math import log2

from ..simulator.execution import Execution
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles

# (Kernel, launch): {(dtype, head_dim, br, bc, stages): paces}. Tensor cores treat fp16 and bf16
# alike.
MEASURED = {
    ("flash2_mma", 0): {
        ("fp16", 64, 64, 64, 1): (
            0.987, (1.0, 0.985, 0.959), (1.0, 0.974, 0.935, 0.889),
            (1.0, 0.969, 0.923, 0.867, 0.801)),
        ("fp16", 64, 64, 64, 2): (0.94, (1.0, 0.928, 0.837), (1.0, 0.919, 0.812, 0.684)),
        ("fp16", 64, 32, 64, 2): ((1.0, 1.0, 0.91, 0.91, 0.8, 0.8),),
        ("fp16", 64, 128, 64, 1): (0.966, (1.0, 0.911, 0.776)),
        ("fp16", 64, 128, 96, 2): (0.84,), ("fp16", 64, 128, 128, 2): (0.79,),
        ("fp16", 128, 64, 64, 1): (0.992, (1.0, 0.977, 0.944)),
        ("fp16", 128, 64, 64, 2): (0.989,),
        ("fp16", 128, 64, 32, 2): ((1.0, 0.98, 0.94, 0.91),),
        ("fp16", 128, 128, 32, 2): (0.99,), ("fp16", 128, 128, 64, 2): (0.76,),
        ("fp16", 256, 64, 32, 1): (1.0,), ("fp16", 256, 64, 64, 1): (0.984,),
    },
    ("flash2", 0): {
        ("fp16", 64, 16, 16, 1): ((1.0, 0.78, 0.5, 0.28),),
        ("fp16", 64, 32, 32, 1): ((1.0, 0.63, 0.29, 0.12),),
        ("fp16", 64, 16, 64, 1): ((1.0, 0.68, 0.29, 0.1),),
        ("fp16", 64, 64, 16, 1): ((1.0, 0.62, 0.29),),
        ("bf16", 64, 16, 16, 1): ((1.0, 0.83, 0.55, 0.32),),
        ("bf16", 64, 32, 32, 1): ((1.0, 0.66, 0.36, 0.19),),
        ("bf16", 64, 16, 64, 1): ((1.0, 0.69, 0.34, 0.13),),
        ("bf16", 64, 64, 16, 1): ((1.0, 0.73, 0.47),),
        ("fp32", 64, 16, 16, 1): ((1.0, 0.96, 0.88, 0.79),),
        ("fp32", 64, 32, 32, 1): ((1.0, 0.93, 0.81),),
        ("fp32", 64, 16, 64, 1): ((1.0, 0.91, 0.67, 0.37),),
        ("fp32", 64, 64, 16, 1): ((1.0, 0.86, 0.69),),
        ("fp16", 64, 64, 64, 1): (0.47,), ("fp16", 64, 64, 128, 1): (0.39,),
        ("fp16", 128, 64, 64, 1): (0.3,),
        ("bf16", 64, 64, 64, 1): (0.61,), ("bf16", 64, 64, 128, 1): (0.52,),
        ("bf16", 128, 64, 64, 1): (0.4,),
        ("fp32", 64, 64, 64, 1): (0.905,), ("fp32", 64, 64, 128, 1): (0.9,),
        ("fp32", 128, 64, 64, 1): (0.945,),
    },
    ("flash1", 0): {
        ("fp16", 64, 16, 16, 1): ((1.0, 0.91, 0.75, 0.55),),
        ("fp16", 64, 32, 32, 1): ((1.0, 0.7, 0.42, 0.22),),
        ("fp16", 64, 16, 64, 1): ((1.0, 0.68, 0.35, 0.15),),
        ("fp16", 64, 64, 16, 1): (0.66,),
        ("bf16", 64, 16, 16, 1): ((1.0, 0.89, 0.73, 0.52),),
        ("bf16", 64, 32, 32, 1): ((1.0, 0.73, 0.48, 0.29),),
        ("bf16", 64, 16, 64, 1): ((1.0, 0.69, 0.34, 0.13),),
        ("bf16", 64, 64, 16, 1): (0.74,),
        ("fp32", 64, 16, 16, 1): ((1.0, 0.98, 0.95, 0.91),),
        ("fp32", 64, 32, 32, 1): ((1.0, 0.93, 0.83, 0.65),),
        ("fp32", 64, 16, 64, 1): ((1.0, 0.94, 0.72, 0.44),),
        ("fp32", 64, 64, 16, 1): (0.94,),
        ("fp16", 64, 64, 64, 1): (0.595,), ("fp16", 64, 64, 128, 1): (0.57,),
        ("fp16", 128, 64, 64, 1): (0.58,),
        ("bf16", 64, 64, 64, 1): (0.71,), ("bf16", 64, 64, 128, 1): (0.66,),
        ("bf16", 128, 64, 64, 1): (0.72,), ("fp32", 64, 64, 64, 1): (0.95,),
    },
    ("standard", 2): {
        ("fp16", 64, 64, 64, 1): (0.675, 0.675), ("fp16", 64, 64, 128, 1): (0.675, 0.675),
        ("fp16", 128, 64, 64, 1): (0.625, 0.625), ("fp16", 128, 128, 64, 1): (0.63,),
        ("bf16", 64, 64, 64, 1): (0.71, 0.71), ("bf16", 64, 64, 128, 1): (0.71, 0.71),
        ("bf16", 128, 64, 64, 1): (0.69, 0.69), ("bf16", 128, 128, 64, 1): (0.75,),
        ("fp32", 64, 64, 64, 1): (0.935, 0.935), ("fp32", 64, 64, 128, 1): (0.935, 0.935),
        ("fp32", 128, 64, 64, 1): (0.88, 0.88), ("fp32", 128, 128, 64, 1): (0.95,),
    },
    ("standard_mma", 2): {
        ("fp16", 64, 64, 64, 2): (0.987,), ("fp16", 64, 128, 128, 3): (0.97,),
        ("fp16", 128, 64, 64, 2): (0.987,), ("fp16", 128, 128, 128, 3): (0.955,),
    },
}


def paced(how: Execution, kernel: str, problem: Attention, tiles: Tiles,
          launch: int = 0) -> Execution:
    """``how`` with the paces of the measured launch that is most like this one: of the same type
    and stages before the same head_dim, and that before the same tiles."""
    asked = (problem.dtype, problem.head_dim, tiles.br, tiles.bc, tiles.stages)
    measured = MEASURED[kernel, launch]
    nearest = min(measured, key=lambda build: _distance(asked, build))
    return replace(how, younger_paces=measured[nearest])


def _distance(asked: tuple, build: tuple) -> float:
    dtype, *sizes, stages = asked
    dtype_there, *sizes_there, stages_there = build
    width, *tile = (abs(log2(a / b)) for a, b in zip(sizes, sizes_there, strict=True))
    return 100 * (dtype != dtype_there) + 100 * (stages != stages_there) + 10 * width + sum(tile)
