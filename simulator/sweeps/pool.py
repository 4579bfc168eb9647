"""Worker processes of this machine, which never outlive the process that started them."""

import os
import signal
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from typing import Any


def open_pool(jobs: int) -> Executor:
    """``jobs`` processes, started anew (spawn), so that no thread or lock is copied."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _prepare() -> None:
    """Ctrl-C is the parent's to handle; when the parent is gone, whatever killed it, so are we."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(parent_process(),), daemon=True).start()


def _follow(parent: Any) -> None:
    connection.wait([parent.sentinel])
    os._exit(1)
