"""The best block size is B ≈ M/(3d): Q, K and V blocks fill the shared memory.

M/(3d) and the FlashAttention paper's M/(4d) beside the largest square tile that fits when S, O and
registers count too, and beside the fastest tile that was measured for the shape. It holds where the
fastest measured tile is a square within a step of 16 of M/(3d); a rule's tile that does not fit
cannot be the best.
"""

from ...hwprofiles import load
from ...simulator import schedules
from ...simulator.blocks import LARGEST, STEP, Candidate, rule_points
from ...simulator.tiles import Tiles
from .. import style
from . import GPU, Finding, Number, Verdict
from ._recorded import median_s, problem_of, tiles_of

NUMBER = 4
KERNEL = "flash2_mma"


def gather() -> dict:
    """One row a recorded shape: rules, what fits, what was fastest."""
    from .. import tile_sweep

    shapes = {}
    for document in tile_sweep.recorded():
        for point in document["points"]:
            if point["kernel"] == KERNEL:
                key = problem_of(point), point["order"]
                shapes.setdefault(key, []).append((median_s(point), tiles_of(point)))
    gpu, squares = load(GPU), {}
    rows = []
    for (problem, order), timed in shapes.items():
        width = problem.head_dim
        if width not in squares:
            squares[width] = _largest_square(problem, gpu)
        seconds, fastest = min(timed, key=lambda pair: pair[0])
        third = rule_points(problem, gpu)["M/3d"]
        rows.append({
            "head_dim": width, "seq": problem.seq, "heads": problem.head_count,
            "mask": problem.mask, "order": order,
            "third": third.br, "quarter": rule_points(problem, gpu)["M/4d"],
            "third_why_not": Candidate(schedules.build("flash2", problem, third), gpu).why_not,
            "square": squares[width], "fastest": fastest, "fastest_s": seconds,
            "timed": len(timed),
        })
    return {"rows": rows}


def _largest_square(problem, gpu) -> int:
    """The largest Br = Bc whose shared memory and estimated registers fit."""
    fitting = [side for side in range(STEP, LARGEST + 1, STEP)
               if Candidate(schedules.build("flash2", problem, Tiles(side, side)), gpu).why_not
               is None]
    return max(fitting, default=0)


def follows(row) -> bool:
    """Whether the rule names the fastest tile of a shape."""
    tiles = row["fastest"]
    near = max(abs(tiles.br - row["third"]), abs(tiles.bc - row["third"])) <= STEP
    return row["third_why_not"] is None and near


def judge(facts) -> Finding:
    """Where the rule's tile fits and is the fastest."""
    rows = facts["rows"]
    if not rows:
        return Finding(Verdict.OPEN, "No times over tiles are recorded.", ())
    numbers = []
    for d in sorted({row["head_dim"] for row in rows}):
        group = [row for row in rows if row["head_dim"] == d]
        one, best = group[0], sorted({f"{r['fastest'].br}×{r['fastest'].bc}" for r in group})
        numbers += [
            Number("computed", f"d {d}: M/3d", f"{one['third']}×{one['third']}: "
                   f"{one['third_why_not'] or 'fits'}"),
            Number("computed", f"d {d}: M/4d", f"{one['quarter'].br}×{one['quarter'].bc}"),
            Number("predicted", f"d {d}: largest square that fits with S, O and registers",
                   f"{one['square']}×{one['square']}"),
            Number("measured", f"d {d}: fastest of up to {max(r['timed'] for r in group)} tiles "
                   f"and stages, {len(group)} shapes", ", ".join(best)),
        ]
    good = [row for row in rows if follows(row)]
    largest = [row for row in rows if max(row["fastest"].br, row["fastest"].bc) >= row["third"]]
    fitting = sum(row["third_why_not"] is None for row in rows)
    words = (f"M/3d names the fastest measured tile of {len(good)} of {len(rows)} shapes; it fits "
             f"for {fitting}, and the fastest tile is smaller than M/3d on both sides for "
             f"{len(rows) - len(largest)}.")
    if len(good) == len(rows):
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    if good:
        widths = sorted({row["head_dim"] for row in good})
        return Finding(Verdict.WHERE, words, tuple(numbers),
                       "d is " + " or ".join(map(str, widths)) + ", in some shapes")
    return Finding(Verdict.FAILS, words, tuple(numbers))


@style.styled
def plot(facts):
    """Each rule's Br and Bc, and the fastest, by head dimension."""
    rows = facts["rows"]
    widths = sorted({row["head_dim"] for row in rows})
    fig, axes = style.figure(1, len(widths), 3.6, sharex=True, sharey=True, squeeze=False)
    for ax, d in zip(axes[0], widths, strict=True):
        group = [row for row in rows if row["head_dim"] == d]
        one = group[0]
        ax.plot(one["third"], one["third"], "s", color=style.ORANGE, mfc="white", markersize=8)
        ax.plot(one["quarter"].bc, one["quarter"].br, "D", color=style.GREEN, mfc="white",
                markersize=8)
        ax.plot(one["square"], one["square"], "o", color=style.BLUE, mfc="white", markersize=8)
        for row in group:
            ax.plot(row["fastest"].bc, row["fastest"].br, "x", color=style.VERMILION, mew=2,
                    markersize=9)
        ax.set(title=f"d {d}", xlabel="Bc (columns)")
    axes[0][0].set_ylabel("Br (rows)")
    handles = [style.key(label, marker=marker, color=colour, mfc="white", linestyle="none")
               for label, marker, colour in (("M/3d", "s", style.ORANGE),
                                             ("M/4d", "D", style.GREEN),
                                             ("largest square that fits", "o", style.BLUE))]
    handles.append(style.key("fastest measured", marker="x", color=style.VERMILION, mew=2,
                             linestyle="none"))
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return fig


def describe(facts) -> str:
    """Rule and fastest tile by head dimension."""
    return " ".join(f"d {row['head_dim']}, n {row['seq']:,}, {row['mask']}: M/3d is "
                    f"{row['third']}×{row['third']}, fastest {row['fastest'].br}×"
                    f"{row['fastest'].bc}." for row in facts["rows"])
