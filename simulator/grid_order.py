"""Orders in which a grid's thread blocks are issued, by name and by the number that kernels take.

"row": the blocks of a head follow each other; "head": the heads of the whole batch do; "longest":
so do they, and the last row blocks come first, which see the most columns under a causal mask. In a
backward pass the first column blocks are seen by the most rows: there "longest" is "head".
"""

from .errors import unknown_name
from .problem import Attention

ORDERS = ("row", "head", "longest")
ROW, HEAD, LONGEST = range(3)


def order_number(order: str, problem: Attention) -> int:
    """ROW, HEAD or LONGEST. Raises InputError for an unknown order."""
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    number = ORDERS.index(order)
    return HEAD if number == LONGEST and problem.direction == "backward" else number
