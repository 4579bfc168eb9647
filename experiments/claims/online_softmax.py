"""Online softmax is exact.

Errors of standard, online (one key a step) and tiled softmax attention against float64, simulated
with rounding after each operation, for every input type and fp32 and fp16 accumulators; and errors
that kernels had on a GPU beside the simulated ones. It holds where online and tiled attention err
no more than twice as much as standard attention with the same types. A formula that forgets the sum
of a block is tried too, and overflow, underflow and rows that see nothing.
"""

from .. import numerics
from ..figures import numerics as picture
from . import Finding, Number, Verdict

NUMBER = 6
NO_WORSE = 2.0  # than standard attention, and of recorded against simulated errors
BLOCKS = (1, 2, 16, 64)


def gather() -> dict:
    """Errors, hazards and formulas, as numerics.py computes them."""
    gap = numerics.underflow_gap("fp16")
    return {
        "errors": numerics.by_type() + numerics.sweeps(),
        "recorded": numerics.recorded_errors(),
        "formula": {forgets: {block: numerics.formula_error(block, forgets) for block in BLOCKS}
                    for forgets in (False, True)},
        "largest_logit": {dtype: numerics.largest_logit(dtype)
                          for dtype in ("fp16", "bf16", "fp32")},
        "underflow_gap": gap, "lost": numerics.lost_by_underflow(gap, "fp16"),
        "masked_rows": all(numerics.masked_rows_are_zero(method, accumulator)
                           for method in numerics.METHODS for accumulator in ("fp32", "fp16")),
    }


def _excess(facts) -> dict[tuple[str, str], float]:
    """{(dtype, accumulator): worse of the online and tiled error over the standard one}."""
    errors = {(r["dtype"], r["accumulator"], r["method"]): r["error"]
              for r in facts["errors"] if r["against"] == numerics.TYPES}
    return {(dtype, acc): max(errors[dtype, acc, m] for m in ("online", "tiled"))
            / errors[dtype, acc, "standard"]
            for dtype, acc, method in errors if method == "standard"}


def judge(facts) -> Finding:
    """For which types the online forms err no more than the standard one."""
    excess = _excess(facts)
    good = {types for types, ratio in excess.items() if ratio <= NO_WORSE}
    worst = max((max(r["recorded"] / r["simulated"], r["simulated"] / r["recorded"])
                 for r in facts["recorded"]), default=None)
    numbers = (*_errors(facts), *_hazards(facts), *_beside(facts, worst))
    wrong = facts["formula"][True]
    words = (f"Online and tiled attention err at most {max(excess.values()):.2f} times as much as "
             f"standard attention with the same types. The formula that forgets l_local is off by "
             f"{wrong[BLOCKS[1]]:.0%} with blocks of {BLOCKS[1]} and {wrong[BLOCKS[-1]]:.0%} with "
             f"blocks of {BLOCKS[-1]}, by {wrong[1]:.0e} with blocks of 1. ")
    if worst is not None:
        words += (f"Recorded errors of {len(facts['recorded'])} kernels and types are within "
                  f"{worst:.2f} times of the simulated ones.")
    if len(good) == len(excess):
        return Finding(Verdict.HOLDS, words, numbers)
    if good:
        bad = [f"{dtype} inputs in {acc} accumulators" for dtype, acc in excess
               if (dtype, acc) not in good]
        return Finding(Verdict.WHERE, words, numbers, "the types are not " + ", ".join(bad))
    return Finding(Verdict.FAILS, words, numbers)


def _errors(facts):
    for row in facts["errors"]:
        at = (f"n {numerics.KEYS}" if row["against"] == numerics.TYPES else
              f"{picture.AXES[row['against']]} {row['at']}")
        yield Number("computed", f"{row['method']}, {row['dtype']} inputs, {row['accumulator']} "
                     f"accumulators, {at}: relative error", row["error"])


def _hazards(facts):
    for dtype, logit in facts["largest_logit"].items():
        yield Number("computed", f"{dtype}: largest logit without the running maximum", logit)
    yield Number("computed", "rise of the maximum that makes the fp16 rescaling factor 0",
                 facts["underflow_gap"])
    yield Number("computed", "largest error that this underflow makes, 4,096 keys before, values "
                 "of 1", facts["lost"])
    yield Number("computed", "rows that see nothing are 0, all methods",
                 "yes" if facts["masked_rows"] else "no")
    for forgets, by_block in facts["formula"].items():
        for block, value in by_block.items():
            yield Number("computed", f"denominator {'without' if forgets else 'with'} l_local, "
                         f"blocks of {block}: relative error", value)


def _beside(facts, worst):
    for row in facts["recorded"]:
        where = f"{row['kernel']}, {row['dtype']}, d {row['head_dim']}, n {row['keys']:,}"
        yield Number("measured", f"{where}: relative error on the GPU", row["recorded"])
        yield Number("computed", f"{where}: simulated", row["simulated"])
    yield Number("computed", "largest ratio of recorded and simulated error", worst, "×")


def plot(facts):
    """The figure of the report."""
    return picture.plot(facts["errors"])


def describe(facts) -> str:
    """What it shows."""
    return picture.describe(facts["errors"])
