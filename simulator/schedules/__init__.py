"""Schedules: one file each, found by listing this folder.

A schedule module has a one-line docstring (its title), ``DEFAULT_TILES`` and
``build(problem, tiles) -> Program``. Files whose name starts with ``_`` are not schedules.
"""

from functools import cache
from importlib import import_module
from pathlib import Path

from ..errors import unknown_name
from ..problem import Attention
from ..program import Program
from ..tiles import Tiles


@cache
def names() -> tuple[str, ...]:
    """Names of all schedules, sorted."""
    return tuple(sorted(f.stem for f in Path(__file__).parent.glob("[!_]*.py")))


def get(name: str):
    """The schedule's module. Raises InputError for a name that is not there."""
    if name not in names():
        raise unknown_name("schedule", name, names())
    return import_module(f".{name}", __name__)


def title(name: str) -> str:
    """The schedule's title: the first line of its docstring."""
    return get(name).__doc__.strip().splitlines()[0]


def build(name: str, problem: Attention, tiles: Tiles | None = None) -> Program:
    """The schedule's tile program for a problem, with its default tiles when none are given."""
    module = get(name)
    return module.build(problem, tiles or module.DEFAULT_TILES)
