"""The ladder: what each step of the kernels is worth

From a plain loop to Hopper's own instructions: how fast is attention with each step, and where are
the libraries? Measured on a real GPU in one run, interleaved, on the same inputs.
"""

from .. import bench, style
from . import Table

ORDER = 61
RUNGS = {  # what each changes; ours first, then libraries
    "standard": "three kernels, S and P in HBM, FMA",
    "flash1": "FlashAttention-1's order: K, V outside, O, m, l re-read; a block a head, FMA",
    "flash2": "FlashAttention-2's order: Q outside, O on chip, FMA",
    "standard_mma": "the three kernels on tensor cores (mma.sync)",
    "flash1_mma": "FlashAttention-1's order on tensor cores",
    "flash2_mma": "FlashAttention-2's order on tensor cores, cp.async, swizzle, lazy rescaling",
    "flash2_wgmma": "Hopper: TMA, wgmma, warp-specialised ping-pong, persistent",
    "torch math": "PyTorch: standard attention, fp32 products",
    "cuBLAS + softmax": "standard attention of library calls in fp16",
    "torch efficient": "PyTorch: memory-efficient attention",
    "torch flash": "PyTorch: FlashAttention-2",
    "torch cudnn": "PyTorch: cuDNN, Hopper's own instructions",
}
LIBRARIES = tuple(RUNGS)[7:]
SHAPES = ((64, "full"), (128, "full"), (128, "causal"), (256, "full"))
SHOWN = ((128, "full"), (128, "causal"))


def run(problem, gpu) -> list[dict]:
    """One row a contender and shape at n = bench.LADDER_SEQ, of the newest record that has all
    rungs (else the newest that has some); the report's shape and GPU do not matter."""
    found = [_rows(record) for record in bench.recorded()
             if record["points"][0]["problem"].get("direction", "forward") == "forward"]
    return max(found, default=[], key=lambda rows: (len({row["contender"] for row in rows}),
                                                    rows[0]["date"] if rows else ""))


def _rows(record: dict) -> list[dict]:
    about = record["provenance"]
    return [
        {"record": record["name"], "gpu": about["gpu"], "date": about["date"],
         "torch": about.get("torch"), "changes": RUNGS[row["contender"]], **row}
        for row in bench.rows(record["points"])
        if row["seq"] == bench.LADDER_SEQ and row["contender"] in RUNGS
    ]


def _by_rung(table) -> dict:
    """TFLOP/s by contender, in the order of RUNGS, and (head_dim, mask)."""
    found = {}
    for row in table:
        found.setdefault(row["contender"], {})[row["head_dim"], row["mask"]] = row["tflop_per_s"]
    return {name: found[name] for name in RUNGS if name in found}


@style.styled
def plot(table):
    """Two bars a rung, full and causal, at d 128."""
    rungs = _by_rung(table)
    figure, axis = style.figure(height=0.42 * len(rungs) + 1.0)
    for number, (name, speeds) in enumerate(rungs.items()):
        colour = style.GREY if name in LIBRARIES else style.colour(name)
        for offset, shape, filled in zip((-0.2, 0.2), SHOWN, (True, False), strict=True):
            if shape in speeds:
                axis.barh(number + offset, speeds[shape], 0.36, edgecolor=colour,
                          color=colour if filled else "white")
                axis.text(speeds[shape], number + offset, f" {speeds[shape]:.0f}", va="center",
                          fontsize=8)
    axis.set_yticks(range(len(rungs)), list(rungs))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(f"TFLOP/s (measured), n {bench.LADDER_SEQ:,}, d 128, fp16 forward")
    axis.margins(x=0.08)
    figure.legend(handles=[style.key("full", marker="s", color=style.BLACK, linestyle=""),
                           style.key("causal", marker="s", color=style.BLACK, mfc="white",
                                     linestyle="")],
                  loc="outside lower right", ncols=2)
    return figure


def describe(table) -> str:
    """The rungs at d 128, full, in words."""
    speeds = {name: found[SHOWN[0]] for name, found in _by_rung(table).items()
              if SHOWN[0] in found}
    return "TFLOP/s at d 128, full: " + ", ".join(
        f"{name} {speed:.0f}" for name, speed in speeds.items()) + "."


def notes(table) -> list[str]:
    """What was measured, and how to make it again."""
    first = table[0]
    return [f"Measured on {first['gpu']} with PyTorch {first['torch']}, {first['date'][:10]}, in "
            f"one interleaved run: {first['batch']} × {bench.LADDER_SEQ:,} tokens, heads × d = "
            "2,048, medians, clocks left alone. TFLOP/s count unmasked pairs only. Libraries are "
            "grey. The kernels in FlashAttention-1's order have a thread block a head, for a GPU "
            "of 132 SMs 128, 64 and 32 of them at d 64, 128 and 256.",
            "Made again by: hbmeter bench --out FILE; printed by: hbmeter bench --ladder."]


HEADER = ["kernel", "what it changes", *(f"d {d} {mask}" for d, mask in SHAPES)]


def cells(table) -> list[list[str]]:
    """A row a rung: TFLOP/s of the shapes of HEADER."""
    return [
        [name, RUNGS[name], *(f"{speeds[shape]:.0f}" if shape in speeds else "–"
                              for shape in SHAPES)]
        for name, speeds in _by_rung(table).items()
    ]


def markdown(table) -> str:
    """The same as a Markdown table."""
    rows = [HEADER, ["-"] * len(HEADER)]
    rows += [[f"`{name}`" if name not in LIBRARIES else name, *rest]
             for name, *rest in cells(table)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def tables(table) -> list[Table]:
    """Every rung."""
    return [Table(f"TFLOP/s at n {bench.LADDER_SEQ:,}, fp16 forward", HEADER, cells(table))]
