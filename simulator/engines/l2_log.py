"""What thread blocks do and when, as the L2 reader notes it on request: timelines are drawn of it.

The reader notes an event for each thread block that starts or ends and for each tile that moves, in
the order in which it comes to them, until the log is full: then it stops.
"""

import numpy as np

from ..jit import borrowing
from ..tape import Record
from .l2_counts import FETCHED, FILLED, READ, WRITTEN, WRITTEN_BACK
from .walk import region

START, STOP = -1, -2  # of a thread block, in place of an instruction's Kind

# ``kind`` is START, STOP, or the Kind of what moves a tile of ``tensor``; ``row`` and ``col`` of a
# START are where the block stands in its grid, of a move where its tile begins. Sectors: moved
# over the SM boundary, fetched from DRAM for it, and (of any tensor) written back to make room.
# Cycles since the phase began: ``issued``; ``clock``, when all that the block did before was done;
# ``ready``, when the first bytes are there; ``end``, when the last are.
EVENT = np.dtype(
    [(name, np.int64) for name in ("phase", "slot", "kind", "head", "tensor", "row", "rows",
                                   "col", "cols", "sectors", "missed", "written_back")]
    + [(name, np.float64) for name in ("issued", "clock", "ready", "end")]
)


NO_EVENTS = np.zeros(0, EVENT)


class Log:
    """Room for ``size`` events; ``used`` of them are there."""

    def __init__(self, size: int) -> None:
        self._room, self.used = np.zeros(size, EVENT), 0

    @property
    def events(self) -> np.ndarray:
        """EVENT records, phase by phase."""
        return self._room[:self.used]

    @property
    def left(self) -> np.ndarray:
        """The room that is left, for the compiled reader to write to."""
        return self._room[self.used:]

    @property
    def full(self) -> bool:
        """Whether the reader stopped here, before the end."""
        return self.used == len(self._room)

    def keep(self, count: int, phase: int) -> None:
        """Count the first ``count`` events of ``left`` as those of a phase."""
        self.left["phase"][:count] = phase
        self.used += count


@borrowing
def note_block(log: np.ndarray, machine: Record, number: int, slot: Record, variables: np.ndarray,
               kind: int) -> None:
    """A thread block starts or ends (``kind``) in slot ``number``."""
    event = log[machine.logged]
    event.slot, event.kind, event.head, event.tensor = number, kind, slot.head, -1
    event.row, event.col = variables[0], variables[1]
    event.issued = event.clock = event.ready = event.end = slot.due
    machine.logged += 1


@borrowing
def note_before(log: np.ndarray, machine: Record, number: int, slot: Record, row: Record,
                variables: np.ndarray, tensors: np.ndarray, tiles: np.ndarray,
                counts: np.ndarray) -> None:
    """A tile is about to move; ``counts`` [tensor, count] are those of its group."""
    event = log[machine.logged]
    event.slot, event.kind, event.head, event.tensor = number, row.kind, slot.head, row.tensor
    event.row, event.col, event.rows, event.cols = region(row, variables, tensors, tiles)
    event.issued, event.clock = slot.due, slot.clock
    _add_counts(event, counts, row.tensor, -1)


@borrowing
def note_after(log: np.ndarray, machine: Record, row: Record, counts: np.ndarray, ready: float,
               end: float) -> None:
    """The tile of ``note_before`` has moved."""
    event = log[machine.logged]
    _add_counts(event, counts, row.tensor, 1)
    event.ready, event.end = ready, end
    machine.logged += 1


@borrowing
def _add_counts(event: Record, counts: np.ndarray, tensor: int, sign: int) -> None:
    event.sectors += sign * (counts[tensor, READ] + counts[tensor, WRITTEN])
    event.missed += sign * (counts[tensor, FETCHED] + counts[tensor, FILLED])
    for other in range(len(counts)):
        event.written_back += sign * counts[other, WRITTEN_BACK]
