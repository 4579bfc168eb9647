"""Standard against tiled: bytes, FLOPs, memory and time

What does tiling save at each boundary, what does it cost in operations, and how much memory does
attention take with and without the n×n matrices in HBM?
"""

from matplotlib.ticker import EngFormatter, MaxNLocator

from ...simulator.point import COMPARED
from .. import style
from ..output import seconds, si
from . import Table
from ._points import (
    dram_total,
    fitting_tiles,
    is_idealised,
    point,
    shape_columns,
    shape_words,
    total,
)

ORDER = 10
RUNS_L2_READER = True
LINE_LIMIT = 120_000_000  # L2 lines that a DRAM prediction may move: up to 20 s
PANELS = (  # column, title, unit, whether it is counted (filled bars)
    ("sm_bytes", "SM boundary (counted)", "B", True),
    ("dram_bytes", "DRAM boundary (predicted)", "B", False),
    ("footprint_bytes", "memory in HBM (counted)", "B", True),
    ("matmul_flops", "matmul FLOPs (counted)", "FLOP", True),
    ("exp_flops", "exponentials (counted)", "exp", True),
    ("least_s", "least time (predicted bound)", "s", False),
)


def run(problem, gpu, line_limit=LINE_LIMIT) -> list[dict]:
    """One row a schedule, each with its least-traffic tiles."""
    return [
        _row(point(schedule, problem, gpu, tiles, line_limit=line_limit), problem, gpu, tiles)
        for schedule, tiles in fitting_tiles(COMPARED[problem.direction], problem, gpu).items()
    ]


def _row(found, problem, gpu, tiles) -> dict:
    dram, time = dram_total(found), found["time"]
    dram_s = dram and dram / gpu.hbm_bytes_per_s
    return {
        "schedule": found["schedule"], "br": tiles.br, "bc": tiles.bc,
        "sm_bytes": total(found["sm"]), "dram_bytes": dram,
        "footprint_bytes": found["footprint_bytes"],
        "matmul_flops": found["flops_executed"]["matmul"],
        "exp_flops": found["flops_executed"]["exp"],
        "least_s": dram_s and max(dram_s, time["bound_s"]), "bound_s": time["bound_s"],
        "limiter": time["limiter"], "compulsory_bytes": total(found["compulsory"]),
        "idealised": is_idealised(found["schedule"], problem, tiles),
        "model": found["l2"] and found["l2"]["model"],
        "pass": problem.direction, "n": problem.seq, "kv_n": problem.kv_seq,
        **shape_columns(problem, gpu),
    }


@style.styled
def plot(table):
    """Six small bar charts, one quantity each."""
    fig, axes = style.figure(2, 3, 4.4, sharey=True)
    for ax, (column, title, unit, is_counted) in zip(axes.flat, PANELS, strict=True):
        _bars(ax, table, column, unit, is_counted)
        ax.set_title(title, fontsize=9)
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(table)), [r["schedule"] for r in table])
    axes[0, 0].invert_yaxis()
    for ax in axes.flat[:2]:
        ax.axvline(table[0]["compulsory_bytes"], color=style.BLACK, linestyle=":", linewidth=1.2)
    axes[1, 2].axvline(table[0]["bound_s"], color=style.BLACK, linestyle=":", linewidth=1.2)
    fig.legend(handles=[style.key("compulsory bytes; bound of any schedule", color=style.BLACK,
                                  linestyle=":", linewidth=1.2)], loc="outside lower right")
    return fig


def _bars(ax, table, column, unit, is_counted):
    most = max((r[column] or 0 for r in table), default=0) or 1
    for place, row in enumerate(table):
        value, hue = row[column], style.colour(row["schedule"])
        if value:
            look = {"facecolor": hue} if is_counted else {"facecolor": "white", "hatch": "////"}
            ax.barh(place, value, height=0.62, edgecolor=hue, linewidth=1.2, **look)
        text = (seconds(value) if unit == "s" else si(value, unit)) if value else "not simulated"
        ax.annotate(text, (value or 0, place), xytext=(4, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color=style.BLACK if value else style.GREY,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})
    ax.set_xlim(0, most * 1.62)
    ax.xaxis.set_major_locator(MaxNLocator(2))
    ax.xaxis.set_major_formatter(EngFormatter(unit=unit))
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)


def pair(table) -> tuple[dict, dict] | None:
    """The standard row and the tiled one with the fewest bytes, when both are there."""
    plain = [r for r in table if r["schedule"] == "standard"]
    tiled = [r for r in table if not r["schedule"].startswith("standard")]
    if not plain or not tiled:
        return None
    return plain[0], min(tiled, key=lambda r: r["sm_bytes"])


def describe(table) -> str:
    """Every schedule's bytes."""
    return " ".join(
        f"{r['schedule']} moves {si(r['sm_bytes'])} at the SM boundary (counted) and "
        + (f"{si(r['dram_bytes'])} at the DRAM boundary (predicted)." if r["dram_bytes"]
           else "its DRAM bytes were not simulated.")
        for r in table
    )


def answer(table) -> list[str]:
    """What tiling saves at both boundaries."""
    if pair(table) is None:
        return []
    plain, tiled = pair(table)
    lines = [
        f"At the SM boundary (counted) standard moves {si(plain['sm_bytes'])}, "
        f"{tiled['schedule']} {si(tiled['sm_bytes'])}: "
        f"{_times(plain['sm_bytes'], tiled['sm_bytes'])}."
    ]
    if plain["dram_bytes"] and tiled["dram_bytes"]:
        lines.append(
            f"At the DRAM boundary (predicted) standard moves {si(plain['dram_bytes'])}, "
            f"{tiled['schedule']} {si(tiled['dram_bytes'])}: "
            f"{_times(plain['dram_bytes'], tiled['dram_bytes'])}; compulsory are "
            f"{si(plain['compulsory_bytes'])}."
        )
    return lines


def _times(plain: int, tiled: int) -> str:
    return f"{plain / tiled:.1f} times less" if plain >= tiled else (
        f"{tiled / plain:.1f} times more")


def notes(table) -> list[str]:
    """Setting, model, and what least time means."""
    row = table[0]
    lines = [
        f"n {row['n']}, {shape_words(row)} on {row['gpu']}, {row['pass']}. Filled bars are "
        "counted, hatched ones predicted. Least time: the slower of the predicted DRAM bytes at "
        "the datasheet's bandwidth and the bound that holds for any schedule (limited by "
        f"{row['limiter']}); no kernel beats it. standard_minimal is the count of the papers "
        "(4N² + 4Nd), not a kernel, so its DRAM bytes are not simulated; standard's matrix "
        "products ignore the mask.",
    ]
    if any(r["model"] for r in table):
        model = next(r["model"] for r in table if r["model"])
        lines.append(f"DRAM: L2 reader ({model}), cache empty at the start, with what is "
                     "still dirty in L2 at the end.")
    skipped = [r["schedule"] for r in table if r["dram_bytes"] is None and not r["idealised"]]
    if skipped:
        lines.append(f"DRAM bytes of {', '.join(skipped)} were not simulated: more than "
                     f"{LINE_LIMIT:,} L2 lines; hbmeter traffic computes them.")
    missing = [name for name in COMPARED[row["pass"]]
               if name not in {r["schedule"] for r in table}]
    if missing:
        lines.append(f"No tiles of {', '.join(missing)} fit {row['gpu']}.")
    return lines


def tables(table) -> list[Table]:
    """The same numbers, with the intensity."""
    rows = [
        [r["schedule"], f"{r['br']}×{r['bc']}", si(r["sm_bytes"]), si(r["dram_bytes"]),
         f"{r['matmul_flops'] / r['sm_bytes']:.1f}", si(r["matmul_flops"], "FLOP"),
         si(r["footprint_bytes"]), seconds(r["least_s"]), seconds(r["bound_s"])]
        for r in table
    ]
    header = ["schedule", "Br×Bc", "SM bytes", "DRAM bytes", "FLOP/SM byte", "matmul", "memory",
              "least time", "bound"]
    return [Table("Standard against tiled (SM, matmul, memory: counted; DRAM, times: predicted)",
                  header, rows)]
