"""How a kernel runs on an SM as the L2 reader asks it: what its blocks work between their loads.

The time model has it (phase_time.py): cycles of instructions, and of blocks that share an SM, their
loads in place. How long blocks then wait for what L2 and DRAM send is the reader's.
"""

from typing import TYPE_CHECKING

import numpy as np

from . import block_alone
from .engines.l2_moves import Running
from .ops import BY_CODE
from .tape import Kind
from .units import BOUNDARY, MATMUL

if TYPE_CHECKING:
    from .phase_time import Phase


def running(phase: "Phase", blocks_per_sm: int) -> Running:
    """How a phase runs with up to so many thread blocks on an SM."""
    how, l2 = phase.how, phase.gpu.l2
    demands, delays = phase.costs()
    demands[:, BOUNDARY] = 0.0
    totals = phase.counts @ demands + phase.spills()
    _, beside = phase.alone_and_beside(blocks_per_sm, (demands, delays), totals, None)
    cycles = _cycles(phase, demands, delays, beside[0])
    spread = {"mma_sync": l2.gpc_clock_spread_mma_sync, "wgmma": l2.gpc_clock_spread_wgmma}
    return Running(how.prefetch, how.in_flight_bytes, tuple(cycles.tolist()),
                   tuple((beside / max(beside[0], 1e-9)).tolist()), how.younger_paces,
                   spread.get(how.multiplier))


def _cycles(phase: "Phase", demands: np.ndarray, delays: np.ndarray,
            alone: float) -> np.ndarray:
    """[instruction] cycles of one execution, of a mean block of ``alone`` cycles: as long as its
    units take and its warps wait, all shortened alike by what runs under something else.

    Where one product hides one load, what a trip does around its products (the instructions that
    stand with "maximum") it does half around each load, and under the first product, S, runs
    nothing else.
    """
    computes = phase.tape["kind"] == Kind.COMPUTE
    seen = phase.seen(demands) - block_alone.under_others(phase, demands)
    cycles = (seen.sum(axis=1) / phase.groups + delays) * computes
    times = phase.counts.mean(axis=0)
    fixed = np.zeros(len(cycles))
    if phase.how.prefetch == "product":
        around = [BY_CODE[row["op"]].name == "maximum" if row["kind"] == Kind.COMPUTE else False
                  for row in phase.tape]
        first = int(np.argmax(demands[:, MATMUL] > 0))
        fixed[first] = cycles[first] + cycles[around].sum() / 2
        cycles[first], cycles[around] = 0.0, cycles[around] / 2
    rest = max(alone - float(times @ fixed), 0.0)
    found: np.ndarray = fixed + cycles * (rest / max(float(times @ cycles), 1e-9))
    return found
