"""Alternating the direction in which K and V are walked halves the L2 misses once they outgrow it.

One head of flash2_mma, K and V from half of what an SM's side of the L2 holds to four times that.
Row blocks walk forward, or turn: a wave of thread blocks (all that the GPU holds at once) at a
time, or each of its own. Misses: DRAM reads beyond compulsory ones, which no order saves;
measured where an H200 was, else predicted. It holds when turning a wave at a time leaves at most
half of them at every length at which there are any, and turning one by one does not more; it holds
where the former is so.
"""

from dataclasses import replace

from matplotlib.ticker import LogLocator

from ...hwprofiles import load
from ...simulator import schedules
from ...simulator.at_scale import at_scale
from ...simulator.engines import l2
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from ...simulator.time_model import l2_options
from .. import ncu, style
from ..output import si
from ..remembered import remembered
from . import GPU, Finding, Number, Verdict
from ._recorded import counter, points, problem_of

NUMBER = 13
KERNEL, BLOCKS_PER_SM = "flash2_mma", 2
TILES = Tiles(br=128, bc=64, stages=2)
LENGTHS = (32768, 49152, 65536, 98304, 131072, 196608)
HALF = 0.5
FEW = 0.02  # of compulsory reads: not enough misses to halve
WORDS = {"forward": "all forward", "wave": "turning a wave at a time",
         "each": "turning one by one"}


def gather() -> dict:
    """{"predicted" or "measured": {order: [DRAM read bytes or None, a number a length]}, …}."""
    gpu = load(GPU)
    turns = {"forward": "forward", "wave": f"sawtooth:{gpu.sm_count * BLOCKS_PER_SM}",
             "each": "sawtooth"}
    found = {(p.seq, data["tiles"].get("kv_order", "forward")): counter(data, ncu.DRAM_READ)
             for data in points() if data["kernel"] == KERNEL
             for p in [problem_of(data)] if p == _problem(p.seq)}
    return {
        "lengths": list(LENGTHS),
        "kv_bytes": [2 * seq * _problem(seq).head_dim * 2 for seq in LENGTHS],
        "compulsory": [_problem(seq).compulsory_read_bytes for seq in LENGTHS],
        "l2_bytes": gpu.l2.size_bytes, "partitions": gpu.l2.partitions,
        "predicted": {name: [_predicted(seq, order, gpu) for seq in LENGTHS]
                      for name, order in turns.items()},
        "measured": {name: [found.get((seq, order)) for seq in LENGTHS]
                     for name, order in turns.items()},
    }


def _problem(seq: int) -> Attention:
    return Attention(1, 1, seq, 128)


def _predicted(seq: int, order: str, gpu) -> int:
    from ... import kernels

    problem, tiles = _problem(seq), replace(TILES, kv_order=order)
    whole = schedules.build("flash2", problem, tiles)
    kernel = kernels.get(KERNEL).executions(problem, tiles)
    options = {"blocks_per_sm": BLOCKS_PER_SM, **l2_options(whole, gpu, kernel, BLOCKS_PER_SM)}

    def simulated() -> int:
        program, scale = at_scale(whole, gpu, BLOCKS_PER_SM, "row")
        return l2.simulate(program, gpu, scale=scale, **options).dram_read_bytes

    return remembered(simulated, claim="alternating", seq=seq, order=order,
                      profile=gpu.model_dump_json())


def misses(facts, order: str) -> list[tuple[str, float]]:
    """(label, DRAM reads beyond compulsory ones) a length: measured, else predicted, so that two
    orders at a length carry one label."""
    rows = zip(facts["compulsory"], *(facts[label][name] for label in ("measured", "predicted")
                                      for name in ("forward", order)), strict=True)
    found = []
    for compulsory, forward, mine, _, predicted in rows:
        measured = forward is not None and mine is not None
        label, value = ("measured", mine) if measured else ("predicted", predicted)
        found.append((label, max(value - compulsory, 0)))
    return found


def left(facts, order: str) -> dict[int, float]:
    """{length: misses over those of walking forward}, where there are any."""
    found = {}
    for number, length in enumerate(facts["lengths"]):
        label, mine = misses(facts, order)[number]
        column = facts[label]["forward"][number] - facts["compulsory"][number]
        if column > FEW * facts["compulsory"][number]:
            found[length] = mine / column
    return found


def judge(facts) -> Finding:
    """What a wave leaves at each length; then what single turns do."""
    wave, each = left(facts, "wave"), left(facts, "each")
    if not wave:
        return Finding(Verdict.OPEN, "Every length fits the L2.", ())
    halved = [length for length, share in wave.items() if share <= HALF]
    size = dict(zip(facts["lengths"], facts["kv_bytes"], strict=True))
    side = facts["l2_bytes"] / facts["partitions"]
    numbers = [Number("computed", "L2 of an SM's side", si(side, "B"))]
    for number, length in enumerate(facts["lengths"]):
        for order, words in WORDS.items():
            label, value = misses(facts, order)[number]
            numbers.append(Number(label, f"misses, K and V {si(size[length], 'B')}, {words}",
                                  si(value, "B")))
    total = max(1 - _reads(facts, "wave", i) / _reads(facts, "forward", i)
                for i in range(len(facts["lengths"])))
    worse = max(each.values())
    words = (f"A wave at a time leaves {min(wave.values()):.0%} to {max(wave.values()):.0%} of the "
             f"misses, and saves at most {total:.0%} of all DRAM reads; one by one leaves "
             f"{min(each.values()):.0%} to {worse:.0%}: neighbours that walk towards each other "
             "are two streams instead of one.")
    if len(halved) == len(wave) and worse <= HALF:
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    if halved:
        span = f"K and V are {size[min(halved)] / side:.1f}"
        if len(halved) > 1:
            span += f" to {size[max(halved)] / side:.1f}"
        return Finding(Verdict.WHERE, words, tuple(numbers),
                       f"{span} times an SM's side of the L2 and a wave turns at a time")
    return Finding(Verdict.FAILS, words, tuple(numbers))


def _reads(facts, order: str, number: int) -> float:
    _, value = misses(facts, order)[number]
    return value + facts["compulsory"][number]


@style.styled
def plot(facts):
    """DRAM reads over compulsory ones against the size of K and V."""
    fig, ax = style.figure(1, 1, 3.4)
    looks = {"forward": (style.BLUE, "o"), "wave": (style.GREEN, "s"),
             "each": (style.VERMILION, "^")}
    handles = []
    for order, (colour, marker) in looks.items():
        for label, line, face in (("predicted", "-", "white"), ("measured", "none", colour)):
            pairs = [(size, value / least) for size, value, least in zip(
                facts["kv_bytes"], facts[label][order], facts["compulsory"], strict=True)
                if value is not None]
            if pairs:
                ax.plot(*zip(*pairs, strict=True), marker, color=colour, mfc=face, linestyle=line)
        handles.append(style.key(WORDS[order], marker=marker, color=colour))
    ax.axvline(facts["l2_bytes"] / facts["partitions"], color=style.GREY, linestyle=":")
    ax.set(xlabel="K and V of the head (dotted: an SM's side of the L2)",
           ylabel="DRAM reads over compulsory", yscale="log", xscale="log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    style.byte_axis(ax.xaxis)
    ax.xaxis.set_minor_formatter(style.NullFormatter())
    handles += [style.key("open: predicted, filled: measured", marker="o", color=style.GREY,
                          linestyle="none")]
    fig.legend(handles=handles, loc="outside lower center", ncols=2)
    return fig


def describe(facts) -> str:
    """What each order leaves."""
    wave, each = left(facts, "wave"), left(facts, "each")
    return ("Of the misses of walking forward a wave at a time leaves "
            + ", ".join(f"{share:.0%} at n {length:,}" for length, share in wave.items())
            + "; one by one " + ", ".join(f"{share:.0%}" for share in each.values()) + ".")
