"""Predictions that take long, remembered on disk for the next run of the same code.

A result is kept under a hash of the simulator's sources and of all that it was asked for: after an
edit, or for another profile, it is made anew. Files that cannot be read or written do no harm.
"""

import hashlib
import json
from contextlib import suppress

from ..simulator import jit
from .files import write_atomic


def remembered(compute, **asked) -> dict:
    """``compute()``, a dict that JSON can hold, or what it gave before for the same ``asked``
    (values whose repr says all that matters) and the same sources of the simulator."""
    if jit.CACHE_DIR is None:
        return compute()
    text = json.dumps({name: repr(value) for name, value in sorted(asked.items())})
    key = hashlib.sha256(f"{jit.CODE_VERSION} {text}".encode()).hexdigest()
    path = jit.CACHE_DIR / f"{key}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    found = compute()
    with suppress(OSError):
        write_atomic(path, json.dumps(found))
    return found
