"""Standard attention moves O(n²) bytes and stores O(n²); flash attention stores O(n).

Bytes at the SM boundary are counted of the papers' standard program (4N² + 4Nd), stored bytes of
the tensors that a forward pass makes; the power of n that they grow with is fitted. It holds when
the powers are 2, 2 and 1 within 0.1. Recorded counters of a standard kernel are fitted beside.
"""

from ...simulator import schedules
from ...simulator.engines import scratchpad
from ...simulator.footprint import activations
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from .. import ncu, style
from . import Finding, Number, Verdict, exponent
from ._recorded import counter, points, problem_of

NUMBER = 1
LENGTHS = tuple(1024 << i for i in range(6))
TOLERANCE = 0.1  # of a power of n
POWERS = {"standard_moved": 2, "standard_stored": 2, "flash_stored": 1}
WORDS = {"standard_moved": "standard, moved at the SM boundary",
         "standard_stored": "standard, stored", "flash_stored": "flash, stored"}


def gather() -> dict:
    """Bytes by length, and measured bytes a head of the standard kernel by length."""
    shapes = [Attention(1, 1, n, 128) for n in LENGTHS]
    moved = []
    for shape in shapes:
        count = scratchpad.count(schedules.build("standard_minimal", shape, Tiles(128, 128)))
        moved.append(count.read_bytes + count.write_bytes)
    stored = {method: [activations(shape, method).forward_bytes for shape in shapes]
              for method in ("standard", "flash")}
    return {"lengths": list(LENGTHS), "standard_moved": moved,
            "standard_stored": stored["standard"], "flash_stored": stored["flash"],
            "measured": _measured()}


def _measured() -> dict[int, float]:
    """{n: bytes into and out of the SMs a head} of recorded standard kernels, fp16, d 64, 128×128
    tiles."""
    found = {}
    for data in points():
        problem = problem_of(data)
        if (data["kernel"], problem.dtype, problem.head_dim, problem.mask) == (
                "standard", "fp16", 64, "full") and data["tiles"]["br"] == 128:
            moved = [counter(data, metric) for metric in (ncu.SM_READ, ncu.SM_WRITE)]
            if None not in moved:
                found[problem.seq] = sum(moved) / problem.head_count
    return dict(sorted(found.items()))


def judge(facts) -> Finding:
    """All three powers as claimed."""
    powers = {name: exponent(facts["lengths"], facts[name]) for name in POWERS}
    wrong = [name for name, power in powers.items() if abs(power - POWERS[name]) > TOLERANCE]
    numbers = [Number("counted", f"power of n, {WORDS[name]}", power)
               for name, power in powers.items()]
    numbers += [Number("counted", f"{WORDS[name]} at n {facts['lengths'][-1]:,}, a head",
                       facts[name][-1], "B") for name in POWERS]
    seen = facts["measured"]
    if len(seen) > 1:
        numbers.append(Number("measured", "power of n, standard kernel at the SM boundary, "
                              f"n {min(seen):,} to {max(seen):,}",
                              exponent(list(seen), list(seen.values()))))
    if wrong:
        said = "; ".join(f"{WORDS[name]} grows as n^{powers[name]:.2f}, not n^{POWERS[name]}"
                         for name in wrong)
        return Finding(Verdict.FAILS, f"{said}.", tuple(numbers))
    return Finding(Verdict.HOLDS, "Fitted powers of n are "
                   + ", ".join(f"{powers[name]:.2f} ({WORDS[name]})" for name in POWERS) + ".",
                   tuple(numbers))


@style.styled
def plot(facts):
    """The three curves, and the measured bytes."""
    fig, ax = style.figure(height=3.6)
    looks = {"standard_moved": ("standard", "-"), "standard_stored": ("standard", "--"),
             "flash_stored": ("flash2", "--")}
    for name, (schedule, line) in looks.items():
        ax.plot(facts["lengths"], facts[name], line, marker=style.marker(schedule),
                color=style.colour(schedule), label=f"{WORDS[name]} (counted)")
    seen = facts["measured"]
    if seen:
        ax.plot(list(seen), list(seen.values()), label="standard kernel, moved, d 64 (measured)",
                **style.measured("standard"))
    ax.set(xscale="log", yscale="log", ylabel="bytes a head")
    style.size_axis(ax.xaxis, sorted({*facts["lengths"], *seen}), "n (tokens)")
    style.byte_axis(ax.yaxis)
    ax.legend()
    return fig


def describe(facts) -> str:
    """Both ends of the curves."""
    return " ".join(f"{WORDS[name]}: {facts[name][0]:,} B at n {facts['lengths'][0]:,}, "
                    f"{facts[name][-1]:,} B at n {facts['lengths'][-1]:,}." for name in POWERS)
