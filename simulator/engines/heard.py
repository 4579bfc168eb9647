"""Compiled work in threads of its own, so that its caller hears Ctrl-C and can show progress."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")
GoOn = Callable[[float], object]

WAIT_SECONDS = 0.1  # between looks at the work


def run_heard(work: Callable[..., object], arguments: tuple[Any, ...], control: np.ndarray,
              on_progress: GoOn) -> Any:
    """``work(*arguments)``; ``control`` is a record that the work shares: it sets ``issued`` (of
    ``total``) as it goes, and ends early when ``stop`` is set.

    ``on_progress`` gets the share that is done every WAIT_SECONDS. What it raises ends the work, as
    Ctrl-C does.
    """
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work, *arguments)
        try:
            while not wait([running], WAIT_SECONDS).done:
                on_progress(int(control["issued"]) / int(control["total"]))
        except BaseException:
            control["stop"] = True
            raise
    return running.result()


def side_by_side(work: Callable[[Item, GoOn], Result],
                 items: Iterable[Item]) -> Iterator[Result]:
    """``work(item, go_on)`` for each item in threads: the results in order, as they are there.

    Work that calls ``go_on(share)`` now and then (as ``run_heard`` does with its ``on_progress``)
    ends when another item fails, the caller stops listening, or Ctrl-C, which reaches the main
    thread only.
    """
    stopped = Event()

    def go_on(share: float) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(work, item, go_on) for item in items]
        try:
            for future in running:
                yield future.result()
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
