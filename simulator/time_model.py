"""Predicted time of a program: its launches one after the other, each as phase_time.py has it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import schedules
from .dram_rule import at_once
from .execution import Execution, generic, multiplier_of
from .grid_order import OrderLike, of_program
from .l2_running import running
from .phase_time import Phase, PhaseTime, Remember, phase_time
from .program import Program
from .rates import rates
from .units import DRAM, UNITS

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

    @property
    def waits_for_dram(self) -> bool:
        """Whether DRAM is the busiest unit of a phase."""
        return any(phase.limiter == UNITS[DRAM] for phase in self.phases)

    def calibrated(self, factor: float, known: "Prediction") -> "Prediction":
        """The same, scaled by a factor measured on a run that is predicted as ``known``: all times
        but that of launching where that run waited for DRAM, else the SMs' work only."""
        def scaled(phase: PhaseTime) -> PhaseTime:
            work = phase.work_s * factor
            dram = phase.dram_s * (factor if known.waits_for_dram else 1)
            return replace(phase, work_s=work, dram_s=dram, seconds=max(work, dram))

        phases = tuple(map(scaled, self.phases))
        more = sum(phase.seconds for phase in phases) - sum(x.seconds for x in self.phases)
        return replace(self, seconds=self.seconds + more, phases=phases)


def predict(program: Program, gpu: "Profile", kernel: tuple[Execution, ...] | None = None, *,
            blocks_per_sm: int | Sequence[int], order: OrderLike = "row",
            dram_bytes: Sequence[float | None] | None = None,
            count_dram: bool = False, remember: Remember = at_once,
            sustained: bool = False) -> Prediction:
    """Time of ``program`` on ``gpu`` (a Profile) when a kernel runs it as ``kernel`` says.

    ``kernel`` has an Execution for each phase (default: execution.generic), ``blocks_per_sm`` a
    number for each or one for all; ``order`` is one of grid_order.py's; ``dram_bytes`` are the L2
    reader's by phase, else a rule's (dram_rule.py), but with ``count_dram`` that reader's where
    heads side by side outgrow the L2: a tenth of a second as a rule, a few at most. ``remember``
    may keep what it found (dram_rule.at_once does not). ``sustained``: at the clock of a GPU that
    such launches have kept busy for longer than its first clock holds.
    """
    order = of_program(order, program)
    kernel = kernel or generic(program, gpu)
    residents = np.broadcast_to(blocks_per_sm, len(program.phases))
    moved = dram_bytes or [None] * len(program.phases)
    found = tuple(
        phase_time(Phase(program, number, gpu, how, count_dram, remember, sustained), int(resident),
                   order, dram)
        for number, (how, resident, dram) in enumerate(zip(kernel, residents, moved, strict=True))
    )
    multiplier = multiplier_of(kernel)
    one = rates(gpu, multiplier, program.problem.dtype)
    return Prediction(sum(phase.seconds for phase in found) + len(found) * one.launch_gap_s, found,
                      one.launch_alone_s, multiplier)


def seconds_since_rest(first_s: float, sustained_s: float, holds_s: float,
                       begun_s: float = 0.0) -> float:
    """Seconds of a call that begins when others like it have run for ``begun_s`` since a rest: it
    takes ``first_s`` at the clock that a GPU keeps for ``holds_s`` (rates.first_clock_s), and
    ``sustained_s`` at the one after it."""
    left = max(holds_s - begun_s, 0.0)
    return first_s if first_s <= left else left + (1 - left / first_s) * sustained_s


def l2_options(program: Program, gpu: "Profile", kernel: tuple[Execution, ...],
               blocks_per_sm: int | Sequence[int]) -> dict[str, Any]:
    """What the L2 reader's ``simulate`` is told of a kernel, an Execution for each phase, with one
    number of thread blocks on an SM or one for each."""
    residents = np.broadcast_to(blocks_per_sm, len(kernel))
    return {"running": [running(Phase(program, number, gpu, how), int(m))
                        for number, (how, m) in enumerate(zip(kernel, residents, strict=True))]}


def covers(program: Program) -> bool:
    """Whether a time is predicted for kernels of the usual kind: all programs but the papers'
    idealised counts. Splits of decode have a model of their own (splits.py)."""
    return not program.idealised and "splits" not in schedules.options(program.schedule)
