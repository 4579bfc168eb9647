"""How fast thread blocks run that share an SM: their recorded starts and ends, and their paces.

Warps of the oldest block are served first, so a younger block runs at a pace below 1 until the
older one ends; then it is the oldest. Where Execution.younger_pace comes from.
"""

import json
from dataclasses import dataclass
from statistics import median

from . import records
from .grid import Point

FOLDER = records.FOLDER / "residents"
TOGETHER_NS = 2000  # blocks that start this close start together


@dataclass(frozen=True)
class Residents:
    """A point's thread blocks on some SMs: (start, end) in ns, in the order of starts."""

    gpu: str
    point: Point
    blocks: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def together(self) -> int:
        """Blocks that an SM has at once: those that start with the first, the median of the SMs."""
        return int(median(sum(start - blocks[0][0] <= TOGETHER_NS for start, _ in blocks)
                          for blocks in self.blocks))

    @property
    def pace(self) -> float:
        """Pace of the second block of an SM beside the first, of blocks of equal length that start
        together: when the first ends after W, the second has done pace · W and needs
        (1 − pace) W more; the median of the SMs."""
        found = []
        for blocks in self.blocks:
            ends = sorted(end - blocks[0][0] for start, end in blocks
                          if start - blocks[0][0] <= TOGETHER_NS)
            found.append(2 - ends[1] / ends[0])
        return median(found)


def load_all() -> list[Residents]:
    """All that is recorded."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        for data in document["points"]:
            blocks = tuple(tuple(zip(sm["start_ns"], sm["end_ns"], strict=True))
                           for sm in data["sms"])
            found.append(Residents(document["provenance"]["gpu"], Point.of(data), blocks))
    return found
