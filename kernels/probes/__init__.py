"""Probes: CUDA sources that measure the GPU itself, each with its launcher beside it.

They implement no schedule, so ``kernels.names()`` does not list them. To add one to ``hbmeter
calibrate``, add ``name.cu`` and ``name.py`` with ``measure(bench)``, which adds raw points, and
``facts(points)``, which says what they mean; ``bench`` has what both need. To add one whose
launches a profiler counts to ``hbmeter calibrate --l2 NAME``, give it ``HOW``, ``parts()`` and
``launcher(bench, part)``, as ``counted`` has them. (``l2`` has neither: it is ``--l2`` alone.)
"""

from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Every probe that ``hbmeter calibrate`` runs, in the order of its table."""
    found = (path.stem for path in sorted(FOLDER.glob("*.cu")))
    return tuple(name for name in found if hasattr(get(name), "measure"))


def profiled() -> tuple[str, ...]:
    """Every probe that ``hbmeter calibrate --l2 NAME`` runs."""
    found = (path.stem for path in sorted(FOLDER.glob("*.cu")))
    return tuple(name for name in found if hasattr(get(name), "parts"))


def get(name: str):
    """A probe's launcher."""
    return import_module(f".{name}", __name__)
