"""Schedules: one file each, found by listing this folder.

A schedule module has a one-line docstring (its title), ``DEFAULT_TILES`` and
``build(problem, tiles) -> Program``; one that computes gradients says ``DIRECTION = "backward"``,
one that computes the softmax alone ``"softmax"``,
one that cuts keys into splits or keeps them in pages says ``OPTIONS = ("splits", "page")``, one
that walks K and V in several orders ``("kv_order",)``; one that takes masks that are lists of
blocks (listed_mask.py) says ``ANY_MASK = True``, one that knows dropout ``DROPOUT = True``.
Files whose name starts with ``_`` are not schedules.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..errors import InputError, unknown_name
from ..problem import Attention
from ..program import Program
from ..tiles import Tiles


@cache
def names(direction: str | None = None) -> tuple[str, ...]:
    """Names of all schedules, or of those that compute one pass, sorted."""
    found = sorted(f.stem for f in Path(__file__).parent.glob("[!_]*.py"))
    return tuple(n for n in found if direction in (None, _direction(n)))


def _direction(name: str) -> str:
    return getattr(import_module(f".{name}", __name__), "DIRECTION", "forward")


def direction(name: str) -> str:
    """The pass that a schedule computes: "forward" or "backward". Raises as ``get``."""
    get(name)
    return _direction(name)


def options(name: str) -> tuple[str, ...]:
    """The options that a schedule takes beside tile sizes. Raises as ``get``."""
    return getattr(get(name), "OPTIONS", ())


def get(name: str) -> ModuleType:
    """The schedule's module. Raises InputError for a name that is not there."""
    if name not in names():
        raise unknown_name("schedule", name, names())
    return import_module(f".{name}", __name__)


def takes(name: str, problem: Attention) -> bool:
    """Whether a schedule takes the problem's mask and dropout. Raises as ``get``."""
    module = get(name)
    listed, drops = getattr(module, "ANY_MASK", False), getattr(module, "DROPOUT", False)
    return (listed or not problem.visibility.listed) and (drops or not problem.dropout)


def title(name: str) -> str:
    """The schedule's title: the first line of its docstring."""
    return str(get(name).__doc__).strip().splitlines()[0]


def build(name: str, problem: Attention, tiles: Tiles | None = None) -> Program:
    """The schedule's tile program for a problem, with its default tiles when none are given.

    Raises InputError for an unknown schedule, one that computes another pass, and one that does
    not take the mask.
    """
    module = get(name)
    if direction(name) != problem.direction:
        raise InputError(
            f"schedule {name} computes the {direction(name)} pass, the problem asks for the "
            f"{problem.direction} pass; its schedules are {', '.join(names(problem.direction))}"
        )
    if not takes(name, problem):
        others = [other for other in names(problem.direction) if takes(other, problem)]
        if problem.dropout and not getattr(module, "DROPOUT", False):
            raise InputError(f"schedule {name} takes no dropout; {', '.join(others)} do")
        raise InputError(f"schedule {name} takes the masks full, causal and window:W; mask "
                         f"{problem.mask} is for {', '.join(others)}")
    program: Program = module.build(problem, tiles or module.DEFAULT_TILES)
    return program
