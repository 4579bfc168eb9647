"""Rounding errors of attention by type, length, block and logit scale

Does tiling cost accuracy, and what do inputs and accumulators of fewer bits cost? Relative errors
against float64, simulated with rounding after each operation; the report's shape does not matter.
"""

from .. import numerics, style
from . import Table

ORDER = 90
AXES = {"keys": "keys", "bc": "Bc", "logit_scale": "logit scale"}
LOOKS = {"standard": (style.VERMILION, "s"), "online": (style.GREEN, "^"),
         "tiled": (style.BLUE, "o")}
SHIFTS = dict(zip(LOOKS, (-0.2, 0.0, 0.2), strict=True))  # of marks at the same types


def run(problem, gpu) -> list[dict]:
    """A row a method, input type, accumulator and setting."""
    return numerics.by_type() + numerics.sweeps()


@style.styled
def plot(table):
    """Errors by types, and against keys, Bc and logit scale."""
    fig, axes = style.figure(2, 2, 5.6)
    _types(axes[0, 0], [row for row in table if row["against"] == numerics.TYPES])
    for ax, against in zip(axes.flat[1:], AXES, strict=True):
        rows = [row for row in table if row["against"] == against]
        for accumulator, colour in (("fp32", style.BLUE), ("fp16", style.VERMILION)):
            of_it = [row for row in rows if row["accumulator"] == accumulator]
            ax.plot([row["at"] for row in of_it], [row["error"] for row in of_it], "o-",
                    color=colour, label=f"tiled, fp16 inputs, {accumulator} accumulators")
        ax.set(xscale="log", yscale="log", ylabel="relative error")
        style.size_axis(ax.xaxis, sorted({row["at"] for row in rows}), AXES[against])
        ax.yaxis.set_minor_formatter(style.NullFormatter())
        ax.set_ylim(5e-5, 5e-2)
    axes[0, 1].legend(loc="upper left")
    return fig


def _types(ax, rows):
    types = list(dict.fromkeys((row["dtype"], row["accumulator"]) for row in rows))
    for method, (colour, marker) in LOOKS.items():
        of_it = [row for row in rows if row["method"] == method]
        places = [types.index((row["dtype"], row["accumulator"])) + SHIFTS[method]
                  for row in of_it]
        ax.plot(places, [row["error"] for row in of_it], marker, color=colour, label=method,
                markersize=4.5)
    ax.set_xticks(range(len(types)), [f"{dtype}\n{acc}" for dtype, acc in types], fontsize=6.5)
    ax.set(yscale="log", ylabel="relative error", xlabel="inputs above, accumulators below")
    ax.legend(loc="lower right")


def _error(table, **wanted) -> float:
    row, = (row for row in table if all(row[name] == value for name, value in wanted.items()))
    return row["error"]


def describe(table) -> str:
    """The three methods at one type, and the sweep of keys."""
    usual = dict(against=numerics.TYPES, dtype="fp16", accumulator="fp32")
    first, *_, last = numerics.SWEEPS["keys"]
    sweep = dict(against="keys", accumulator="fp16")
    return ("With fp16 inputs and fp32 accumulators the relative errors are "
            + ", ".join(f"{_error(table, method=name, **usual):.1e} ({name})" for name in LOOKS)
            + f"; with fp16 accumulators they go from {_error(table, at=first, **sweep):.1e} at "
            f"{first} keys to {_error(table, at=last, **sweep):.1e} at {last:,}.")


def notes(table) -> list[str]:
    """What was simulated."""
    return [f"Simulated by running the tile programs: {numerics.QUERIES} queries, "
            f"{numerics.KEYS} keys unless said, d {numerics.HEAD_DIM}, standard normal inputs, "
            "rounding after each fused multiply-add and each operation. online: one key a step. "
            "hbmeter claims 6 has the errors of kernels on a GPU beside."]


def tables(table) -> list[Table]:
    """Every number, folded."""
    rows = [[row["method"], row["dtype"], row["accumulator"],
             AXES.get(row["against"], "–"), "–" if row["at"] is None else f"{row['at']:,}",
             f"{row['error']:.2e}"] for row in table]
    return [Table("Relative errors of O", ["method", "inputs", "accumulators", "against", "at",
                                           "error"], rows, folded=True)]
