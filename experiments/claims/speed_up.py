"""Going from O(n²) to O(n) bytes makes flash attention n times faster.

The speed-up of tiled over standard attention in the recorded runs, for each head dimension and
mask, and the power of n that it grows with. It holds when every power is 1 within 0.2, and fails
otherwise; counted bytes stand beside: how they grow, and their ratio.
"""

from matplotlib.ticker import LogLocator

from ...simulator import theory
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from .. import style
from . import Finding, Number, Verdict, exponent
from ._recorded import median_s, problem_of

NUMBER = 3
STANDARD, TILED = "torch math", ("flash2_mma", "torch flash")
TOLERANCE = 0.2  # of a power of n


def gather() -> dict:
    """Speed-ups by (tiled kernel, d, mask) and length; bytes at the SM boundary by length."""
    from .. import bench

    found = {}
    for document in bench.recorded():
        for point in document["points"]:
            problem, entries = problem_of(point), point["contenders"]
            plain = median_s(entries.get(STANDARD, {}))
            if plain is None or problem.direction != "forward":
                continue
            for name in TILED:
                tiled = median_s(entries.get(name, {}))
                if tiled:
                    key = (name, problem.head_dim, problem.mask)
                    found.setdefault(key, {})[problem.seq] = plain / tiled
    lengths = sorted({n for curve in found.values() for n in curve})
    return {"speedups": found, "lengths": lengths,
            "standard_bytes": [theory.standard_paper_bytes(_problem(n)) for n in lengths],
            "tiled_bytes": [_tiled_bytes(n) for n in lengths]}


def _problem(n: int) -> Attention:
    return Attention(1, 1, n, 128)


def _tiled_bytes(n: int) -> int:
    return sum(map(sum, theory.bytes_by_tensor("flash2", _problem(n), Tiles(128, 64)).values()))


def judge(facts) -> Finding:
    """Every curve must grow like n."""
    curves = {key: curve for key, curve in facts["speedups"].items() if len(curve) > 1}
    if not curves:
        return Finding(Verdict.OPEN, "No times of standard attention are recorded.", ())
    powers = {key: exponent(sorted(curve), [curve[n] for n in sorted(curve)])
              for key, curve in curves.items()}
    numbers = []
    for key, curve in curves.items():
        words = f"{key[0]} over {STANDARD}, d {key[1]}, {key[2]}"
        first, last = min(curve), max(curve)
        numbers += [Number("measured", f"power of n, {words}", powers[key]),
                    Number("measured", f"{words}: speed-up at n {first:,} and {last:,}",
                           f"{curve[first]:.1f} and {curve[last]:.1f}", "×")]
    moved = {name: facts[f"{name}_bytes"] for name in ("standard", "tiled")}
    numbers += [Number("counted", f"power of n of {name} attention's bytes at the SM boundary, "
                       "d 128, tiles 128 × 64", exponent(facts["lengths"], values))
                for name, values in moved.items()]
    numbers.append(Number("counted", f"ratio of these bytes at n {facts['lengths'][0]:,} and "
                          f"{facts['lengths'][-1]:,}", " and ".join(_ratios(moved)), "×"))
    least, most = min(powers.values()), max(powers.values())
    ratios = [ratio for curve in curves.values() for ratio in curve.values()]
    growth = max(facts["lengths"]) / min(facts["lengths"])
    words = (f"Measured speed-ups are {min(ratios):.1f} to {max(ratios):.1f} and grow as "
             f"n^{least:.2f} to n^{most:.2f} while n grows {growth:.0f}-fold. {_of_bytes(facts)}")
    if least >= 1 - TOLERANCE and most <= 1 + TOLERANCE:
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    return Finding(Verdict.FAILS, words, tuple(numbers))


def _ratios(moved: dict) -> list[str]:
    """Standard over tiled bytes at the least and the largest n."""
    return [f"{moved['standard'][at] / moved['tiled'][at]:.1f}" for at in (0, -1)]


def _of_bytes(facts) -> str:
    """How the bytes into and out of the SMs grow, and what that makes of their ratio."""
    moved = {name: facts[f"{name}_bytes"] for name in ("standard", "tiled")}
    standard, tiled = (exponent(facts["lengths"], values) for values in moved.values())
    first, last = _ratios(moved)
    ratio = f"stays at {first}" if first == last else f"goes from {first} to {last}"
    return (f"The bytes into and out of the SMs grow as n^{standard:.2f} in standard attention and "
            f"as n^{tiled:.2f} in tiled; their ratio {ratio}.")


@style.styled
def plot(facts):
    """Measured speed-ups, and what n times would be."""
    fig, ax = style.figure(height=3.8)
    looks = {"flash2_mma": (style.PURPLE, "v"), "torch flash": (style.BLUE, "o")}
    lines = {64: "-", 128: "--", 256: ":"}
    first = min((curve[min(curve)] for curve in facts["speedups"].values()), default=1)
    for (name, d, mask), curve in facts["speedups"].items():
        colour, marker = looks[name]
        filled = colour if mask == "full" else "white"
        ax.plot(sorted(curve), [curve[n] for n in sorted(curve)], lines.get(d, "-."), color=colour,
                marker=marker, mfc=filled)
    lengths = facts["lengths"]
    ax.plot(lengths, [first * n / lengths[0] for n in lengths], color=style.BLACK, linewidth=1)
    ax.annotate("n times", (lengths[-1], first * lengths[-1] / lengths[0]), xytext=(-6, 0),
                textcoords="offset points", ha="right", va="center")
    ax.set(xscale="log", yscale="log", ylabel="PyTorch math / tiled time (measured)")
    style.size_axis(ax.xaxis, lengths, "n (tokens), tokens in all constant")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(style.NullFormatter())
    handles = [style.key(name, color=colour, marker=marker)
               for name, (colour, marker) in looks.items()]
    handles += [style.key(f"d {d}", color=style.GREY, linestyle=line) for d, line in lines.items()]
    handles.append(style.key("causal: open", marker="o", color=style.GREY, mfc="white",
                             linestyle="none"))
    ax.legend(handles=handles, loc="upper left", ncols=2)
    return fig


def describe(facts) -> str:
    """The range of the curves."""
    ratios = [ratio for curve in facts["speedups"].values() for ratio in curve.values()]
    return (f"Measured speed-ups lie between {min(ratios):.1f} and {max(ratios):.1f} over n "
            f"{facts['lengths'][0]:,} to {facts['lengths'][-1]:,}; a line shows what n times "
            "would be.")
