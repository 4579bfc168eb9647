"""Files: JSON to read; a folder that can be written, whole files or none, tables as CSV."""

import csv
import io
import json
import os
from contextlib import contextmanager
from pathlib import Path

from ..hwprofiles import ProfileError
from ..kernels.errors import Unavailable
from ..simulator.errors import InputError

EXPECTED = (InputError, ProfileError, Unavailable)  # whose text is for users as it is
_FORMULA = tuple("=+-@\t\r")  # what a formula may begin with


def read_json(path: str | Path, what: str):
    """The JSON document of a file that should hold ``what``. Raises InputError for what is no
    JSON, OSError for a file that cannot be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:  # whose own text holds the whole file
        raise InputError(f"{path} is not {what}: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise InputError(f"{path} is not {what}: not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{path} is not {what}: nested too deeply") from None


@contextmanager
def reading(paths, what: str):
    """For what is done with the content of a user's files, which may lack anything or hold anything
    in its place: InputError for what fails inside. Nothing is caught without files."""
    try:
        yield
    except Exception as error:
        if not paths or isinstance(error, (*EXPECTED, OSError, MemoryError)):
            raise
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{', '.join(map(str, paths))}: not {what}, whole and as measured "
                         f"({why[:200]})") from error


def output_folder(path: str) -> Path:
    """The folder, created when it is not there. Raises InputError when it cannot be written."""
    if not path:
        raise InputError("--out '' is empty; name a folder")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {path} is a file; name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: cannot create the folder ({error.strerror})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {path}: the folder is not writable")
    return folder


def output_file(path: str) -> Path:
    """The file to write. Raises InputError when it is a folder, or in none."""
    target = Path(path)
    if not path:
        raise InputError("'' is empty; name a file")
    if target.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    if not target.parent.is_dir():
        raise InputError(f"{path}: there is no folder {target.parent}")
    return target


def write_atomic(path: Path, content: str | bytes):
    """Write a file under another name first: readers see the old file or the new one, whole. What
    a link leads to is written, and a device or pipe stays what it is."""
    data = content.encode() if isinstance(content, str) else content
    named, path = path, Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            temporary.write_bytes(data)
            temporary.replace(path)
    except OSError as error:
        error.filename = str(named)  # a full disk does not say which file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def csv_text(rows: list[dict]) -> str:
    """A table as CSV: the columns of all rows in the order they appear; None is empty.

    Text that a spreadsheet would run as a formula gets an apostrophe in front (OWASP, CSV
    injection).
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return buffer.getvalue()


def _harmless(cell):
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # the csv module would end the row there
    return f"'{text}" if cell.startswith(_FORMULA) else text
