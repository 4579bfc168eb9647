"""GPU profiles: what the simulator must know of a GPU, one YAML file each, a source per number.

Importing this package is cheap; PyYAML and pydantic are imported by the first ``load``.
To add a GPU, add one ``name.yaml`` to this folder: names are found by listing it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schema import Profile

FOLDER = Path(__file__).parent


class ProfileError(ValueError):
    """A profile that cannot be found or used; the text names the file, line, key and remedy."""


def names() -> list[str]:
    """Sorted primary names of the shipped profiles (the stems of this folder's YAML files)."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name_or_path: "str | os.PathLike[str]") -> "Profile":
    """The validated ``schema.Profile`` of a shipped GPU or of a user's YAML file.

    ``name_or_path``: a primary name or an alias of a shipped profile (case, spaces, ``-`` and
    ``_`` do not matter), or the path of a file: a ``PathLike``, or text that ends in ``.yaml`` or
    ``.yml`` or contains a path separator. Raises ``ProfileError``, listing every mistake at once.
    """
    from .loader import find, parse, read_bytes

    path = find(name_or_path)
    return parse(read_bytes(path), str(path))
