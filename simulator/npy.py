"""Arrays in files that users name."""

from pathlib import Path

import numpy as np

from .errors import InputError


def read_npy(path: str, whose: str) -> np.ndarray:
    """The array of a .npy file, read as it is used; no code in it runs. Raises InputError, which
    begins with ``whose`` it is, for what is no such file."""
    try:
        return np.asarray(np.lib.format.open_memmap(Path(path), mode="r"))
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or "not a NumPy array"
        raise InputError(f"{whose}: {path}: {why}") from None
