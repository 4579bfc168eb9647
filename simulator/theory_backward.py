"""Closed forms of the backward pass: bytes over the SM boundary, and the papers' leading forms.

Stated apart from the tile programs, for any mask, ragged lengths, n_q ≠ n_kv and grouped KV heads.
"""

import numpy as np

from .problem import Attention
from .theory import (
    Bytes,
    block_tables,
    ceil_div,
    closed_form,
    flash1_paper_bytes,
    matrix_bytes,
    n2_bytes,
    nd_bytes,
    standard_paper_bytes,
    statistic_bytes,
    touched_blocks,
)
from .tiles import Tiles

# --- exact forms, one a schedule -------------------------------------------------------------


@closed_form
def standard_backward_minimal(problem: Attention, tiles: Tiles) -> Bytes:
    """Each of the five kernels of a head reads its inputs once and writes its output once.

    FlashAttention (arXiv 2205.14135) Algorithm 3: 7N² + 8Nd with a KV head for each query head.
    """
    p = problem
    q, o = matrix_bytes(p, p.seq, p.head_dim), matrix_bytes(p, p.seq, p.value_dim)
    k, v = matrix_bytes(p, p.kv_seq, p.head_dim), matrix_bytes(p, p.kv_seq, p.value_dim)
    scores = matrix_bytes(p, p.seq, p.kv_seq)
    return {
        "Q": (q, 0), "K": (k, 0), "V": (v, 0), "dO": (2 * o, 0), "P": (2 * scores, 0),
        "dP": (scores, scores), "dS": (2 * scores, scores), "dQ": (0, q),
    } | _kv_gradients(p)


@closed_form
def standard_backward(problem: Attention, tiles: Tiles) -> Bytes:
    """Algorithm 3 with tiled products: an operand is read once for each tile across the other.

    dS reads the rows of P and dP once while both fit 48 KiB, else twice.
    """
    p = problem
    minimal = standard_backward_minimal(p, tiles)
    q, k, v, two_o = (minimal[name][0] for name in ("Q", "K", "V", "dO"))
    scores = minimal["dP"][1]
    row_blocks = ceil_div(p.seq, tiles.br)
    across_k, across_v = ceil_div(p.head_dim, tiles.bc), ceil_div(p.value_dim, tiles.bc)
    softmax_reads = 1 if 2 * p.kv_seq * p.dtype_bytes <= 48 * 1024 else 2
    d_out = two_o // 2 * (ceil_div(p.kv_seq, tiles.br) + ceil_div(p.kv_seq, tiles.bc))
    return minimal | {
        "Q": (q * ceil_div(p.kv_seq, tiles.br), 0),
        "K": (k * row_blocks, 0),
        "V": (v * row_blocks, 0),
        "dO": (d_out, 0),
        "P": (scores * (across_v + softmax_reads), 0),
        "dP": (scores * softmax_reads, scores),
        "dS": (scores * 2 * across_k, scores),
    }


@closed_form
def flash1_backward(problem: Attention, tiles: Tiles) -> Bytes:
    """K, V, dK and dV once; Q, dO, dQ (read and rewritten) for each column block that needs them.

    FlashAttention Algorithm 4, whose line 2 writes the first dQ, with D from one more reading of O
    and dO. Full mask: (4 + 4Tc)·Nd, and 3Nd before; m, l and D come on top.
    """
    p = problem
    passes, once = _rows_passed(p, tiles), p.seq
    q, o = matrix_bytes(p, passes, p.head_dim), matrix_bytes(p, passes, p.value_dim)
    out = matrix_bytes(p, once, p.value_dim)
    statistic = (statistic_bytes(p, passes), 0)
    return {
        "Q": (q, 0), "dO": (o + out, 0), "O": (out, 0), "m": statistic, "l": statistic,
        "D": (statistic[0], statistic_bytes(p, once)),
        "dQ": (q, q + matrix_bytes(p, once, p.head_dim)),
    } | _kv_inputs(p) | _kv_gradients(p) | _tables(p, tiles)


@closed_form
def flash2_backward(problem: Attention, tiles: Tiles) -> Bytes:
    """K, V, dK and dV once; Q and dO for each column block that needs them; its part of dQ added.

    FlashAttention-2 (arXiv 2307.08691) Algorithm 2. The accumulator of dQ is zeroed before and read
    once after; D is from one more reading of O and dO. An addition moves its fp32 operand.
    """
    p = problem
    passes, once = _rows_passed(p, tiles), p.seq
    q, o = matrix_bytes(p, passes, p.head_dim), matrix_bytes(p, passes, p.value_dim)
    out = matrix_bytes(p, once, p.value_dim)
    zeros, added = (statistic_bytes(p, rows * p.head_dim) for rows in (once, passes))
    return {
        "Q": (q, 0), "dO": (o + out, 0), "O": (out, 0), "LSE": (statistic_bytes(p, passes), 0),
        "D": (statistic_bytes(p, passes), statistic_bytes(p, once)),
        "dQ_acc": (zeros, zeros + added), "dQ": (0, matrix_bytes(p, once, p.head_dim)),
    } | _kv_inputs(p) | _kv_gradients(p) | _tables(p, tiles)


def _kv_inputs(p: Attention) -> Bytes:
    """K and V once for each query head."""
    return {name: (matrix_bytes(p, p.kv_seq, width), 0)
            for name, width in (("K", p.head_dim), ("V", p.value_dim))}


def _kv_gradients(p: Attention) -> Bytes:
    """dK and dV written once; by way of fp32 sums where query heads share them: zeroed, added to
    by each query head, read once."""
    found = {}
    for name, width in (("dK", p.head_dim), ("dV", p.value_dim)):
        found[name] = (0, matrix_bytes(p, p.kv_seq, width) // p.group)
        if p.group > 1:
            added = statistic_bytes(p, p.kv_seq * width)
            once = added // p.group
            found[f"{name}_acc"] = (once, once + added)
    return found


def _tables(p: Attention, tiles: Tiles) -> Bytes:
    """The lists of row blocks that a mask leaves to each column block, where it is one of lists."""
    return block_tables(p, touched_blocks(p, tiles).T) if p.visibility.listed else {}


def _rows_passed(p: Attention, tiles: Tiles) -> int:
    """Rows that pass by all column blocks of a head, in whole row blocks.

    Row i sees keys i + lo ≤ j < i + hi, so key j is seen by rows j − hi < i ≤ j − lo; the keys of
    a block by one interval of rows.
    """
    if p.visibility.listed:
        firsts = np.arange(0, p.seq, tiles.br)
        rows = np.minimum(firsts + tiles.br, p.seq) - firsts
        return int((rows @ touched_blocks(p, tiles)).sum())
    mask, first_key = p.mask_bounds, np.arange(0, p.kv_seq, tiles.bc)
    first = np.maximum(first_key + 1 - mask.hi_shift, 0) // tiles.br * tiles.br
    end = np.minimum(first_key + tiles.bc - mask.lo_shift, p.seq)
    end = np.minimum(-(-end // tiles.br) * tiles.br, p.seq)
    return int(np.maximum(end - first, 0).sum())


# --- the papers' leading forms (n_q = n_kv = n, d_v = d, full mask, no grouping) ----------------


def standard_backward_paper_bytes(problem: Attention) -> int:
    """7N² + 8Nd: HBM bytes of standard attention backward (FlashAttention Algorithm 3)."""
    return 7 * n2_bytes(problem) + 8 * nd_bytes(problem)


def flash1_backward_paper_bytes(problem: Attention, bc: int) -> int:
    """(4 + 4Tc)·Nd, Tc = ⌈n/Bc⌉: HBM bytes of FlashAttention backward, statistics not counted.

    K, V, dK, dV once, and Q, dO, dQ (read, written) Tc times, as Algorithm 4 with D known before.
    Computed: the paper prints no form.
    """
    return (4 + 4 * ceil_div(problem.kv_seq, bc)) * nd_bytes(problem)


def flash1_training_paper_bytes(problem: Attention, bc: int) -> int:
    """(5 + 7Tc)·Nd: forward and backward together; 33·Nd at Tc = 4.

    FlashAttention Figure 2 (left) prints 4.4 GB; 33·Nd is 4.43 GB.
    """
    return flash1_paper_bytes(problem, bc) + flash1_backward_paper_bytes(problem, bc)


def standard_training_paper_bytes(problem: Attention, *, mask_pass: bool = False,
                                  dropout: bool = False) -> int:
    """11N² + 12Nd: forward and backward together; 18N² + 12Nd with both options in 16-bit types.

    The options are kernels of their own, as the compared implementation has them. ``mask_pass``:
    S read and written. ``dropout``: P read, written dropped out, and a byte an entry of what was
    kept; backward dP read and written, and those bytes read. (FlashAttention draws the same random
    numbers again: no bytes.) A reconstruction: with both it gives the 40.3 GB of FlashAttention
    Figure 2 (left) to the printed digit, which the paper does not explain.
    """
    n2 = n2_bytes(problem)
    kept = n2 // problem.dtype_bytes
    extra = 2 * n2 * mask_pass + (4 * n2 + 2 * kept) * dropout
    return standard_paper_bytes(problem) + standard_backward_paper_bytes(problem) + extra
