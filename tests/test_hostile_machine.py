"""Do commands fail well on machines that take away disk, locale, home, display, clock or GPU?"""

import builtins
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hbmeter.experiments.cli import main
from hbmeter.experiments.files import write_atomic
from hbmeter.kernels import runner
from hbmeter.simulator.sweeps import store

SPEC = """title: "<b>../../x</b> µ"
common: {engine: scratchpad, br: 64, bc: 64, heads: 1, batch: 1, head_dim: 16}
grid: {seq: [64, 128], schedule: [flash1, flash2]}
"""


def refused(capsys, *argv, code=2) -> str:
    """The one line on stderr of a command line that must fail so."""
    assert main([str(part) for part in argv]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("hbmeter: ") and captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


# ---- Disk ----


def test_a_disk_that_fills_up_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.html"
    path.write_text("old")

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    error = refused(capsys, "animate", "--seq", 32, "--br", 16, "--bc", 16, "--head-dim", 8,
                    "--out", path)
    assert str(path) in error and "No space left" in error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_write_that_is_interrupted_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a folder that nobody can write")
@pytest.mark.parametrize("command", ["sweep", "animate"])
def test_a_place_that_cannot_be_written(command, spec, capsys):
    argv = [spec] if command == "sweep" else ["--seq", 32, "--br", 16, "--bc", 16]
    assert "/proc/nowhere" in refused(capsys, command, *argv, "--out", "/proc/nowhere/x")


def test_a_sweep_stays_in_its_folder_whatever_its_title(spec, tmp_path, capsys):
    assert main(["sweep", str(spec), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"spec.yaml", "out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {
        "sweep.sqlite", "sweep.sqlite-wal", "sweep.sqlite-shm", "sweep.lock"}


@pytest.mark.parametrize("gpu", [r"C:\\gpus\\h200.yaml", r"..\\h200.yaml", r"\\\\host\\x.yaml"])
def test_a_path_as_windows_writes_it(gpu, spec, capsys, tmp_path):
    spec.write_text(f'points: [{{gpu: "{gpu}", seq: 64}}]', encoding="utf-8")
    error = refused(capsys, "sweep", spec, "--out", tmp_path / "out")
    assert "points.0.gpu.0" in error and "cannot be read" in error


# ---- Locale, home, display, clock ----


def test_without_home_display_and_utf8(spec, tmp_path):
    keep = {name: value for name, value in os.environ.items()
            if name not in ("HOME", "DISPLAY", "XDG_CACHE_HOME", "LANG", "HBMETER_CACHE_DIR")}
    bare = keep | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
                   "NUMBA_DISABLE_JIT": "1"}
    script = "import sys; from hbmeter.experiments.cli import main; sys.exit(main(sys.argv[1:]))"
    for argv in (["sweep", spec, "--out", tmp_path / "out"], ["table", tmp_path / "out"],
                 ["gpus", "h200"]):
        done = subprocess.run([sys.executable, "-c", script, *map(str, argv)], env=bare,
                              capture_output=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii() or argv[0] == "gpus"


def test_a_clock_that_goes_back_loses_no_row(spec, tmp_path, monkeypatch, capsys):
    moments = iter(range(10_000, 0, -7))
    monkeypatch.setattr(time, "time", lambda: float(next(moments)))
    monkeypatch.setattr(store.time, "monotonic", lambda: float(next(moments)))
    assert main(["sweep", str(spec), "--out", str(tmp_path / "out")]) == 0
    rows = store.read_only(tmp_path / "out").execute("SELECT count(*) FROM points").fetchone()
    assert rows == (4,)


# ---- GPU ----

ADVICE = """
================================================================
Failed to import CuPy.

If you installed CuPy via wheels (cupy-cudaXXX), make sure that the package matches.

Original error:
  ImportError: {why}
================================================================
"""


@pytest.mark.parametrize("why", [
    "libcuda.so.1: cannot open shared object file", "libnvrtc.so.12: version mismatch",
])
def test_a_cupy_that_does_not_fit_is_one_line(why, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "cupy":
            raise ImportError(ADVICE.format(why=why))
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(runner.Unavailable) as error:
        runner.require_gpu()
    text = str(error.value)
    assert "\n" not in text and why in text and "only one of the two" in text


@pytest.mark.parametrize("failure", [
    "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    "cudaErrorMemoryAllocation: out of memory", "CUDA_ERROR_LAUNCH_FAILED: unspecified failure",
])
@pytest.mark.parametrize("module", ["cupy_backends.cuda.api.runtime", "cupy.cuda.memory"])
def test_what_a_gpu_says_is_one_line_and_exit_3(failure, module, monkeypatch, capsys):
    kind = type("CUDARuntimeError", (RuntimeError,), {"__module__": module})

    def fails(args):
        raise kind(failure + "\nmore")

    monkeypatch.setattr("hbmeter.experiments.commands.gpus.run", fails)
    assert failure in refused(capsys, "gpus", code=3)
