"""The L2 model against microbenchmarks

Scans that read and write private and shared buffers, no attention in them: does the cache model
move the bytes between L2 and DRAM that counters of a real GPU show? Crosses are measured, lines
are the model run over the same accesses, with nothing fitted to these sizes.
"""

from matplotlib.ticker import MultipleLocator

from .. import style
from . import Table

ORDER = 55
RUNS_L2_READER = True
MIB = 1 << 20
READ, WRITE = "dram_read", "dram_write"
COLOURS = (style.BLACK, style.PURPLE, style.SKY)  # no schedule's
SHOWN_MIB = 72

# Title, patterns, boundary, whether bytes are shown against the buffer's.
PANELS = (
    ("Private: each block its own slice", ("private",), READ, True),
    ("Shared: every block all of it", ("shared",), READ, True),
    ("Written: how much leaves", ("written", "reread"), WRITE, False),
    ("Written, then read: how much is fetched", ("reread",), READ, False),
    ("One buffer written, another read: fetched", ("mixed",), READ, True),
    ("One buffer written, another read: leaves", ("mixed",), WRITE, False),
)


def run(problem, gpu, records=None) -> list[dict]:
    """One row a recorded scan and boundary, whatever the report's shape and GPU; empty when
    nothing is recorded of a GPU that has a profile."""
    from .. import calibrate
    from ..verify import gpu_profile

    rows = []
    for record in calibrate.load_all() if records is None else records:
        profile = gpu_profile(record)
        if profile is not None:
            origin = {name: record.provenance.get(name) for name in ("driver", "ncu", "date")}
            rows += [{"record": record.name, **row, **origin}
                     for row in calibrate.model_curves(profile, record)]
    return rows


@style.styled
def plot(table):
    """A panel a question: crosses beside lines, in MiB or as multiples of the buffer."""
    fig, axes = style.figure(3, 2, 8.6)
    first = table[0]["record"]
    for ax, panel in zip(axes.flat, PANELS, strict=True):
        _panel(ax, [row for row in table if row["record"] == first], *panel)
    for ax in axes[-1]:
        ax.set_xlabel("buffer that the curve varies, MiB")
    kinds = {"measured": {"marker": "x", "mew": 1.6, "linestyle": "none"}, "predicted": {}}
    fig.legend(handles=[style.key(name, color=style.GREY, **look) for name, look in kinds.items()],
               loc="outside lower center", ncols=2)
    return fig


def _panel(ax, table, title, patterns, boundary, relative):
    curves = {}
    for row in table:
        if row["pattern"] in patterns and row["boundary"] == boundary and (
                row["size_bytes"] <= SHOWN_MIB * MIB):
            curves.setdefault(row["curve"], []).append(row)
    keys = []
    for (curve, rows), colour in zip(curves.items(), COLOURS, strict=False):
        sizes = [row["size_bytes"] / MIB for row in rows]
        scales = [row["size_bytes"] if relative else MIB for row in rows]
        model, measured = ([row[name] / scale for row, scale in zip(rows, scales, strict=True)]
                           for name in ("model_bytes", "measured_bytes"))
        ax.plot(sizes, model, color=colour)
        ax.plot(sizes, measured, marker="x", mew=1.6, color=colour, linestyle="none")
        keys.append(style.key(curve, color=colour, linewidth=2.4))
    what = "DRAM reads" if boundary == READ else "written back"
    ax.set_ylabel(f"{what} / buffer" if relative else f"{what}, MiB")
    ax.set_title(title, fontsize=9.5)
    ax.xaxis.set_major_locator(MultipleLocator(8))
    ax.set_ylim(0, ax.get_ylim()[1] * (1.08 + 0.12 * len(keys)))  # room for the legend
    if keys:
        ax.legend(handles=keys, loc="upper left")


def describe(table) -> str:
    """How many points the model meets, and where it is worst."""
    from .. import calibrate

    mine = calibrate.judged(table)
    if not mine:
        return "No scan moves enough to be judged."
    within = sum(abs(row["error"]) <= calibrate.BAR for row in mine)
    worst = max(mine, key=lambda row: abs(row["error"]))
    knees = sorted({f"{row['curve']} {row['knee_bytes'] / MIB:.0f} MiB" for row in table
                    if row["knee_bytes"] and row["pattern"] in ("private", "shared")})
    return (f"{within} of {len(mine)} points of scans away from the knees are within "
            f"{calibrate.BAR:.0%} of the counters; the largest error is {worst['error']:+.0%} "
            f"({worst['curve']}, {worst['size_bytes'] / MIB:.0f} MiB). Measured knees: "
            f"{'; '.join(knees)}.")


def notes(table) -> list[str]:
    """Where the measurements come from, and what is not judged."""
    if not table:
        return ["No L2 measurement is recorded, so there is nothing to draw. hbmeter calibrate "
                "--l2 --out FILE.json measures this machine's GPU."]
    records = {row["record"]: row for row in table}
    sources = "; ".join(f"{name}: {row['gpu']}, driver {row['driver']}, ncu {row['ncu']}, "
                        f"{row['date']}" for name, row in records.items())
    return [f"Records: {sources}; medians of three runs, caches flushed before each scan. Model: "
            "the L2 reader's cache, line by line, blocks in step, beginning with the dirty bytes "
            "that the profiler leaves. Points whose DRAM traffic is "
            "under 5% of the buffers, and sizes within 4 MiB of a curve's knee, are not judged."]


def tables(table) -> list[Table]:
    """Errors by curve, then every scan."""
    from .. import calibrate
    from ..l2_table import BOUNDARIES, mib, percent

    summary = [[row["curve"], BOUNDARIES[row["boundary"]], mib(row["knee_bytes"], 1),
                str(row["judged"]), str(row["within"]), percent(row["worst"]),
                mib(row["worst_size_bytes"], 0)] for row in calibrate.summary(table)]
    points = [[row["curve"], mib(row["size_bytes"], 0), BOUNDARIES[row["boundary"]],
               mib(row["measured_bytes"]), mib(row["model_bytes"]), percent(row["error"]),
               "near the knee" * row["near_knee"]] for row in table]
    return [
        Table("L2 model against scans, away from the knees",
              ["curve", "boundary", "knee MiB", "judged", "within 5%", "largest error", "at MiB"],
              summary),
        Table(f"Every recorded scan ({len(points)} rows)",
              ["curve", "size MiB", "boundary", "measured MiB", "model MiB", "error", ""],
              points, folded=True),
    ]
