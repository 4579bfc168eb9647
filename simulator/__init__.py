"""Counts what attention schedules move through a GPU's memory hierarchy.

>>> from hbmeter.hwprofiles import load
>>> from hbmeter.simulator import Attention, Tiles, traffic
>>> point = traffic("flash2", Attention(seq=1024), load("h200"), Tiles(128, 64))
>>> point["sm"]["read_bytes"] // 2**20
272
"""

from importlib import import_module
from typing import TYPE_CHECKING

# ruff: noqa: F401
if TYPE_CHECKING:  # for editors and type checkers; at run time see __getattr__
    from . import blocks
    from .blocks import explore
    from .errors import InputError
    from .frames import frame, sweep, sweep_table
    from .point import compare, traffic
    from .problem import Attention
    from .tiles import Tiles

_HOMES = {
    "Attention": ".problem",
    "Tiles": ".tiles",
    "InputError": ".errors",
    "traffic": ".point",
    "compare": ".point",
    "blocks": ".blocks",
    "explore": ".blocks",
    "sweep": ".frames",
    "sweep_table": ".frames",
    "frame": ".frames",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Imported on first use: the command line's help needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES[name], __name__)
    globals()[name] = getattr(home, name, home)  # blocks is the module itself
    return globals()[name]
