"""Orders in which a grid's thread blocks are issued, by name and by the number that kernels take.

"row": the blocks of a head follow each other; "head": the heads of the whole batch do; "longest":
so do they, and the last row blocks come first, which see the most columns under a causal mask. In a
backward pass the first column blocks are seen by the most rows: there "longest" is "head".

Between them, "head:N" and "longest:N" take N heads at a time: the heads of a section as "head" and
"longest" take all of them, and one section after the other. So N heads share the L2 (a swizzle of
the grid). "head:1" is "row", and "longest:1" is it with the last row blocks first. A persistent
kernel whose blocks take the next tile of a counter issues its tiles as a grid does its blocks.
"""

from .errors import InputError, unknown_name
from .problem import Attention

ORDERS = ("row", "head", "longest")
ROW, HEAD, LONGEST, SECTIONS = range(4)  # SECTIONS + 2 N of head:N, one more of longest:N
HEADS_MAX = 1 << 30


def parse(order: str) -> tuple[str, int]:
    """The name of an order and the heads of its sections, 0 when it has none. Raises InputError for
    an unknown order."""
    name, colon, heads = str(order).partition(":")
    if name not in ORDERS or (colon and name == "row"):
        raise unknown_name("order", order, (*ORDERS, "head:N", "longest:N"))
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
