"""Thread blocks that share an SM as customers of a closed queueing network.

Mean value analysis (Reiser and Lavenberg 1980): who arrives at a unit finds the mean queue that
there is with one customer less. Two changes, both from what an SM is: work that a customer overlaps
with itself shortens its cycle when alone, but each unit still makes it queue behind others; and the
warps of a thread block wait for each other at barriers, so the slowest counts: the mean of the
largest of n exponential waits is 1 + 1/2 + … + 1/n of one.
"""

import numpy as np


def alone(demands: np.ndarray, delay: float, strips: int) -> float:
    """Cycles of a customer by itself when its work is ``strips`` independent parts: they queue for
    its own units as customers of their own. ``demands`` [unit] of the whole, in cycles."""
    part, queues = demands / strips, np.zeros(len(demands))
    for number in range(1, strips + 1):
        at = part * (1 + queues)
        cycle = delay + at.sum()
        queues = number * at / max(cycle, 1e-9)
    return float(cycle)


def residence(demands: np.ndarray, totals: np.ndarray, by_itself: float, together: int,
              customers: int, meet: np.ndarray | bool = True) -> np.ndarray:
    """Cycles that a customer takes beside others, for 1 … ``customers`` of them.

    ``demands`` [unit] are the cycles at each unit that a customer waits for, ``totals`` all that
    it asks of the units (what runs unseen included): no unit gives more than all of its time.
    ``by_itself`` is its cycle alone, ``together`` how many customers meet at barriers. They wait
    for the slowest at the units that ``meet`` names [unit]; from beyond the SM all of them are
    served at once.
    """
    slowest = np.where(meet, sum(1 / k for k in range(1, together + 1)), 1.0)
    asked = np.maximum(demands, totals)
    queues, found = np.zeros(len(demands)), np.zeros(customers)
    for number in range(1, customers + 1):
        waits = demands * queues * slowest
        cycle = by_itself + waits.sum()
        queues = number * asked * (1 + queues * slowest) / cycle
        found[number - 1] = max(cycle, number * totals.max())
    return found
