"""What the launchers of the L2's own probes share: probes whose launches a profiler counts.

Such a probe has ``HOW`` (words for its record), ``parts()``, which says what is launched, and
``launcher(bench, part)``, which gives a function that launches one entry of a part. Importing this
needs no CuPy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

ALIGNMENT = 2 << 20  # of buffers: a physical page, so that offsets are those of addresses
LONE_SHARED_BYTES = 116 << 10  # of a block that shares its SM with no other
MIB, SMS = 1 << 20, 132

# Counters of Nsight Compute, by their keys in a record (GH100).
DRAM = {"dram_read_bytes": "dram__bytes_read.sum", "dram_write_bytes": "dram__bytes_write.sum"}
DURATION = {"ns": "gpu__time_duration.sum"}


@dataclass(frozen=True)
class Part:
    """One list of a record: ``launches`` as JSON has them, each of which then gets its
    ``counters`` (key: the profiler's name), a list of ``repeats`` values each, or 1: the value.

    ``entry`` is the kernel; ``words`` names a launch for people, ``shown`` says what a table has of
    it. Without counters the launcher's function gives the values itself."""

    launches: list[dict]
    entry: str
    counters: dict[str, str]
    words: Callable[[dict], str]
    repeats: int = 1
    shown: Callable[[dict], dict] | None = None

    def row(self, launch: dict) -> dict:
        """Column -> number: medians of the counters, or what is ``shown``."""
        if self.shown is not None:
            return self.shown(launch)
        return {what.replace("_", " "): median(np.atleast_1d(launch[what]).tolist())
                for what in self.counters}


def gpcs() -> list[list[int]]:
    """The SMs of each GPC of a GH100 of 132, in the order in which a launch fills them: the driver
    numbers pairs, one of each GPC in turn, first of eight GPCs and then of seven."""
    found = []
    for gpc in range(8):
        firsts = [16 * row + 2 * gpc for row in range(4)]
        firsts += [64 + 14 * row + 2 * (gpc - 1) for row in range(4) if gpc]
        firsts += {6: [120], 7: [122]}.get(gpc, [])
        found.append([first + sm for first in firsts for sm in (0, 1)])
    found[0] = [*range(124, 132), *found[0]]
    return found


def buffer(cupy, size_bytes: int):
    """Zeros that start on a physical page."""
    whole = cupy.zeros(size_bytes + ALIGNMENT, np.uint8)
    offset = -whole.data.ptr % ALIGNMENT
    return whole[offset : offset + size_bytes]
