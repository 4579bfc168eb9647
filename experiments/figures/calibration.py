"""Rates and latencies: what microbenchmarks measure on a real GPU

How fast are the parts that a kernel is made of, against the datasheet? Bandwidth and latency
against the bytes touched, shared memory against the distance between lanes, products by type,
exponentials among multiply-adds, and the clock that the GPU keeps under load.
"""

from statistics import median

from matplotlib.ticker import FixedLocator, NullLocator

from .. import style
from . import Table

ORDER = 57
MISSING = "No rates are recorded. hbmeter calibrate --out FILE.json measures this machine's GPU."
MIB = 1 << 20
TYPES = ("fp16", "bf16", "tf32", "fp8")
BARS = (("mma", "mma.sync", style.SKY), ("mma_from", "mma.sync, B by ldmatrix", style.ORANGE),
        ("wgmma", "wgmma", style.BLUE))


def run(problem, gpu, records=None) -> list[dict]:
    """One row a recorded fact, point of its curve and launch of a load that lasts, whatever the
    report's shape and GPU."""
    from .. import rates_record
    from ..verify import gpu_profile

    found = []
    for record in rates_record.load_all() if records is None else records:
        origin = {"record": record.name, "gpu": record.gpu,
                  "driver": record.provenance.get("driver"), "date": record.provenance.get("date")}
        judged = rates_record.judge(record.facts, gpu_profile(record))
        rows = [row for item in judged if not item.refusal for row in _rows(item)]
        found += [{**origin, **row} for row in (*rows, *_over_time(record))]
    return found


COLUMNS = ("name", "unit", "at", "value", "spread", "clock_hz", "datasheet", "most", "curve_of",
           "how")


def _rows(item):
    fact = item.fact
    clock = median(fact.clock_hz) if fact.clock_hz else None
    for at, value in ((None, fact.value), *fact.curve):
        yield dict(zip(COLUMNS, (fact.name, fact.unit, at, value, fact.spread, clock,
                                 item.datasheet, item.most, fact.curve_of, fact.how), strict=True))


def _over_time(record):
    """The clock of each launch of the loads that last, against the time since the first."""
    for points in record.probes.values():
        for point in points:
            spent = 0.0
            for sample in point["samples"] if point["series"].endswith("_sustained") else ():
                spent += sample["seconds"]
                yield dict.fromkeys(COLUMNS) | {
                    "name": point["series"], "unit": "hz", "at": spent,
                    "value": sample["clock_hz"], "curve_of": "seconds"}


@style.styled
def plot(table):
    """A panel a question, of the first record."""
    first = table[0]["record"]
    rows = [row for row in table if row["record"] == first]
    fig, axes = style.figure(3, 2, 9.2)
    for ax, panel in zip(axes.flat, (_bandwidth, _latency, _lanes, _products, _exponentials,
                                     _clocks), strict=True):
        panel(ax, rows)
    return fig


def _curve(rows, name):
    """(x, y) lists of a fact's curve; empty when it is not there."""
    found = sorted((row["at"], row["value"]) for row in rows
                   if row["name"] == name and row["at"] is not None)
    return [x for x, _ in found], [y for _, y in found]


def _fact(rows, name):
    """A fact's own row; None when it is not there."""
    return next((row for row in rows if row["name"] == name and row["at"] is None), None)


def _line(ax, rows, name, label, colour, scale_x=1, scale_y=1, marker="x"):
    x, y = _curve(rows, name)
    if x:
        ax.plot([a / scale_x for a in x], [b / scale_y for b in y], color=colour, marker=marker,
                markersize=4, mew=1.3, linewidth=1.1, label=label)


def _bandwidth(ax, rows):
    _line(ax, rows, "l2_read_private", "its own slice", style.BLUE, MIB, 1e12)
    _line(ax, rows, "l2_read_shared", "all, from elsewhere on", style.ORANGE, MIB, 1e12)
    _line(ax, rows, "l2_read_together", "all, in one order", style.GREEN, MIB, 1e12)
    for name, label, look in (("hbm_read", "DRAM, measured", "--"), (None, "DRAM, datasheet", ":")):
        row = _fact(rows, "hbm_read")
        if row and (name or row["datasheet"]):
            value = row["value"] if name else row["datasheet"]
            ax.axhline(value / 1e12, color=style.GREY, linestyle=look, linewidth=1, label=label)
    _sizes(ax, (1, 4, 16, 32, 64, 128, 256), "MiB read again and again")
    ax.set(title="Bandwidth of reads", ylabel="TB/s", ylim=(0, 1.55 * ax.get_ylim()[1]))
    ax.legend(loc="upper right", ncols=2, title="Each SM reads", title_fontsize=8.5)


def _sizes(ax, ticks, label, shown="{:g}".format):
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(lambda value, _: shown(value))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)


def _latency(ax, rows):
    for name, label, colour in (("l1_latency", "through L1", style.GREEN),
                                ("l2_latency", "past L1", style.BLUE),
                                ("hbm_latency", "in no cache", style.VERMILION)):
        _line(ax, rows, name, label, colour, MIB)
    row = _fact(rows, "smem_latency")
    if row:
        ax.axhline(row["value"], color=style.GREY, linestyle="--", linewidth=1,
                   label="shared memory")
    _sizes(ax, (1 / 64, 1 / 8, 1, 8, 64, 1024), "bytes chased through",
           lambda mib: f"{mib:g} MiB" if mib >= 1 else f"{mib * 1024:g} KiB")
    ax.set(title="Latency of a load", ylabel="SM cycles", ylim=(0, None))
    ax.legend(loc="upper left")


def _lanes(ax, rows):
    for name, label, look in (
            ("smem_read_4", "4-byte loads", {"marker": "x", "color": style.SKY}),
            ("smem_read", "16-byte loads", {"marker": "+", "color": style.BLUE, "markersize": 9}),
            ("smem_ldmatrix", "ldmatrix.x4", {"marker": "o", "color": style.ORANGE, "mfc": "none",
                                              "markersize": 8})):
        x, y = _curve(rows, name)
        if x:
            ax.plot(x, y, linestyle="none", mew=1.4, label=label, **look)
    row = _fact(rows, "smem_read")
    if row and row["datasheet"]:
        ax.axhline(row["datasheet"], color=style.GREY, linestyle=":", linewidth=1, label="32 banks")
    _sizes(ax, (4, 8, 16, 32, 64, 128, 256), "bytes from lane to lane")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(title="Shared memory: bank conflicts", ylabel="bytes a clock and SM", ylim=(2, 190))
    ax.legend(loc="lower left")


def _products(ax, rows):
    """Bars of each type beside what the datasheet says, and the most at the clock kept."""
    bars = {(kind, dtype): row for kind, _, _ in BARS for dtype in TYPES
            if (row := _fact(rows, f"mma_{dtype}_from_smem" if kind == "mma_from"
                             else f"{kind}_{dtype}"))}
    for number, (kind, _, colour) in enumerate(BARS):
        for at, dtype in enumerate(TYPES):
            if row := bars.get((kind, dtype)):
                x = at + (number - 1) * 0.27
                ax.bar(x, row["value"] / 1e12, 0.25, color=colour)
                if row["most"]:
                    ax.plot([x - 0.12, x + 0.12], [row["most"] / 1e12] * 2, color=style.BLACK,
                            linewidth=1.4)
    for at, dtype in enumerate(TYPES):
        row = next((row for (_, name), row in bars.items() if name == dtype), None)
        if row and row["datasheet"]:
            ax.plot([at - 0.42, at + 0.42], [row["datasheet"] / 1e12] * 2, color=style.VERMILION,
                    linestyle=":", linewidth=1.4)
    ax.set_xticks(range(len(TYPES)), TYPES)
    ax.grid(axis="x", visible=False)
    ax.set(title="Tensor cores, fp32 accumulation", ylabel="TFLOP/s",
           ylim=(0, 1.1 * ax.get_ylim()[1]))
    keys = [style.key(label, color=colour, linewidth=6) for _, label, colour in BARS]
    keys += [style.key("most at the clock it ran at", color=style.BLACK, linewidth=1.4),
             style.key("datasheet", color=style.VERMILION, linestyle=":")]
    ax.legend(handles=keys, loc="upper left")


def _exponentials(ax, rows):
    x, y = _curve(rows, "exp2_mixed_rate")
    alone, fma = _fact(rows, "exp2_rate"), _fact(rows, "fma_rate")
    if alone and x:
        x, y = [0, *x], [alone["value"], *y]
    ax.plot(x, y, color=style.PURPLE, marker="x", mew=1.3, markersize=4, linewidth=1.1,
            label="measured")
    if alone and fma and x:
        ideal = [min(alone["value"], fma["value"] / max(n, 1e-9)) for n in x]
        issue = [min(alone["value"], fma["value"] / (n + 1)) for n in x]
        ax.plot(x, ideal, color=style.GREY, linestyle=":", label="the slower unit alone")
        ax.plot(x, issue, color=style.GREY, linestyle="--", label="… with an issue slot an exp2")
    ax.set(title="exp2 among multiply-adds", xlabel="FMA to an exp2",
           ylabel="exp2 a clock and SM", ylim=(0, None))
    ax.legend(loc="lower left")


def _clocks(ax, rows):
    for name, label, colour in (("fma_sustained", "fp32 FMA", style.GREEN),
                                ("mma_fp16_sustained", "mma.sync fp16", style.SKY),
                                ("wgmma_fp16_sustained", "wgmma fp16", style.BLUE)):
        x, y = _curve(rows, name)
        if x:
            ax.plot(x, [value / 1e6 for value in y], color=colour, linewidth=1.1, label=label)
    row = _fact(rows, "mma_fp16_clock")
    if row and row["datasheet"]:
        ax.axhline(row["datasheet"] / 1e6, color=style.GREY, linestyle=":", linewidth=1,
                   label="boost clock")
    ax.set(title="Clock under load", xlabel="seconds of load", ylabel="SM clock, MHz")
    ax.legend(loc="best")


# ---- Words --------------------------------------------------------------------------------------


def describe(table) -> str:
    """The main rates in words."""
    rows = [row for row in table if row["record"] == table[0]["record"]]
    parts = []
    for name, what in (("hbm_read", "DRAM reads"), ("wgmma_fp16", "wgmma fp16"),
                       ("mma_fp16", "mma.sync fp16"), ("fp32_fma", "fp32 FMA")):
        row = _fact(rows, name)
        if row and row["datasheet"]:
            parts.append(f"{what} {row['value'] / row['datasheet']:.0%} of the datasheet")
    l2, hbm = _fact(rows, "l2_read_private"), _fact(rows, "hbm_read")
    if l2 and hbm:
        parts.append(f"L2 reads {l2['value'] / hbm['value']:.1f} times as fast as DRAM's")
    return f"Measured on {rows[0]['gpu']}: {'; '.join(parts)}."


def notes(table) -> list[str]:
    """Where the measurements come from."""
    first = table[0]
    return [f"Measured on {first['gpu']}, driver {first['driver']}, {first['date']}: medians of "
            "seven repeats, clocks left alone. A datasheet's FLOP/s hold for a clock of its own; "
            "the black marks are what an SM's units can do at the clock that the run kept.",
            "Made again by: hbmeter calibrate --out FILE.json."]


def tables(table) -> list[Table]:
    """Every fact, folded."""
    from ..rates_table import amount

    rows = [[row["name"], amount(row["value"], row["unit"]),
             f"{row['spread'] / row['value']:.1%}",
             f"{row['clock_hz'] / 1e6:.0f}" if row["clock_hz"] else "–",
             f"{row['value'] / row['datasheet']:.1%}" if row["datasheet"] else "–", row["how"]]
            for row in table if row["at"] is None]
    return [Table("Measured rates and latencies",
                  ["measured", "median", "± half range", "SM clock, MHz", "of the datasheet",
                   "how"], rows, folded=True)]
