"""Miss curves: DRAM reads against L2 size

How much L2 does a schedule need before it reads each input once, and how much is enough to tell the
grid orders apart? Every size is predicted in one pass, by a fully associative LRU cache of tiles.
"""

from math import log2

from matplotlib.ticker import LogLocator

from ...simulator.point import COMPARED
from .. import l2_curve, style
from ..output import si
from . import Table
from ._points import (
    fitting_tiles,
    is_idealised,
    line_count,
    point,
    shape_columns,
    shape_words,
)

ORDER = 45
ORDERS = ("row", "head")
LINE_LIMIT = 40_000_000  # L2 lines of a schedule that is drawn: some seconds
MIB = 2**20
LABEL_OCTAVES = 0.22  # GPUs whose L2 sizes are closer share a label
EITHER = "either order"
LOOKS = {"row": "-", "head": "--", EITHER: "-"}


def run(problem, gpu, line_limit=LINE_LIMIT) -> list[dict]:
    """One row a schedule, grid order and L2 size; schedules that move more are left out."""
    rows = []
    for schedule, tiles in fitting_tiles(COMPARED[problem.direction], problem, gpu).items():
        counted = point(schedule, problem, gpu, tiles)
        if is_idealised(schedule, problem, tiles) or line_count(counted, gpu) > line_limit:
            continue
        for order in ORDERS:
            curve = l2_curve.miss_curve(schedule, problem, gpu, tiles, order=order)
            rows += [_row(schedule, order, tiles, counted, found, problem, gpu) for found in curve]
    return rows


def _row(schedule, order, tiles, counted, found, problem, gpu) -> dict:
    return {"schedule": schedule, "order": order, "br": tiles.br, "bc": tiles.bc, "n": problem.seq,
            "kind": "predicted", "l2_bytes": found["l2_bytes"],
            "dram_read_bytes": found["dram_read_bytes"], "gpus": " ".join(found["gpus"]),
            "sm_read_bytes": counted["sm"]["read_bytes"],
            "compulsory_read_bytes": problem.compulsory_read_bytes, **shape_columns(problem, gpu)}


def curves(table) -> dict[tuple[str, str], list[dict]]:
    """Rows by (schedule, order), by size."""
    found = {}
    for row in table:
        found.setdefault((row["schedule"], row["order"]), []).append(row)
    return found


def enough(rows) -> int:
    """The smallest L2 of a curve that reads no more than the largest does."""
    least = rows[-1]["dram_read_bytes"]
    return next(row["l2_bytes"] for row in rows if row["dram_read_bytes"] == least)


def drawn(table) -> dict[tuple[str, str], list[dict]]:
    """The curves, those of both grid orders as one where they are equal."""
    found = curves(table)
    for schedule in {name for name, _ in found}:
        one, other = (found[schedule, order] for order in ORDERS)
        if all(a["dram_read_bytes"] == b["dram_read_bytes"]
               for a, b in zip(one, other, strict=True)):
            found = {(name, EITHER if name == schedule else order): rows
                     for (name, order), rows in found.items()}
    return found


@style.styled
def plot(table):
    """Bytes against L2 size, both on log axes; vertical lines where GPUs are."""
    fig, ax = style.figure(height=4.6)
    ax.set(xscale="log", yscale="log", xlabel="L2 size, MiB", ylabel="DRAM reads, predicted")
    shown = [row for row in table if row["l2_bytes"]]
    keys = []
    for (schedule, order), rows in drawn(shown).items():
        look = {"color": style.colour(schedule), "linestyle": LOOKS[order]}
        ax.plot([r["l2_bytes"] / MIB for r in rows], [r["dram_read_bytes"] for r in rows], **look)
        keys.append(style.key(f"{schedule}, {order}" + " fastest" * (order != EITHER), **look))
    keys += _limits(ax, table)
    _mark_gpus(ax, table)
    fig.legend(handles=keys, loc="outside upper left", ncols=3)
    sizes = [row["l2_bytes"] / MIB for row in shown]
    ax.set_xlim(min(sizes), max(sizes))
    ax.xaxis.set_major_locator(style.FixedLocator([4.0**k for k in range(-2, 10)]))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_locator(style.NullLocator())
    ax.grid(visible=False, axis="x")  # vertical lines are GPUs
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_formatter(style.NullFormatter())
    style.byte_axis(ax.yaxis)
    return fig


def _limits(ax, table) -> list:
    """Lines at the SM boundary and the compulsory bytes, and room; their legend entries."""
    sm_reads = {row["schedule"]: row["sm_read_bytes"] for row in table}
    for schedule, read in sm_reads.items():
        ax.axhline(read, color=style.colour(schedule), linewidth=0.8, linestyle="-.")
    least = table[0]["compulsory_read_bytes"]
    ax.axhline(least, color=style.GREY, linestyle=":")
    ax.set_ylim(least / 1.3, max(sm_reads.values()) * 4)  # room for the names of GPUs
    return [style.key("SM boundary: no L2", color=style.GREY, linewidth=0.8, linestyle="-."),
            style.key("compulsory: endless L2", color=style.GREY, linestyle=":")]


def _mark_gpus(ax, table):
    groups: list[tuple[float, list[str]]] = []
    for size in sorted({row["l2_bytes"] for row in table if row["gpus"]}):
        names = next(row["gpus"] for row in table if row["l2_bytes"] == size).split()
        ax.axvline(size / MIB, color=style.GREY, alpha=0.35, linewidth=0.9, zorder=0)
        if groups and log2(size / groups[-1][0]) < LABEL_OCTAVES:
            groups[-1][1].extend(names)
        else:
            groups.append((size, names))
    for size, names in groups:
        families = dict.fromkeys(name.split("-")[0] for name in names)
        ax.annotate(", ".join(families), (size / MIB, 0.98), xycoords=("data", "axes fraction"),
                    rotation=90, fontsize=7.5, color=style.GREY, ha="right", va="top")


def describe(table) -> str:
    """The size at which each curve is down, in words."""
    parts = [f"{schedule} with {order} fastest reads {si(rows[-1]['dram_read_bytes'])} from "
             f"{enough(rows) / MIB:.3g} MiB on"
             for (schedule, order), rows in curves(table).items()]
    return "Predicted DRAM reads against L2 size on log scales: " + "; ".join(parts) + "."


def notes(table) -> list[str]:
    """Setting and model."""
    tiles = dict.fromkeys(f"{r['schedule']} {r['br']}×{r['bc']}" for r in table)
    return [
        f"n {table[0]['n']}, {shape_words(table[0])}; thread blocks of {table[0]['gpu']} in flight "
        f"at every size. Tiles (Br×Bc): {', '.join(tiles)}. Exact stack distances of whole tiles, "
        "blocks in step, one partition: the L2 reader's sets, copies and clock are left out. "
        f"Schedules that move more than {LINE_LIMIT:,} lines are not drawn.",
    ]


def tables(table) -> list[Table]:
    """DRAM reads at the sizes of today's GPUs."""
    lines = curves(table)
    sizes = sorted({r["l2_bytes"] for r in table if r["gpus"]})
    names = {r["l2_bytes"]: r["gpus"].replace(" ", ", ") for r in table}
    at = {(*line, r["l2_bytes"]): r["dram_read_bytes"] for line, rows in lines.items()
          for r in rows}
    rows = [[f"{size / MIB:g} MiB", *(si(at[(*line, size)]) for line in lines), names[size]]
            for size in sizes]
    header = ["L2", *(f"{schedule}, {order}" for schedule, order in lines), "GPUs"]
    return [Table("DRAM reads predicted at the L2 sizes of GPUs", header, rows, folded=True)]
