"""Closed forms and lower bounds, stated from the papers and independently of the tile programs.

Nothing here reads a tape: that the scratchpad engine counts the same bytes is evidence for both.
The exact forms give bytes over the SM boundary (the papers' "HBM accesses") for any mask, ragged
lengths, n_q ≠ n_kv and grouped KV heads; sums over row blocks are written with NumPy. Below them
stand the papers' leading forms, memory footprints, block-size rules and lower bounds. Other exact
forms are in theory_*.py beside it.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import sqrt
from pathlib import Path

import numpy as np

from .errors import InputError, unknown_name
from .problem import Attention
from .tiles import Tiles

Bytes = dict[str, tuple[int, int]]  # tensor -> (bytes read, bytes written)

Form = Callable[[Attention, Tiles], Bytes]

_FORMS: dict[str, Form] = {}


def closed_form(function: Form) -> Form:
    """Makes a function the closed form of the schedule of its name."""
    _FORMS[function.__name__] = function
    return function


@cache
def _load_all() -> None:
    for path in sorted(Path(__file__).parent.glob("theory_*.py")):
        import_module(f".{path.stem}", __package__)


def closed_forms() -> tuple[str, ...]:
    """Names of the schedules whose bytes are stated here or in theory_*.py, sorted."""
    _load_all()
    return tuple(sorted(_FORMS))


def bytes_by_tensor(schedule: str, problem: Attention, tiles: Tiles) -> Bytes:
    """{"Q": (bytes read, bytes written), …} over the SM boundary, all batch and heads, exact.

    Raises InputError for a schedule without a closed form (see closed_forms).
    """
    if schedule not in closed_forms():
        raise unknown_name("closed form", schedule, _FORMS)
    return _FORMS[schedule](problem, tiles)


# --- exact forms, one a schedule -------------------------------------------------------------


@closed_form
def standard_minimal(problem: Attention, tiles: Tiles) -> Bytes:
    """Each of the three kernels of a head reads its inputs once and writes its output once.

    FlashAttention (arXiv 2205.14135) Algorithm 0: 4N² + 4Nd. Every query head reads its KV head.
    """
    p = problem
    q, scores, o = matrix_bytes(p, p.seq, p.head_dim), matrix_bytes(p, p.seq, p.kv_seq), _output(p)
    k, v = matrix_bytes(p, p.kv_seq, p.head_dim), matrix_bytes(p, p.kv_seq, p.value_dim)
    return {
        "Q": (q, 0), "K": (k, 0), "V": (v, 0), "S": (scores, scores), "P": (scores, scores),
        "O": (0, o),
    }


@closed_form
def standard(problem: Attention, tiles: Tiles) -> Bytes:
    """Algorithm 0 with tiled products: an operand is read once for each tile across the other.

    QKᵀ has ⌈n_q/Br⌉ × ⌈n_kv/Bc⌉ output tiles, PV has ⌈n_q/Br⌉ × ⌈d_v/Bc⌉; the mask saves nothing.
    The softmax reads S once while a row fits 48 KiB, else twice (Milakov & Gimelshein 2018).
    """
    p = problem
    minimal = standard_minimal(p, tiles)
    q, k, v, scores = (minimal[name][0] for name in "QKVS")
    row_blocks = ceil_div(p.seq, tiles.br)
    softmax_reads = 1 if p.kv_seq * p.dtype_bytes <= 48 * 1024 else 2
    return minimal | {
        "Q": (q * ceil_div(p.kv_seq, tiles.bc), 0),
        "K": (k * row_blocks, 0),
        "V": (v * row_blocks, 0),
        "S": (scores * softmax_reads, scores),
        "P": (scores * ceil_div(p.value_dim, tiles.bc), scores),
    }


@closed_form
def flash1(problem: Attention, tiles: Tiles) -> Bytes:
    """A (row block, column block) pair is visited when it holds an unmasked entry.

    FlashAttention Algorithm 1. K and V: once for each column block that is visited at all. Q: once
    a visit. O, m, l: written at every visit, read at all but a row block's first; a row block that
    sees nothing is written once. Full mask: (1 + 3Tc)·Nd plus m and l.
    """
    p, tables = problem, {}
    rows = _block_sizes(p.seq, tiles.br)
    if p.visibility.listed:
        touched = touched_blocks(p, tiles)
        visits, tables = touched.sum(axis=1), _flash1_tables(p, touched)
        columns = int(_block_sizes(p.kv_seq, tiles.bc)[touched.any(axis=0)].sum())
    else:
        visits, columns = _visits(p, tiles), _columns_seen(p, tiles.bc)
    reads = int((rows * np.maximum(visits - 1, 0)).sum())
    writes = int((rows * np.maximum(visits, 1)).sum())
    statistic = (statistic_bytes(p, reads), statistic_bytes(p, writes))
    return {
        "Q": (matrix_bytes(p, int((rows * visits).sum()), p.head_dim), 0),
        "K": (matrix_bytes(p, columns, p.head_dim), 0),
        "V": (matrix_bytes(p, columns, p.value_dim), 0),
        "O": (matrix_bytes(p, reads, p.value_dim), matrix_bytes(p, writes, p.value_dim)),
        "m": statistic,
        "l": statistic,
    } | tables


@closed_form
def flash2(problem: Attention, tiles: Tiles) -> Bytes:
    """Each row block reads its Q once and every column block that holds an entry it may see.

    FlashAttention-2 (arXiv 2307.08691) Algorithm 1. O and the logsumexp are written once. Full
    mask: (1 + 2⌈n/Br⌉)·Nd read, Nd written, plus the logsumexp.
    """
    p = problem
    if p.visibility.listed:
        return _flash2_listed(p, tiles)
    first, end = _column_blocks(p, tiles)
    blocks = np.minimum(end * tiles.bc, p.kv_seq) - np.minimum(first * tiles.bc, p.kv_seq)
    columns = int(blocks.sum())
    return {
        "Q": (matrix_bytes(p, p.seq, p.head_dim), 0),
        "K": (matrix_bytes(p, columns, p.head_dim), 0),
        "V": (matrix_bytes(p, columns, p.value_dim), 0),
        "O": (0, _output(p)),
        "LSE": (0, statistic_bytes(p, p.seq)),
    }


def _flash2_listed(p: Attention, tiles: Tiles) -> Bytes:
    """flash2 of the column blocks that hold a visible pair, found pair by pair, and the 4-byte
    tables that list them: an entry a block, and for each row block where its entries begin and end.

    With a share s of the blocks: N²d²s/M in place of N²d²/M (FlashAttention Proposition 4).
    """
    touched = touched_blocks(p, tiles)
    columns = int((touched @ _block_sizes(p.kv_seq, tiles.bc)).sum())
    return {
        "Q": (matrix_bytes(p, p.seq, p.head_dim), 0),
        "K": (matrix_bytes(p, columns, p.head_dim), 0),
        "V": (matrix_bytes(p, columns, p.value_dim), 0),
        "O": (0, _output(p)),
        "LSE": (0, statistic_bytes(p, p.seq)),
    } | block_tables(p, touched)


def _flash1_tables(p: Attention, touched: np.ndarray) -> Bytes:
    """Lists of Algorithm 5, 4 bytes an entry: row blocks that see nothing, column blocks that are
    seen; in each the row blocks that saw one before and those that did not, where there are any."""
    seen, before = touched.any(axis=0), np.zeros_like(touched)
    before[:, 1:] = np.logical_or.accumulate(touched, axis=1)[:, :-1]
    found = {"unseen": int((~touched.any(axis=1)).sum()), "columns": int(seen.sum())}
    for kind, pairs in (("again", touched & before), ("first", touched & ~before)):
        if pairs.any():
            found |= {f"{kind}_begins": 2 * int(seen.sum()), f"{kind}_blocks": int(pairs.sum())}
    return {name: (4 * p.head_count * entries, 0) for name, entries in found.items() if entries}


def touched_blocks(p: Attention, tiles: Tiles) -> np.ndarray:
    """[row block, column block]: whether the mask leaves a pair of it, looking at every pair."""
    firsts = np.arange(0, p.kv_seq, tiles.bc)
    return np.array([
        np.logical_or.reduceat(seen.any(axis=0), firsts)
        for row in range(0, p.seq, tiles.br)
        for seen in [p.visibility.dense(p.seq, p.kv_seq, row, 0, min(tiles.br, p.seq - row))]
    ])


def block_tables(p: Attention, touched: np.ndarray) -> Bytes:
    """The lists of blocks, read by every query head: 4 bytes an entry, 8 for each block that walks
    (``touched`` [block that walks, block])."""
    return {"begins": (p.head_count * 8 * len(touched), 0),
            "blocks": (p.head_count * 4 * int(touched.sum()), 0)}


def ceil_div(a: int, b: int) -> int:
    """⌈a/b⌉."""
    return -(-a // b)


def matrix_bytes(p: Attention, rows: int, cols: int) -> int:
    """Bytes of rows × cols elements for every query head."""
    return p.head_count * rows * cols * p.dtype_bytes


def _output(p: Attention) -> int:
    return matrix_bytes(p, p.seq, p.value_dim)


def statistic_bytes(p: Attention, rows: int) -> int:
    """Bytes of one number a row for every query head, in the type of row statistics."""
    return p.head_count * rows * p.stat_bytes


def _block_sizes(length: int, step: int) -> np.ndarray:
    """Rows or columns in each block of ``step``."""
    starts = np.arange(0, length, step)
    return np.minimum(starts + step, length) - starts


def _column_blocks(p: Attention, tiles: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """First and end column block that each row block sees; equal when it sees nothing.

    The rows of a block see intervals that shift by one a row, so their union is one interval:
    from where its first row begins to where its last row ends.
    """
    starts = np.arange(0, p.seq, tiles.br)
    lo, _ = p.mask_bounds.column_range(starts, p.kv_seq)
    _, hi = p.mask_bounds.column_range(np.minimum(starts + tiles.br, p.seq) - 1, p.kv_seq)
    first = lo // tiles.bc
    return first, np.where(hi > lo, -(-hi // tiles.bc), first)


def _visits(p: Attention, tiles: Tiles) -> np.ndarray:
    """Column blocks that each row block sees."""
    first, end = _column_blocks(p, tiles)
    visits: np.ndarray = end - first
    return visits


def _columns_seen(p: Attention, bc: int) -> int:
    """Columns in the column blocks that some row sees: keys up to the last are, from the first."""
    rows = np.arange(p.seq)
    lo, hi = p.mask_bounds.column_range(rows, p.kv_seq)
    seen = hi > lo
    first, end = int(lo[seen].min()) // bc, ceil_div(int(hi[seen].max()), bc)
    return min(end * bc, p.kv_seq) - first * bc


# --- the papers' leading forms (n_q = n_kv = n, d_v = d, full mask, no grouping) ----------------


def nd_bytes(problem: Attention) -> int:
    """One "Nd": bytes of one n × d matrix over batch and heads."""
    return matrix_bytes(problem, problem.seq, problem.head_dim)


def n2_bytes(problem: Attention) -> int:
    """One "N²": bytes of one n × n matrix over batch and heads."""
    return matrix_bytes(problem, problem.seq, problem.kv_seq)


def standard_paper_bytes(problem: Attention) -> int:
    """4N² + 4Nd: HBM bytes of standard attention forward (FlashAttention Algorithm 0)."""
    return 4 * n2_bytes(problem) + 4 * nd_bytes(problem)


def flash1_paper_bytes(problem: Attention, bc: int) -> int:
    """(1 + 3Tc)·Nd, Tc = ⌈n/Bc⌉: HBM bytes of FlashAttention forward, m and l not counted.

    FlashAttention Algorithm 1: K and V once (2), Q Tc times, O read Tc − 1 and written Tc times.
    """
    return (1 + 3 * ceil_div(problem.kv_seq, bc)) * nd_bytes(problem)


def flash2_paper_bytes(problem: Attention, br: int) -> int:
    """(1 + 2⌈n/Br⌉)·Nd + Nd: SM-boundary bytes of FlashAttention-2 forward, logsumexp not counted.

    Read off FlashAttention-2 Algorithm 1, which prints no count.
    """
    return (2 + 2 * ceil_div(problem.seq, br)) * nd_bytes(problem)


# --- memory in HBM, forward and backward (FlashAttention Table 21) ------------------------------


def standard_training_footprint_bytes(problem: Attention) -> int:
    """4N² + 10Nd: memory of standard attention, forward and backward.

    Computed from FlashAttention Table 21, whose six values it gives to the printed MiB; the paper
    prints no formula.
    """
    return 4 * n2_bytes(problem) + 10 * nd_bytes(problem)


def flash1_training_footprint_bytes(problem: Attention) -> int:
    """13Nd and two fp32 row statistics for n > 256, else 11Nd: memory, forward and backward.

    Computed from FlashAttention Table 21, whose ten values it gives to the printed MiB; the paper
    prints no formula.
    """
    if problem.seq <= 256:
        return 11 * nd_bytes(problem)
    return 13 * nd_bytes(problem) + 2 * statistic_bytes(problem, problem.seq)


# --- block sizes from a capacity of M elements --------------------------------------------------


def paper_tiles(capacity: int, head_dim: int) -> Tiles:
    """Bc = ⌈M/4d⌉, Br = min(⌈M/4d⌉, d) (FlashAttention Algorithm 1, line 1); M in elements.

    Meant up to a constant: with S counted too, Q, K, V, O and S take up to 1.25·M when Br is not
    capped by d, so a strict capacity check can reject these tiles for M < 8d².
    """
    _check_capacity(capacity, head_dim)
    bc = ceil_div(capacity, 4 * head_dim)
    return Tiles(br=min(bc, head_dim), bc=bc)


def third_of_capacity_block(capacity: int, head_dim: int) -> int:
    """⌊M/3d⌋ rows, at least 1: three B × d tiles (Q, K, V) fill a capacity of M elements.

    The rule for schedules that keep O and S in registers; it is in no paper.
    """
    _check_capacity(capacity, head_dim)
    return max(1, capacity // (3 * head_dim))


def _check_capacity(capacity: int, head_dim: int) -> None:
    if capacity < 1 or head_dim < 1:
        raise InputError(f"capacity {capacity} and head_dim {head_dim} must be from 1 (elements)")


# --- lower bounds, in elements moved by one head ------------------------------------------------


def attention_io_order(seq: int, head_dim: int, capacity: int) -> float:
    """min(N²d/√M, N²d²/M): elements moved by exact attention, UP TO A CONSTANT (Θ).

    Saha & Ye (arXiv 2402.07443) Theorem 3.1, for standard matrix products, by the red-blue pebble
    game of Hong & Kung 1981. It bounds from below and is reached: by FlashAttention from M = d² on,
    below that by the tiled products of standard attention. No constant is proven: compare growth,
    not bytes. Inputs and output (4Nd) come on top when they are larger.
    """
    _check_capacity(capacity, head_dim)
    return min(seq**2 * head_dim / sqrt(capacity), seq**2 * head_dim**2 / capacity)


def attention_io_crossover(head_dim: int) -> int:
    """M = d² elements, where both terms of attention_io_order are N² (Saha & Ye 2024)."""
    return head_dim**2


def flash_io_order(seq: int, head_dim: int, capacity: int) -> float:
    """N²d²/M: elements moved by FlashAttention, UP TO A CONSTANT (Θ), for d ≤ M ≤ Nd.

    FlashAttention Theorem 2. Its Proposition 3 says that no exact algorithm moves o(N²d²/M) for
    ALL M in [d, Nd]; it does not bound any single M (attention_io_order does).
    """
    if not head_dim <= capacity <= seq * head_dim:
        raise InputError(
            f"capacity {capacity} elements is outside [d, N·d] = [{head_dim}, {seq * head_dim}], "
            "where FlashAttention's Theorem 2 and Proposition 3 hold"
        )
    return seq**2 * head_dim**2 / capacity


def block_sparse_io_order(seq: int, head_dim: int, capacity: int, share: float) -> float:
    """Nd + N²d²s/M: block-sparse FlashAttention, UP TO A CONSTANT (Θ); s = share of blocks kept.

    FlashAttention Proposition 4.
    """
    return seq * head_dim + share * flash_io_order(seq, head_dim, capacity)


def matrix_product_lower_bound(m: int, n: int, k: int, capacity: int) -> float:
    """max(0, 2mnk/√M − 2M): words moved by any schedule of an m × k by k × n product, PROVEN.

    Smith, Lowery, Langou, van de Geijn 2019 (arXiv 1702.02017), for classical products (mnk
    multiply-adds) and M words of fast memory. It holds for one product that starts with an empty
    fast memory and says nothing about two fused ones, where the product in between is not stored.
    """
    if capacity < 1:
        raise InputError(f"capacity {capacity} must be from 1 (elements)")
    return max(0.0, 2 * m * n * k / sqrt(capacity) - 2 * capacity)
