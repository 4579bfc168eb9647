"""Filters in words, such as ``schedule = flash2 and seq >= 4096``, made into SQL with bound values.

    filter     = alternative { "or" alternative }
    alternative = condition { "and" condition }
    condition  = "not" condition | "(" filter ")" | NAME comparison
    comparison = ( "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" ) value      (~: contains)
               | [ "not" ] "in" "(" value { "," value } ")" | "is" [ "not" ] "null"
    value      = number | 'text' | word

A word that is a column's name is that column (``br = bc``), any other is text (``mask = causal``).
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, unknown_name
from .store import quoted

MAX_CHARS = 4096
MAX_DEPTH = 32
_TOKEN = re.compile(r"""\s*(?:
    (?P<number>[-+]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?![\w.:/-]))
  | (?P<quoted>'[^']*'|"[^"]*")
  | (?P<sign><=|>=|!=|<>|==|[=<>~(),])
  | (?P<word>\w[\w.:/-]*)
)""", re.VERBOSE)
_COMPARISONS = {"=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">",
                ">=": ">="}


def sql(text: str, columns: Iterable[str]) -> tuple[str, list[Any]]:
    """The condition as SQL over ``columns`` (names), with ? for each value, and the values.

    Raises InputError, which says where the text cannot be read, or the nearest column.

    >>> sql("seq >= 4096 and schedule = flash2", ["seq", "schedule"])
    ('("seq" >= ? AND "schedule" = ?)', [4096, 'flash2'])
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the filter has {len(text):,} characters; at most {MAX_CHARS:,}")
    parser = _Parser(_tokens(text), tuple(columns))
    condition = parser.either()
    if parser.kind:
        raise parser.unexpected("'and', 'or' or the end")
    return condition, parser.values


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token."""
    found, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if not match:
            raise InputError(f"filter {text!r}: cannot read {text[place:].strip()[:20]!r}")
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
        place = match.end()
    return found


@dataclass
class _Parser:
    tokens: list[tuple[str, str]]
    columns: tuple[str, ...]
    values: list[Any] = field(default_factory=list)
    at: int = 0
    depth: int = 0

    @property
    def kind(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    @property
    def text(self) -> str:
        return self.tokens[self.at][1] if self.kind else ""

    def unexpected(self, wanted: str) -> InputError:
        after = " ".join(text for _, text in self.tokens[:self.at]) or "the beginning"
        found = f"not {self.text!r}" if self.kind else "but it ends"
        return InputError(f"filter: after {after!r} comes {wanted}, {found}")

    def take(self, *texts: str) -> str | None:
        """The next token when it is one of these signs or key words, in any case."""
        if self.kind in ("sign", "word") and self.text.lower() in texts:
            self.at += 1
            return self.tokens[self.at - 1][1].lower()
        return None

    def need(self, *texts: str) -> None:
        if not self.take(*texts):
            raise self.unexpected(" or ".join(map(repr, texts)))

    def either(self) -> str:
        return self.joined(self.both, "or")

    def both(self) -> str:
        return self.joined(self.condition, "and")

    def joined(self, part: Callable[[], str], word: str) -> str:
        parts = [part()]
        while self.take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else f"({f' {word.upper()} '.join(parts)})"

    def condition(self) -> str:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"filter: nested more than {MAX_DEPTH} levels deep")
        if self.take("not"):
            found = f"(NOT {self.condition()})"
        elif self.take("("):
            found = self.either()
            self.need(")")
        else:
            found = self.comparison()
        self.depth -= 1
        return found

    def comparison(self) -> str:
        if self.kind != "word":
            raise self.unexpected("a column's name")
        if self.text not in self.columns:
            raise unknown_name("column", self.text, self.columns)
        left = quoted(self.text)
        self.at += 1
        if self.take("is"):
            negated = " NOT" if self.take("not") else ""
            self.need("null")
            return f"{left} IS{negated} NULL"
        if found := self.take(*_COMPARISONS):
            return f"{left} {_COMPARISONS[found]} {self.value()}"
        if self.take("~"):
            return f"instr({left}, {self.value(column=False)}) > 0"
        negated = " NOT" if self.take("not") else ""
        if not self.take("in"):
            raise self.unexpected("a comparison (= != < <= > >= ~, in, is null)")
        self.need("(")
        options = [self.value()]
        while self.take(","):
            options.append(self.value())
        self.need(")")
        return f"{left}{negated} IN ({', '.join(options)})"

    def value(self, column: bool = True) -> str:
        """A value; ``column``: or a column, where a word is one's name."""
        if self.kind not in ("number", "quoted", "word"):
            raise self.unexpected("a value")
        kind, text = self.tokens[self.at]
        self.at += 1
        if column and kind == "word" and text in self.columns:
            return quoted(text)
        self.values.append(_VALUES[kind](text))
        return "?"


def _number(text: str) -> int | float:
    """An int that SQLite can hold, else a float."""
    if re.fullmatch("[-+]?[0-9_]{1,18}", text):
        return int(text.rstrip("_"))
    return float(text.replace("_", ""))


_VALUES: dict[str, Callable[[str], object]] = {
    "number": _number, "quoted": lambda text: text[1:-1], "word": str}
