"""The command ``hbmeter``: subcommands are found by listing ``commands/``.

Exit codes: 0 done; 1 a check or comparison failed; 2 bad input; 3 what it needs is not there.
"""

import argparse
import atexit
import errno
import gc
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

# Before NumPy, whose threads for the small products of tiles wait for each other, and Matplotlib.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "agg"  # no figure needs a window, or the backend that a notebook names

from ..hwprofiles import ProfileError
from ..kernels.errors import Unavailable
from ..simulator.errors import InputError, unknown_name
from .progress import Heartbeat

DONE, BAD_INPUT, UNAVAILABLE = 0, 2, 3  # 1 is a command's own answer
# Objects between two looks for cycles: importing Numba makes some 100,000, and none is garbage.
COLLECT_AFTER = 100_000


def command_names() -> list[str]:
    """Subcommands: the modules of commands/."""
    return sorted(f.stem for f in (Path(__file__).parent / "commands").glob("[!_]*.py"))


class _Parser(argparse.ArgumentParser):
    """One line on stderr instead of the usage text, with the nearest name that there is."""

    def parse_args(self, args=None, namespace=None):
        """Of the whole line; what the command does not know, the command tells."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = self.commands[found.command]
            near = get_close_matches(unknown[0].partition("=")[0], command.option_strings(), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found

    def option_strings(self) -> list[str]:
        """--help and all others."""
        return list(self._option_string_actions)

    def _check_value(self, action, value):
        """One of an option's choices, or a command."""
        if action.choices is not None and value not in action.choices:
            kind = "command" if action.dest == "command" else "value"
            raise argparse.ArgumentError(action, str(unknown_name(kind, value, action.choices)))

    def error(self, message):
        print(_printable(f"{self.prog}: {message} (see {self.prog} --help)"), file=sys.stderr)
        raise SystemExit(BAD_INPUT)

    def _print_message(self, message, file=None):
        """Help and version; argparse's own drops what cannot be written."""
        (file or sys.stderr).write(message)


def parser() -> argparse.ArgumentParser:
    """The whole command line; importing a command's module must stay cheap."""
    top = _Parser(
        prog="hbmeter",
        description="Bytes, block sizes and hardware evidence for attention on GPUs.",
        epilog="example: hbmeter compare --gpu h200 --seq 8192 --head-dim 128 --mask causal",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"hbmeter {version('hbmeter')}")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in command_names():
        module = import_module(f".commands.{name}", __package__)
        summary = module.__doc__.strip().splitlines()[0]
        child = sub.add_parser(
            name, help=summary, description=module.__doc__.strip(), allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    top.commands = sub.choices
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command; never a traceback for what the user or the machine got wrong."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)  # at the end, nothing needs to be looked through for the last time
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without × or µ gets a ?
    try:
        try:
            args = parser().parse_args(argv)
            with Heartbeat(args.command):
                return args.run(args) or DONE
        finally:
            sys.stdout.flush()  # here, where what goes wrong has a message
    except InputError as error:
        from .options import as_options
        return _fail(BAD_INPUT, as_options(str(error)))
    except ProfileError as error:
        return _fail(BAD_INPUT, error)
    except Unavailable as error:
        return _fail(UNAVAILABLE, error)
    except BrokenPipeError:
        _drop_stdout()
        return DONE
    except MemoryError as error:
        return _fail(BAD_INPUT, f"too large for this machine's memory: {error}")
    except OSError as error:
        if error.errno == errno.ENOSPC and not error.filename:
            _drop_stdout()
        return _fail(BAD_INPUT, f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("cupy", "cupy_backends"):
            raise  # a mistake of ours
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return _fail(UNAVAILABLE, f"the GPU failed: {why}; nvidia-smi shows whether it is there "
                                  "and who else uses it")
    except KeyboardInterrupt:
        print("hbmeter: stopped", file=sys.stderr)
        return 130


def _drop_stdout():
    """Nobody reads on, or there is no room: Python's own flush at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(code: int, error) -> int:
    print(_printable(f"hbmeter: {error}"), file=sys.stderr)
    return code


def _printable(message: str) -> str:
    """The message when a file's own text in it could move the terminal's cursor."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in message)


if __name__ == "__main__":
    raise SystemExit(main())
