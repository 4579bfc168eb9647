"""Orders in which a grid's thread blocks are issued, by name, as data, and as engines take them.

"row": the blocks of a head follow each other; "head": the heads of the whole batch do; "longest":
so do they, and the last row blocks come first, which see the most columns under a causal mask. In a
backward pass the first column blocks are seen by the most rows: there "longest" is "head".

Between them, "head:N" and "longest:N" take N heads at a time: the heads of a section as "head" and
"longest" take all of them, and one section after the other. So N heads share the L2 (a swizzle of
the grid). "head:1" is "row", and "longest:1" is it with the last row blocks first. A persistent
kernel whose blocks take the next tile of a counter issues its tiles as a grid does its blocks.

Any other order is data: a ``Swizzle``, or a file of one, lists the thread blocks as they are
issued, each by its number in row order (head × blocks of a head + block). Of a program's phases
those whose grid has as many blocks are issued so; others in row order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InputError, unknown_name
from .npy import read_npy
from .problem import Attention

if TYPE_CHECKING:
    from .program import Program

ORDERS = ("row", "head", "longest")
# What place_of (engines/dispatch.py) takes: the number of an order, with LISTED the blocks behind.
LISTED, ROW, HEAD, LONGEST, SECTIONS = range(-1, 4)  # SECTIONS + 2 N of head:N, 1 more of longest:N
HEADS_MAX = 1 << 30
FILES = (".npy", ".csv", ".txt")
LISTED_MAX = 1 << 22  # thread blocks of an order given as data
_DIGITS_MAX = 10


@dataclass(frozen=True, eq=False)
class Swizzle:
    """An order given as data: ``blocks`` int64 [thread block], each number from 0 once; ``name``
    for people. ``read`` makes one and judges it."""

    blocks: np.ndarray
    name: str

    def __str__(self) -> str:
        return self.name


Order = str | Swizzle
OrderLike = Order | Sequence[int] | np.ndarray


def is_file(order: str) -> bool:
    """Whether an order is the name of a file: .npy, .csv or .txt."""
    return order.lower().endswith(FILES)


def parse(order: str) -> tuple[str, int]:
    """The name of an order and the heads of its sections, 0 when it has none. Raises InputError for
    an unknown order."""
    name, colon, heads = str(order).partition(":")
    if name not in ORDERS or (colon and name == "row"):
        raise unknown_name("order", order, (*ORDERS, "head:N", "longest:N", "FILE.npy", "FILE.csv"))
    if not colon:
        return name, 0
    if not (heads.isascii() and heads.isdigit() and 0 < int(heads) <= HEADS_MAX):
        raise InputError(f"order {order!r}: N of {name}:N is the heads that share the L2, a whole "
                         "number from 1 to 2^30")
    return name, int(heads)


def order_number(order: str, problem: Attention) -> int:
    """ROW, HEAD, LONGEST, or that of sections. Raises as ``parse``."""
    name, heads = parse(order)
    longest = name == "longest" and problem.direction != "backward"
    if heads:
        return SECTIONS + 2 * heads + longest
    return LONGEST if longest else min(ORDERS.index(name), HEAD)


def section_heads(number: int) -> int:
    """N of the order with this number, 0 for one without."""
    return max(number - SECTIONS, 0) // 2


def read(order: OrderLike) -> Order:
    """An order by name as it is; a file, or a list of thread blocks, as a Swizzle.

    A file holds one row of numbers: a .npy array, or text with commas, blanks or lines between
    them. Raises InputError for an unknown name, and for what is no permutation of 0 … n − 1.

    >>> read("head:4"), read([2, 0, 1]).blocks.tolist()
    ('head:4', [2, 0, 1])
    """
    if isinstance(order, Swizzle):
        return order
    if not isinstance(order, str):
        return _checked(np.asarray(order), "given as a list")
    if not is_file(order):
        parse(order)
        return order
    npy = order.lower().endswith(".npy")
    return _checked(read_npy(order, "order") if npy else _text_file(order), order)


def _text_file(path: str) -> np.ndarray:
    try:
        size = Path(path).stat().st_size
        if size > LISTED_MAX * _DIGITS_MAX:
            raise InputError(f"order {path}: {size:,} bytes are more than {LISTED_MAX:,} numbers, "
                             "the most that an order lists")
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"order {path}: {error.strerror}") from None
    words = text.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX):
            raise InputError(f"order {path}: {word[:40]!r} is not the number of a thread block")
    return np.array(words, dtype=np.int64)


def _checked(found: np.ndarray, name: str) -> Swizzle:
    """The Swizzle of an array. Raises InputError for one that is no permutation."""
    if found.ndim != 1 or found.dtype.kind not in "iu" or not found.size:
        raise InputError(f"order {name}: an array {list(found.shape)} of {found.dtype}; it must be "
                         "one row of whole numbers, the thread blocks as they are issued")
    if found.size > LISTED_MAX:
        raise InputError(f"order {name} lists {found.size:,} thread blocks, at most "
                         f"{LISTED_MAX:,}")
    wrong = np.flatnonzero((found < 0) | (found >= found.size))
    if not wrong.size:
        blocks = found.astype(np.int64)
        first = np.full(len(blocks), -1)  # where each block comes
        first[blocks[::-1]] = np.arange(len(blocks))[::-1]
        wrong = np.flatnonzero(first[blocks] != np.arange(len(blocks)))
        if not wrong.size:
            return Swizzle(blocks, name)
        what = f"comes again at place {wrong[0]:,}"
    else:
        what = f"at place {wrong[0]:,} is not there"
    raise InputError(f"order {name}: thread block {found[wrong[0]]} {what}; {found.size:,} numbers "
                     f"must be each of 0 to {found.size - 1:,} once")


def grids(program: "Program") -> list[tuple[int, int]]:
    """(Heads, thread blocks of a head) of each phase; blocks of packed heads count as one head."""
    return [(program.problem.head_count // phase.group, prod(axis.blocks for axis in phase.axes))
            for phase in program.phases]


def fits(order: Order, program: "Program") -> bool:
    """Whether a program has thread blocks to issue so: of a Swizzle, a phase with as many."""
    return isinstance(order, str) or len(order.blocks) in map(prod, grids(program))


def of_program(order: OrderLike, program: "Program") -> Order:
    """``read``, for this program. Raises InputError too when no phase's grid has as many blocks."""
    found = read(order)
    if isinstance(found, Swizzle) and not fits(found, program):
        there = ", ".join(dict.fromkeys(f"{heads * blocks:,} ({heads:,} heads × {blocks:,})"
                                        for heads, blocks in grids(program)))
        raise InputError(f"order {found} lists {len(found.blocks):,} thread blocks; the grid of "
                         f"{program.schedule} with {program.tiles} has {there}")
    return found


def issue(order: Order, problem: Attention, heads: int, blocks: int) -> np.ndarray:
    """What place_of takes for a grid of heads × blocks: int64, an order's number, behind LISTED
    the blocks. A Swizzle that is one of the named orders has its number."""
    if isinstance(order, str):
        return np.array([order_number(order, problem)])
    if len(order.blocks) != heads * blocks:
        return np.array([ROW])
    number = _named(order.blocks, heads, blocks)
    return np.array([number]) if number != LISTED else np.append(LISTED, order.blocks)


def _named(listed: np.ndarray, heads: int, blocks: int) -> int:
    """The number of the order that lists blocks so, LISTED when none does."""
    start = listed % blocks
    together = int(np.argmin(np.append(start == start[0], False)))  # heads of the first section
    longest = blocks > 1 and start[0] == blocks - 1
    if blocks == 1 or together > heads:
        together = 1
    grid = np.arange(heads * blocks).reshape(heads, blocks)[:, ::-1 if longest else 1]
    whole = heads // together * together
    sections = grid[:whole].reshape(-1, together, blocks).transpose(0, 2, 1).ravel()
    if not np.array_equal(np.append(sections, grid[whole:].T), listed):
        return LISTED
    if together == 1 and not longest:
        return ROW
    if together == heads:
        return LONGEST if longest else HEAD
    return SECTIONS + 2 * together + longest


def heads_in_flight(order: Order, problem: Attention, heads: int, blocks: int,
                    slots: int) -> float:
    """Heads of which ``slots`` thread blocks in a row are, on average."""
    asked: Any = issue(order, problem, heads, blocks)
    if asked[0] == LISTED:
        head_of = asked[1:] // blocks
        runs = [len(np.unique(head_of[first:first + slots]))
                for first in range(0, len(head_of), slots)]
        return float(np.mean(runs))
    together = 1 if asked[0] == ROW else section_heads(int(asked[0])) or heads
    return min(heads, slots / blocks + together)
