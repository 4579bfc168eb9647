"""Compiled work in a thread of its own, so that its caller hears Ctrl-C and can show progress."""

from concurrent.futures import ThreadPoolExecutor, wait

WAIT_SECONDS = 0.1  # between looks at the work


def run_heard(work, arguments, control, on_progress):
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
