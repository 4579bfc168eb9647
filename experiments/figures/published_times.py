"""Published times beside predictions that saw none of them

Do predictions carry to GPUs and kernels that hbmeter never ran? FlashAttention 1, 2 and 3 and
PyTorch on A100 and H100, as their papers print them, against zero-shot predictions from the
profiles' datasheet numbers and the kernels' published tiles. On the diagonal they are equal.
"""

from .. import published, style
from ..output import seconds
from . import Table

ORDER = 70
LOOKS = {"flash1": (style.GREEN, "^"), "flash2": (style.BLUE, "o"), "flash3": (style.PURPLE, "v"),
         "standard": (style.VERMILION, "s")}


def run(problem, gpu) -> list[dict]:
    """One row a published number; the report's shape and GPU do not matter."""
    return published.table()


@style.styled
def plot(table):
    """Predicted against published, forward filled, with backward open."""
    fig, ax = style.figure(height=4.6)
    rows = [row for row in table if row["predicted_s"] is not None]
    times = [row[name] for row in rows for name in ("published_s", "predicted_s")]
    low, high = min(times) / 1.5, max(times) * 1.5
    ax.plot([low, high], [low, high], color=style.BLACK, linewidth=1.0)
    for factor in (0.8, 1.25):
        ax.plot([low, high], [low * factor, high * factor], color=style.GREY, linewidth=0.8,
                linestyle=":")
    for row in rows:
        colour, marker = LOOKS[row["method"]]
        ax.plot(row["published_s"], row["predicted_s"], marker=marker, color=colour, mew=1.2,
                mfc=colour if row["pass"] == "fwd" else "white", markersize=5.5)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (ax.xaxis, ax.yaxis):
        style.byte_axis(axis, "s")
    ax.set_xlabel("published time")
    ax.set_ylabel("predicted time (zero-shot)")
    ax.set_aspect("equal")
    methods = sorted({row["method"] for row in rows}, key=list(LOOKS).index)
    handles = [style.key(name, marker=LOOKS[name][1], color=LOOKS[name][0], linestyle="none")
               for name in methods]
    handles += [style.key("with backward: open", marker="o", color=style.BLACK, mfc="white",
                          linestyle="none"),
                style.key("25% more or 20% less", color=style.GREY, linestyle=":")]
    ax.legend(handles=handles, loc="upper left")
    return fig


def describe(table) -> str:
    """Mean errors of every table."""
    return " ".join(
        f"{e['table']}, {e['method']} {e['pass']} d {e['head_dim']} {e['mask']}: mean error "
        f"{e['mean']:.0%} over {e['count']}." for e in published.errors(table)
    )


def notes(table) -> list[str]:
    """What was predicted from what."""
    forward = [e for e in published.errors(table)
               if e["pass"] == "fwd" and e["method"].startswith("flash")]
    worst = max(e["mean"] for e in forward)
    return [f"Forward passes of the flash kernels from n = {published.FROM_LENGTH:,}: mean errors "
            f"from {min(e['mean'] for e in forward):.0%} to {worst:.0%} a table. Backward passes "
            "are predicted with the forward model's costs and come out too fast. Kernels: tiles, "
            "warps and prefetch as their papers and sources say; nothing is fitted. cuDNN's ways "
            "are not published: no prediction.",
            "Published: FlashAttention tables 18 to 20 (A100-40GB), FlashAttention-2 and -3 "
            "figures (A100-80GB, H100); experiments/published_times.csv."]


def tables(table) -> list[Table]:
    """Errors a table, and every number, folded."""
    errors = [[e["table"], e["gpu"], e["method"], e["pass"], e["head_dim"], e["mask"], e["count"],
               f"{e['mean']:.1%}", f"{e['bias']:+.1%}", f"{e['worst']:.1%}"]
              for e in published.errors(table)]
    rows = [[r["table"], r["gpu"], r["method"], r["pass"], r["head_dim"], r["mask"],
             f"{r['seq']:,}", seconds(r["published_s"]), seconds(r["predicted_s"]),
             "–" if r["error"] is None else f"{r['error']:+.1%}"] for r in table]
    head = ["table", "GPU", "method", "pass", "d", "mask"]
    return [
        Table(f"Errors from n = {published.FROM_LENGTH:,}",
              [*head, "points", "mean |error|", "bias", "worst"], errors),
        Table("Published and predicted", [*head, "n", "published", "predicted", "error"], rows,
              folded=True),
    ]
