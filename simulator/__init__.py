"""Counts what attention schedules move through a GPU's memory hierarchy.

>>> from hbmeter.hwprofiles import load
>>> from hbmeter.simulator import Attention, Tiles, traffic
>>> point = traffic("flash2", Attention(seq=1024), load("h200"), Tiles(128, 64))
>>> point["sm"]["read_bytes"] // 2**20
272
"""

from importlib import import_module

_HOMES = {
    "Attention": ".problem",
    "Tiles": ".tiles",
    "InputError": ".errors",
    "traffic": ".point",
    "compare": ".point",
    "explore": ".blocks",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    """Imported on first use: the command line's help needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return globals()[name]
