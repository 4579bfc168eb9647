"""Claims that teaching material makes about attention, judged: one file each, found by listing.

A module has a docstring (first line: the claim; the rest: how it is judged), ``NUMBER`` (its
place) and

- ``gather() -> dict``: the facts, from counts, predictions, records and published tables;
- ``judge(facts) -> Finding``: the verdict with the numbers behind it, computed from the facts
  alone, so that other facts give another verdict;

and, where a picture helps, ``plot(facts) -> Figure`` and ``describe(facts) -> str`` (what it shows,
for those who cannot see it). Files whose name starts with ``_`` are no claims.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path

import numpy as np

from ...simulator.errors import InputError

GPU = "h200"  # the one that is recorded
LABELS = ("counted", "predicted", "measured", "published", "computed")


class Verdict(StrEnum):
    """What facts say of a claim."""

    HOLDS = "holds"
    WHERE = "holds where"
    FAILS = "does not hold"
    OPEN = "undecided"  # what would decide is not recorded


@dataclass(frozen=True)
class Number:
    """One number of the evidence. ``label`` says where it comes from, one of LABELS: counted of a
    tile program, predicted by a model, measured on a GPU, published, or computed (simulated
    arithmetic, and sums over the others)."""

    label: str
    what: str
    value: float | int | str | None
    unit: str = ""


@dataclass(frozen=True)
class Finding:
    """A verdict; ``where`` completes "holds where", ``because`` is a sentence or two."""

    verdict: Verdict
    because: str
    numbers: tuple[Number, ...]
    where: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim and what was found."""

    name: str
    facts: dict
    finding: Finding

    @property
    def number(self) -> int:
        """Its place."""
        return get(self.name).NUMBER

    @property
    def statement(self) -> str:
        """The claim."""
        return statement(self.name)

    @property
    def verdict_words(self) -> str:
        """The verdict, with its condition."""
        return f"{self.finding.verdict} {self.finding.where}".strip()

    @property
    def document(self) -> dict:
        """What ``--json`` prints."""
        found = self.finding
        return {"claim": self.number, "name": self.name, "statement": self.statement,
                "verdict": str(found.verdict), "where": found.where or None,
                "because": found.because,
                "numbers": [{"label": n.label, "what": n.what, "value": _plain(n.value),
                             "unit": n.unit} for n in found.numbers]}


def names() -> tuple[str, ...]:
    """Names of all claims by their number."""
    found = [f.stem for f in Path(__file__).parent.glob("[!_]*.py")]
    return tuple(sorted(found, key=lambda name: get(name).NUMBER))


def get(name: str):
    """The claim's module."""
    return import_module(f".{name}", __name__)


def statement(name: str) -> str:
    """The claim: the first line of its docstring."""
    return get(name).__doc__.strip().splitlines()[0]


def how(name: str) -> str:
    """How it is judged: the rest of the docstring, as one paragraph."""
    return " ".join(" ".join(get(name).__doc__.strip().splitlines()[1:]).split())


def chosen(numbers: list[int]) -> tuple[str, ...]:
    """Names of the claims of these numbers, all of them when none is given.

    Raises InputError for a number that no claim has.
    """
    known = {get(name).NUMBER: name for name in names()}
    for number in numbers:
        if number not in known:
            raise InputError(f"claim {number} is not known; claims are {min(known)} to "
                             f"{max(known)}")
    return tuple(known[number] for number in sorted(set(numbers) or known))


def judged(name: str) -> Judged:
    """Gather a claim's facts and judge it."""
    module = get(name)
    facts = module.gather()
    return Judged(name, facts, module.judge(facts))


def exponent(sizes, values) -> float:
    """The power of size that values grow with: least squares on logarithms, over the upper half of
    the sizes (at least two), where leading terms have taken over."""
    half = len(sizes) // 2 if len(sizes) > 3 else 0
    x, y = np.log(np.asarray(sizes[half:], float)), np.log(np.asarray(values[half:], float))
    return float(np.polyfit(x, y, 1)[0])


def _plain(value):
    """NumPy's numbers as Python's; what JSON has no word for as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
