"""Standard against tiled attention: speed-up over length

From which length on is tiled attention faster? Predicted times of kernels of the usual kind over n;
above 1 the tiled one wins. It loses where its grid is smaller than the GPU: FlashAttention-1 has a
thread block a head, while standard attention spreads every row over the SMs.
"""

from dataclasses import replace

from matplotlib.ticker import LogLocator, NullFormatter

from ...simulator import schedules
from ...simulator.blocks import Candidate
from ...simulator.tiles import Tiles
from .. import style
from ..output import seconds
from . import Table
from ._points import shape_columns, shape_words

ORDER = 45
LENGTHS = tuple(128 << i for i in range(9))
SIZES = {"br": (64, 128), "bc": (64, 128)}  # tiles that are tried at each length
STANDARD, TILED = "standard", ("flash2", "flash1")
DASHES = {"as asked": "-", "one sequence, eight heads": "--"}


def run(problem, gpu) -> list[dict]:
    """One row a length and load (as asked; one sequence of eight heads): both predicted times."""
    if problem.direction != "forward":
        return []
    few = replace(problem, batch=1, heads=8, kv_heads=8)
    return [
        row for load, shape in zip(DASHES, (problem, few), strict=True)
        for n in LENGTHS
        for row in _row(load, replace(shape, seq=n, kv_seq=n), gpu)
    ]


def _row(load: str, problem, gpu) -> list[dict]:
    plain = fastest(STANDARD, problem, gpu)
    found = {name: fastest(name, problem, gpu) for name in TILED}
    return [{
        "load": load, "schedule": name, "n": problem.seq, "standard_s": plain[1],
        "tiled_s": tiled[1], "speedup": plain[1] / tiled[1], "tiled_limiter": tiled[2],
        "tiles": f"{tiled[0].br}×{tiled[0].bc}", **shape_columns(problem, gpu),
    } for name, tiled in found.items() if plain and tiled]


def fastest(schedule: str, problem, gpu):
    """(tiles, predicted seconds, limiter) of the fastest of a few tiles, or None."""
    tried = (Candidate(schedules.build(schedule, problem, Tiles(br, bc)), gpu)
             for br in SIZES["br"] for bc in SIZES["bc"])
    timed = [candidate for candidate in tried if candidate.prediction is not None]
    if not timed:
        return None
    best = min(timed, key=lambda candidate: candidate.prediction.seconds)
    return best.tiles, best.prediction.seconds, best.prediction.limiter


@style.styled
def plot(table):
    """Speed-up against n, one line a load, with the line of equal times."""
    fig, ax = style.figure(height=3.9)
    for (load, name), rows in _curves(table).items():
        ax.plot([r["n"] for r in rows], [r["speedup"] for r in rows], DASHES[load],
                marker=style.marker(name), mfc="white", color=style.colour(name),
                label=f"{name}, {load}: {rows[0]['batch']} × {rows[0]['heads']} heads")
    ax.axhline(1, color=style.BLACK, linewidth=1.0, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    style.size_axis(ax.xaxis, sorted({row["n"] for row in table}), "n (tokens)")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylabel("predicted standard / tiled time")
    fig.legend(loc="outside lower center", ncols=2, handlelength=3.2)  # dashes beside a marker
    return fig


def _curves(table) -> dict:
    """Rows by load and schedule."""
    found = {}
    for row in table:
        found.setdefault((row["load"], row["schedule"]), []).append(row)
    return found


def crossing(rows) -> int | None:
    """The least length from which on the tiled kernel is never slower; None when it is slower at
    the longest."""
    found = None
    for row in sorted(rows, key=lambda row: -row["n"]):
        if row["speedup"] < 1:
            break
        found = row["n"]
    return found


def describe(table) -> str:
    """Every curve's ends."""
    return " ".join(
        f"{name}, {load}: speed-up {rows[0]['speedup']:.2f} at n {rows[0]['n']} to "
        f"{rows[-1]['speedup']:.1f} at n {rows[-1]['n']:,}."
        for (load, name), rows in _curves(table).items()
    )


def notes(table) -> list[str]:
    """Setting, and where the lines cross 1."""
    row = table[0]
    words = []
    for (load, name), rows in _curves(table).items():
        at, first = crossing(rows), rows[0]["n"]
        if at is None:
            words.append(f"{name}, {load}, is slower than standard at the longest n")
        elif at > first:
            words.append(f"{name}, {load}, is faster from n {at:,} on")
        else:
            words.append(f"{name}, {load}, is faster at every n shown")
    return [f"{shape_words(row)} on {row['gpu']}, the fastest of {len(SIZES['br'])} × "
            f"{len(SIZES['bc'])} tiles each, predicted zero-shot. {'; '.join(words)}."]


def tables(table) -> list[Table]:
    """The same numbers."""
    rows = [[f"{r['schedule']}, {r['load']}", f"{r['n']:,}", seconds(r["standard_s"]),
             seconds(r["tiled_s"]), f"{r['speedup']:.2f}", r["tiles"], r["tiled_limiter"]]
            for r in table]
    return [Table("Predicted times", ["kernel", "n", "standard", "tiled", "speed-up", "tiles",
                                      "tiled limited by"], rows, folded=True)]
