"""Recomputing scores in the backward pass is cheaper than reading n² values back.

One score: its products and exponential at the GPU's peaks, against reading it from HBM. A whole
pass: bytes at the SM boundary (counted) and a time that no run beats (predicted bound) of the
standard and the flash program. It holds for a head dimension when one score and the whole pass both
favour recomputing; published and recorded backward passes stand beside.
"""

import csv

from ...hwprofiles import load
from ...simulator import schedules
from ...simulator.bounds import program_bound
from ...simulator.point import traffic
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from ..published import FILE
from . import GPU, Finding, Number, Verdict
from ._recorded import median_s, points, problem_of

NUMBER = 8
SEQ, HEADS, HEAD_DIMS = 4096, 16, (64, 128, 256)
PROGRAMS = {"standard": ("standard_backward", Tiles(128, 128)),
            "flash": ("flash2_backward", Tiles(64, 64))}


def gather() -> dict:
    """By head dimension: seconds of a score both ways, and bytes, FLOPs and least seconds of both
    passes."""
    gpu = load(GPU)
    exp_s = 1 / (gpu.exp_per_clock_per_sm * gpu.sm_count * gpu.boost_clock_hz)
    rows = []
    for d in HEAD_DIMS:
        problem = Attention(1, HEADS, SEQ, d, direction="backward")
        passes = {}
        for method, (schedule, tiles) in PROGRAMS.items():
            found = traffic(schedule, problem, gpu, tiles, engine="scratchpad", times=True)
            passes[method] = {
                "bytes": found["sm"]["read_bytes"] + found["sm"]["write_bytes"],
                "flops": found["flops_executed"]["matmul"],
                "bound_s": float(found["time"]["bound_s"])}
        rows.append({"head_dim": d, "passes": passes,
                     "recompute_s": max(2 * d / gpu.flops.fp16, exp_s),
                     "read_s": problem.dtype_bytes / gpu.hbm_bytes_per_s})
    return {"rows": rows, "published": _published(), "measured": _measured(),
            "kernels": _kernels(gpu)}


def _kernels(gpu) -> dict[str, tuple[float, float]]:
    """{shape: (seconds of the recorded flash2_backward, least seconds of a standard pass)}."""
    found = {}
    for data in points():
        problem = problem_of(data)
        if data["kernel"] != "flash2_backward" or problem.mask != "full":
            continue
        least = program_bound(schedules.build("standard_backward", problem, Tiles(128, 128)), gpu)
        found[f"{problem.head_count} heads, n {problem.seq:,}, d {problem.head_dim}"] = (
            median_s(data), float(least.bound_s))
    return found


def _published() -> dict[int, float]:
    """{n: standard over FlashAttention time of the backward pass}, its paper's table 19."""
    times = {}
    with open(FILE, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["pass"] == "bwd" and line["table"] == "FlashAttention table 19":
                times[line["method"], int(line["seq"])] = float(line["ms"])
    return {n: ms / times["flash1", n] for (method, n), ms in times.items()
            if method == "standard" and ("flash1", n) in times}


def _measured() -> dict[str, float]:
    """{shape: PyTorch's standard over its flash time} of recorded backward passes."""
    from .. import bench

    found = {}
    for document in bench.recorded():
        for point in document["points"]:
            problem, entries = problem_of(point), point["contenders"]
            plain = median_s(entries.get("torch math", {}))
            tiled = median_s(entries.get("torch flash", {}))
            if problem.direction == "backward" and plain and tiled:
                found[f"d {problem.head_dim}, n {problem.seq:,}, {problem.mask}"] = plain / tiled
    return found


def cheaper(row) -> bool:
    """Whether recomputing is cheaper for a score and for the pass, in bytes and time."""
    plain, flash = row["passes"]["standard"], row["passes"]["flash"]
    return (row["recompute_s"] < row["read_s"] and flash["bytes"] < plain["bytes"]
            and flash["bound_s"] < plain["bound_s"])


def judge(facts) -> Finding:
    """For which head dimensions."""
    numbers = []
    for row in facts["rows"]:
        d = row["head_dim"]
        numbers += [Number("predicted", f"d {d}: one score recomputed, at peaks",
                           row["recompute_s"] * 1e12, "ps"),
                    Number("predicted", f"d {d}: one score read from HBM", row["read_s"] * 1e12,
                           "ps")]
        for method, found in row["passes"].items():
            case = f"d {d}: {method} pass"
            numbers += [Number("counted", f"{case}, SM boundary", found["bytes"], "B"),
                        Number("counted", f"{case}, products", found["flops"], "FLOP"),
                        Number("predicted", f"{case}, least time", found["bound_s"], "s")]
    numbers += [Number("published", f"A100, d 64, n {n:,}: standard over flash, backward", ratio,
                       "×")
                for n, ratio in facts["published"].items()]
    for shape, (seconds, least) in facts["kernels"].items():
        numbers += [Number("measured", f"{shape}: flash2_backward", seconds, "s"),
                    Number("predicted", f"{shape}: standard pass, least time", least, "s")]
    numbers += [Number("measured", f"{shape}: PyTorch math over flash, backward", ratio, "×")
                for shape, ratio in facts["measured"].items()]
    good = [row["head_dim"] for row in facts["rows"] if cheaper(row)]
    words = "; ".join(
        f"d {row['head_dim']}: {row['recompute_s'] * 1e12:.2f} ps against "
        f"{row['read_s'] * 1e12:.2f} ps a score, the pass {_ratio(row, 'bytes'):.2f} of the bytes "
        f"and {_ratio(row, 'bound_s'):.2f} of the least time" for row in facts["rows"]) + "."
    for label, ratios in (("Published on an A100", facts["published"]),
                          ("Measured", facts["measured"])):
        if ratios:
            words += (f" {label}, the standard pass takes {min(ratios.values()):.1f} to "
                      f"{max(ratios.values()):.1f} times as long.")
    if len(good) == len(facts["rows"]):
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    if good:
        return Finding(Verdict.WHERE, words, tuple(numbers),
                       f"d is {' or '.join(map(str, good))} (fp16, {GPU})")
    return Finding(Verdict.FAILS, words, tuple(numbers))


def _ratio(row, name: str) -> float:
    return row["passes"]["flash"][name] / row["passes"]["standard"][name]
