"""A document against a pydantic schema: every mistake at once, each with its line and a remedy."""

import difflib
import re
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from . import document

Schema = TypeVar("Schema", bound=BaseModel)

MAX_SHOWN = 50  # mistakes printed in one message
_PROBLEMS = {  # where pydantic's own words are not a YAML user's
    "int_type": "should be a whole number, without unit or quotes",
    "float_type": "should be a number, without unit or quotes",
    "string_type": "should be text; put it in quotes",
    "model_type": "should be a mapping of keys to values",
    "dict_type": "should be a mapping of keys to values",
    "tuple_type": "should be a list in square brackets",
    "list_type": "should be a list",
}


def parsed(schema: type[Schema], data: bytes, source: str, error_type: type[Exception], what: str,
           context: dict[str, Any] | None = None) -> Schema:
    """The ``schema`` (a pydantic model) that the YAML bytes ``data`` hold.

    ``source`` names the file and ``what`` its kind; ``context`` goes to the schema's validators.
    Raises ``error_type`` with one line per mistake: ``file:line: key: got value; remedy``.
    """
    try:
        doc = document.read(data.decode("utf-8-sig"), what)
    except UnicodeDecodeError as error:
        raise error_type(f"{source}: not UTF-8 text (byte {error.start})") from None
    except document.DocumentError as error:
        place = f"{source}:{error.line}" if error.line else source
        raise error_type(f"{place}: {error}") from None
    return validated(schema, doc, source, error_type, context)


def validated(schema: type[Schema], doc: document.Document, source: str,
              error_type: type[Exception], context: dict[str, Any] | None = None) -> Schema:
    """The ``schema`` of a ``document.Document``, as ``parsed`` has it."""
    mistakes: list[tuple[int, str | ErrorDetails]] = [
        (line, f"{_dotted(path)}: key given twice, first in line {doc.lines[path]}")
        for path, line in doc.duplicates
    ]
    try:
        found = schema.model_validate(doc.values, context=context)
    except ValidationError as error:
        mistakes += [(_line(doc, e), e) for e in _separate(error.errors(include_url=False))]
    if mistakes:
        raise error_type(_message(schema, source, mistakes))
    return found


def short(value: object) -> str:
    """A value as a message shows it, of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _message(schema: type[BaseModel], source: str,
             mistakes: list[tuple[int, str | ErrorDetails]]) -> str:
    mistakes.sort(key=lambda mistake: mistake[0])
    lines = [
        f"{f'{source}:{line}' if line else source}: "
        f"{what if isinstance(what, str) else _describe(schema, what)}"
        for line, what in mistakes[:MAX_SHOWN]
    ]
    if len(mistakes) > MAX_SHOWN:
        lines.append(f"... and {len(mistakes) - MAX_SHOWN} more mistakes")
    return "\n".join(lines)


def _separate(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors without those that follow from others: a list is short of what is wrong in it."""
    wrong = {error["loc"][:-1] for error in errors}
    return [error for error in errors if error["type"] != "too_short" or error["loc"] not in wrong]


def _line(doc: document.Document, error: ErrorDetails) -> int:
    """The line of the key an error is about, or of the mapping that lacks it; 0 without lines."""
    path = error["loc"]
    while path and path not in doc.lines:
        path = path[:-1]
    return doc.lines.get(path, 1 if doc.lines else 0)


def _describe(schema: type[BaseModel], error: ErrorDetails) -> str:
    """One mistake in words, from pydantic's description of it."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    kind, got = error["type"], short(error["input"])
    if kind == "extra_forbidden":
        return f"{_dotted(path)}: unknown key{_nearest(schema, path)}"
    about = _about(schema, path)
    if kind == "missing":
        return f"{_dotted(path)}: missing{about}"
    return f"{_dotted(path)}: got {got}; {_PROBLEMS.get(kind) or _plainly(error['msg'])}{about}"


def _plainly(message: str) -> str:
    """pydantic's message without its own names for what the user wrote."""
    return re.sub(r"^(Value error, |(Input|String|List|Tuple|Value) (?=should))| after validation",
                  "", message)


def _nearest(schema: type[BaseModel], path: document.Path) -> str:
    valid = list(_type_at(schema, path[:-1]).model_fields)
    near = difflib.get_close_matches(str(path[-1])[:64], valid, n=1)
    return f"; did you mean {near[0]!r}?" if near else f" (valid here: {', '.join(valid)})"


def _about(schema: type[BaseModel], path: document.Path) -> str:
    """The schema's description of the key at ``path``, in brackets."""
    owner = _type_at(schema, path[:-1])
    if not _is_section(owner) or path[-1] not in owner.model_fields:
        return ""
    return f" ({owner.model_fields[path[-1]].description})"


def _type_at(schema: type[BaseModel], path: document.Path) -> Any:
    """The schema's type of the value at ``path``: a section, or another type."""
    here: Any = schema
    for part in path:
        here = here.model_fields[part].annotation if _is_section(here) else get_args(here)[-1]
    return here


def _is_section(here: Any) -> bool:
    return isinstance(here, type) and issubclass(here, BaseModel)


def _dotted(path: document.Path) -> str:
    """``l2.size_bytes`` for its path; one printable line whatever the keys are."""
    text = ".".join(str(part)[:64] for part in path)
    return text if text.isprintable() else repr(text)
