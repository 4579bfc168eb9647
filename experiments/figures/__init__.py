"""Experiments: one file each, found by listing this folder.

A module has a docstring (first line: its title; the rest: what it asks and how to read it),
``ORDER`` (its place in the report) and

- ``run(problem, gpu) -> list of flat dicts``: the table, which is also its CSV file;
- ``plot(table) -> Figure``.

The report also asks, where the module has them,

- ``describe(table) -> str``: what the figure shows, with numbers, for those who cannot see it;
- ``notes(table) -> list of str``: settings and caveats for the caption;
- ``tables(table) -> list of Table``: what the report prints beside it;
- ``answer(table) -> list of str``: lines for the top of the page, that answer its question;
- ``RUNS_L2_READER``: true where ``run`` does, which takes long and compiles first.

For an empty table (nothing recorded) only ``answer`` is called, and the report says
``MISSING``, when the module has it.

Files whose name starts with ``_`` are not experiments.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """A table for readers: cells are text, the first column names the row.

    ``folded`` ones are shown only when asked for.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    folded: bool = False


def names() -> tuple[str, ...]:
    """Names of all experiments in the order of the report."""
    found = [f.stem for f in Path(__file__).parent.glob("[!_]*.py")]
    return tuple(sorted(found, key=lambda name: (get(name).ORDER, name)))


def get(name: str):
    """The experiment's module."""
    return import_module(f".{name}", __name__)


def title(name: str) -> str:
    """The experiment's title: the first line of its docstring."""
    return get(name).__doc__.strip().splitlines()[0].rstrip(".")


def question(name: str) -> str:
    """The rest of the docstring, as one paragraph."""
    return " ".join(" ".join(get(name).__doc__.strip().splitlines()[1:]).split())


def draw(name: str, problem, gpu):
    """An experiment's matplotlib Figure, run now for a problem (Attention) on a GPU (Profile).

    >>> from hbmeter.experiments.figures import draw
    >>> from hbmeter.hwprofiles import load
    >>> from hbmeter.simulator import Attention
    >>> draw("block_size", Attention(seq=1024), load("h200"))
    <Figure size 860x420 with 2 Axes>
    """
    module = get(name)
    return module.plot(module.run(problem, gpu))
