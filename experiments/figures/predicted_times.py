"""Predicted times beside measured ones

How far are predicted times off? Every recorded time of hbmeter's kernels against its prediction:
zero-shot (nothing measured on the kernel), and calibrated by one short run of the same kernel and
tiles. On the diagonal they are equal; the dotted lines are 12% off.
"""

from .. import style
from ..output import seconds
from . import Table

ORDER = 55
RUNS_L2_READER = True
MISSING = "No times are recorded."
MODES = (("predicted_s", "zero-shot"), ("calibrated_s", "calibrated"))


def run(problem, gpu) -> list[dict]:
    """One row a recorded time held out from development; the report's shape does not matter."""
    from .. import time_table

    rows = time_table.rows(time_table.judged(time_table.timed()), bounds=False)
    return [row | {"blocks_per_sm": max(row["blocks_per_sm"])} for row in rows if row["held_out"]]


@style.styled
def plot(table):
    """A panel a mode, predicted over measured."""
    fig, axes = style.figure(1, 2, 4.9, sharey=True)
    for ax, (column, title) in zip(axes, MODES, strict=True):
        rows = [row for row in table if row[column] is not None]
        times = [row["measured_s"] for row in rows]
        low, high = min(times) / 1.5, max(times) * 1.5
        for factor, look in ((1, "-"), (1.12, ":"), (1 / 1.12, ":")):
            ax.plot([low, high], [low * factor, high * factor], color=style.BLACK, linewidth=0.9,
                    linestyle=look)
        for kernel in dict.fromkeys(row["kernel"] for row in table):
            mine = [row for row in rows if row["kernel"] == kernel]
            ax.plot([r["measured_s"] for r in mine], [r[column] for r in mine],
                    **style.counted(kernel) | {"mfc": "none", "mew": 1.0, "markersize": 4.5},
                    label=kernel)
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        for axis in (ax.xaxis, ax.yaxis):
            style.byte_axis(axis, "s")
        ax.set_title(f"{title}: mean error {_mean(table, column):.1%} of {len(rows):,} runs")
        ax.set_xlabel("measured time")
    axes[0].set_ylabel("predicted time")
    handles, _ = axes[0].get_legend_handles_labels()
    handles.append(style.key("12% off", color=style.BLACK, linewidth=0.9, linestyle=":"))
    fig.legend(handles=handles, loc="outside lower center", ncols=5)
    return fig


def _errors(table, column) -> list[float]:
    return [abs(row[column] / row["measured_s"] - 1) for row in table if row[column] is not None]


def _mean(table, column) -> float:
    errors = _errors(table, column)
    return sum(errors) / len(errors)


def describe(table) -> str:
    """Mean and worst error of both modes."""
    return " ".join(
        f"{title}: {len(_errors(table, column))} held-out points, mean error "
        f"{_mean(table, column):.1%}, worst {max(_errors(table, column)):.1%}."
        for column, title in MODES if _errors(table, column)
    )


def notes(table) -> list[str]:
    """What is shown."""
    return ["Times recorded on an H200: those of hbmeter verify and bench, a sweep over every tile "
            "of four kernels, and points first timed when the model was finished. Shown are these, "
            "and of the others the two thirds, chosen by hash, that "
            "the model was not developed on. Zero-shot: rates of the GPU by hbmeter calibrate and "
            "costs that kernels declare. Calibrated: one factor for each kernel and tiles. "
            "hbmeter predict --recorded prints all errors."]


def tables(table) -> list[Table]:
    """The points farthest off."""
    worst = sorted((r for r in table if r["calibrated_s"] is not None),
                   key=lambda r: -abs(r["calibrated_error"]))[:20]
    rows = [[r["kernel"], r["shape"], f"{r['br']}×{r['bc']}", r["stages"], r["order"],
             seconds(r["measured_s"]), f"{r['error']:+.1%}", f"{r['calibrated_error']:+.1%}",
             r["limiter"]] for r in worst]
    return [Table("The held-out points that calibrated predictions miss most",
                  ["kernel", "shape", "Br×Bc", "stages", "order", "measured", "zero-shot",
                   "calibrated", "limited by"], rows, folded=True)]
