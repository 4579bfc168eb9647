"""The error of an output that is rounded again and again: FlashAttention-1 keeps O in HBM
and rewrites it for each block of columns.

Rounding to nearest is off by up to half a unit in the last place, evenly spread: an rms of 1/√12
units of ε, over significands that are spread evenly by their logarithm a relative error of
u = ε √(3 / (8 ln 2)) / √12. After block j of k, O is the mean over j blocks, 1/√j as large as one
block's for values that know nothing of each other; later blocks keep j/k of it. So of the last O
the rounding after block j is u √(j/k), and all of them together are u √((k + 1) / 2).
"""

from math import log, sqrt

EPSILON = {"fp16": 2.0 ** -10, "bf16": 2.0 ** -7, "fp32": 2.0 ** -23, "fp64": 2.0 ** -52}


def rounded_error(dtype: str, times: int) -> float:
    """‖error‖ / ‖O‖ of an O that ``times`` blocks of columns were added to, each time rounded to
    ``dtype``: of full attention over random inputs. Under a mask that hides blocks it is less.

    >>> f"{rounded_error('fp16', 1):.2e} {rounded_error('fp16', 64):.2e}"
    '2.07e-04 1.18e-03'
    """
    unit = EPSILON[dtype] * sqrt(3 / (8 * log(2))) / sqrt(12)
    return unit * sqrt((times + 1) / 2)
