"""Flash attention does the same FLOPs as standard attention.

Matrix-product FLOPs that the tile programs execute are counted, forward and backward, full and
causal. It holds in a case when they differ by at most 1%; the backward pass computes the scores
again.
"""

from ...simulator import schedules
from ...simulator.engines import scratchpad
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from . import Finding, Number, Verdict

NUMBER = 5
SEQ, HEAD_DIM = 4096, 128
TOLERANCE = 0.01
PAIRS = {"forward": ("standard", "flash2"), "backward": ("standard_backward", "flash2_backward")}
MASKS = ("full", "causal")


def gather() -> dict:
    """{(pass, mask): {"standard": …, "flash": …}} of matmul and exponential FLOPs of a head."""
    found = {}
    for direction, pair in PAIRS.items():
        for mask in MASKS:
            problem = Attention(1, 1, SEQ, HEAD_DIM, mask=mask, direction=direction)
            found[direction, mask] = {
                name: scratchpad.count(schedules.build(schedule, problem, Tiles(64, 64))).flops
                for name, schedule in zip(("standard", "flash"), pair, strict=True)
            } | {"least": problem.flops}
    return {"flops": found}


def judge(facts) -> Finding:
    """Where the counts of products are equal."""
    ratios = {case: flops["flash"]["matmul"] / flops["standard"]["matmul"]
              for case, flops in facts["flops"].items()}
    numbers = []
    for (direction, mask), flops in facts["flops"].items():
        case = f"{direction}, {mask}"
        numbers += [
            Number("counted", f"{case}: flash over standard, products",
                   ratios[direction, mask], "×"),
            *(Number("counted", f"{case}: products of {name}", flops[name]["matmul"], "FLOP")
              for name in ("standard", "flash")),
            *(Number("counted", f"{case}: exponentials of {name}", flops[name]["exp"], "exp")
              for name in ("standard", "flash")),
        ]
    same = [case for case, ratio in ratios.items() if abs(ratio - 1) <= TOLERANCE]
    words = "Products of flash over standard: " + ", ".join(
        f"{ratio:.2f} ({direction}, {mask})" for (direction, mask), ratio in ratios.items()
    ) + "."
    if len(same) == len(ratios):
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    if same:
        where = " or ".join(f"the pass is {direction} and the mask {mask}"
                            for direction, mask in same)
        return Finding(Verdict.WHERE, words + " Tiles that the mask hides are skipped; the "
                       "backward pass makes the scores again.", tuple(numbers), where)
    return Finding(Verdict.FAILS, words, tuple(numbers))
