"""IO complexity: bytes against sequence length

How fast do the bytes grow with the sequence length n, at the SM boundary (counted from the tile
program, over the closed form) and at the DRAM boundary (predicted by the L2 reader)?
"""

from dataclasses import replace
from math import ceil

import numpy as np

from ...simulator import schedules, theory
from ...simulator.errors import InputError
from .. import style
from ..output import si
from . import Table
from ._points import dram_total, fitting_tiles, point, shape_columns, shape_words, total

ORDER = 20
RUNS_L2_READER = True
LENGTHS = tuple(512 * 2**step for step in range(7))
LINE_LIMIT = 100_000_000  # L2 lines that a DRAM point may move: some seconds
SM, DRAM, LEAST = "sm", "dram", "compulsory"


def run(problem, gpu, lengths=LENGTHS, line_limit=LINE_LIMIT) -> list[dict]:
    """One row for each schedule, boundary and length; tiles are those chosen for the problem."""
    rows = []
    for schedule, tiles in fitting_tiles(_compared(problem.direction), problem, gpu).items():
        for n in lengths:
            try:
                longer = replace(problem, seq=n, kv_seq=n)
                found = point(schedule, longer, gpu, tiles, line_limit=line_limit)
            except InputError:  # counts beyond int64, or tiles that do not fit this length
                continue
            rows += _rows(schedule, longer, gpu, tiles, found)
    for n in sorted({row["n"] for row in rows}):
        longer = replace(problem, seq=n, kv_seq=n)
        least = longer.compulsory_read_bytes + longer.compulsory_write_bytes
        rows.append(_row(LEAST, longer, gpu, LEAST, "counted", least))
    return rows


def _compared(direction: str) -> list[str]:
    """Schedules whose queries grow with n. Those that split keys are for decode, a few queries;
    of them mla_decode reads one array as K and V: another problem, with fewer compulsory bytes."""
    return [name for name in schedules.names(direction) if "splits" not in schedules.options(name)]


def _rows(schedule, problem, gpu, tiles, found):
    at = {"br": tiles.br, "bc": tiles.bc}
    yield _row(schedule, problem, gpu, SM, "counted", total(found["sm"]), **at)
    if schedule in theory.closed_forms():
        form = theory.bytes_by_tensor(schedule, problem, tiles)
        yield _row(schedule, problem, gpu, SM, "theory", sum(map(sum, form.values())), **at)
    if found["dram"]:
        yield _row(schedule, problem, gpu, DRAM, "predicted", dram_total(found),
                   **at, model=found["l2"]["model"])


def _row(schedule, problem, gpu, boundary, kind, moved, br=None, bc=None, model=None):
    return {"schedule": schedule, "boundary": boundary, "kind": kind, "n": problem.seq,
            "bytes": moved, "br": br, "bc": bc, "model": model, **shape_columns(problem, gpu)}


def fitted_exponent(lengths, values) -> float | None:
    """Slope of log(values) on log(lengths) by least squares over the longer half, at least three
    points; None when there are fewer."""
    points = sorted(zip(lengths, values, strict=True))
    points = points[-max(3, ceil(len(points) / 2)):]
    if len(points) < 3:
        return None
    x, y = np.log(np.array(points, float)).T
    return float(np.polyfit(x, y, 1)[0])


def series(table, schedule, boundary, kind) -> tuple[list[int], list[int]]:
    """Lengths and bytes of one line of the figure."""
    chosen = [r for r in table if (r["schedule"], r["boundary"], r["kind"])
              == (schedule, boundary, kind)]
    return [r["n"] for r in chosen], [r["bytes"] for r in chosen]


def _schedules(table, boundary) -> list[str]:
    found = dict.fromkeys(r["schedule"] for r in table if r["boundary"] == boundary)
    return sorted(found, key=lambda name: -series_last(table, name, boundary))


def series_last(table, schedule, boundary) -> int:
    """Bytes at the longest length."""
    return max(r["bytes"] for r in table
               if r["schedule"] == schedule and r["boundary"] == boundary)


@style.styled
def plot(table):
    """Two panels on one scale: the SM boundary and the DRAM boundary."""
    fig, (left, right) = style.figure(1, 2, 4.5, sharex=True, sharey=True)
    for ax in (left, right):
        ax.set(xscale="log", yscale="log")
        ax.plot(*series(table, LEAST, LEAST, "counted"), color=style.GREY, linestyle=":")
    left.set(title="SM boundary: counted on closed form", ylabel="bytes read and written")
    right.set_title("DRAM boundary: predicted")
    _panel(left, table, SM, "counted")
    _panel(right, table, DRAM, "predicted")
    style.byte_axis(left.yaxis)
    lengths = sorted({r["n"] for r in table})
    for ax in (left, right):
        style.size_axis(ax.xaxis, lengths, "sequence length n")
    left.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    top = max(r["bytes"] for r in table)
    left.set_ylim(top=top * 60)  # room for the legends
    return fig


def _panel(ax, table, boundary, kind):
    keys = []
    for schedule in _schedules(table, boundary):
        lengths, values = series(table, schedule, boundary, kind)
        if boundary == SM:
            line = series(table, schedule, SM, "theory")
            ax.plot(*line, color=style.colour(schedule), linestyle=style.LINES[SM])
            look = style.counted(schedule)
        else:
            look = style.predicted(schedule)
        ax.plot(lengths, values, **look)
        keys.append(style.key(_label(schedule, fitted_exponent(lengths, values)), **look))
    if boundary == SM:
        keys.append(style.key("theory (closed form)", color=style.GREY, linestyle="-"))
    keys.append(style.key("compulsory", color=style.GREY, linestyle=":"))
    ax.legend(handles=keys, loc="upper left")


def _label(schedule, exponent) -> str:
    return schedule if exponent is None else f"{schedule}  $n^{{{exponent:.2f}}}$"


def describe(table) -> str:
    """The growth of each schedule, in words."""
    parts = []
    for boundary, kind, where in ((SM, "counted", "SM"), (DRAM, "predicted", "DRAM")):
        for schedule in _schedules(table, boundary):
            exponent = fitted_exponent(*series(table, schedule, boundary, kind))
            if exponent is not None:
                parts.append(f"{schedule} at the {where} boundary grows as n^{exponent:.2f}")
    return "Bytes against sequence length on log scales: " + "; ".join(parts) + "."


def notes(table) -> list[str]:
    """Setting, fit and model."""
    tiles = {r["schedule"]: f"{r['schedule']} {r['br']}×{r['bc']}" for r in table if r["br"]}
    lines = [
        f"{shape_words(table[0])} on {table[0]['gpu']}; queries and keys both n long. Tiles "
        f"(Br×Bc) stay the same at all n: {', '.join(tiles.values())}. Exponents: least squares "
        "on log–log over the longer half of the points (at least three). standard reads S twice "
        "once a row is longer than 48 KiB.",
    ]
    models = sorted({r["model"] for r in table if r["model"]})
    if models:
        lines.append(
            f"DRAM is a prediction of the L2 reader ({models[0]}), with what is still dirty in L2 "
            f"at the end; it stops where a point would move more than {LINE_LIMIT:,} lines. A fit "
            "across the length at which L2 stops holding the working set is no asymptote."
        )
    return lines


def tables(table) -> list[Table]:
    """Bytes of every schedule at every length."""
    lengths = sorted({r["n"] for r in table})
    at = {(r["schedule"], r["boundary"], r["kind"], r["n"]): r["bytes"] for r in table}
    lines = [(s, SM, "counted") for s in _schedules(table, SM)]
    lines += [(s, DRAM, "predicted") for s in _schedules(table, DRAM)]
    lines.append((LEAST, LEAST, "counted"))
    rows = [
        [name if name == LEAST else f"{name}, {boundary.upper()} {kind}",
         *(si(at.get((name, boundary, kind, n))) for n in lengths)]
        for name, boundary, kind in lines
    ]
    return [Table("Bytes read and written", ["n", *map(str, lengths)], rows, folded=True)]
