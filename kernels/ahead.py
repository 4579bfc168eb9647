"""Builds many kernels side by side, into the cache that CuPy keeps on disk, so that running them
one after the other waits for no compiler."""

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context

from ..simulator.problem import Attention
from ..simulator.tiles import Tiles
from . import get

LEAST_EACH = 2  # builds that are worth starting a process for


def build_ahead(builds: list[tuple[str, Attention, Tiles, str, bool]], report,
                meanwhile=lambda: None):
    """Builds (kernel name, problem, tiles, order, count) on all CPU cores; what ``meanwhile``
    returns, which is called here before waiting for them.

    What cannot be built is left to whoever runs it, who hears why. ``report`` as
    experiments.progress.Progress.
    """
    builds = list({_options(*build): build for build in builds}.values())
    workers = min(os.cpu_count() or 1, len(builds) // LEAST_EACH)
    if workers < 2:
        return meanwhile()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        jobs = [pool.submit(_build, *build) for build in builds]
        result = meanwhile()
        report.start("compiling", len(builds))
        for number, _ in enumerate(as_completed(jobs)):
            report.done(number + 1)
    report.end()
    return result


def _options(name: str, problem: Attention, tiles: Tiles, order: str, count: bool) -> tuple:
    """What tells one build from another."""
    return name, *get(name).options(problem, tiles, count, order)


def _build(name: str, problem: Attention, tiles: Tiles, order: str, count: bool) -> None:
    """In a process of its own."""
    from . import runner

    with suppress(Exception):  # the same build fails again, in words, when it is run
        runner.attributes(get(name), problem, tiles, order, count)
