"""Flash attention moves O(n) bytes of HBM.

Two boundaries: what enters the SMs (the papers' HBM accesses, Θ(n²d²/M)) is counted; what DRAM
gives is predicted for a large and a small L2 by a fully associative LRU of tiles, and the power of
n fitted where all tensors of the head fit the L2 and where they do not. Recorded counters say how
far above compulsory real kernels read, by grid order: those whose median is within a tenth count.
It holds when every power is 1 within 0.1.
"""

from statistics import median

from ...hwprofiles import load
from ...simulator import schedules
from ...simulator.blocks import Candidate
from ...simulator.engines import scratchpad
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from .. import ncu, style
from . import Finding, Number, Verdict, exponent
from ._recorded import counter, points, problem_of

NUMBER = 2
GPUS = ("h200", "t4")  # a large and a small L2
LENGTHS = tuple(1024 << i for i in range(7))
TOLERANCE = 0.1  # of a power of n
HEAD_DIM, TILES = 64, Tiles(128, 64)
ONE_TENTH_MORE = 1.1  # of compulsory
LARGE_BYTES = 16_000_000


def gather() -> dict:
    """Bytes read by length at both boundaries, one head, and recorded DRAM reads over compulsory
    by grid order."""
    from ...simulator.engines import stack_distance

    sm, dram, used = [], {name: [] for name in GPUS}, []
    for n in LENGTHS:
        problem = Attention(1, 1, n, HEAD_DIM)
        program = schedules.build("flash2", problem, TILES)
        sm.append(scratchpad.count(program).read_bytes)
        used.append(program.footprint_bytes)
        for name in GPUS:
            gpu = load(name)
            resident = max(Candidate(program, gpu).occupancy.blocks_per_sm, 1)
            curve = stack_distance.miss_curve(program, gpu, [gpu.l2.size_bytes],
                                              blocks_per_sm=resident)
            dram[name].append(int(curve.read_bytes[0]))
    return {"lengths": list(LENGTHS), "sm": sm, "dram": dram, "used_bytes": used,
            "l2_bytes": {name: load(name).l2.size_bytes for name in GPUS},
            "measured": _measured()}


def _measured() -> dict[str, list[float]]:
    """{grid order: DRAM reads over compulsory} of recorded flash2 kernels that move LARGE_BYTES or
    more (less disappears in what else the counter sees)."""
    found = {}
    for data in points():
        problem, read = problem_of(data), counter(data, ncu.DRAM_READ)
        wanted = data["kernel"].startswith("flash2") and problem.direction == "forward"
        if wanted and read and problem.compulsory_read_bytes >= LARGE_BYTES:
            found.setdefault(data["order"], []).append(read / problem.compulsory_read_bytes)
    return found


def _powers(facts) -> dict[str, float | None]:
    """Powers of n: at the SM boundary, at DRAM while the L2 holds all tensors, and beyond."""
    held, beyond = [], []
    for name in facts["dram"]:
        fits = [used <= facts["l2_bytes"][name] for used in facts["used_bytes"]]
        rows = list(zip(facts["lengths"], facts["dram"][name], fits, strict=True))
        held += [exponent(*_columns(row for row in rows if row[2]))] if sum(fits) > 1 else []
        out = [row for row in rows if not row[2]]
        beyond += [exponent(*_columns(out))] if len(out) > 1 else []
    return {"sm": exponent(facts["lengths"], facts["sm"]),
            "held": max(held, default=None), "beyond": max(beyond, default=None)}


def _columns(rows):
    lengths, values, _ = zip(*rows, strict=True)
    return list(lengths), list(values)


def judge(facts) -> Finding:
    """Linear everywhere, at DRAM only, or nowhere."""
    power = _powers(facts)
    linear = {name: value is None or value <= 1 + TOLERANCE for name, value in power.items()}
    numbers = [Number("counted", "power of n, bytes into the SMs", power["sm"]),
               Number("predicted", "power of n, DRAM reads while the L2 holds all", power["held"]),
               Number("predicted", "power of n, DRAM reads beyond (T4's 4 MiB)", power["beyond"])]
    for order, ratios in sorted(facts["measured"].items()):
        numbers.append(Number("measured", f"DRAM reads over compulsory, order {order}: median of "
                              f"{len(ratios)} kernel runs", median(ratios), "×"))
        numbers.append(Number("measured", f"the same, worst of order {order}", max(ratios), "×"))
        near = sum(ratio <= ONE_TENTH_MORE for ratio in ratios)
        numbers.append(Number("measured", f"runs of order {order} within 10% of compulsory",
                              f"{near} of {len(ratios)}"))
    words = (f"The power of n is {power['sm']:.2f} at the SM boundary"
             + (f", {power['held']:.2f} at DRAM while the L2 holds all" if power["held"] else "")
             + (f", {power['beyond']:.2f} beyond" if power["beyond"] else "") + ".")
    if all(linear.values()):
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    near = _near_orders(facts)
    if linear["held"] and power["held"] is not None and near:
        where = "bytes are counted at the DRAM pins and the L2 holds what the heads in flight use"
        if len(near) < len(facts["measured"]):
            where += f", with grid order {' or '.join(near)}"
        return Finding(Verdict.WHERE, words, tuple(numbers), where)
    return Finding(Verdict.FAILS, words, tuple(numbers))


def _near_orders(facts) -> list[str]:
    """Grid orders whose median run reads compulsory bytes, within a tenth; ["any"] when none is
    recorded."""
    return [order for order, ratios in sorted(facts["measured"].items())
            if median(ratios) <= ONE_TENTH_MORE] if facts["measured"] else ["any"]


@style.styled
def plot(facts):
    """Reads over compulsory against n, at the SM boundary and at DRAM."""
    fig, ax = style.figure(height=3.6)
    least = [Attention(1, 1, n, HEAD_DIM).compulsory_read_bytes for n in facts["lengths"]]
    ax.plot(facts["lengths"], facts["sm"], color=style.BLUE, marker="o",
            label="into the SMs (counted)")
    for name, colour, marker in zip(facts["dram"], (style.GREEN, style.ORANGE), "sD", strict=True):
        ax.plot(facts["lengths"], facts["dram"][name], "--", color=colour, marker=marker,
                mfc="white", label=f"DRAM, {name}: {facts['l2_bytes'][name] / 2**20:g} MiB of L2 "
                "(predicted)")
    ax.plot(facts["lengths"], least, ":", color=style.BLACK, label="compulsory")
    ax.set(xscale="log", yscale="log", ylabel="bytes read, a head")
    style.size_axis(ax.xaxis, facts["lengths"], "n (tokens)")
    style.byte_axis(ax.yaxis)
    ax.legend()
    return fig


def describe(facts) -> str:
    """The fitted powers."""
    power = _powers(facts)
    return (f"Bytes into the SMs grow as n^{power['sm']:.2f}; DRAM reads are on the compulsory "
            "line while the L2 holds all tensors and leave it beyond.")
