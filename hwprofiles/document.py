"""YAML text to plain values with the line of every key, refusing what plain data never needs.

It reads the parser's events, so nothing is built from a document before it is judged: aliases
(which can expand without bound), tags, deep nesting and repeated keys are all refused here.
Scalars follow the YAML 1.2 core schema: unlike PyYAML's YAML 1.1, ``1e9`` is a number, ``on`` is
text and a date is text. Underscores between the digits of a whole number are accepted too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_DEPTH = 8
MAX_NUMBER_CHARS = 64  # longer digit strings stay text: no GPU needs them, and int() is quadratic

Path = tuple[str | int, ...]  # of keys and places in lists

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_SPECIAL = re.compile(r"[-+]?\.inf|\.nan", re.IGNORECASE)


class DocumentError(Exception):
    """The text is not one plain YAML mapping; ``line`` counts from 1 and may be None."""

    def __init__(self, problem: str, line: int | None = None):
        super().__init__(problem)
        self.line = line


@dataclass
class Document:
    """``values``: nested dicts, lists and scalars; ``lines``: line of each key path (a tuple);
    ``duplicates``: (path, line) of each repeated key, whose later values are dropped."""

    values: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    duplicates: list[tuple[Path, int]] = field(default_factory=list)


def read(text: str, what: str = "profile") -> Document:
    """The ``Document`` of YAML ``text``, which holds a ``what`` (for the messages).

    Raises ``DocumentError`` where it cannot be one.
    """
    try:
        return _Reader(text, what).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise DocumentError(f"not valid YAML: {error.problem}", line) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise DocumentError(f"not valid YAML: {' '.join(str(error).split())}") from None


class _Reader:
    """Recursive descent over the event stream, at most ``MAX_DEPTH`` deep."""

    def __init__(self, text: str, what: str):
        self.events: Iterator[Any] = yaml.parse(text, Loader=_PARSER)
        self.what, self.result = what, Document()

    def document(self) -> Document:
        next(self.events)  # stream start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise DocumentError(f"the file is empty; a {self.what} is a mapping of keys to values")
        root = next(self.events)
        if not isinstance(root, yaml.MappingStartEvent):
            raise DocumentError(f"a {self.what} is a mapping of keys to values", _line(root))
        self.result.values = self.node(root, ())
        next(self.events)  # document end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise DocumentError(f"a second document starts; a file holds one {self.what}",
                                _line(after))
        return self.result

    def node(self, event: Any, path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent):
            raise DocumentError("YAML aliases are not accepted; write the value out", _line(event))
        if event.tag is not None:
            raise DocumentError(f"YAML tags such as {event.tag!r} are not accepted", _line(event))
        if len(path) > MAX_DEPTH:
            raise DocumentError(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return _plain(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(path)
        return self.mapping(path)

    def sequence(self, path: Path) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            inner = (*path, len(values))
            self.result.lines.setdefault(inner, _line(event))
            values.append(self.node(event, inner))
        return values

    def mapping(self, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise DocumentError("a key must be a plain word", _line(event))
            inner = (*path, event.value)
            self.result.lines.setdefault(inner, _line(event))
            value = self.node(next(self.events), inner)
            if event.value in values:
                self.result.duplicates.append((inner, _line(event)))
            values.setdefault(event.value, value)
        return values


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _plain(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar under the YAML 1.2 core schema."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > MAX_NUMBER_CHARS:
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _SPECIAL.fullmatch(text) else text
