"""What a step means, in words for someone who has read one article about FlashAttention."""

from ...simulator.engines.steps import Step
from ...simulator.program import Program, Space

_PLACES = {Space.SHARED: "shared memory", Space.REGISTERS: "registers"}
_OPS = {
    "dot": "{out} = {a}·{b}: a matrix product, made on the chip",
    "dot_t": "{out} = {a}·{b}ᵀ: one score for each pair of a row of {a} and a row of {b}",
    "dot_add": "{out} grows by {a}·{b}: what this block adds to the sum",
    "dot_t_add": "{out} grows by {a}·{b}ᵀ",
    "scale": "{out} is scaled by 1/√d",
    "mask": "what a row may not see becomes −∞",
    "row_max": "{out}: the largest of each row of {a}",
    "row_sum": "{out}: the sum of each row of {a}",
    "maximum": "{out}: the larger of {a} and {b}, row by row: the running maximum",
    "add": "{out} = {a} + {b}: the running sum",
    "log": "{out} = log {a}",
    "mul_rows": "each row of {out} is rescaled by {b}: the maximum may have changed",
    "div_rows": "each row of {out} is divided by {b}: the softmax's denominator, at last",
    "copy": "{out} begins as a copy of {a}",
}


def explain(step: Step, program: Program) -> str:
    """One sentence for a step."""
    tile = program.tile_table[step.tile]
    if step.kind == "compute":
        return _compute(step, program)
    tensor = program.tensors[step.region[0]]
    first, count = step.region[1:3]
    rows = f"rows {first} to {first + count - 1}" if count > 1 else f"row {first}"
    if step.kind == "load":
        return f"{tensor.name}, {rows}: from HBM into {_PLACES[tile.space]}, {step.bytes:,} B"
    if step.kind == "store":
        return f"{tensor.name}, {rows}: back to HBM, {step.bytes:,} B"
    return f"{tile.name} starts empty"


def _compute(step: Step, program: Program) -> str:
    names = {"out": program.tile_table[step.tile].name,
             "a": program.tile_table[step.operands[0]].name,
             "b": program.tile_table[step.operands[-1]].name}
    if step.op == "exp_minus":
        wide = program.tile_table[step.tile].cols > 1
        what = "the weights" if wide else "the factor that corrects what was summed before"
        return "{out} = exp({a} − {b}): ".format(**names) + what
    return _OPS.get(step.op, "{out} = " + step.op + "({a}, {b})").format(**names)
