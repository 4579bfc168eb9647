"""The exception for what this machine lacks: its text says what to do about it."""


class Unavailable(RuntimeError):  # noqa: N818 (a state of the machine, not a mistake)
    """Something needed is not on this machine (a GPU, CuPy, CUDA wheels, CUDA headers)."""
