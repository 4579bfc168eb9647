"""Worker processes of this machine, which never outlive the process that started them."""

import os
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process
from typing import Any


def open_pool(jobs: int) -> Executor:
    """``jobs`` processes, started anew (spawn), so that no thread or lock is copied."""
    return _Pool(jobs, mp_context=get_context("spawn"), initializer=_prepare)


class _Pool(ProcessPoolExecutor):
    """Starts its processes, which a submit does, with SIGINT blocked: a terminal sends Ctrl-C to
    them too, and until _prepare runs they would end with a traceback."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(*args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
