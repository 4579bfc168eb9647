"""``njit`` with an on-disk cache that sees every edit of this package.

Numba's cache checks only the file of the function itself, so a change in a module that it calls
would go on giving old counts. The cache therefore lives in a folder named by a hash of all
sources of the simulator. Numba reads the folder when a function is decorated; other packages'
setting is put back right after.
"""

import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import config as numba_config
from numba.core.registry import CPUDispatcher

config: Any = numba_config  # has its settings when it runs
Function = TypeVar("Function", bound=Callable[..., Any])

_KEEP_SECONDS = 30 * 24 * 3600


def source_hash() -> str:
    """A hash of all sources of the simulator and of Numba's version: what counts depend on."""
    digest = hashlib.sha256(f"{numba.__version__}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_root() -> Path:
    """$HBMETER_CACHE_DIR, else the user's cache folder, else (no home) a temporary one."""
    named = os.environ.get("HBMETER_CACHE_DIR")
    if named:
        return Path(named)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hbmeter"
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.gettempdir()) / f"hbmeter-{os.getuid() if hasattr(os, 'getuid') else 0}"


def _remove_stale(root: Path, keep: Path) -> None:
    """Caches of other versions that nobody has used for a month."""
    import shutil

    for folder in root.glob("numba-*"):
        if folder != keep and time.time() - folder.stat().st_mtime > _KEEP_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _prepare_cache() -> Path | None:
    """The folder, made; None where it cannot be written. (Numba would then keep its files beside
    the sources, where the trap above is open again.)"""
    root = _cache_root()
    folder = root / f"numba-{source_hash()}"
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _remove_stale(root, folder)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


CACHE_DIR = _prepare_cache()
CODE_VERSION = source_hash()  # of the code in this process, whatever is edited later


def njit(function: Function) -> Function:
    """numba.njit with the cache above, or without any where there is no place for it."""
    return _compiled(function)


def borrowing(function: Function) -> Function:
    """``njit`` for functions that only compiled code calls and that make no arrays: those they get
    are their caller's, and nobody counts references (each count is an atomic add; a third of the L2
    reader's time was that). Nothing is compiled for Python's calls: a tenth of all compilation."""
    return _for_compiled_code(_compiled(function, _nrt=False, no_cpython_wrapper=True))


def inlined(function: Function) -> Function:
    """``borrowing`` for small functions: compiled into each caller."""
    return _for_compiled_code(_compiled(function, _nrt=False, no_cpython_wrapper=True,
                                        forceinline=True))


def _compiled(function: Function, **options: Any) -> Function:
    if config.DISABLE_JIT:
        return _interpreted(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(CACHE_DIR or "")
    try:
        options |= {"cache": CACHE_DIR is not None, "nogil": True,
                    "no_cfunc_wrapper": True}  # nobody asks for C's way to call it
        compiled: Any = numba.njit(**options)(function)
        return compiled  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before


class _Inner(CPUDispatcher):
    """What compiled code calls and Python cannot: without this it would crash."""

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is for compiled code: call it in a function "
                        "of njit")


def _for_compiled_code(function: Function) -> Function:
    compiled: Any = function
    if isinstance(compiled, CPUDispatcher):
        compiled.__class__ = _Inner
    return function


def _interpreted(function: Function) -> Function:
    """With NUMBA_DISABLE_JIT=1, for debuggers and coverage: fields of records are attributes and
    whole numbers have 64 bits, as in compiled code."""
    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        return function(*map(_as_compiled, arguments))

    return run  # type: ignore[return-value]


def _as_compiled(argument: Any) -> Any:
    if type(argument) is int:
        return np.int64(argument)
    if not getattr(getattr(argument, "dtype", None), "names", None):
        return argument
    seen = argument.view((_Record, argument.dtype))
    return seen.view(_Records) if isinstance(seen, np.ndarray) else seen


class _Record(np.void):  # type: ignore[misc]
    """A record whose fields come before NumPy's own attributes, such as ``var``."""

    def __getattribute__(self, name: str) -> Any:
        fields = super().__getattribute__("dtype").names or ()
        return self[name] if name in fields else super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class _Records(np.ndarray):
    """Records whose fields are arrays of that name."""

    def __getattr__(self, name: str) -> Any:
        if name in (self.dtype.names or ()):
            return self[name]
        raise AttributeError(name)
