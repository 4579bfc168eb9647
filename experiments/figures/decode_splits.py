"""Decode: splits fill the GPU

Into how many splits should the keys of a decode step be cut? With few sequences there are fewer
thread blocks than SMs, and splitting the keys makes more; with many, splits only add partial
results. Lines are predicted times of split_kv, crosses measured ones where this GPU is recorded.
"""

from statistics import median

from .. import style
from . import Table

ORDER = 80
BATCHES = (1, 8, 64)
SHAPE = dict(heads=32, kv_heads=8, seq=1, head_dim=128, kv_seq=8192)
SCHEDULE = "split_kv"


def run(problem, gpu) -> list[dict]:
    """A row a batch and number of splits: 8,192 keys, 32 query and 8 KV heads, d 128, fp16; the
    report's own shape does not matter."""
    from ...simulator import splits
    from ...simulator.problem import Attention

    measured, rows = _measured(gpu), []
    for batch in BATCHES:
        asked = Attention(batch=batch, **SHAPE)
        tiles = splits.choose_tiles(SCHEDULE, asked, gpu, {"splits": 1})
        points = splits.every(SCHEDULE, asked, gpu, tiles)
        best = splits.best(points)
        for point in points:
            found = measured.get((batch, point.splits))
            if found or point is best or point.splits & (point.splits - 1) == 0:
                rows.append({
                    "gpu": gpu.name, "batch": batch, "splits": point.splits,
                    "blocks": point.blocks, "waves": point.waves, "part_bytes": point.part_bytes,
                    "predicted_s": point.predicted_s, "limiter": point.limiter,
                    "best": point is best, "measured_s": found,
                    "torch_flash_s": measured.get((batch, "torch flash")),
                })
    return rows


def _measured(gpu) -> dict:
    """{(batch, splits or contender): seconds} of the recorded runs on this GPU."""
    from ...hwprofiles import ProfileError, load
    from .. import bench_decode

    found = {}
    for record in bench_decode.recorded():
        try:
            if load(record["provenance"]["gpu"]).name != gpu.name:
                continue
        except ProfileError:
            continue
        for point in record["points"]:
            if not all(point["problem"][name] == value for name, value in SHAPE.items()):
                continue
            batch = point["problem"]["batch"]
            for number, times in point["by_splits"].items():
                found[batch, int(number)] = median(times) / 1e3
            for name, entry in point["contenders"].items():
                if "times_ms" in entry:
                    found[batch, name] = median(entry["times_ms"]) / 1e3
    return found


@style.styled
def plot(table):
    """A panel for each batch."""
    figure = style.Figure(figsize=(style.WIDTH_INCHES, 3.0), layout="constrained")
    axes = figure.subplots(1, len(BATCHES), squeeze=False)[0]
    for batch, axis in zip(BATCHES, axes, strict=True):
        _panel(axis, [row for row in table if row["batch"] == batch])
        axis.set_title(f"{batch} sequence" + "s" * (batch > 1))
        axis.set_xlabel("splits")
    axes[0].set_ylabel("time, µs")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _panel(axis, rows):
    rows = sorted(rows, key=lambda row: row["splits"])
    axis.plot([r["splits"] for r in rows], [r["predicted_s"] * 1e6 for r in rows],
              color=style.BLUE, label="predicted")
    best, = (row for row in rows if row["best"])
    axis.plot([best["splits"]], [best["predicted_s"] * 1e6], color=style.BLUE, marker="*",
              mfc="white", markersize=13, linestyle="", label="chosen")
    seen = [row for row in rows if row["measured_s"]]
    if seen:
        axis.plot([r["splits"] for r in seen], [r["measured_s"] * 1e6 for r in seen],
                  color=style.VERMILION, marker="x", mew=1.6, linestyle="", label="measured")
    if rows[0]["torch_flash_s"]:
        axis.axhline(rows[0]["torch_flash_s"] * 1e6, color=style.GREY, linestyle="--",
                     label="PyTorch flash, measured")
    axis.set_xscale("log", base=2)
    axis.set_ylim(0, 1.1 * max(t for r in rows for t in _times_us(r)))
    ticks = [row["splits"] for row in rows if row["splits"] in (1, 4, 16, 64)]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()


def _times_us(row) -> list[float]:
    """All of a row's times that are drawn."""
    found = (row[name] for name in ("predicted_s", "measured_s", "torch_flash_s"))
    return [seconds * 1e6 for seconds in found if seconds]


def describe(table) -> str:
    """One split against the chosen number, in words."""
    parts = []
    for batch in BATCHES:
        rows = [row for row in table if row["batch"] == batch]
        one = next(row for row in rows if row["splits"] == 1)
        best = next(row for row in rows if row["best"])
        parts.append(f"{batch} sequence{'s' * (batch > 1)}: {one['blocks']} thread blocks "
                     f"unsplit, predicted {one['predicted_s'] * 1e6:.0f} µs; {best['splits']} "
                     f"split{'s' * (best['splits'] > 1)}, {best['predicted_s'] * 1e6:.0f} µs")
    return "; ".join(parts) + "."


def notes(table) -> list[str]:
    """Shape and kinds of numbers."""
    found = [f"split_kv on {table[0]['gpu']}: one query against 8,192 keys, 32 query and 8 KV "
             "heads, d 128, fp16. Predicted by hbmeter splits, which says how; the star is the "
             "fewest splits that fill nearly every SM among those within 5% of the fastest."]
    if any(row["measured_s"] for row in table):
        found.append("Measured by hbmeter decode: medians of CUDA graphs, clocks left alone.")
    return found


def tables(table) -> list[Table]:
    """Every point, folded."""
    header = ["", "splits", "blocks", "waves", "parts", "predicted", "measured", "waits for"]
    rows = [
        [f"{r['batch']} sequences", str(r["splits"]) + " *" * r["best"], str(r["blocks"]),
         f"{r['waves']:.2f}", f"{r['part_bytes'] / 1e6:.2f} MB",
         f"{r['predicted_s'] * 1e6:.1f} µs",
         f"{r['measured_s'] * 1e6:.1f} µs" if r["measured_s"] else "–", r["limiter"]]
        for r in table
    ]
    return [Table("Decode by number of splits", header, rows, folded=True)]
