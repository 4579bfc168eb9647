"""Kernels: CUDA sources that implement the schedules on a GPU, each with its launcher beside it.

Importing this needs neither CuPy nor CUDA: ``compiler`` builds without a GPU, ``runner`` runs.
To add a kernel, add ``name.cu`` and ``name.py`` (with ``KERNEL``) to this folder.
"""

from functools import cache
from importlib import import_module

from ..simulator.errors import unknown_name
from .base import FOLDER, Kernel


@cache
def names() -> tuple[str, ...]:
    """Every kernel: each ``.cu`` file of this folder."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.cu")))


def get(name: str) -> Kernel:
    """A kernel by name. Raises InputError, with the nearest name, for others."""
    if name not in names():
        raise unknown_name("kernel", name, names())
    return import_module(f".{name}", __package__).KERNEL
