"""Closed forms of the softmax alone and of chunked attention: bytes over the SM boundary.

Accesses per element of S as Milakov & Gimelshein 2018 (arXiv 1805.02867) count them: 4 of the safe
softmax, 3 of the online one. One that keeps the row on chip makes 2; their 1 is that of a softmax
fused with a top-k, which does not write P.
"""

from .problem import Attention
from .theory import Bytes, ceil_div, closed_form, matrix_bytes, statistic_bytes
from .tiles import Tiles


@closed_form
def softmax_safe(problem: Attention, tiles: Tiles) -> Bytes:
    """3 reads for the maximum, the sum and the weights; 1 write."""
    return _softmax(problem, 3)


@closed_form
def softmax_online(problem: Attention, tiles: Tiles) -> Bytes:
    """2 reads: maximum and sum in one; 1 write."""
    return _softmax(problem, 2)


@closed_form
def softmax_fused(problem: Attention, tiles: Tiles) -> Bytes:
    """1 read, 1 write."""
    return _softmax(problem, 1)


def _softmax(p: Attention, reads: int) -> Bytes:
    scores = matrix_bytes(p, p.seq, p.kv_seq)
    return {"S": (reads * scores, 0), "P": (0, scores)}


@closed_form
def chunked(problem: Attention, tiles: Tiles) -> Bytes:
    """Q once for each key chunk, K and V once for each query chunk; of each key chunk an fp32 O for
    every row written and read, its m written and read twice, its l written and read.

    Rabe & Staats 2021 (arXiv 2112.05682), who print no count.
    """
    p = problem
    key_chunks, query_chunks = ceil_div(p.kv_seq, tiles.bc), ceil_div(p.seq, tiles.br)
    part, statistic = (statistic_bytes(p, key_chunks * p.seq * width)
                       for width in (p.value_dim, 1))
    return {
        "Q": (key_chunks * matrix_bytes(p, p.seq, p.head_dim), 0),
        "K": (query_chunks * matrix_bytes(p, p.kv_seq, p.head_dim), 0),
        "V": (query_chunks * matrix_bytes(p, p.kv_seq, p.value_dim), 0),
        "O": (0, matrix_bytes(p, p.seq, p.value_dim)),
        "O_part": (part, part),
        "m_part": (2 * statistic, statistic),
        "l_part": (statistic, statistic),
    }
