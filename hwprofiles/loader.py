"""Finds a profile's file, reads it, and tells every mistake in it in one message."""

import difflib
import os
import re
from functools import lru_cache
from pathlib import Path

from . import FOLDER, ProfileError, names
from .mistakes import parsed, short
from .schema import Profile

MAX_BYTES = 1 << 20


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The path of a profile, given as in ``load``; raises ``ProfileError`` for an unknown name."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise ProfileError(f"a GPU is given by name or path, not by {short(name_or_path)}")
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


def read_bytes(path: Path) -> bytes:
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


@lru_cache(maxsize=32)  # a profile cannot be changed, and reading one takes milliseconds
def parse(data: bytes, source: str) -> Profile:
    """The ``Profile`` in the YAML bytes ``data``; ``source`` names the file in messages.

    Raises ``ProfileError`` with one line per mistake: ``file:line: key: got value; remedy``.
    """
    return parsed(Profile, data, source, ProfileError, "profile")


def load_all() -> tuple[dict[str, Profile], dict[str, ProfileError]]:
    """The profiles of the folder by name, and what is wrong with the other files."""
    profiles, mistakes = {}, {}
    for name in names():
        path = FOLDER / f"{name}.yaml"
        try:
            profiles[name] = parse(read_bytes(path), str(path))
        except ProfileError as error:
            mistakes[name] = error
    return profiles, mistakes


def _is_path(text: str) -> bool:
    """Whether ``text`` is meant as a file rather than as a GPU's name."""
    return text.lower().endswith((".yaml", ".yml")) or any(
        separator in text for separator in ("/", os.sep, os.altsep) if separator
    )


def _key(name: str) -> str:
    """What two spellings of one name share."""
    return re.sub(r"[\s_-]+", "", name.lower())


def _aliases() -> dict[str, str]:
    """Key of each alias in the shipped files, to the primary name; files with mistakes have none.
    """
    profiles, _ = load_all()
    return {_key(alias): name for name, profile in profiles.items() for alias in profile.aliases}


def _unknown(text: str, by_name: dict[str, str]) -> ProfileError:
    near = difflib.get_close_matches(_key(text[:64]), by_name, n=1)
    hint = f"; did you mean {by_name[near[0]]!r}?" if near else ""
    valid = ", ".join(names())
    return ProfileError(
        f"unknown GPU {short(text)}{hint} (valid: {valid}; or the path of a .yaml file)"
    )
