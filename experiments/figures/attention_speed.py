"""Speed: the tensor-core kernels beside PyTorch's backends

How fast are the kernels that implement flash2 on tensor cores? Measured on a real GPU, interleaved
with PyTorch's backends on the same inputs; a higher line is faster.
"""

from statistics import median

from .. import style
from . import Table

ORDER = 60
PEER = {"flash2_mma": "torch flash", "flash2_wgmma": "torch cudnn"}  # of the same instructions
LOOKS = {
    "flash2_wgmma": (style.BLACK, "P", "-"), "flash2_mma": (style.BLUE, "o", "-"),
    "torch flash": (style.VERMILION, "s", "--"),
    "torch cudnn": (style.GREEN, "^", "--"), "torch efficient": (style.PURPLE, "v", ":"),
    "torch math": (style.GREY, "D", ":"),
}


def run(problem, gpu) -> list[dict]:
    """One row a recorded shape and contender; the report's shape and GPU do not matter."""
    from .. import bench

    return [
        {"record": record["name"], "gpu": record["provenance"]["gpu"],
         "torch": record["provenance"].get("torch"), "date": record["provenance"]["date"], **row}
        for record in bench.recorded() for row in bench.rows(record["points"])
        if row["pass"] == "forward"
    ]


@style.styled
def plot(table):
    """A panel for each head_dim and mask of the first record."""
    shown = [row for row in table if row["record"] == table[0]["record"]]
    dims = sorted({row["head_dim"] for row in shown})
    masks = [m for m in ("full", "causal") if any(row["mask"] == m for row in shown)]
    figure = style.Figure(figsize=(style.WIDTH_INCHES, 2.5 * len(masks) + 0.5),
                          layout="constrained")
    axes = figure.subplots(len(masks), len(dims), sharex=True, sharey=True, squeeze=False)
    for mask, line in zip(masks, axes, strict=True):
        for d, axis in zip(dims, line, strict=True):
            _panel(axis, [r for r in shown if r["head_dim"] == d and r["mask"] == mask])
            axis.set_title(f"d {d}, {mask}")
        line[0].set_ylabel("TFLOP/s (measured)")
    axes[0][0].set_ylim(0, 1.05 * max(row["tflop_per_s"] for row in shown))
    for axis in axes[-1]:
        axis.set_xlabel("sequence length n")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _panel(axis, rows):
    for name, (colour, marker, line) in LOOKS.items():
        mine = sorted((r["seq"], r["tflop_per_s"]) for r in rows if r["contender"] == name)
        if mine:
            axis.plot(*zip(*mine, strict=True), color=colour, marker=marker, linestyle=line,
                      label=name, markersize=5)
    lengths = sorted({r["seq"] for r in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [_short(n) for n in lengths])
    axis.minorticks_off()


def _short(n: int) -> str:
    return f"{n // 1024}k" if n >= 1024 else str(n)


def _ratios(table, ours, floor=4096):
    """Times of its peer over those of a kernel, on the same shapes."""
    times = {}
    for row in table:
        shape = tuple(row[name] for name in ("record", "batch", "heads", "seq", "head_dim", "mask"))
        times.setdefault(shape, {"seq": row["seq"]})[row["contender"]] = row["median_ms"]
    return [found[PEER[ours]] / found[ours] for found in times.values()
            if found["seq"] >= floor and {ours, PEER[ours]} <= found.keys()]


def describe(table) -> str:
    """The ratios of our kernels to PyTorch's in words."""
    found = {ours: _ratios(table, ours) for ours in PEER}
    words = [
        f"From n = 4k, {ours} runs at {min(ratios):.2f} to {max(ratios):.2f} times the speed of "
        f"{PEER[ours]}, median {median(ratios):.2f}."
        for ours, ratios in found.items() if ratios
    ]
    return " ".join(words) or "Lines of TFLOP/s against sequence length."


def notes(table) -> list[str]:
    """What was measured."""
    first = table[0]
    return [f"Measured on {first['gpu']} with PyTorch {first['torch']}, {first['date'][:10]}: fp16 "
            "forward, batch × n = 16,384 tokens (one sequence beyond), heads × d = 2,048; medians "
            "of interleaved rounds, clocks left alone. TFLOP/s count unmasked pairs only.",
            "Made again by: hbmeter bench --out FILE."]


def tables(table) -> list[Table]:
    """Every shape, folded."""
    header = ["shape", "contender", "ms", "TFLOP/s", "ratio to torch flash"]
    rows = [
        [f"{r['batch']}×{r['heads']} {r['seq']} d{r['head_dim']} {r['mask']}", r["contender"],
         f"{r['median_ms']:.3f}", f"{r['tflop_per_s']:.0f}",
         f"{r['ratio_to_torch_flash']:.2f}" if r["ratio_to_torch_flash"] else "–"]
        for r in table
    ]
    return [Table("Recorded times", header, rows, folded=True)]
