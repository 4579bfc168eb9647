"""Does every command say on a terminal that it is at work, and nothing where there is none?"""

import os
import pty
import subprocess
import sys
import threading

import pytest
from hbmeter.experiments.cli import command_names

# A command whose work is to sleep, with little patience; in a process of its own, whose standard
# output and error are a terminal or pipes.
SLOW = """
import argparse, sys, time
from importlib import import_module
from hbmeter.experiments import cli, progress
progress.PATIENCE_SECONDS, progress.BEAT_SECONDS = 0.1, 0.02
module = import_module("hbmeter.experiments.commands." + sys.argv[1])
def slow(args):
    line = progress.Progress(sys.stderr)
    if sys.argv[2] == "fails":
        time.sleep(0.4)
        raise cli.InputError("wrong")
    for number in range(20 if sys.argv[2] == "tells" else 0):
        line.start("stage", 20); line.step(number, "point"); time.sleep(0.02)
    time.sleep(0.4 if sys.argv[2] == "silent" else 0)
    line.end()
    print("the answer")
def parse(argv):
    return argparse.Namespace(command=sys.argv[1], run=slow)
cli.parser = lambda: argparse.Namespace(parse_args=parse)
sys.exit(cli.main([]))
"""


def at_a_terminal(*argv) -> str:
    """All that a terminal gets."""
    ours, theirs = pty.openpty()
    got = []

    def read():
        try:
            while data := os.read(ours, 4096):
                got.append(data)
        except OSError:  # the other side is closed: Linux
            pass

    reader = threading.Thread(target=read)
    reader.start()
    subprocess.run([sys.executable, "-c", SLOW, *argv], stdout=theirs, stderr=theirs, check=False)
    os.close(theirs)
    reader.join()
    os.close(ours)
    return b"".join(got).decode()


@pytest.mark.parametrize("command", command_names())
def test_a_silent_command_is_seen_to_work_and_its_line_goes(command):
    shown = at_a_terminal(command, "silent")
    assert f"hbmeter {command}: at work for 0 s" in shown
    assert shown.endswith("\x1b[Kthe answer\r\n")


def test_a_command_that_tells_how_far_it_is_needs_no_more():
    shown = at_a_terminal("traffic", "tells")
    assert "at work" not in shown and "stage: 20 of 20" in shown


def test_a_mistake_stands_on_a_line_of_its_own():
    shown = at_a_terminal("traffic", "fails")
    assert "at work" in shown and shown.endswith("\x1b[Khbmeter: wrong\r\n")


@pytest.mark.parametrize("how", ["silent", "tells"])
def test_without_a_terminal_there_is_only_the_answer(how):
    done = subprocess.run([sys.executable, "-c", SLOW, "traffic", how], capture_output=True,
                          text=True, check=False)
    assert (done.stdout, done.stderr) == ("the answer\n", "")
