"""The installed command: Ctrl-C is heard from here on, while the imports run that take time."""

import os
import signal
import sys

STOPPED = 130  # what shells say of a command that SIGINT ended


def main() -> int:
    """Run the command line; its exit code.

    SIGINT ends it in one line: at once while modules are imported and when the command has ended,
    as the command's KeyboardInterrupt in between.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, say by nohup
        from .cli import main
        return main()
    signal.signal(signal.SIGINT, _stop)
    sys.unraisablehook = _unraisable
    from .cli import main
    interrupted = False

    def interrupt(*_):
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, interrupt)
        return main()
    except BaseException:  # an extension module that is being imported makes an ImportError of it
        if not interrupted:
            raise
        _stop()
    finally:
        signal.signal(signal.SIGINT, _stop)


def _stop(*_) -> None:
    os.write(2, b"hbmeter: stopped\n")
    os._exit(STOPPED)


def _unraisable(found) -> None:
    """A KeyboardInterrupt in a callback, such as importlib's for its locks, would be lost."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        _stop()
    sys.__unraisablehook__(found)
