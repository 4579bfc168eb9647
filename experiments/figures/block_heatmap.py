"""Block map: which (Br, Bc) fit, and what they move

Every choice of tiles in steps of 16: bytes at the SM boundary where it fits, and the reason where
it does not (rest the pointer on a cell). Which of the rules of thumb can be run, and how far are
they from the best choice?
"""

from collections import Counter

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from ...simulator.blocks import LARGEST, STEP, explore
from ...simulator.errors import InputError
from .. import style
from ..output import si
from . import Table
from ._points import shape_columns, shape_words

ORDER = 40
SCHEDULE = "flash2"
SMEM, REGISTERS, OTHER = "shared memory", "registers (estimate)", "threads"
HATCHES = {SMEM: "////", REGISTERS: "....", OTHER: "xx"}
MARKS = {"M/3d": ("D", style.ORANGE), "M/4d": ("s", style.VERMILION),
         "largest square that fits": ("P", style.SKY), "least traffic": ("*", style.YELLOW)}
BEST = 8


def run(problem, gpu, schedule=SCHEDULE) -> list[dict]:
    """One row a choice of tiles (one stage), with its marks."""
    found = explore(schedule, problem, gpu, stages=1)
    if not found.fitting:
        raise InputError(f"{schedule}: no tile fits {gpu.name}")
    return [_row(candidate, found.marks, problem, gpu) for candidate in found.candidates]


def _row(candidate, marks, problem, gpu) -> dict:
    tiles, need = candidate.tiles, candidate.resources
    return {
        "schedule": candidate.program.schedule, "br": tiles.br, "bc": tiles.bc,
        "sm_bytes": candidate.sm_bytes, "reason": _reason(candidate, gpu),
        "why_not": candidate.why_not,
        "smem_bytes": need.smem_bytes, "registers_estimate": need.registers_per_thread,
        "threads_estimate": need.threads, "blocks_per_sm": candidate.occupancy.blocks_per_sm,
        "marks": "; ".join(name for name, at in marks.items() if at == tiles),
        "n": problem.seq, "kv_n": problem.kv_seq, **shape_columns(problem, gpu),
    }


def _reason(candidate, gpu) -> str | None:
    """What a choice lacks, or None when it fits."""
    if candidate.why_not is None:
        return None
    if candidate.resources.smem_bytes > gpu.smem.bytes_per_block_max:
        return SMEM
    return REGISTERS if "registers" in candidate.occupancy.limiters else OTHER


@style.styled
def plot(table):
    """Bytes as colour, refusals as hatches, rules as marks."""
    fig, (ax, side) = style.figure(1, 2, 4.7, width_ratios=(2.4, 1))
    fitting = [r for r in table if r["reason"] is None]
    steps = LARGEST // STEP
    edges = (np.arange(steps + 1) + 0.5) * STEP
    values = np.full((steps, steps), np.nan)
    for r in filter(_on_grid, fitting):
        values[r["br"] // STEP - 1, r["bc"] // STEP - 1] = r["sm_bytes"]
    low, high = (f(r["sm_bytes"] for r in fitting) for f in (min, max))
    mesh = ax.pcolormesh(edges, edges, np.ma.masked_invalid(values), cmap="viridis_r",
                         norm=LogNorm(low, max(high, low * 1.01)), edgecolors="white",
                         linewidth=0.3)
    bar = fig.colorbar(mesh, ax=ax, pad=0.02, label="SM boundary, bytes (counted)")
    style.byte_axis(bar.ax.yaxis)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    keys = _refusals(ax, table) + _marks(ax, table)
    _tips(ax, table)
    ticks = range(4 * STEP, int(edges[-1]) + 1, 4 * STEP)
    ax.set(xticks=ticks, yticks=ticks, xlim=(edges[0], edges[-1]),
           ylim=(edges[0], edges[-1]), xlabel="Bc (columns of a K,V block)",
           ylabel="Br (rows of a query block)",
           title=f"{table[0]['schedule']} on {table[0]['gpu']}")
    ax.grid(False)
    side.axis("off")
    side.legend(handles=keys, loc="upper left", borderaxespad=0, labelspacing=0.9)
    return fig


def _on_grid(row) -> bool:
    return all(row[side] % STEP == 0 and row[side] <= LARGEST for side in ("br", "bc"))


def _refusals(ax, table) -> list:
    """Hatched runs of cells, one rectangle each, and their legend entries."""
    present = []
    for reason, hatch in HATCHES.items():
        cells = sorted((r["bc"], r["br"]) for r in table if r["reason"] == reason and _on_grid(r))
        look = {"facecolor": "#F1F1F1", "edgecolor": "#8A8A8A", "hatch": hatch, "linewidth": 0}
        for bc, first, last in _runs(cells):
            ax.add_patch(Rectangle((bc - STEP / 2, first - STEP / 2), STEP, last - first + STEP,
                                   **look))
        if cells:
            present.append(Patch(label=f"does not fit:\n{reason}", **look))
    return present


def _tips(ax, table):
    """What a cell is, to be shown where the pointer rests: rectangles that nobody sees."""
    for r in filter(_on_grid, table):
        ax.add_patch(Rectangle((r["bc"] - STEP / 2, r["br"] - STEP / 2), STEP, STEP, zorder=5,
                               facecolor=(1, 1, 1, 0.004), edgecolor="none",
                               gid=f"{style.TIP}{_words(r)}"))


def _words(row) -> str:
    """A choice of tiles in a line: what it moves, or why it does not fit."""
    words = f"Br {row['br']}, Bc {row['bc']}: "
    if row["why_not"]:
        return f"{words}does not fit: {row['why_not']}"
    return (f"{words}{si(row['sm_bytes'])}, {row['blocks_per_sm']} block(s) per SM, "
            f"{row['smem_bytes']:,} B of shared memory, about {row['registers_estimate']} "
            "registers a thread")


def _runs(cells):
    """(column, first, last) of neighbours in sorted (column, row) cells."""
    first = last = None
    for column, row in cells:
        if last and column == last[0] and row == last[1] + STEP:
            last = (column, row)
            continue
        if last:
            yield last[0], first, last[1]
        first, last = row, (column, row)
    if last:
        yield last[0], first, last[1]


def _marks(ax, table) -> list:
    keys = []
    for row in table:
        for name in filter(None, row["marks"].split("; ")):
            shape, fill = MARKS.get(name, ("v", style.PURPLE))
            look = {"marker": shape, "mfc": fill, "color": style.BLACK, "linestyle": "none",
                    "markersize": 13 if shape == "*" else 9, "mew": 1}
            at = (min(row[side], LARGEST) for side in ("bc", "br"))  # else on the map's edge
            ax.plot(*at, zorder=4, clip_on=False, **look)
            label = f"{name}:\n{row['br']}×{row['bc']}, {si(row['sm_bytes'])}"
            if not _on_grid(row):
                label += "\n(off the map)"
            keys.append(style.key(label, **look))
    return keys


def describe(table) -> str:
    """How many fit, and where the marks stand."""
    fitting = [r for r in table if r["reason"] is None]
    marks = [f"{r['marks']} at Br {r['br']}, Bc {r['bc']}: {si(r['sm_bytes'])}"
             + ("" if r["reason"] is None else f", does not fit ({r['reason']})")
             for r in table if r["marks"]]
    return f"{len(fitting)} of {len(table)} choices of tiles fit. " + "; ".join(marks) + "."


def notes(table) -> list[str]:
    """Setting and what is an estimate."""
    row = table[0]
    reasons = Counter(r["reason"] for r in table if r["reason"])
    why = ", ".join(f"{count} for {reason}" for reason, count in reasons.items()) or "none"
    return [
        f"{row['schedule']}, n {row['n']}, {shape_words(row)} on {row['gpu']}, one stage. Refused: "
        f"{why}. Shared memory is counted from the tiles; threads and registers are estimates.",
    ]


def tables(table) -> list[Table]:
    """The choices with the least traffic, and the marks; then all, with why they do not fit."""
    fitting = [r for r in table if r["reason"] is None]
    best = sorted(fitting, key=lambda r: (r["sm_bytes"], -r["blocks_per_sm"], -r["bc"]))[:BEST]
    rows = [r for r in table if r["marks"] and r not in best]
    header = ["Br×Bc", "SM bytes", "shared memory", "registers ~", "blocks/SM", "fits", "mark"]
    return [
        Table(f"The {len(best)} choices with the least traffic, and the marks", header,
              list(map(_cells, best + rows))),
        Table(f"Every choice ({len(table)} rows)", header, list(map(_cells, table)), folded=True),
    ]


def _cells(row) -> list[str]:
    return [f"{row['br']}×{row['bc']}", si(row["sm_bytes"]), f"{row['smem_bytes']:,} B",
            str(row["registers_estimate"]), str(row["blocks_per_sm"]),
            f"no: {row['why_not']}" if row["why_not"] else "yes", row["marks"]]
