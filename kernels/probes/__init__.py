"""Probes: CUDA sources that measure the GPU itself, each with its launcher beside it.

They implement no schedule, so ``kernels.names()`` does not list them. To add one to ``hbmeter
calibrate``, add ``name.cu`` and ``name.py`` with ``measure(bench)``, which adds raw points, and
``facts(points)``, which says what they mean; ``bench`` has what both need. (``l2`` has neither: it
runs under a profiler.)
"""

from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Every probe that ``hbmeter calibrate`` runs, in the order of its table."""
    found = (path.stem for path in sorted(FOLDER.glob("*.cu")))
    return tuple(name for name in found if hasattr(get(name), "measure"))


def get(name: str):
    """A probe's launcher."""
    return import_module(f".{name}", __name__)
