"""Functions that only compiled code may call, for tests to call."""

import numba


def from_python(function):
    """``function`` (of jit.borrowing or jit.inlined) as compiled, callable from Python."""
    return numba.njit(lambda *arguments: function(*arguments))
