"""Roofline: a point for each schedule at each boundary

Which limit is near? Each schedule stands at its predicted speed, once for each boundary that its
bytes cross; under a slanted roof the boundary's bandwidth is the limit, under a flat one the units.
"""

from ...simulator.blocks import fitting_candidate
from ...simulator.bounds import program_bound, shared_memory_bytes
from ...simulator.rates import rates
from .. import style
from ..output import seconds, si
from . import Table
from ._points import dram_total, fitting_tiles, point, shape_columns, shape_words

ORDER = 42
RUNS_L2_READER = True
SCHEDULES = ("standard", "flash1", "flash2")
BACKWARD = tuple(f"{name}_backward" for name in SCHEDULES)
LINE_LIMIT = 120_000_000  # L2 lines that a DRAM prediction may move, as in the comparison
MARKERS = {"shared memory": "o", "SM boundary": "s", "DRAM": "D"}
LINES = {"shared memory": "-.", "SM boundary": "-", "DRAM": "--"}


def run(problem, gpu, line_limit=LINE_LIMIT) -> list[dict]:
    """One row a schedule and boundary: bytes, FLOP a byte, predicted FLOP/s and the roofs."""
    names = SCHEDULES if problem.direction == "forward" else BACKWARD
    return [
        row for name, tiles in fitting_tiles(names, problem, gpu).items()
        for row in _rows(fitting_candidate(name, problem, tiles, gpu), problem, gpu, line_limit)
    ]


def _rows(candidate, problem, gpu, line_limit) -> list[dict]:
    program, tiles, time = candidate.program, candidate.tiles, candidate.prediction
    bound = program_bound(program, gpu)
    counted = point(program.schedule, problem, gpu, tiles, line_limit=line_limit)
    moved = {"shared memory": shared_memory_bytes(candidate.count),
             "SM boundary": candidate.sm_bytes, "DRAM": dram_total(counted)}
    return [{
        "schedule": program.schedule, "boundary": boundary, "bytes": size,
        "flop_per_byte": size and problem.flops / size,
        "predicted_s": time and time.seconds, "bound_s": bound.bound_s,
        "flop_per_s": problem.flops / (time.seconds if time else bound.bound_s),
        "limiter": time.limiter if time else bound.limiter,
        "roof_bytes_per_s": _bandwidths(gpu)[boundary],
        "roof_flop_per_s": getattr(gpu.flops, problem.dtype) or gpu.flops.fp32,
        "fma_flop_per_s": gpu.flops.fp32, "br": tiles.br, "bc": tiles.bc, "n": problem.seq,
        **shape_columns(problem, gpu),
    } for boundary, size in moved.items()]


def _bandwidths(gpu) -> dict[str, float]:
    """Bytes/s of each boundary: DRAM as specified, the others at the rates of predictions."""
    clock = gpu.boost_clock_hz
    at = rates(gpu, "fma", "fp32")
    return {
        "shared memory": gpu.smem.bytes_per_clock_per_sm * gpu.sm_count * clock,
        "SM boundary": at.gpu_l2_bytes * at.clock_hz, "DRAM": gpu.hbm_bytes_per_s,
    }


@style.styled
def plot(table):
    """Roofs in black, one marker a boundary, one colour a schedule."""
    fig, ax = style.figure(height=4.9)
    shown = [row for row in table if row["bytes"]]
    lowest = min(row["flop_per_byte"] for row in shown) / 3
    highest = max(max(row["flop_per_byte"] for row in shown),
                  max(row["roof_flop_per_s"] / row["roof_bytes_per_s"] for row in shown)) * 3
    _roofs(ax, shown, lowest, highest)
    for row in shown:
        ax.plot(row["flop_per_byte"], row["flop_per_s"], marker=MARKERS[row["boundary"]],
                color=style.colour(row["schedule"].removesuffix("_backward")),
                mfc="white" if row["boundary"] == "DRAM" else None, mew=1.5, markersize=8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(lowest, highest)
    ax.set_ylim(min(row["flop_per_s"] for row in shown) / 4, shown[0]["roof_flop_per_s"] * 2)
    ax.set_xlabel("FLOP a byte that crosses the boundary")
    ax.set_ylabel("FLOP/s (products of unmasked pairs)")
    style.byte_axis(ax.yaxis, "FLOP/s")
    ax.xaxis.set_major_formatter("{x:,g}")
    _legend(ax, shown)
    return fig


def _roofs(ax, shown, lowest, highest):
    top = shown[0]["roof_flop_per_s"]
    for boundary in MARKERS:
        rows = [row for row in shown if row["boundary"] == boundary]
        if rows:
            slope = rows[0]["roof_bytes_per_s"]
            ax.plot([lowest, top / slope], [lowest * slope, top], color=style.BLACK,
                    linestyle=LINES[boundary], linewidth=1.2)
    for name, height in ((f"{shown[0]['dtype']} peak", top),
                         ("FP32 peak", shown[0]["fma_flop_per_s"])):
        ax.axhline(height, color=style.GREY, linewidth=1.0)
        ax.annotate(f"{name} {si(height, 'FLOP/s')}", (highest, height), xytext=(-4, 3),
                    textcoords="offset points", ha="right", fontsize=8, color=style.GREY)


def _legend(ax, shown):
    entries = [
        style.key(row["schedule"], marker="o", linestyle="none",
                  color=style.colour(row["schedule"].removesuffix("_backward")))
        for row in {row["schedule"]: row for row in shown}.values()
    ]
    entries += [
        style.key(f"{name}: {si(row['roof_bytes_per_s'], 'B/s')}", marker=MARKERS[name],
                  linestyle=LINES[name], color=style.BLACK,
                  mfc="white" if name == "DRAM" else style.BLACK)
        for name, row in {row["boundary"]: row for row in shown}.items()
    ]
    ax.legend(handles=entries, loc="lower right", handlelength=4.2)  # dashes beside a marker


def describe(table) -> str:
    """Every point."""
    return " ".join(
        f"{r['schedule']} at the {r['boundary']}: {r['flop_per_byte']:.3g} FLOP a byte, "
        f"{si(r['flop_per_s'], 'FLOP/s')}." for r in table if r["bytes"]
    )


def notes(table) -> list[str]:
    """What stands where."""
    row = table[0]
    lines = [f"n {row['n']}, {shape_words(row)} on {row['gpu']}. Bytes at shared memory and the SM "
             "boundary are counted (shared memory: each load in, and read once at least), DRAM "
             "bytes predicted by the L2 reader. Height: the predicted time of a kernel of the "
             "usual kind" + ("." if row["predicted_s"] else
                             "; none is predicted for this pass, so the bound stands for it.")]
    missing = [f"{r['schedule']}" for r in table if r["boundary"] == "DRAM" and not r["bytes"]]
    if missing:
        lines.append(f"DRAM bytes of {', '.join(missing)} were not simulated: more than "
                     f"{LINE_LIMIT:,} L2 lines.")
    return lines


def tables(table) -> list[Table]:
    """The same numbers."""
    rows = [[r["schedule"], f"{r['br']}×{r['bc']}", r["boundary"], si(r["bytes"]),
             f"{r['flop_per_byte']:.4g}" if r["bytes"] else "–", seconds(r["predicted_s"]),
             seconds(r["bound_s"]), r["limiter"]] for r in table]
    return [Table("Intensity at each boundary (times predicted)",
                  ["schedule", "Br×Bc", "boundary", "bytes", "FLOP/byte", "predicted", "bound",
                   "limited by"], rows, folded=True)]
