"""TMA tensor maps: how a kernel reads boxes of a tensor by Hopper's copy engine (sm_90 and later).

CUDA driver API, section "Tensor Map Object Management".
"""

import ctypes
import math
import sys
from functools import cache

import numpy as np

from .errors import Unavailable

BYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
UINT16 = 1  # CU_TENSOR_MAP_DATA_TYPE_UINT16: fp16 and bf16 as their bits
NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_128B, FILL_ZERO = 0, 3, 2, 0


@cache
def _encode():
    """cuTensorMapEncodeTiled. Raises Unavailable where the driver has none (before CUDA 12.0)."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name).cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise Unavailable(
            f"tensor maps need the driver of CUDA 12.0 or later ({error}): update the driver"
        ) from error


def tensor_map(tensor, rows: int, columns: int) -> np.ndarray:
    """A map of a contiguous CuPy array [..., n, d] of 16-bit elements.

    One copy reads ``rows`` × ``columns`` elements of one head; beyond the head's own rows and
    columns it reads zeros. Coordinates are (column, row, head of the whole batch); in shared
    memory a row has the 128-byte swizzle. The result, an array of one 128-byte element, is passed
    to a kernel by value.

    Raises Unavailable without a driver that has tensor maps and RuntimeError when it refuses.
    """
    *batch, n, d = tensor.shape
    extents = (ctypes.c_uint64 * 3)(d, n, math.prod(batch))
    strides = (ctypes.c_uint64 * 2)(2 * d, 2 * d * n)  # of rows and heads, in bytes
    box, steps = (ctypes.c_uint32 * 3)(columns, rows, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    room = np.zeros(BYTES + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    found = room[start : start + BYTES]
    code = _encode()(
        ctypes.c_void_p(found.ctypes.data), UINT16, 3, ctypes.c_void_p(tensor.data.ptr), extents,
        strides, box, steps, NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_128B, FILL_ZERO,
    )
    if code:
        where = f"{tensor.shape} in boxes of {rows} × {columns}"
        raise RuntimeError(f"cuTensorMapEncodeTiled of {where}: CUDA error {code}")
    return found.view(f"V{BYTES}")
