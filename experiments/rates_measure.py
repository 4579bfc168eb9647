"""Measures rates and latencies of this machine's GPU: every probe, one after the other."""

import subprocess
import sys
import time

import numpy as np

from ..kernels import probes, runner
from ..kernels.errors import Unavailable
from ..kernels.probes import bench
from . import rates_record, records
from .progress import Progress

LEAST_CAPABILITY = 80  # of mma.sync as the probes have it
WARMUP_S = 1.0  # of products, so that the first probe finds clocks as the last one does
QUERY = ("clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu")


def measure() -> dict:
    """A record document of this GPU. Raises Unavailable without CuPy or a GPU that the probes
    run on."""
    cupy = runner.require_gpu()
    if (capability := bench.Bench().capability) < LEAST_CAPABILITY:
        raise Unavailable(f"the probes need compute capability 8.0 or later; this GPU has "
                          f"{capability / 10:.1f}")
    progress, names = Progress(sys.stderr), probes.names()
    progress.start("calibrate", len(names))
    began, found = time.monotonic(), {}
    try:
        _warm_up(bench.Bench())
        for number, name in enumerate(names):
            run = bench.Bench(lambda words, at=number: progress.step(at, words))
            probes.get(name).measure(run)
            found[name] = run.points
            cupy.get_default_memory_pool().free_all_blocks()
    finally:
        progress.end()
    notes = {
        "format": rates_record.FORMAT, "clocks": "left alone",
        "gpu_s": round(time.monotonic() - began, 1), **_state(cupy.cuda.Device().id),
    }
    return {"provenance": records.provenance(cupy, None, bench.source_hash(), notes),
            "probes": found}


def _warm_up(run: bench.Bench) -> None:
    """Arithmetic for a while: an idle GPU's clocks are low."""
    function = run.functions(bench.FOLDER / "pipes.cu")("fma")
    numbers = (np.int32(5_000), np.float32(0.5), np.float32(0.5), run.sink)
    until = time.monotonic() + WARMUP_S
    while time.monotonic() < until:
        run.time(function, 2 * run.sms, 1024, numbers, repeats=1)


def _state(device: int) -> dict:
    """What nvidia-smi says of clocks, power and temperature; empty when it cannot say."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader",
               f"--id={device}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = answer.stdout.strip().split(", ")
    return dict(zip(QUERY, values, strict=True)) if len(values) == len(QUERY) else {}
