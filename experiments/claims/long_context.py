"""Training a 7B-class model at 8k to 128k tokens needs flash attention to fit in memory.

Tensors that the attention calls of all layers keep for the backward pass, one sequence, 32 layers
of 32 heads of 128, bf16, beside the weights in the memory of one H200 (gradients, optimizer and the
other activations come on top). It holds at a length when they do not fit without flash and do with
it; the largest single call stands beside, which recomputing layer by layer cannot avoid.
"""

from ...hwprofiles import load
from ...simulator.footprint import activations
from ...simulator.problem import Attention
from .. import style
from ..output import binary
from . import GPU, Finding, Number, Verdict

NUMBER = 12
LAYERS, HEADS, HEAD_DIM = 32, 32, 128  # Llama-2-7B's
WEIGHT_BYTES = 2 * 6_738_415_616  # its parameters in bf16
LENGTHS = (8192, 16384, 32768, 131072)
METHODS = ("standard", "flash")


def gather() -> dict:
    """Bytes kept for the backward pass over all layers and made by one call, by method and
    length, and the room beside the weights."""
    kept, call_bytes = {}, {}
    for method in METHODS:
        calls = [activations(Attention(1, HEADS, n, HEAD_DIM, dtype="bf16"), method)
                 for n in LENGTHS]
        kept[method] = [LAYERS * call.saved_bytes for call in calls]
        call_bytes[method] = [call.forward_bytes for call in calls]
    return {"lengths": list(LENGTHS), "kept": kept, "call": call_bytes,
            "room_bytes": load(GPU).hbm_bytes - WEIGHT_BYTES}


def judge(facts) -> Finding:
    """Which lengths need it."""
    room, kept = facts["room_bytes"], facts["kept"]
    rows = list(zip(facts["lengths"], kept["standard"], kept["flash"], strict=True))
    numbers = []
    for n, plain, flash in rows:
        numbers += [Number("counted", f"n {n:,}: kept by standard attention", plain, "B"),
                    Number("counted", f"n {n:,}: kept by flash attention", flash, "B")]
    numbers += [Number("counted", f"n {facts['lengths'][-1]:,}: one call of {method} attention",
                       facts["call"][method][-1], "B") for method in METHODS]
    numbers.append(Number("published", f"memory of {GPU} beside the weights", room, "B"))
    needing = [n for n, plain, flash in rows if plain > room >= flash]
    words = (f"Standard attention keeps {binary(rows[0][1])} at n {rows[0][0]:,} and "
             f"{binary(rows[-1][1])} at n {rows[-1][0]:,}; flash attention {binary(rows[0][2])} "
             f"and {binary(rows[-1][2])}; {GPU} has {binary(room)} beside the weights.")
    if len(needing) == len(rows):
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    if needing:
        for fits, rest in (("both fit", [n for n, plain, _ in rows if plain <= room]),
                           ("neither fits one GPU", [n for n, _, flash in rows if flash > room])):
            words += f" At n {', '.join(f'{n:,}' for n in rest)} {fits}." if rest else ""
        return Finding(Verdict.WHERE, words, tuple(numbers),
                       "n is " + ", ".join(f"{n:,}" for n in needing))
    return Finding(Verdict.FAILS, words, tuple(numbers))


@style.styled
def plot(facts):
    """Both curves and the room there is."""
    fig, ax = style.figure(height=3.4)
    for method, schedule in (("standard", "standard"), ("flash", "flash2")):
        ax.plot(facts["lengths"], facts["kept"][method], color=style.colour(schedule),
                marker=style.marker(schedule), label=f"{method} (counted)")
    ax.axhline(facts["room_bytes"], color=style.BLACK, linestyle=":",
               label=f"memory of {GPU} beside the weights")
    ax.set(xscale="log", yscale="log", ylabel="kept for the backward pass")
    style.size_axis(ax.xaxis, facts["lengths"], "n (tokens)")
    style.byte_axis(ax.yaxis)
    ax.legend()
    return fig


def describe(facts) -> str:
    """Both ends."""
    return " ".join(f"{method}: {binary(facts['kept'][method][0])} at n {facts['lengths'][0]:,}, "
                    f"{binary(facts['kept'][method][-1])} at n {facts['lengths'][-1]:,}."
                    for method in METHODS)
