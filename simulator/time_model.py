"""Predicted time of a program: its launches one after the other, each as phase_time.py has it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from . import schedules
from .execution import Execution, generic, multiplier_of
from .grid_order import OrderLike, of_program
from .phase_time import Phase, PhaseTime, phase_time
from .program import Program
from .rates import rates

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a call in a stream that never runs dry, a gap for each launch included.

    A call that is timed by itself takes ``first_launch_s`` more: the stream waits for the host.
    """

    seconds: float
    phases: tuple[PhaseTime, ...]
    first_launch_s: float
    multiplier: str

    @property
    def limiter(self) -> str:
        """What limits the phase that takes longest."""
        return max(self.phases, key=lambda phase: phase.seconds).limiter

    def calibrated(self, factor: float) -> "Prediction":
        """The same, all times but that of launching scaled by a factor measured on one run."""
        scaled = tuple(replace(phase, seconds=phase.seconds * factor) for phase in self.phases)
        work = sum(phase.seconds for phase in self.phases)
        return replace(self, seconds=self.seconds + work * (factor - 1), phases=scaled)


def predict(program: Program, gpu: "Profile", kernel: tuple[Execution, ...] | None = None, *,
            blocks_per_sm: int | Sequence[int], order: OrderLike = "row",
            dram_bytes: Sequence[float | None] | None = None) -> Prediction:
    """Time of ``program`` on ``gpu`` (a Profile) when a kernel runs it as ``kernel`` says.

    ``kernel`` has an Execution for each phase (default: execution.generic), ``blocks_per_sm`` a
    number for each or one for all; ``order`` is one of grid_order.py's; ``dram_bytes`` are the L2
    reader's by phase, else a rule's (phase_time.py).
    """
    order = of_program(order, program)
    kernel = kernel or generic(program, gpu)
    residents = np.broadcast_to(blocks_per_sm, len(program.phases))
    moved = dram_bytes or [None] * len(program.phases)
    found = tuple(
        phase_time(Phase(program, number, gpu, how), int(resident), order, dram)
        for number, (how, resident, dram) in enumerate(zip(kernel, residents, moved, strict=True))
    )
    multiplier = multiplier_of(kernel)
    one = rates(gpu, multiplier, program.problem.dtype)
    return Prediction(sum(phase.seconds for phase in found) + len(found) * one.launch_gap_s, found,
                      one.launch_alone_s, multiplier)


def covers(program: Program) -> bool:
    """Whether a time is predicted for kernels of the usual kind: all programs but the papers'
    idealised counts. Splits of decode have a model of their own (splits.py)."""
    return not program.idealised and "splits" not in schedules.options(program.schedule)
