"""Finds a profile's file, reads it, and tells every mistake in it in one message."""

import difflib
import os
import re
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError

from . import FOLDER, ProfileError, document, names
from .schema import Profile

MAX_BYTES = 1 << 20
MAX_SHOWN = 50  # mistakes printed in one message
_PROBLEMS = {  # where pydantic's own words are not a YAML user's
    "int_type": "should be a whole number, without unit or quotes",
    "float_type": "should be a number, without unit or quotes",
    "string_type": "should be text; put it in quotes",
    "model_type": "should be a mapping of keys to values",
    "dict_type": "should be a mapping of keys to values",
    "tuple_type": "should be a list in square brackets",
}


def find(name_or_path):
    """The path of a profile, given as in ``load``; raises ``ProfileError`` for an unknown name."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise ProfileError(f"a GPU is given by name or path, not by {_short(name_or_path)}")
    text = os.fsdecode(name_or_path)
    if isinstance(name_or_path, os.PathLike) or _is_path(text):
        return Path(text)
    key = _key(text)
    by_name = {_key(name): name for name in names()}
    if key not in by_name:
        by_name |= _aliases()
    if key not in by_name:
        raise _unknown(text, by_name)
    return FOLDER / f"{by_name[key]}.yaml"


def read_bytes(path):
    """The content of the file at ``path``; raises ``ProfileError`` if it is not a small file."""
    try:
        if path.is_dir():
            raise ProfileError(f"{path}: is a folder; give the YAML file of a GPU profile")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ProfileError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{str(path)!r}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise ProfileError(f"{path}: larger than {MAX_BYTES} bytes; not a GPU profile")
    return data


def parse(data, source):
    """The ``Profile`` in the YAML bytes ``data``; ``source`` names the file in messages.

    Raises ``ProfileError`` with one line per mistake: ``file:line: key: got value; remedy``.
    """
    doc = _document(data, source)
    mistakes = [
        (line, f"{_dotted(path)}: key given twice, first in line {doc.lines[path]}")
        for path, line in doc.duplicates
    ]
    profile = None
    try:
        profile = Profile.model_validate(doc.values)
    except ValidationError as error:
        mistakes += [(_line(doc, e), e) for e in error.errors(include_url=False)]
    if mistakes:
        raise ProfileError(_message(source, mistakes))
    return profile


def _document(data, source):
    try:
        return document.read(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ProfileError(f"{source}: not UTF-8 text (byte {error.start})") from None
    except document.DocumentError as error:
        place = f"{source}:{error.line}" if error.line else source
        raise ProfileError(f"{place}: {error}") from None


def _is_path(text):
    """Whether ``text`` is meant as a file rather than as a GPU's name."""
    return text.lower().endswith((".yaml", ".yml")) or any(
        separator in text for separator in ("/", os.sep, os.altsep) if separator
    )


def _key(name):
    """What two spellings of one name share."""
    return re.sub(r"[\s_-]+", "", name.lower())


def _aliases():
    """Key of each alias in the shipped files, to the primary name."""
    found = {}
    for name in names():
        path = FOLDER / f"{name}.yaml"
        for alias in parse(read_bytes(path), str(path)).aliases:
            found[_key(alias)] = name
    return found


def _unknown(text, by_name):
    near = difflib.get_close_matches(_key(text[:64]), by_name, n=1)
    hint = f"; did you mean {by_name[near[0]]!r}?" if near else ""
    valid = ", ".join(names())
    return ProfileError(
        f"unknown GPU {_short(text)}{hint} (valid: {valid}; or the path of a .yaml file)"
    )


def _message(source, mistakes):
    mistakes.sort(key=lambda mistake: mistake[0])
    lines = [
        f"{source}:{line}: {what if isinstance(what, str) else _describe(what)}"
        for line, what in mistakes[:MAX_SHOWN]
    ]
    if len(mistakes) > MAX_SHOWN:
        lines.append(f"... and {len(mistakes) - MAX_SHOWN} more mistakes")
    return "\n".join(lines)


def _line(doc, error):
    """The line of the key an error is about, or of the mapping that lacks it."""
    path = error["loc"]
    while path and path not in doc.lines:
        path = path[:-1]
    return doc.lines.get(path, 1)


def _describe(error):
    """One mistake in words, from pydantic's description of it."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    kind, got = error["type"], _short(error["input"])
    if kind == "extra_forbidden":
        return f"{_dotted(path)}: unknown key{_nearest(path)}"
    about = _about(path)
    if kind == "missing":
        return f"{_dotted(path)}: missing{about}"
    return f"{_dotted(path)}: got {got}; {_PROBLEMS.get(kind) or _plainly(error['msg'])}{about}"


def _plainly(message):
    """pydantic's message without its own names for what the user wrote."""
    return re.sub(r"^(Value error, |(Input|String) (?=should))", "", message)


def _nearest(path):
    valid = list(_type_at(path[:-1]).model_fields)
    near = difflib.get_close_matches(path[-1][:64], valid, n=1)
    return f"; did you mean {near[0]!r}?" if near else f" (valid here: {', '.join(valid)})"


def _about(path):
    """The schema's description of the key at ``path``, in brackets."""
    owner = _type_at(path[:-1])
    if not _is_section(owner) or path[-1] not in owner.model_fields:
        return ""
    return f" ({owner.model_fields[path[-1]].description})"


def _type_at(path):
    """The schema's type of the value at ``path``: a section, or another type."""
    here = Profile
    for part in path:
        here = here.model_fields[part].annotation if _is_section(here) else get_args(here)[-1]
    return here


def _is_section(here):
    return isinstance(here, type) and issubclass(here, BaseModel)


def _dotted(path):
    """``l2.size_bytes`` for its path; one printable line whatever the keys are."""
    text = ".".join(str(part)[:64] for part in path)
    return text if text.isprintable() else repr(text)


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
