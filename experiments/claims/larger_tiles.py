"""Larger tiles mean fewer HBM reads, until registers spill.

Tile by tile of the recorded sweep: bytes into the SMs (counted), registers, spilled bytes and time
(compiled and measured). Reads: for each pair of unspilled tiles that differ in one side only, does
the larger one read less? Time: is the fastest tile the one that reads least without spilling? It
holds when larger tiles always read less and the least reader is the fastest in every shape.
"""

from matplotlib.ticker import LogLocator

from ...simulator import schedules
from ...simulator.engines import scratchpad
from .. import ncu, style
from . import Finding, Number, Verdict
from ._recorded import counter, median_s, points, problem_of, tiles_of

NUMBER = 11
KERNEL = "flash2_mma"
SIDES = {"br": "rows (Br)", "bc": "columns (Bc)"}


def gather() -> dict:
    """{shape in words: a dict a tile} of the recorded sweep, and recorded DRAM reads of one shape
    under different tiles."""
    from .. import tile_sweep

    shapes, counts = {}, {}
    for document in tile_sweep.recorded():
        for point in document["points"]:
            if point["kernel"] != KERNEL:
                continue
            problem, tiles = problem_of(point), tiles_of(point)
            key = problem, tiles.br, tiles.bc
            if key not in counts:
                counts[key] = scratchpad.count(schedules.build("flash2", problem, tiles)).read_bytes
            compiled = point["attributes"].values()
            words = (f"{problem.head_count} heads, n {problem.seq:,}, d {problem.head_dim}, "
                     f"{problem.mask}, {point['order']}")
            shapes.setdefault(words, []).append({
                "br": tiles.br, "bc": tiles.bc, "stages": tiles.stages, "read_bytes": counts[key],
                "registers": max(entry["registers"] for entry in compiled),
                "spilled_bytes": max(entry["local_bytes"] for entry in compiled),
                "blocks_per_sm": min(entry["blocks_per_sm"] for entry in compiled),
                "seconds": median_s(point)})
    return {"shapes": shapes, "dram": _dram()}


def _dram() -> dict[str, float]:
    """{Br×Bc: measured DRAM reads over compulsory}: flash2, the shape with the most tiles."""
    found = {}
    for data in points():
        problem, read = problem_of(data), counter(data, ncu.DRAM_READ)
        if data["kernel"] == "flash2" and data["order"] == "row" and read:
            tiles = f"{data['tiles']['br']}×{data['tiles']['bc']}"
            found.setdefault(problem, {})[tiles] = read / problem.compulsory_read_bytes
    return max(found.values(), key=len, default={})


def _unspilled(tiles) -> list[dict]:
    return [tile for tile in tiles if not tile["spilled_bytes"]]


def shares(facts) -> dict[str, float]:
    """{side: share of pairs of unspilled tiles, larger in that side alone, that read less}."""
    found = {}
    for side in SIDES:
        other, = (name for name in SIDES if name != side)
        fewer = [
            large["read_bytes"] < small["read_bytes"]
            for tiles in facts["shapes"].values()
            for small in _unspilled(tiles) for large in _unspilled(tiles)
            if large[side] > small[side] and large[other] == small[other]
            and large["stages"] == small["stages"]
        ]
        found[side] = sum(fewer) / len(fewer) if fewer else 0.0
    return found


def judge(facts) -> Finding:
    """Reads against each side, then time against reads."""
    shapes = facts["shapes"]
    if not shapes:
        return Finding(Verdict.OPEN, "No times over tiles are recorded.", ())
    share, lean_fastest, spilling = shares(facts), 0, 0
    numbers = [Number("counted", f"pairs of tiles in which more {words} read less",
                      f"{share[side]:.0%}") for side, words in SIDES.items()]
    for words, tiles in shapes.items():
        good = _unspilled(tiles)
        fastest = min(tiles, key=lambda tile: tile["seconds"])
        least = min(tile["read_bytes"] for tile in good)
        lean = min((t for t in good if t["read_bytes"] == least), key=lambda t: t["seconds"])
        lean_fastest += fastest["read_bytes"] == least
        spilling += bool(fastest["spilled_bytes"])
        for label, tile in (("fastest", fastest), ("fewest reads unspilled", lean)):
            numbers.append(Number("measured", f"{words}: {label}", (
                f"{tile['br']}×{tile['bc']}, {tile['stages']} stages: {tile['seconds'] * 1e3:.3f} "
                f"ms, {tile['registers']} registers, {tile['spilled_bytes']} B spilled, "
                f"{tile['blocks_per_sm']} block(s) an SM")))
    numbers += _spilling(shapes)
    for tiles, ratio in facts["dram"].items():
        numbers.append(Number("measured", "DRAM reads over compulsory, one shape of flash2, "
                              f"{tiles}", ratio, "×"))
    words = (f"Reads into the SMs fall in {share['br']:.0%} of the pairs when rows grow and in "
             f"{share['bc']:.0%} when columns grow. The unspilled tile with the fewest reads is "
             f"the fastest in {lean_fastest} of {len(shapes)} shapes; a spilling one is in "
             f"{spilling}.")
    if min(share.values()) == 1 and lean_fastest == len(shapes):
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    sides = [SIDES[side] for side in SIDES if share[side] == 1]
    if sides:
        turns = ", though time turns before anything spills" * (lean_fastest < len(shapes))
        return Finding(Verdict.WHERE, words, tuple(numbers),
                       f"{' or '.join(sides)} grow, for reads into the SMs{turns}")
    return Finding(Verdict.FAILS, words, tuple(numbers))


def _spilling(shapes) -> list[Number]:
    """What the fastest spilling tile of each shape takes over the fastest of all."""
    slower = []
    for tiles in shapes.values():
        spilled = [tile["seconds"] for tile in tiles if tile["spilled_bytes"]]
        if spilled:
            slower.append(min(spilled) / min(tile["seconds"] for tile in tiles))
    if not slower:
        return []
    return [Number("measured", f"fastest tile that spills over the fastest of all, {len(slower)} "
                   "shapes", f"{min(slower):.2f} to {max(slower):.2f}", "×")]


@style.styled
def plot(facts):
    """Time against reads for two shapes, a mark a tile, spilling ones crossed."""
    chosen = list(facts["shapes"].items())
    chosen = [chosen[0], next((x for x in chosen if ", d 128," in x[0]), chosen[-1])]
    fig, axes = style.figure(1, 2, 3.9)
    looks = {1: (style.VERMILION, "o"), 2: (style.ORANGE, "s"), 3: (style.SKY, "^"),
             4: (style.BLUE, "D")}
    for ax, (words, tiles) in zip(axes, chosen, strict=True):
        for tile in tiles:
            colour, marker = looks[min(tile["blocks_per_sm"], 4)]
            ax.plot(tile["read_bytes"], tile["seconds"] * 1e3, marker, color=colour,
                    mfc="white" if tile["stages"] == 1 else colour)
            if tile["spilled_bytes"]:
                ax.plot(tile["read_bytes"], tile["seconds"] * 1e3, "x", color=style.BLACK,
                        markersize=9)
        ax.set(title=words, xscale="log", xlabel="bytes into the SMs (counted)")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        style.byte_axis(ax.xaxis)
        ax.xaxis.set_minor_formatter(style.NullFormatter())
    axes[0].set_ylabel("time, ms (measured)")
    handles = [style.key(f"{count}{' or more' if count == 4 else ''} block"
                         f"{'s' if count > 1 else ''} an SM", marker=marker, color=colour,
                         linestyle="none") for count, (colour, marker) in looks.items()]
    handles += [style.key("1 stage: open", marker="o", color=style.GREY, mfc="white",
                          linestyle="none"),
                style.key("spills", marker="x", color=style.BLACK, linestyle="none")]
    fig.legend(handles=handles, loc="outside lower center", ncols=6)
    return fig


def describe(facts) -> str:
    """Shares of pairs."""
    share = shares(facts)
    return (f"Reads fall in {share['br']:.0%} of the pairs when rows grow, in {share['bc']:.0%} "
            "when columns grow. Each mark is a tile: time against the bytes it reads.")
