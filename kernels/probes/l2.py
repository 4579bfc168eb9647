"""Launcher of l2.cu: the probes of an L2 cache, and what a scan is, as data.

Importing this needs no CuPy.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ..runner import require_gpu

SOURCE = Path(__file__).with_suffix(".cu")
OPTIONS = ("--std=c++17",)
LATENCY_ENTRY, SCAN_ENTRY = "hbmeter_probe_latency", "hbmeter_probe_scan"
LINE_BYTES, VECTOR_BYTES = 128, 16
PAGE_BYTES = 2 << 20  # physical; buffers begin on one, so that offsets are those of addresses
LATENCY_THREADS = 32


@dataclass(frozen=True)
class Scan:
    """Every block writes its slice of one buffer, reads that ``rereads`` times, then reads its
    slice of another one (all of it when ``shared``), which begins at its page ``first_page``,
    ``passes`` times, then waits ``wait_ns``."""

    written_bytes: int = 0
    rereads: int = 0
    read_bytes: int = 0
    passes: int = 0
    shared: bool = False
    blocks_per_sm: int = 1
    threads: int = 256
    first_page: int = 0
    wait_ns: int = 0

    @property
    def document(self) -> dict:
        """As JSON has it; ``Scan(**document)`` is the same scan."""
        return asdict(self)

    @property
    def step_bytes(self) -> int:
        """What all threads of a block move at once."""
        return self.threads * VECTOR_BYTES


def source_hash() -> str:
    """Changes with the probes' source or launcher."""
    return hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]


def l2_bytes() -> int:
    """Bytes of this GPU's L2."""
    return _properties()["l2CacheSize"]


def latency(count: int, stride_bytes: int, rounds: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """(SM of each block, fewest cycles of an atomic [block, address]), one block an SM."""
    cupy = require_gpu()
    blocks = _properties()["multiProcessorCount"]
    buffer = _buffer(count * stride_bytes)
    cycles, smid = cupy.zeros((blocks, count), cupy.uint16), cupy.zeros(blocks, cupy.int32)
    arguments = (buffer, np.int32(count), np.int32(stride_bytes // 4), np.int32(rounds), cycles,
                 smid)
    _function(LATENCY_ENTRY)((blocks,), (LATENCY_THREADS,), arguments)
    return smid.get(), cycles.get()


class Scanner:
    """Buffers for some scans."""

    def __init__(self, scans: Sequence[Scan]):
        self.written = _buffer(max(scan.written_bytes for scan in scans))
        self.read = _buffer(max(scan.first_page * PAGE_BYTES + scan.read_bytes for scan in scans))
        self.sink = require_gpu().zeros(4, np.uint32)

    def run(self, scan: Scan) -> None:
        """Launch a scan once and wait for it."""
        grid = _properties()["multiProcessorCount"] * scan.blocks_per_sm
        _function(SCAN_ENTRY)((grid,), (scan.threads,), (
            self.written, np.uint64(scan.written_bytes // LINE_BYTES), np.int32(scan.rereads),
            self.read[scan.first_page * PAGE_BYTES:], np.uint64(scan.read_bytes // LINE_BYTES),
            np.int32(scan.passes), np.int32(scan.shared), np.int64(scan.wait_ns), self.sink,
        ))
        require_gpu().cuda.runtime.deviceSynchronize()


def _properties() -> dict:
    cupy = require_gpu()
    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)


def _buffer(size_bytes: int):
    """Zeros that start on a physical page."""
    whole = require_gpu().zeros(size_bytes + PAGE_BYTES, np.uint8)
    offset = -whole.data.ptr % PAGE_BYTES
    return whole[offset : offset + size_bytes]


@cache
def _function(entry: str):
    cupy = require_gpu()
    source = SOURCE.read_text(encoding="utf-8")
    return cupy.RawModule(code=source, options=OPTIONS, backend="nvrtc").get_function(entry)
