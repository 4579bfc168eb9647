"""Published times of attention on A100 and H100 beside predictions that saw none of them.

The kernels are described as their papers and sources do: tiles, warps, what is prefetched. Times
are those of published_times.csv; the model is the same as for hbmeter's own kernels, and nothing
in it is fitted to these.
"""

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

from ..hwprofiles import load
from ..simulator import schedules
from ..simulator.execution import Cost, Execution, mma_sync, wgmma
from ..simulator.occupancy import occupancy
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from ..simulator.time_model import predict

FILE = Path(__file__).parent / "published_times.csv"
FROM_LENGTH = 1024  # shorter runs are a few microseconds, printed with one digit


@dataclass(frozen=True)
class Recipe:
    """A published kernel: schedule, tiles, registers of a thread, and how it runs the phases that
    compute (the others only move bytes)."""

    schedule: str
    tiles: Tiles
    registers: int
    executions: dict[str, Execution]


def recipes(method: str, passes: str, problem: Attention) -> list[tuple[Recipe, Attention]]:
    """The kernels of a method, one for each pass in "fwd", "bwd" or "fwd+bwd"; an empty list when
    a kernel's ways are not published."""
    forward = {"flash1": _flash1, "flash2": _flash2, "flash3": _flash3, "standard": _standard}
    backward = {"flash1": _flash1_backward, "flash2": _flash2_backward,
                "standard": _standard_backward}
    found = []
    for name, table in (("fwd", forward), ("bwd", backward)):
        if name in passes.split("+"):
            if method not in table:
                return []
            there = replace(problem, direction="forward" if name == "fwd" else "backward")
            found.append((table[method](problem), there))
    return found


def _flash1(problem: Attention) -> Recipe:
    """FlashAttention 1.0: a thread block a head; rows of 16 pass by 256 columns that 4 warps
    share out, whose fragments of K and V stay in registers."""
    return Recipe("flash1", Tiles(16, 256), 255, {"attention": _column_warps(64, 128)})


def _flash1_backward(problem: Attention) -> Recipe:
    return Recipe("flash1_backward", Tiles(16, 256), 255, {"attention": _column_warps(32, 256)})


def _column_warps(columns: int, threads: int) -> Execution:
    """A warp owns ``columns`` columns: row maxima, row sums and O are reduced over the warps
    through shared memory (store, barrier, load) for every 16 rows. O and the next Q are asked for
    after the first product and waited for after the second (fmha_fprop_kernel_1xN.h)."""
    warps, product = threads // 32, 32 / 2048
    scores = Cost(product + 32 / (256 * columns), 0.0, 4 / (256 * columns), waits=3)
    across = 2 * 4 / 128 / columns  # wavefronts of a partial fp32 O, stored and loaded
    output = Cost(product, 0.0, across, waits=5)
    costs = {
        "dot_t": scores, "dot_t_add": scores, "t_dot_add": scores, "dot": output,
        "dot_add": output, "row_max": Cost(slow=1, waits=5), "exp_minus": Cost(2, waits=1),
        "row_sum": Cost(1, waits=5), "copy": Cost(slow=0.5), "mul_rows": Cost(1),
        "div_rows": Cost(1), "sub_rows": Cost(1), "mul": Cost(1),
        "maximum": Cost(slow=100 * 32 * warps / 16, chain=100),
    }
    return Execution("mma_sync", threads, costs, operands_ahead=True, prefetch="trip")


def _flash2(problem: Attention) -> Recipe:
    """FlashAttention 2: 4 warps of 32 rows, K and V single-staged under each other's product."""
    tiles = Tiles(128, 128 if problem.head_dim <= 64 else 64)
    how = mma_sync(32, tiles.bc, 128, stages=1)
    how = replace(how, costs=how.costs | {"mul_rows": Cost(1)})
    return Recipe("flash2", tiles, 255, {"attention": how})


def _flash2_backward(problem: Attention) -> Recipe:
    """8 warps, 128 columns a thread block; P and dS go through shared memory."""
    tiles = Tiles(128 if problem.head_dim <= 64 else 64, 128)
    how = mma_sync(32, tiles.bc, 256, stages=1)
    how = replace(how, costs=how.costs | {"copy": Cost(1, 0.5, 2 / 128, waits=1)})
    return Recipe("flash2_backward", tiles, 255, {"attention": how})


def _flash3(problem: Attention) -> Recipe:
    """FlashAttention-3: TMA, wgmma, ping-pong; pairs of thread blocks share K and V for d 128 and
    more without a mask."""
    causal = problem.mask != "full"
    tiles = {64: Tiles(192, 128 if causal else 192, 2),
             128: Tiles(128, 128 if causal else 176, 2)}[problem.head_dim]
    shared = 2 if problem.head_dim >= 128 and not causal else 1
    how = wgmma(tiles.bc, tiles.br // 64, multicast=shared)
    return Recipe("flash2", tiles, 168, {"attention": how})


def _standard(problem: Attention) -> Recipe:
    """PyTorch: two batched matrix products of a library and a softmax between."""
    product = replace(mma_sync(32, 64, 256, stages=2), prefetch="trip")
    return Recipe("standard", Tiles(128, 128, 2), 128,
                  {"scores": product, "softmax": _SOFTMAX, "output": product})


def _standard_backward(problem: Attention) -> Recipe:
    product = replace(mma_sync(32, 64, 256, stages=2), prefetch="trip")
    program = schedules.build("standard_backward", replace(problem, direction="backward"),
                              Tiles(128, 128, 2))
    return Recipe("standard_backward", Tiles(128, 128, 2), 128, {
        phase.name: _SOFTMAX if phase.axes[0].step == 1 else product for phase in program.phases})


_MOVES = Execution("mma_sync", 256, {}, prefetch="trip", instructions_per_byte=0.5)
# A vectorised row softmax: maximum, exponential and sum once each, a division.
_SOFTMAX = Execution(
    "mma_sync", 256, {"row_max": Cost(1, 1, waits=14), "exp_minus": Cost(4, 1),
                      "row_sum": Cost(1, waits=14), "div_rows": Cost(1, 1)},
    in_flight_bytes=16 * 256, instructions_per_byte=0.5)


def predicted_s(method: str, passes: str, problem: Attention, gpu) -> float | None:
    """Zero-shot seconds of a published kernel, or None without a recipe."""
    found = recipes(method, passes, problem)
    if not found:
        return None
    total = 0.0
    for recipe, there in found:
        program = schedules.build(recipe.schedule, there, recipe.tiles)
        how = tuple(recipe.executions.get(phase.name, _MOVES) for phase in program.phases)
        residents = [
            max(occupancy(gpu, x.threads, recipe.registers if x is not _MOVES else 32,
                          phase.bytes_in("shared")).blocks_per_sm, 1)
            for phase, x in zip(program.phases, how, strict=True)
        ]
        total += predict(program, gpu, how, blocks_per_sm=residents).seconds
    return total


def table() -> list[dict]:
    """One dict a published number: what it is, milliseconds published and predicted, error."""
    return [dict(row) for row in _rows()]


@cache
def _rows() -> list[dict]:
    with open(FILE, encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict) -> dict:
    sizes = {name: int(line[name]) for name in ("batch", "heads", "seq", "head_dim")}
    problem = Attention(**sizes, mask=line["mask"])
    flops = {"fwd": problem.forward_flops, "bwd": 2.5 * problem.forward_flops}
    work = sum(flops[name] for name in line["pass"].split("+"))
    published = float(line["ms"]) * 1e-3 if line["ms"] else work / float(line["tflop_per_s"]) / 1e12
    seconds = predicted_s(line["method"], line["pass"], problem, load(line["gpu"]))
    return {
        "table": line["table"], "gpu": line["gpu"], "method": line["method"], "pass": line["pass"],
        **sizes, "mask": line["mask"], "published_s": published, "predicted_s": seconds,
        "published_tflop_per_s": work / published / 1e12,
        "error": None if seconds is None else seconds / published - 1,
    }


def errors(rows: list[dict], least: int = FROM_LENGTH) -> list[dict]:
    """For each table, method, pass, head_dim and mask: points from length ``least`` on, mean and
    worst absolute error, bias."""
    groups: dict = {}
    for row in rows:
        if row["error"] is not None and row["seq"] >= least:
            key = tuple(row[name] for name in
                        ("table", "gpu", "method", "pass", "head_dim", "mask"))
            groups.setdefault(key, []).append(row["error"])
    return [
        dict(zip(("table", "gpu", "method", "pass", "head_dim", "mask"), key, strict=True))
        | {"count": len(found), "mean": mean(map(abs, found)), "bias": mean(found),
           "worst": max(map(abs, found))}
        for key, found in groups.items()
    ]
