"""The masks that a problem names in text: ``causal``, ``window:W``, ``prefix:P``, ``blocks:FILE``.

``parse`` finds the form by its name; each returns the mask for its argument and the lengths.
Queries and keys are aligned at the end, as in masks.py. Block sizes stand behind an @ (64 when
absent): ``random:0.25,7@128``.
"""

from collections.abc import Iterator

import numpy as np

from .errors import InputError
from .listed_mask import BAND, ListedMask
from .masks import UNBOUNDED, Mask, parse_mask
from .npy import read_npy

BLOCK = 64
MOST_BLOCKS = 1 << 26  # of a block matrix
MOST_DOCUMENTS = 1 << 20
SIMPLE = ("full", "causal", "window")


def parse(text: str, n_q: int, n_kv: int) -> Mask | ListedMask:
    """The mask that ``text`` names, for n_q queries and n_kv keys:

    full, causal, window:W        one interval of keys a row, from masks.py
    prefix:P                      causal, and all see the first P keys (prefix-LM)
    documents:LEN,LEN,…|FILE.npy  causal within documents of these lengths, repeated to the end
    longformer:W,G                W keys on either side; G keys at the start see and are seen by all
    strided:S[@B]                 causal, on blocks of B: the S newest and every S-th before
    random:DENSITY,SEED[@B]       that share of the blocks of B × B, chosen by the seed
    blocks:FILE.npy[@B]           the blocks that are true in a boolean matrix
    Longformer: Beltagy et al. (arXiv 2004.05150); strided: Child et al. (arXiv 1904.10509).
    Raises InputError for anything else, and for a mask that leaves no pair at all.
    """
    name, _, argument = str(text).partition(":")
    if name in SIMPLE or name not in _FORMS:
        return parse_mask(text, n_q, n_kv)
    bands = np.array(list(_FORMS[name](text, argument, n_q, n_kv)), BAND)
    mask = ListedMask(bands, n_q, n_kv)
    if not mask.total:
        raise InputError(f"mask {text!r} leaves no (query, key) pair of {n_q} × {n_kv}")
    return mask


def file_of(text: str) -> str | None:
    """The file that a mask's text names, None where it names none.

    >>> file_of("blocks:kept.npy@128"), file_of("documents:700,300")
    ('kept.npy', None)
    """
    name, _, argument = text.partition(":")
    if name == "blocks":
        return _with_block(text, argument)[0]
    return argument if name == "documents" and argument.endswith(".npy") else None


def _whole(text: str, what: str, values: str, count: int | None = None) -> list[int]:
    """Whole numbers from 1, separated by commas."""
    found = values.split(",")
    if count not in (None, len(found)) or not all(
            one.isascii() and one.isdigit() and 0 < int(one) < UNBOUNDED for one in found):
        raise InputError(f"mask {text!r} is not known; it is {what}, whole numbers from 1")
    return [int(one) for one in found]


def _bands(*bands: tuple[int, ...], n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    """Bands clipped to the scores, without empty ones."""
    for row, row_end, col, col_end, lo, hi in bands:
        row, row_end, col, col_end = max(row, 0), min(row_end, n_q), max(col, 0), min(col_end, n_kv)
        if row < row_end and col < col_end:
            yield row, row_end, col, col_end, lo, hi


def _prefix(text: str, argument: str, n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    prefix, = _whole(text, "prefix:P with P keys", argument, 1)
    return _bands((0, n_q, 0, prefix, -UNBOUNDED, UNBOUNDED),
                  (0, n_q, prefix, n_kv, -UNBOUNDED, n_kv - n_q + 1), n_q=n_q, n_kv=n_kv)


def _longformer(text: str, argument: str, n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    width, seen = _whole(text, "longformer:W,G with W keys on either side and G for all",
                         argument, 2)
    offset = n_kv - n_q
    after = max(seen - offset, 0)  # the first row that is not among the G
    return _bands((0, after, 0, n_kv, -UNBOUNDED, UNBOUNDED),
                  (after, n_q, 0, seen, -UNBOUNDED, UNBOUNDED),
                  (after, n_q, seen, n_kv, offset - width, offset + width + 1),
                  n_q=n_q, n_kv=n_kv)


def _documents(text: str, argument: str, n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    if argument.endswith(".npy"):
        row = read_npy(argument, f"mask {text!r}")
        if row.ndim != 1 or not len(row) or row.dtype.kind not in "iu" or (row < 1).any():
            raise InputError(f"mask {text!r}: {argument} must hold a row of lengths from 1")
        lengths: list[int] = row.tolist()
    else:
        lengths = _whole(text, "documents:LEN,LEN,… or documents:FILE.npy", argument)
    repeats = -(-n_kv // sum(lengths))
    if len(lengths) * repeats > MOST_DOCUMENTS:
        raise InputError(f"mask {text!r} has {len(lengths) * repeats:,} documents; at most "
                         f"{MOST_DOCUMENTS:,}")
    ends = np.cumsum(lengths * repeats)
    starts, offset = [0, *ends[:-1].tolist()], n_kv - n_q
    return _bands(*((start - offset, end - offset, start, end, -UNBOUNDED, offset + 1)
                    for start, end in zip(starts, ends.tolist(), strict=True)),
                  n_q=n_q, n_kv=n_kv)


def _blocks(text: str, argument: str, n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    name, block = _with_block(text, argument)
    matrix = read_npy(name, f"mask {text!r}")
    shape = (-(-n_q // block), -(-n_kv // block))
    if matrix.shape != shape or (matrix.dtype != np.bool_ and not np.isin(matrix, (0, 1)).all()):
        raise InputError(
            f"mask {text!r}: {name} holds {list(matrix.shape)} {matrix.dtype}; blocks of {block} "
            f"of {n_q} × {n_kv} need a boolean matrix {list(shape)} (another size: …npy@SIZE)")
    return _runs(matrix.astype(np.bool_), block, n_q, n_kv, UNBOUNDED)


def _strided(text: str, argument: str, n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    numbers, block = _with_block(text, argument)
    stride, = _whole(text, "strided:S or strided:S@B with S blocks of B", numbers, 1)
    rows, cols = _grid(text, block, n_q, n_kv)
    # The newest block of a block row is that of its last query's own key.
    newest = (np.minimum((np.arange(rows) + 1) * block, n_q) - 1 + n_kv - n_q) // block
    age = newest[:, None] - np.arange(cols)
    kept = (age >= 0) & ((age < stride) | (age % stride == 0))
    return _runs(kept, block, n_q, n_kv, n_kv - n_q + 1)


def _random(text: str, argument: str, n_q: int, n_kv: int) -> Iterator[tuple[int, ...]]:
    numbers, block = _with_block(text, argument)
    density, _, seed = numbers.partition(",")
    try:
        share = float(density)
    except ValueError:
        share = -1.0
    if not (0 < share <= 1 and seed.isascii() and seed.isdigit()):
        raise InputError(f"mask {text!r} is not known; it is random:DENSITY,SEED or "
                         "random:DENSITY,SEED@B with a share of blocks above 0, at most 1")
    shape = _grid(text, block, n_q, n_kv)
    kept = np.zeros(shape, np.bool_)
    chosen = np.random.default_rng(int(seed)).permutation(kept.size)
    kept.ravel()[chosen[:max(round(share * kept.size), 1)]] = True
    return _runs(kept, block, n_q, n_kv, UNBOUNDED)


_FORMS = {"prefix": _prefix, "documents": _documents, "longformer": _longformer,
          "strided": _strided, "random": _random, "blocks": _blocks}


def _with_block(text: str, argument: str) -> tuple[str, int]:
    """The argument and the block size behind its @."""
    before, at, size = argument.rpartition("@")
    if not at:
        return argument, BLOCK
    return before, _whole(text, "one with @B behind it, blocks of B", size, 1)[0]


def _grid(text: str, block: int, n_q: int, n_kv: int) -> tuple[int, int]:
    rows, cols = -(-n_q // block), -(-n_kv // block)
    if rows * cols > MOST_BLOCKS:
        raise InputError(f"mask {text!r} has {rows:,} × {cols:,} blocks of {block}; at most "
                         f"{MOST_BLOCKS:,}: use larger ones")
    return rows, cols


def _runs(matrix: np.ndarray, block: int, n_q: int, n_kv: int,
          hi_shift: int) -> Iterator[tuple[int, ...]]:
    """A band for each run of blocks of a block row, below the diagonal that hi_shift makes."""
    edges = np.diff(matrix.astype(np.int8), axis=1, prepend=0, append=0)
    rows, firsts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    return _bands(*((row * block, (row + 1) * block, first * block, end * block, -UNBOUNDED,
                     hi_shift)
                    for row, first, end in zip(rows.tolist(), firsts.tolist(), ends.tolist(),
                                               strict=True)), n_q=n_q, n_kv=n_kv)
