"""Does Ctrl-C end the command in one line, whatever it is at: imports, work, its own end?"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hbmeter.simulator.sweeps.pool import open_pool

COMMAND = [sys.executable, str(Path(__file__).parent.parent / "__main__.py")]
# Sends SIGINT when the module WHERE is imported, or at exit; HOW says what becomes of it.
SCRIPT = """
import atexit, signal, sys
where, how = sys.argv.pop(1), sys.argv.pop(1)

class Lost:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        len("what is raised here goes nowhere")

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == where and how == "callback":
            Lost()
        elif name == where and how == "import error":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                raise ImportError("numba._devicearray failed to import") from error
        elif name == where:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
if where == "exit":
    atexit.register(signal.raise_signal, signal.SIGINT)
from hbmeter.experiments.start import main
sys.exit(main())
"""
TRAFFIC = ["traffic", "--schedule", "flash2", "--seq", "64", "--engine", "scratchpad"]


def stopped(where, how="plain"):
    return subprocess.run([sys.executable, "-c", SCRIPT, where, how, *TRAFFIC], text=True,
                          capture_output=True, timeout=120)


@pytest.mark.parametrize(("where", "how"), [
    ("hbmeter.experiments.cli", "plain"),  # the first imports
    ("numpy", "plain"),
    ("hbmeter.experiments.commands.traffic", "plain"), ("numba", "plain"),  # those of the command
    ("numba", "callback"), ("numba", "import error"),
    ("exit", "plain"),
])
def test_ctrl_c_says_one_line_and_exits_with_130(where, how):
    run = stopped(where, how)
    assert (run.returncode, run.stderr) == (130, "hbmeter: stopped\n")


def test_who_ignores_ctrl_c_is_not_stopped():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child's too, as under nohup
    try:
        run = stopped("numba")
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.returncode == 0 and run.stdout.startswith("flash2 on h200")


def test_the_command_runs_as_a_module():
    run = subprocess.run([*COMMAND, "gpus", "h200"], text=True, capture_output=True, timeout=120)
    assert run.returncode == 0 and run.stdout.startswith("NVIDIA H200")


def blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal mask")
def test_workers_leave_ctrl_c_to_their_parent_from_their_first_instruction():
    with open_pool(1) as pool:
        assert pool.submit(blocked).result()
    assert not blocked()
