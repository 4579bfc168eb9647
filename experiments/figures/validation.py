"""Validation: predicted against measured

Do hardware counters on a real GPU agree with the bytes that are counted (SM boundary) and with the
L2 reader's prediction (DRAM boundary)? One point is one kernel, shape and choice of tiles.
"""

from statistics import median

from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

from .. import style
from ..output import si
from . import Table

ORDER = 50
RUNS_L2_READER = True
BAND = 0.01
SM, DRAM = "sm_read", "dram_read"
TITLES = {SM: "SM reads", DRAM: "DRAM reads"}
MISSING = ("No measurement is recorded, so there is nothing to draw. hbmeter verify --out FILE "
           "measures this machine's GPU.")
KINDS = {SM: "counted", DRAM: "predicted"}


def run(problem, gpu, records=None) -> list[dict]:
    """One row a recorded point and boundary; empty when nothing is recorded. All records are
    shown, whatever the report's shape and GPU."""
    from ..records import load_all
    from ..verify import comparison

    return [
        _row(record, point, boundary)
        for record in (load_all() if records is None else records)
        for point in comparison(record)
        for boundary in KINDS
        if point[f"{boundary}_predicted"] and point[f"{boundary}_measured"]
    ]


def _row(record, point, boundary) -> dict:
    """``held_out``: two thirds of the points, by hash. ``error`` is
    (expected − measured) / measured, as hbmeter verify has it."""
    provenance = {name: record.provenance.get(name) for name in ("driver", "ncu", "date")}
    return {
        "record": record.name, "gpu": record.gpu, "kernel": point["kernel"],
        "shape": point["shape"], "br": point["tiles"]["br"], "bc": point["tiles"]["bc"],
        "order": point["order"], "spills": point["spills"], "held_out": point["held_out"],
        "boundary": boundary,
        "kind": KINDS[boundary], "expected_bytes": point[f"{boundary}_predicted"],
        "measured_bytes": point[f"{boundary}_measured"], "error": point[f"{boundary}_error"],
        "model": point["l2_model"] if boundary == DRAM else None, **provenance,
    }


def kept(table, boundary, kernel=None) -> list[dict]:
    """Rows of one boundary (and kernel, when named) of points that do not spill registers."""
    return [r for r in table if r["boundary"] == boundary and not r["spills"]
            and kernel in (None, r["kernel"])]


def kernels_of(rows) -> list[str]:
    """Kernel names, sorted."""
    return sorted({r["kernel"] for r in rows})


def errors(rows) -> tuple[float, float, float]:
    """Median and largest |error|, and the share of points within the band."""
    found = [abs(r["error"]) for r in rows]
    return median(found), max(found), sum(e <= BAND for e in found) / len(found)


def percent(share: float) -> str:
    """A percentage: two decimals while it is small, more when they would say 0.00%."""
    if 0 < abs(share) < 5e-5:
        return f"{share * 100:.1g}%"
    return f"{share:.2%}" if share and abs(share) < 0.1 else f"{share:.0%}"


@style.styled
def plot(table):
    """Measured against expected above, the error below with the ±1% band; a column a boundary."""
    fig, axes = style.figure(2, 2, 7.4, sharex="col", height_ratios=(2, 1))
    for boundary, (above, below) in zip(KINDS, axes.T, strict=True):
        rows = kept(table, boundary)
        above.set_title(f"{TITLES[boundary]}: measured against {KINDS[boundary]}", fontsize=9)
        if rows:
            _scatter(above, rows)
            _residuals(below, rows)
        else:
            above.annotate("no counters recorded", (0.5, 0.5), xycoords="axes fraction",
                           ha="center")
        above.set_ylabel("measured (counters), bytes")
        below.set(xlabel=f"{KINDS[boundary]}, bytes",
                  ylabel=f"({KINDS[boundary]} − measured)\n/ measured")
    fig.legend(handles=_keys(table), loc="outside lower center", ncols=4,
               title="median |error| of predicted DRAM reads")
    return fig


def _keys(table) -> list:
    """A key a kernel, with its error, and those of the lines."""
    keys = []
    for kernel in kernels_of(table):
        rows = kept(table, DRAM, kernel)
        error = f" {percent(errors(rows)[0])}" if rows else ""
        keys.append(style.key(f"{kernel}{error}", **style.compared(kernel)))
    return [*keys, style.key("equal", color=style.GREY, linewidth=0.8),
            style.key("±1% (below)", color=style.SKY, alpha=0.5, linewidth=6)]


def _scatter(ax, rows):
    values = [r[name] for r in rows for name in ("expected_bytes", "measured_bytes")]
    low, high = min(values) / 2, max(values) * 2
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ax.plot([low, high], [low, high], color=style.GREY, linewidth=0.8)
    for kernel, mine in _by_kernel(rows):
        ax.plot([r["expected_bytes"] for r in mine], [r["measured_bytes"] for r in mine],
                **style.compared(kernel))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(numticks=6))
        style.byte_axis(axis)
        axis.set_minor_formatter(style.NullFormatter())


def _residuals(ax, rows):
    ax.axhspan(-BAND, BAND, color=style.SKY, alpha=0.35, linewidth=0, zorder=0)
    ax.axhline(0, color=style.GREY, linewidth=0.8)
    for kernel, mine in _by_kernel(rows):
        ax.plot([r["expected_bytes"] for r in mine], [r["error"] for r in mine],
                **style.compared(kernel))
    reach = max(1.5 * BAND, 1.5 * errors(rows)[1])
    if reach > 3 * BAND:  # linear within the band, logarithmic beyond
        ax.set_yscale("symlog", linthresh=BAND, linscale=0.6)
        powers = [BAND * 10**power for power in range(4) if BAND * 10**power < reach]
        ax.set_yticks([-value for value in reversed(powers)] + [0] + powers)
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_title("logarithmic beyond ±1%", fontsize=7.5, fontweight="normal", loc="right")
    ax.set_ylim(-reach, reach)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if reach > 3 * BAND else None))


def _by_kernel(rows):
    return [(name, [r for r in rows if r["kernel"] == name]) for name in kernels_of(rows)]


def describe(table) -> str:
    """Agreement at both boundaries."""
    return " ".join(_sentence(table, boundary) for boundary in KINDS if kept(table, boundary))


def _sentence(table, boundary) -> str:
    rows = kept(table, boundary)
    text = f"{TITLES[boundary]}, {KINDS[boundary]} against measured: {_words(rows)}"
    held_out = [r for r in rows if r["held_out"]]
    if boundary == DRAM and held_out:
        text += f"; on points held out by hash: {_words(held_out)}"
    return text + "."


def _words(rows) -> str:
    middle, worst, share = errors(rows)
    points = f"{len(rows)} point" + "s" * (len(rows) > 1)
    if worst == 0:
        return f"equal to the byte on {points}"
    return (f"median error {percent(middle)}, largest {percent(worst)}, {share:.0%} of {points} "
            f"within {BAND:.0%}")


def answer(table) -> list[str]:
    """Whether a real GPU agrees."""
    if not table:
        return ["No measurement of a GPU is recorded: nothing here has been checked against "
                "counters."]
    gpus = ", ".join(sorted({r["gpu"] for r in table}))
    return [f"Counters of a real GPU ({gpus}): {describe(table)}"]


def notes(table) -> list[str]:
    """Where the measurements come from."""
    records = {r["record"]: r for r in table}
    sources = "; ".join(
        f"{name}: {r['gpu']}, driver {r['driver']}, ncu {r['ncu']}, {r['date']}"
        for name, r in records.items()
    )
    spilling = len({(r["record"], r["kernel"], r["shape"], r["br"], r["bc"], r["order"])
                    for r in table if r["spills"]})
    left_out = f" Points that spill registers, left out: {spilling}." * bool(spilling)
    return [f"Records: {sources}. Crosses are measured; points have their own shapes, not the "
            f"report's. Errors beyond 3% and more are drawn on a logarithmic scale outside "
            f"±1%.{left_out}"]


def tables(table) -> list[Table]:
    """Errors by kernel, then every point."""
    summary = []
    for boundary in KINDS:
        for kernel, rows in _by_kernel(kept(table, boundary)):
            middle, worst, share = errors(rows)
            summary.append([kernel, TITLES[boundary], KINDS[boundary], str(len(rows)),
                            f"{middle:.2%}", f"{worst:.2%}", f"{share:.0%}"])
    points = [
        [f"{r['kernel']} {r['shape']}" + ", spills" * r["spills"], f"{r['br']}×{r['bc']}",
         r["order"], TITLES[r["boundary"]], si(r["expected_bytes"]), si(r["measured_bytes"]),
         f"{r['error']:+.2%}"]
        for r in table
    ]
    return [
        Table("Errors against counters", ["kernel", "boundary", "by", "points", "median |error|",
                                          "largest", "within 1%"], summary),
        Table(f"Every recorded point ({len(points)} rows)",
              ["point", "Br×Bc", "order", "boundary", "counted or predicted", "measured", "error"],
              points, folded=True),
    ]
