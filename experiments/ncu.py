"""Nsight Compute: which counters are which boundary, and running it over a Python module.

Counter names are those of GH100; a counter that a GPU does not have is left out and stays None.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..kernels.errors import Unavailable
from . import ncu_csv
from .ncu_csv import Profiled

SM_READ = "l1tex__m_xbar2l1tex_read_bytes.sum"
SM_WRITE = "l1tex__m_l1tex2xbar_write_bytes.sum"
L2_READ_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"
L2_WRITE_SECTORS = "lts__t_sectors_srcunit_tex_op_write.sum"
L2_HIT_SECTORS = "lts__t_sectors_srcunit_tex_lookup_hit.sum"
L2_MISS_SECTORS = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITE = "dram__bytes_write.sum"
LOCAL = "smsp__sass_inst_executed_op_local.sum"
DURATION = "gpu__time_duration.sum"

METRICS = (
    SM_READ, SM_WRITE, L2_READ_SECTORS, L2_WRITE_SECTORS, L2_HIT_SECTORS, L2_MISS_SECTORS,
    DRAM_READ, DRAM_WRITE, LOCAL, DURATION, "sm__cycles_elapsed.max",
    "launch__registers_per_thread", "launch__shared_mem_per_block",
    "launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem",
    "launch__waves_per_multiprocessor", "sm__warps_active.avg.pct_of_peak_sustained_active",
)

# Other names of the same counter, on other chips or in other versions of ncu.
ALIASES = {
    DRAM_READ: ("dram__bytes_op_read.sum",),
    DRAM_WRITE: ("dram__bytes_op_write.sum",),
}
CACHE_CONTROL = "all"  # caches are flushed before each kernel, ncu's default
CLOCK_CONTROL = "none"  # clocks are left as they are
KERNELS = "regex:hbmeter_"
PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu",
          "/usr/local/NVIDIA-Nsight-Compute*/ncu")


def find() -> str:
    """The path of ncu. Raises Unavailable when it is not installed."""
    found = shutil.which("ncu")
    if found:
        return found
    for pattern in PLACES:
        places = sorted(Path("/").glob(pattern.lstrip("/")))
        if places:
            return str(places[-1])
    raise Unavailable("Nsight Compute (ncu) is not on PATH nor in the CUDA folders: install it "
                      "(it comes with the CUDA toolkit), or give --no-counters")


def find_for(what: str) -> str:
    """``find``, for what needs DRAM bytes and cannot do without."""
    try:
        return find()
    except Unavailable as error:
        raise Unavailable(
            f"{what} need Nsight Compute (ncu) for DRAM bytes; it is not on PATH nor in the CUDA "
            "folders: install it (it comes with the CUDA toolkit)") from error


def version(path: str) -> str | None:
    """Such as "2025.3.1.0"; None when ncu does not say."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"Version ([0-9.]+)", answer.stdout)
    return found.group(1) if found else None


def asked_for(metrics: dict) -> dict:
    """The metrics that hbmeter asks for: an export's raw page has hundreds of device attributes."""
    wanted = {*METRICS, *(alias for names in ALIASES.values() for alias in names)}
    return {name: value for name, value in metrics.items() if name in wanted}


# ---- Values -----------------------------------------------------------------------------------


def value(launch: Profiled, metric: str) -> int | float | None:
    """A metric of one launch under any of its names; None when it was not measured."""
    for name in (metric, *ALIASES.get(metric, ())):
        if launch.metrics.get(name) is not None:
            return launch.metrics[name]
    return None


def rounding(launches: Iterable[Profiled], metric: str) -> float:
    """By how much ``total`` may be off because the export printed rounded numbers."""
    names = (metric, *ALIASES.get(metric, ()))
    return sum(next((x.rounding[n] for n in names if n in x.rounding), 0.0) for x in launches)


def total(launches: Iterable[Profiled], metric: str) -> int | float | None:
    """A metric over all launches of one attention call: sums are summed, but None when a launch
    lacks it; what is no sum (a rate, a percentage, a maximum) has a value for one launch only."""
    values = [value(launch, metric) for launch in launches]
    if not values or None in values:
        return None
    if len(values) == 1:
        return values[0]
    return sum(values) if metric.endswith(".sum") else None


def hit_rate(launches: Iterable[Profiled]) -> float | None:
    """Share of L2 sectors found there, over all launches, from the sums (never from rates)."""
    launches = list(launches)
    hits, misses = total(launches, L2_HIT_SECTORS), total(launches, L2_MISS_SECTORS)
    return hits / (hits + misses) if hits is not None and misses and hits + misses else None


# ---- Running ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What one run of ncu gave: its table and everything printed."""

    launches: list[Profiled]
    dropped: tuple[str, ...]  # metrics that this GPU does not have


def profile(path: str, module: str, arguments: list[str], metrics=METRICS,
            on_line=lambda line: None) -> Answer:
    """Profile ``python -m module arguments``; ``on_line`` gets each line that it prints.

    Metrics that ncu does not know are dropped and the program is run again. Raises Unavailable
    when counters are not permitted or the run fails, with what was printed last.
    """
    wanted = list(metrics)
    while True:
        code, printed, table = _run(path, wanted, module, arguments, on_line)
        everything = printed + "\n" + table
        if "ERR_NVGPUCTRPERM" in everything:
            raise Unavailable(ncu_csv.PERMISSION)
        unknown = [name for name in wanted if name in ncu_csv.missing_metrics(everything)]
        if code == 0 and '"ID"' in table:
            return Answer(ncu_csv.parse(table), tuple(m for m in metrics if m not in wanted))
        if not unknown or len(unknown) == len(wanted):
            raise Unavailable(f"ncu stopped with code {code}: {_last_words(everything)}")
        wanted = [name for name in wanted if name not in unknown]


def command(path: str, metrics, log_file: str, program: list[str]) -> list[str]:
    """The command line of ncu."""
    return [
        path, "--csv", "--page", "raw", "--print-units", "base",
        "--clock-control", CLOCK_CONTROL, "--cache-control", CACHE_CONTROL,
        "--target-processes", "all", "--kernel-name", KERNELS, "--metrics", ",".join(metrics),
        "--log-file", log_file, *program,
    ]


def _run(path, metrics, module, arguments, on_line) -> tuple[int, str, str]:
    with tempfile.TemporaryDirectory(prefix="hbmeter-") as folder:
        log_file = os.path.join(folder, "ncu.csv")
        program = [sys.executable, "-m", module, *arguments]
        environment = os.environ | {"LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        lines = []
        with subprocess.Popen(
            command(path, metrics, log_file, program), env=environment, text=True,
            errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:
            for line in process.stdout:
                lines.append(line)
                on_line(line.rstrip("\n"))
        table = ""
        if os.path.exists(log_file):
            table = Path(log_file).read_text(encoding="utf-8", errors="replace")
        return process.returncode, "".join(lines), table


def _last_words(text: str) -> str:
    """The last line of the program, which names its own failure, and what ncu says of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("==")][-1:]
    errors = [line for line in lines if line.startswith("==ERROR==")][-2:]
    return " | ".join(said + errors) or "it printed nothing"
