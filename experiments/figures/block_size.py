"""Block size: FlashAttention's Figure 2, and Br of FlashAttention-2

Larger column blocks save re-reading Q and O in FlashAttention-1, larger row blocks re-reading K and
V in FlashAttention-2. Does the count give the bytes that the FlashAttention paper prints?
"""

from ...simulator import schedules, theory
from ...simulator.blocks import STEP, Candidate, choose_tiles, rule_points
from ...simulator.engines import scratchpad
from ...simulator.errors import InputError
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from .. import style
from ..output import si
from . import Table
from ._points import shape_columns, shape_words

ORDER = 30
FIGURE2 = Attention(batch=64, heads=16, seq=1024, head_dim=64, dtype="fp16")
FIGURE2_BR = 64  # min(⌈M/4d⌉, d)
PUBLISHED = {64: 6.578e9, 128: 3.356e9, 256: 1.745e9, 512: 0.940e9}
COLUMNS = (16, 32, 64, 128, 256, 512, 1024)
ROWS = range(STEP, 512 + 1, STEP)
PAPER, YOURS = "figure 2", "your shape"


def run(problem, gpu) -> list[dict]:
    """flash1 against Bc in the paper's setting, flash2 against Br for the problem."""
    rows = [_figure2_row(bc, gpu) for bc in COLUMNS]
    try:
        bc = choose_tiles("flash2", problem, gpu).bc
    except InputError:  # no flash2 tile fits this GPU
        bc = 64
    rows += [_flash2_row(problem, Tiles(br, bc), gpu) for br in ROWS]
    for panel, shape in ((PAPER, FIGURE2), (YOURS, problem)):
        for name, tiles in rule_points(shape, gpu).items():
            mark = f"Bc {tiles.bc}" if panel == PAPER else f"Br {tiles.br}"
            rows.append(_row(panel, "mark", shape, gpu, tiles, mark=f"{name}: {mark}"))
    return rows


def _figure2_row(bc: int, gpu) -> dict:
    tiles = Tiles(FIGURE2_BR, bc)
    by_tensor = scratchpad.count(schedules.build("flash1", FIGURE2, tiles)).by_tensor
    matrices = sum(sum(by_tensor[name].values()) for name in "QKVO")
    return _row(PAPER, "flash1", FIGURE2, gpu, tiles, counted_bytes=matrices,
                theory_bytes=theory.flash1_paper_bytes(FIGURE2, bc),
                published_bytes=PUBLISHED.get(bc))


def _flash2_row(problem, tiles: Tiles, gpu) -> dict:
    candidate = Candidate(schedules.build("flash2", problem, tiles), gpu)
    form = theory.bytes_by_tensor("flash2", problem, tiles)
    return _row(YOURS, "flash2", problem, gpu, tiles, counted_bytes=candidate.sm_bytes,
                theory_bytes=sum(map(sum, form.values())), why_not=candidate.why_not)


def _row(panel, schedule, problem, gpu, tiles, counted_bytes=None, theory_bytes=None,
         published_bytes=None, why_not=None, mark=None) -> dict:
    return {"panel": panel, "schedule": schedule, "br": tiles.br, "bc": tiles.bc,
            "counted_bytes": counted_bytes, "theory_bytes": theory_bytes,
            "published_bytes": published_bytes, "why_not": why_not, "mark": mark,
            "n": problem.seq, "kv_n": problem.kv_seq, **shape_columns(problem, gpu)}


@style.styled
def plot(table):
    """flash1 against Bc on the left, flash2 against Br on the right."""
    fig, (left, right) = style.figure(1, 2, 4.2)
    _panel(left, table, PAPER, "flash1", "bc", "Bc (columns of a K,V block)")
    left.set(title="flash1, Figure 2 setting", ylabel="SM boundary, bytes")
    left.legend(handles=[
        style.key("counted (Q, K, V, O)", **style.counted("flash1")),
        style.key("theory (1 + 3Tc)·Nd", color=style.colour("flash1")),
        style.key("published (Figure 2)", **style.PUBLISHED),
    ], loc="lower left")
    _panel(right, table, YOURS, "flash2", "br", "Br (rows of a query block)")
    right.set(title="flash2, your shape", ylabel="SM boundary, bytes")
    refused = next((r["br"] for r in _part(table, YOURS, "flash2") if r["why_not"]), None)
    handles = [
        style.key("counted", **style.counted("flash2")),
        style.key("theory (closed form)", color=style.colour("flash2")),
    ]
    if refused:
        right.axvspan(refused - STEP / 2, right.get_xlim()[1], color=style.LIGHT, zorder=0)
        handles.append(style.key("does not fit", color=style.LIGHT, linewidth=8))
    right.legend(handles=handles, loc="lower left")
    return fig


def _part(table, panel, schedule):
    return [r for r in table if (r["panel"], r["schedule"]) == (panel, schedule)]


def _panel(ax, table, panel, schedule, side, label):
    rows = _part(table, panel, schedule)
    sizes = [r[side] for r in rows]
    ax.set(xscale="log", yscale="log")
    ax.plot(sizes, [r["theory_bytes"] for r in rows], color=style.colour(schedule))
    doubled = [r for r in rows if r[side].bit_count() == 1]  # a marker at each power of two
    ax.plot([r[side] for r in doubled], [r["counted_bytes"] for r in doubled],
            **style.counted(schedule))
    stars = [(r[side], r["published_bytes"]) for r in rows if r["published_bytes"]]
    if stars:
        ax.plot(*zip(*stars, strict=True), zorder=4, **style.PUBLISHED)
    style.byte_axis(ax.yaxis)
    ax.yaxis.set_minor_formatter(style.NullFormatter())
    low, high = min(r["counted_bytes"] for r in rows), max(r["counted_bytes"] for r in rows)
    ax.set_ylim(low / 2.6, high * 2.2)
    ax.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    marks = [r for r in _part(table, panel, "mark") if sizes[0] <= r[side] <= sizes[-1]]
    for place, mark in enumerate(sorted(marks, key=lambda r: r[side])):
        height = high * (1.05 + 0.5 * place)  # one above the other: labels stand to the left
        ax.vlines(mark[side], low / 2.6, height, color=style.GREY, linewidth=1,
                  linestyle=(0, (4, 2)))
        ax.annotate(mark["mark"], (mark[side], height), xytext=(-4, -8), ha="right",
                    textcoords="offset points", fontsize=8.5, color=style.GREY)
    style.size_axis(ax.xaxis, [r[side] for r in doubled], label)


def describe(table) -> str:
    """How far counts are from the printed bytes, and what Br saves."""
    stars = [r for r in table if r["published_bytes"]]
    worst = max(abs(r["counted_bytes"] / r["published_bytes"] - 1) for r in stars)
    rows = _part(table, YOURS, "flash2")
    return (
        f"flash1 bytes fall from {si(stars[0]['counted_bytes'])} at Bc {stars[0]['bc']} to "
        f"{si(stars[-1]['counted_bytes'])} at Bc {stars[-1]['bc']}; the count is within "
        f"{worst:.2%} of the {len(stars)} published values. flash2 bytes fall from "
        f"{si(rows[0]['counted_bytes'])} at Br {rows[0]['br']} to {si(rows[-1]['counted_bytes'])} "
        f"at Br {rows[-1]['br']}."
    )


def notes(table) -> list[str]:
    """Settings of both panels."""
    paper, yours = table[0], _part(table, YOURS, "flash2")[0]
    return [
        f"Left: n {paper['n']}, {shape_words(paper)}; Q, K, V and O only, as the paper counts (m "
        "and l left out); stars are read off Figure 2 of arXiv 2205.14135 (A100-40GB). "
        f"Right: n {yours['n']}, {shape_words(yours)}, Bc {yours['bc']}; everything counted. "
        f"M/3d and M/4d use {paper['gpu']}'s shared memory a block, rounded down to steps of 16 "
        "(M/4d has Br = min(M/4d, d)); "
        "grey: needs more shared memory or registers (an estimate) than a block gets.",
    ]


def tables(table) -> list[Table]:
    """Figure 2 row by row, and Br of flash2."""
    paper = [
        [str(r["bc"]), si(r["counted_bytes"]), si(r["theory_bytes"]), si(r["published_bytes"]),
         f"{r['counted_bytes'] / r['published_bytes'] - 1:+.2%}"]
        for r in table if r["published_bytes"]
    ]
    yours = [
        [str(r["br"]), si(r["counted_bytes"]), si(r["theory_bytes"]), r["why_not"] or "fits"]
        for r in _part(table, YOURS, "flash2") if r["br"].bit_count() == 1
    ]
    return [
        Table("flash1 in the setting of Figure 2",
              ["Bc", "counted", "theory", "published", "difference"], paper),
        Table("flash2 for your shape", ["Br", "counted", "theory", "fits"], yours, folded=True),
    ]
