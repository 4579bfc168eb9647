"""Every kernel under NVIDIA's compute-sanitizer: no access out of bounds, no race in shared memory.

  python -m hbmeter.experiments.sanitize
  python -m hbmeter.experiments.sanitize --tool racecheck --kernel flash2_mma

Each kernel runs once, with its default tiles, on a small problem: ragged, causal, grouped heads,
several column blocks. At last runs a kernel that is wrong on purpose, which the tool must report:
else it saw nothing. Exits with 1 when a tool reports a kernel of ours, with 3 without a GPU or
compute-sanitizer (it comes with the CUDA toolkit).

racecheck knows barriers of thread blocks (bar.sync) and cp.async; the copies of Hopper's TMA, and
what wgmma reads of shared memory, are not ordinary accesses and are not among what it compares.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import kernels
from ..kernels.ahead import build_ahead
from ..kernels.errors import Unavailable
from ..simulator.problem import Attention
from .output import table
from .progress import Progress

TOOLS = ("memcheck", "racecheck")
PLACES = ("usr/local/cuda*/bin/compute-sanitizer", "usr/local/cuda*/compute-sanitizer/"
          "compute-sanitizer", "opt/nvidia/compute-sanitizer*/compute-sanitizer")
SHAPE = {"batch": 1, "heads": 2, "kv_heads": 1, "seq": 150, "kv_seq": 601, "head_dim": 64,
         "mask": "causal"}
PREFIX = "hbmeter_"
CONTROL = f"{PREFIX}control"
# Out of bounds by one word for memcheck; neighbours read without a barrier for racecheck.
CONTROL_SOURCE = """
extern "C" __global__ void hbmeter_control(int* out) {
    __shared__ int words[64];
    words[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = words[63 - threadIdx.x];
}"""


@dataclass(frozen=True)
class Report:
    """What one tool says: reports by entry point, and what it printed."""

    tool: str
    reports: Counter
    text: str

    @property
    def awake(self) -> bool:
        """Whether it saw the kernel that is wrong on purpose."""
        return self.reports[CONTROL] > 0

    @property
    def found(self) -> int:
        """Reports of kernels of ours."""
        return self.reports.total() - self.reports[CONTROL]


def find() -> str:
    """The path of compute-sanitizer. Raises Unavailable when it is not installed."""
    places = sorted(place for pattern in PLACES for place in Path("/").glob(pattern))
    found = shutil.which("compute-sanitizer") or (places and str(places[-1]))
    if not found:
        raise Unavailable("compute-sanitizer is not on PATH nor in the CUDA folders: install the "
                          "CUDA toolkit")
    return found


def check(tool: str, names: list[str]) -> Report:
    """The kernels of ``names`` under a tool."""
    child = [sys.executable, "-m", f"{__package__}.sanitize", "--child", *names]
    command = [find(), "--tool", tool, "--kernel-name", f"kns={PREFIX}", *child]
    answer = subprocess.run(command, capture_output=True, text=True)
    return Report(tool, reports_of(answer.stdout), answer.stdout + answer.stderr)


def reports_of(text: str) -> Counter:
    """Reports by entry point: of each, the first place that its lines name."""
    found = Counter()
    for block in re.split(r"^=+ (?=Error|Warning|Invalid|Race)", text, flags=re.MULTILINE)[1:]:
        place = re.search(rf"\b({PREFIX}\w+)", block)
        found[place.group(1) if place else "elsewhere"] += 1
    return found


def _problem(name: str) -> Attention:
    kernel = kernels.get(name)
    shape = SHAPE | ({"kv_heads": 2} if kernel.direction == "softmax" else {})
    return Attention(**shape, direction=kernel.direction)


def _run(names: list[str]) -> None:
    """In the process that is watched. Each array is an allocation of the driver's, of whose end
    memcheck knows; of parts of a pool it does not."""
    from ..kernels import gradients, runner, scores

    cupy = runner.require_gpu()
    cupy.cuda.set_allocator(None)
    for name in names:
        kernel, problem = kernels.get(name), _problem(name)
        inputs, more = runner.random_inputs(problem), None
        if kernel.direction == "backward":
            more = gradients.backward_inputs(problem, *inputs)
        if kernel.direction == "softmax":
            inputs, more = (None, None, None), scores.random_scores(problem)
        runner.run(kernel, problem, kernel.tile_choices(problem)[0], *inputs, more=more)
        print(f"ran {name}", flush=True)
    control, too_short = cupy.RawKernel(CONTROL_SOURCE, CONTROL), cupy.zeros(63, cupy.int32)
    control((1,), (64,), (too_short,))
    with suppress(cupy.cuda.runtime.CUDARuntimeError):  # memcheck stops it
        cupy.cuda.runtime.deviceSynchronize()


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", action="append", choices=TOOLS, help="one of them (both)")
    parser.add_argument("--kernel", action="append", choices=kernels.names(), help="(all)")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child is not None:
        _run(args.child)
        return 0
    try:
        return _main(args.tool or TOOLS, args.kernel or list(kernels.names()))
    except Unavailable as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 3


def _main(tools, names: list[str]) -> int:
    from ..kernels import runner

    runner.require_gpu()
    find()
    build_ahead([(name, _problem(name), kernels.get(name).tile_choices(_problem(name))[0], "row",
                  False) for name in names], Progress(sys.stderr))
    reports = []
    for tool in tools:
        reports.append(check(tool, names))
        ran = len(re.findall(r"^ran ", reports[-1].text, re.MULTILINE))
        print(f"{tool}: {ran} of {len(names)} kernels ran, {reports[-1].found} reports, "
              + ("the kernel that is wrong on purpose was reported" if reports[-1].awake
                 else "and the kernel that is wrong on purpose was NOT reported"), flush=True)
        if reports[-1].found or not reports[-1].awake or ran < len(names):
            print(reports[-1].text[-6000:])
    rows = [[entry, *(report.reports[entry] for report in reports)]
            for entry in sorted({entry for report in reports for entry in report.reports})]
    print(table(["entry point", *tools], rows))
    return int(any(report.found or not report.awake for report in reports))


if __name__ == "__main__":
    sys.exit(main())
