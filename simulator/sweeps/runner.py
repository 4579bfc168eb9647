"""Runs a sweep: what the store lacks is computed, here or on workers, and kept as it comes."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import jit
from ..errors import InputError
from . import points
from .pool import open_pool
from .spec import Spec
from .store import Store

# Points of one task, by what a point costs: tens of points a second to a thousand.
L2_POINTS, CHOSEN_POINTS, PLAIN_POINTS = 1, 8, 128
TASKS_AHEAD = 4  # tasks that wait for each worker
MOST_CRASHES = 3  # of the pool of processes without a row in between


@dataclass(frozen=True)
class Outcome:
    """Points of the spec (each once): of these found in the store, computed now, and, of all of
    them, those that cannot be run (``why_not``)."""

    points: int
    found: int
    computed: int
    refused: int


def run(spec: Spec, folder: Path, *, jobs: int = 1, executor: Executor | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None) -> Outcome:
    """Compute every point of ``spec`` that ``folder``'s store lacks, and keep its row there.

    On ``jobs`` processes (1: this one), or on ``executor``, whose workers have the same code.
    Rows do not depend on either. ``on_progress`` gets the points done and those to do, now.
    Raises InputError when the store cannot be written, or workers die again and again.
    """
    profiles = {gpu: (points.profile_hash(profile), profile)
                for gpu, profile in spec.profiles.items()}
    with Store(folder) as store:
        known = store.keys()
        wanted: dict[str, dict[str, Any] | None] = {}
        for values in spec.points():
            name = points.key(values, profiles[values["gpu"]][0])
            wanted.setdefault(name, None if name in known else values)
        store.begin(_sweep_name(spec, wanted), spec, jit.CODE_VERSION, dict(profiles.values()),
                    wanted)
        missing = [(name, values) for name, values in wanted.items() if values is not None]
        total, done = len(missing), 0
        on_progress(0, total)
        for rows in _rows(_tasks(missing), profiles, jobs, executor):
            store.add(rows)
            done += len(rows)
            on_progress(done, total)
        store.commit()
        return Outcome(len(wanted), len(wanted) - total, total, store.refused())


def _sweep_name(spec: Spec, keys: Iterable[str]) -> str:
    """What one run of a spec is known by: the same for the same file and the same points."""
    return hashlib.blake2b("\0".join([spec.text, *keys]).encode(), digest_size=16).hexdigest()


def _tasks(missing: list[tuple[str, dict[str, Any]]]) -> list[list[tuple[str, dict[str, Any]]]]:
    """Neighbours in the spec together, so many that a task is worth sending."""
    tasks: list[list[tuple[str, dict[str, Any]]]] = []
    room = 0.0
    for name, values in missing:
        weight = 1 / _points_of_a_task(values)
        if room < weight / 2:
            tasks.append([])
            room = 1.0
        tasks[-1].append((name, values))
        room -= weight
    return tasks


def _points_of_a_task(values: dict[str, Any]) -> int:
    if values["engine"] != "scratchpad":
        return L2_POINTS
    chosen = None in (values["br"], values["bc"])
    return CHOSEN_POINTS if chosen or values["times"] else PLAIN_POINTS


def _rows(tasks: list[Any], profiles: dict[str, Any], jobs: int,
          executor: Executor | None) -> Iterator[list[dict[str, Any]]]:
    """The rows of each task, in the order in which they are ready."""
    if executor is not None:
        yield from _on(executor, TASKS_AHEAD * jobs, dict(enumerate(tasks)), profiles)
    elif min(jobs, len(tasks)) > 1:
        yield from _on_processes(min(jobs, len(tasks)), tasks, profiles)
    else:
        for task in tasks:
            yield points.compute(task, profiles)[1]


def _on_processes(jobs: int, tasks: list[Any],
                  profiles: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """On a pool of processes, which is opened again when a process dies."""
    left, crashes = dict(enumerate(tasks)), 0
    while left:
        before = len(left)
        with open_pool(jobs) as pool:
            try:
                yield from _on(pool, TASKS_AHEAD * jobs, left, profiles)
            except BrokenProcessPool:
                crashes = crashes + 1 if len(left) == before else 1
                if crashes >= MOST_CRASHES:
                    raise InputError("worker processes die again and again (too little memory?): "
                                     "try fewer --jobs; rows so far are kept") from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _on(executor: Executor, ahead: int, left: dict[int, Any],
        profiles: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Tasks of ``left`` (number to task) on an executor; each leaves it as its rows are given."""
    waiting, running = iter(list(left.items())), {}

    def submit_up_to(most: int) -> None:
        for number, task in waiting:
            running[executor.submit(points.compute, task, _needed(task, profiles))] = number
            if len(running) >= most:
                return

    submit_up_to(ahead)
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            number = running.pop(future)
            code, rows = future.result()
            if code != jit.CODE_VERSION:
                raise InputError(f"a worker runs other code ({code}) than this process "
                                 f"({jit.CODE_VERSION}): install the same hbmeter on both")
            del left[number]
            yield rows
        submit_up_to(ahead)


def _needed(task: Any, profiles: dict[str, Any]) -> dict[str, Any]:
    return {values["gpu"]: profiles[values["gpu"]] for _, values in task}


