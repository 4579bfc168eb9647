"""Decode, one query against a KV cache, gains from tiling and from splitting the keys too.

Tiling: bytes at the SM boundary of the standard and of the tiled program, with a KV head for each
query head; that query heads which share one read it together is a gain of its own. Splitting:
recorded times of one split over the best number of splits, and predicted times over the number of
keys, to find where splitting starts to pay. It holds when tiling saves a tenth of the bytes and
splitting a tenth of the time in every recorded shape; otherwise where.
"""

from dataclasses import replace

from ...hwprofiles import load
from ...simulator import schedules, splits
from ...simulator.engines import scratchpad
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from .. import style
from . import GPU, Finding, Number, Verdict
from ._recorded import problem_of

NUMBER = 10
SHAPE = dict(heads=32, kv_heads=8, seq=1, head_dim=128)
BATCHES = (1, 8, 64)
KEYS = tuple(64 << i for i in range(10))
WORTH = 1.1  # a gain that is worth a second kernel


def gather() -> dict:
    """Bytes with and without tiling; measured and predicted times with and without splits."""
    grouped = Attention(1, **SHAPE, kv_seq=8192)
    alone = replace(grouped, kv_heads=grouped.heads)
    moved = {}
    for name, schedule, problem in (("standard", "standard_minimal", alone),
                                    ("tiled", "split_kv", alone),
                                    ("tiled, 4 query heads a KV head", "split_kv", grouped)):
        count = scratchpad.count(schedules.build(schedule, problem, Tiles(16, 64)))
        moved[name] = count.read_bytes + count.write_bytes
    predicted = [_predicted(batch, keys) for batch in BATCHES for keys in KEYS]
    return {"bytes": moved, "predicted": predicted, "measured": _measured(),
            "sm_count": load(GPU).sm_count}


def _predicted(batch: int, keys: int) -> dict:
    gpu, problem = load(GPU), Attention(batch, **SHAPE, kv_seq=keys)
    tiles = splits.choose_tiles("split_kv", problem, gpu, {"splits": 1})
    points = splits.every("split_kv", problem, gpu, tiles)
    one = min(points, key=lambda point: point.splits)
    best = min(points, key=lambda point: point.predicted_s)
    return {"batch": batch, "keys": keys, "one_s": one.predicted_s, "best_s": best.predicted_s,
            "splits": best.splits, "blocks": one.blocks, "best_blocks": best.blocks}


def _measured() -> list[dict]:
    from statistics import median

    from .. import bench_decode

    found = []
    for document in bench_decode.recorded():
        for point in document["points"]:
            problem = problem_of(point)
            times = {int(n): median(ms) / 1e3 for n, ms in point["by_splits"].items()}
            best = min(times, key=times.get)
            found.append({"batch": problem.batch, "kv_heads": problem.kv_heads,
                          "blocks": problem.batch * problem.kv_heads, "keys": problem.kv_seq,
                          "head_dim": problem.head_dim, "one_s": times[1], "best_s": times[best],
                          "splits": best})
    return sorted(found, key=lambda row: (row["blocks"], row["keys"]))


def _gain(row) -> float:
    return row["one_s"] / row["best_s"]


def pays_from(facts, batch: int) -> int | None:
    """The fewest keys at which splitting is predicted to be worth it; None when it never is."""
    return min((row["keys"] for row in facts["predicted"]
                if row["batch"] == batch and _gain(row) >= WORTH), default=None)


def judge(facts) -> Finding:
    """Both gains in every shape, or where."""
    seen, moved, sms = facts["measured"], facts["bytes"], facts["sm_count"]
    if not seen:
        return Finding(Verdict.OPEN, "No decode times are recorded.", ())
    tiling = moved["standard"] / moved["tiled"]
    numbers = [Number("counted", f"{name} decode, 8,192 keys: SM boundary", moved[name], "B")
               for name in moved]
    for row in seen:
        numbers.append(Number("measured", (
            f"batch {row['batch']}, {row['kv_heads']} KV heads, d {row['head_dim']}, "
            f"{row['keys']:,} keys: {row['blocks']} blocks unsplit on {sms} SMs"),
            f"{row['one_s'] * 1e6:.1f} µs, {row['splits']} splits {row['best_s'] * 1e6:.1f} µs"))
    for batch in BATCHES:
        rows = [row for row in facts["predicted"] if row["batch"] == batch]
        least = pays_from(facts, batch)
        numbers += [Number("predicted", f"batch {batch}: fewest keys at which splitting saves 10%",
                           least if least else "none of those tried"),
                    Number("predicted", f"batch {batch}, {rows[-1]['keys']:,} keys: gain of "
                           f"{rows[-1]['splits']} splits", _gain(rows[-1]), "×")]
    paying = [row for row in seen if _gain(row) >= WORTH]
    first = pays_from(facts, BATCHES[0])
    words = (f"Splitting gains {min(map(_gain, seen)):.2f} to {max(map(_gain, seen)):.1f} times "
             f"(measured), tiling {tiling:.3f} times in bytes. With one sequence splitting is "
             "predicted to " + (f"pay from {first:,} keys on." if first else "pay nowhere."))
    if len(paying) == len(seen) and tiling >= WORTH:
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    if paying or tiling >= WORTH:
        most = max((row["blocks"] for row in paying), default=0)
        parts = [f"it is splitting, with at most {most} unsplit thread blocks on {sms} SMs and "
                 f"{first or 0:,} keys or more"] * bool(paying)
        parts += ["it is tiling"] * (tiling >= WORTH)
        return Finding(Verdict.WHERE, words, tuple(numbers), " or ".join(parts))
    return Finding(Verdict.FAILS, words, tuple(numbers))


@style.styled
def plot(facts):
    """Gain of the best number of splits against keys, with measured points."""
    fig, ax = style.figure(height=3.5)
    for batch, colour in zip(BATCHES, (style.BLUE, style.GREEN, style.ORANGE), strict=True):
        rows = [row for row in facts["predicted"] if row["batch"] == batch]
        ax.plot([r["keys"] for r in rows], [_gain(r) for r in rows], "--", color=colour, marker="o",
                mfc="white", label=f"batch {batch} (predicted)")
        seen = [r for r in facts["measured"]
                if (r["batch"], r["kv_heads"], r["head_dim"]) == (batch, 8, 128)]
        ax.plot([r["keys"] for r in seen], [_gain(r) for r in seen], "x", color=colour, mew=2,
                markersize=8, label=f"batch {batch} (measured)" if seen else None)
    ax.axhline(1, color=style.BLACK, linestyle=":", linewidth=1)
    ax.set(xscale="log", ylabel="time unsplit / best")
    ticks = sorted({*KEYS, *(row["keys"] for row in facts["measured"])})
    style.size_axis(ax.xaxis, ticks[::2], "keys in the cache")
    ax.legend()
    return fig


def describe(facts) -> str:
    """Where it pays, by batch."""
    parts = []
    for batch in BATCHES:
        least = pays_from(facts, batch)
        parts.append(f"Batch {batch}: splitting is predicted to save a tenth of the time "
                     + (f"from {least:,} keys on." if least else "nowhere."))
    return " ".join(parts)
