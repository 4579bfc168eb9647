"""Softmax accesses memory 4 times an element in 3 safe passes, 3 when online, never when fused.

Bytes that the softmax schedules move, over the bytes of the score matrix; and bytes of S and P that
the tiled attention program moves. It holds when the counts are 4, 3 and 0; those that are printed
(Milakov & Gimelshein 2018) stand beside.
"""

from ...simulator import schedules
from ...simulator.engines import scratchpad
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles
from . import Finding, Number, Verdict

NUMBER = 9
CLAIMED = {"safe, three passes": 4, "online, two passes": 3, "fused into attention": 0}
PUBLISHED = {"safe, three passes": 4, "online, two passes": 3}  # arXiv 1805.02867
SPEED_UP = 1.3  # about, ibid.
SCHEDULES = {"safe, three passes": "softmax_safe", "online, two passes": "softmax_online",
             "fused into attention": "flash2"}
SEQ = 4096


def gather() -> dict:
    """Accesses an element of the score matrix."""
    found = {}
    for name, schedule in SCHEDULES.items():
        problem = Attention(1, 1, SEQ, 64, direction=schedules.direction(schedule))
        program = schedules.build(schedule, problem, Tiles(64, 64))
        moved = scratchpad.count(program).by_tensor
        touched = sum(sum(moved[tensor].values()) for tensor in ("S", "P") if tensor in moved)
        found[name] = touched / (problem.seq * problem.kv_seq * problem.dtype_bytes)
    return {"accesses": found}


def judge(facts) -> Finding:
    """All counts as claimed."""
    counts = facts["accesses"]
    numbers = [Number("counted", f"{name}: accesses of S and P an element", value)
               for name, value in counts.items()]
    numbers += [Number("published", f"{name}: accesses an element", value)
                for name, value in PUBLISHED.items()]
    numbers.append(Number("published", "online over safe, V100, large batches", SPEED_UP, "×"))
    wrong = [name for name, value in counts.items() if value != CLAIMED[name]]
    words = "Accesses an element: " + ", ".join(f"{value:g} ({name})"
                                                for name, value in counts.items()) + "."
    if wrong:
        return Finding(Verdict.FAILS, words, tuple(numbers))
    return Finding(Verdict.HOLDS, words, tuple(numbers))
