"""Closed forms of standard attention whose mask and dropout are kernels of their own.

With 16-bit types, one KV head a query head and dropout, forward and backward together are 18N² +
12Nd (theory_backward.standard_training_paper_bytes). Flash schedules move nothing for dropout.
"""

from .problem import Attention
from .theory import Bytes, closed_form, matrix_bytes, standard_minimal
from .theory_backward import standard_backward_minimal
from .tiles import Tiles


@closed_form
def standard_separate(problem: Attention, tiles: Tiles) -> Bytes:
    """standard_minimal, S once more read and written; with dropout P too, and a byte an entry."""
    scores = matrix_bytes(problem, problem.seq, problem.kv_seq)
    found = standard_minimal(problem, tiles) | {"S_masked": (scores, scores)}
    if problem.dropout:
        found |= {"P_dropped": (scores, scores), "kept": (0, _entries(problem))}
    return found


@closed_form
def standard_separate_backward(problem: Attention, tiles: Tiles) -> Bytes:
    """standard_backward_minimal; with dropout dP once more read and written, and what was kept
    read."""
    scores = matrix_bytes(problem, problem.seq, problem.kv_seq)
    found = standard_backward_minimal(problem, tiles)
    if problem.dropout:
        found |= {"P": (scores, 0), "P_dropped": (scores, 0), "kept": (_entries(problem), 0),
                  "dP_raw": (scores, scores)}
    return found


def _entries(p: Attention) -> int:
    return p.head_count * p.seq * p.kv_seq
