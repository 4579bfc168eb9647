"""Launcher of clocks.cu: GPCs have clocks of their own, and how far apart these get.

Where power limits a GPU, each GPC lowers its clock by itself; an SM's own cycles do not show it,
cycles over the GPU's timer do. Importing this needs no CuPy.
"""

from functools import partial
from pathlib import Path

import numpy as np

from ..errors import Unavailable
from . import places, power, wgmma
from .counted import Part

SOURCE = Path(__file__).with_suffix(".cu")
SHARES = 11  # 0, 10, … 100% of DRAM's rate
APART = 0.002  # standard deviation of clocks over their mean that says which GPCs are fast
READERS = (0, 16, 32, 64, 132, 264)  # thread blocks that read device memory beside the load
HOW = ("an SM's clock (its cycles over the GPU's timer) while all SMs multiply random numbers for "
       "12 ms and so many thread blocks read device memory beside them, 30 ms of rest before; GPCs "
       "by clusters")


def parts() -> dict[str, Part]:
    """What is launched: loads of power.py, beside more and more reads."""
    runs = [{"load": load, "readers": readers} for load in power.LOADS for readers in READERS]
    return {"runs": Part(runs, "hbmeter_probe_clusters", {}, _words, repeats=3, shown=_shown)}


def _words(run: dict) -> str:
    return f"{run['load']} beside {run['readers']} thread blocks that read"


def _shown(run: dict) -> dict:
    return {"GHz": np.mean(run["clock_hz"]) / 1e9,
            "TB/s": np.median(run["read_bytes_per_s"]) / 1e12,
            "% of GPCs": 100 * _deviation(run), "% within": 100 * _deviation(run, within=True)}


def _of_gpcs(run: dict) -> list[np.ndarray]:
    """The clocks of each GPC's SMs."""
    clocks = np.median(np.atleast_2d(run["clock_hz"]), axis=0)
    gpcs = run["gpcs"] if isinstance(run["gpcs"][0][0], int) else run["gpcs"][0]
    return [clocks[gpc] for gpc in gpcs]


def _deviation(run: dict, within: bool = False) -> float:
    """Standard deviation over the mean of the GPCs' clocks, or of SMs' clocks in their GPC."""
    groups = _of_gpcs(run)
    means = np.array([group.mean() for group in groups])
    apart = np.concatenate([group - group.mean() for group in groups]) if within else means
    return float(apart.std() / means.mean())


def offsets(runs: list[dict]) -> list[float]:
    """Where GPCs' clocks are between the mean less and the mean plus what ``facts`` says, from the
    slowest to the fastest: the mean of the runs in which they are apart."""
    found = []
    for run in runs:
        if _deviation(run) > APART:
            means = np.array([group.mean() for group in _of_gpcs(run)])
            found.append((means / means.mean() - 1) / (3 ** 0.5 * _deviation(run)))
    return np.sort(np.mean(found, axis=0)).tolist()


def facts(runs: list[dict]) -> dict[str, list[float]]:
    """What a profile's ``l2`` section has of it: for each load by how much of the mean the GPCs'
    clocks are faster or slower, were they spread evenly (sqrt(3) standard deviations), at eleven
    shares of the most bytes that were read a second."""
    found = {}
    for load in power.LOADS:
        mine = [run for run in runs if run["load"] == load]
        read = np.array([np.median(run["read_bytes_per_s"]) for run in mine])
        spread = [3 ** 0.5 * _deviation(run) for run in mine]
        found[load] = np.interp(np.linspace(0, 1, SHARES), read / read.max(), spread).tolist()
    return found


# ---- Runs -------------------------------------------------------------------------------------


def launcher(bench, part: str):
    """A function that does one run: each SM's clock. Raises Unavailable without wgmma."""
    if bench.capability != wgmma.CAPABILITY:
        raise Unavailable("the clocks probe multiplies by wgmma, which GPUs of compute capability "
                          f"9.0 have; this one has {bench.capability / 10}")
    return partial(_launch, bench, power.random_numbers(bench),
                   places.gpcs(bench, bench.functions(SOURCE)))


def _launch(bench, numbers, gpcs, run: dict) -> dict:
    probe, kernel, *_ = power.LOADS[run["load"]]
    reader, load, read_bytes = power.run(bench, bench.functions(probe.SOURCE)(kernel), run["load"],
                                         run["readers"], numbers)
    ns = int(reader[:, 3].max() - reader[:, 2].min()) if len(reader) else 1
    clocks = np.zeros(bench.sms)
    clocks[load[:, 4]] = (load[:, 1] - load[:, 0]) / np.maximum(load[:, 3] - load[:, 2], 1) * 1e9
    return {"read_bytes_per_s": read_bytes / ns * 1e9, "clock_hz": clocks.round().tolist(),
            "gpcs": gpcs}
