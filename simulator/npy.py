"""Arrays in files that users name."""

import warnings
from pathlib import Path

import numpy as np

from .errors import InputError


def read_npy(path: str, whose: str) -> np.ndarray:
    """The array of a .npy file, read as it is used; no code in it runs. Raises InputError, which
    begins with ``whose`` it is, for what is no such file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Python 2 wrote, and of sizes that overflow
            return np.asarray(np.lib.format.open_memmap(Path(path), mode="r"))
    except OSError as error:
        raise InputError(f"{whose}: {path}: {error.strerror or 'cannot be read'}") from None
    except Exception as error:  # NumPy lets out whatever its parsers of a header say
        raise InputError(f"{whose}: {path}: not a NumPy array") from error
