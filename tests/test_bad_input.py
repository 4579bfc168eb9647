"""Does every command refuse hostile and clumsy input in one line, with the right exit code?

Each case once made a traceback, hung, or gave an answer to another question than the one asked.
"""

import json
from types import SimpleNamespace

import fake_cupy
import pytest
from hbmeter import kernels
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import FOLDER
from hbmeter.kernels import runner
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

SMALL = ["--batch", "1", "--heads", "1", "--seq", "64", "--head-dim", "16"]
KERNEL_EVENT = {"ph": "X", "cat": "kernel", "name": "flash_fwd"}


def refused(capsys, *argv, code=2) -> str:
    """The one line on stderr of a command line that must fail so."""
    try:
        got = main([str(part) for part in argv])
    except SystemExit as stop:  # argparse
        got = stop.code
    captured = capsys.readouterr()
    assert (got, captured.out) == (code, "")
    assert captured.err.startswith("hbmeter") and captured.err.count("\n") == 1
    assert len(captured.err) < 600
    return captured.err


# ---- Files ----


@pytest.mark.parametrize("command", ["calibrate", "verify"])
@pytest.mark.parametrize(("content", "says"), [
    (bytes(range(128, 256)) * 40, "not UTF-8 text"),  # not the bytes themselves
    (b"", "not JSON"), (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"), (b"[1, 2]", "is not a record of hbmeter"),
    (b"null", "is not a record of hbmeter"), (b"NaN", "is not a record of hbmeter"),
])
def test_what_is_no_record(command, content, says, tmp_path, capsys):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    error = refused(capsys, command, "--recorded", path)
    assert str(path) in error and says in error


def test_a_table_that_is_none(tmp_path, capsys):
    path = tmp_path / "times.csv"
    path.write_text("seq,ms\n" + "9" * 200_000 + ",1\n")
    assert "not a table in CSV" in refused(capsys, "verify", "--times", path, *SMALL)
    long = ["--calls", "9" * 5000]
    assert "--calls: '999" in refused(capsys, "verify", "--times", path, *long)


@pytest.mark.parametrize("duration", ["Infinity", "1e400", "1e-300", "1e308", "1" + "0" * 400])
def test_a_trace_whose_time_is_none(duration, tmp_path, capsys):
    path = tmp_path / "trace.json"
    event = json.dumps(KERNEL_EVENT | {"dur": "?"}).replace('"?"', duration)
    path.write_text(f'{{"traceEvents": [{event}]}}')
    assert "in µs" in refused(capsys, "verify", "--torch", path, *SMALL)


@pytest.mark.parametrize("ms", ["nan", "inf", "-1", "0", "1e-320", "1e308", "1e400", "", "x"])
def test_a_time_in_a_table_that_is_none(ms, tmp_path, capsys):
    path = tmp_path / "times.csv"
    path.write_text(f"seq,ms\n64,{ms}\n")
    error = refused(capsys, "verify", "--times", path, *SMALL)
    assert "line 2: ms" in error and "must be a number above 0" in error


@pytest.mark.parametrize("value", ["1e400", "1e-400", "1e999999999", "9" * 400])
def test_a_counter_that_none_has(value, tmp_path, capsys):
    path = tmp_path / "export.csv"
    path.write_text('"ID","Process ID","Kernel Name","dram__bytes_read.sum"\n"","","","byte"\n'
                    f'"0","1","flash","{value}"\n')
    error = refused(capsys, "verify", "--ncu", path, *SMALL)
    assert "is not a number that a counter has" in error


def test_a_models_name_cannot_write_on_the_terminal(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "\x1b[31m\n\u202e" + "x" * 10_000, "hidden_size": 64,
                                "num_attention_heads": 2, "num_hidden_layers": 1}))
    assert main(["model", str(path), "--seq", "64"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("?[31m??xxx") and "x" * 300 not in out


def test_a_gpu_of_a_billion_sms(tmp_path, capsys):
    path = tmp_path / "wide.yaml"
    text = (FOLDER / "h200.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("sm_count: 132", "sm_count: 1_000_000_000"), encoding="utf-8")
    assert "sm_count: got 1000000000" in refused(capsys, "compare", "--gpu", path, *SMALL)


# ---- Numbers ----


@pytest.mark.parametrize("claimed", [
    ["--ms", "1e-320"], ["--ms", "1e308"], ["--tflops", "1e308"], ["--tflops", "1e-320"],
    ["--ms", "nan"], ["--ms", "-1"], ["--tflops", "0"], ["--tflops", "inf"], [],
    ["--tflops", "1", "--pass", "softmax"],
])
def test_a_claim_that_no_clock_gives(claimed, capsys):
    error = refused(capsys, "explain", "--json", *SMALL, *claimed)
    assert "--ms" in error or "--tflops" in error


@pytest.mark.parametrize("ms", ["0", "-1", "nan", "inf", "1e308"])
def test_a_known_run_that_none_was(ms, capsys):
    error = refused(capsys, "predict", "--known-ms", ms, "--known-seq", 64, *SMALL, "--json")
    assert "--known-ms" in error and "must be a time above 0" in error


def test_more_ways_to_split_than_anyone_waits_for(capsys):
    error = refused(capsys, "splits", "--batch", 1, "--heads", 1, "--head-dim", 16, "--kv-seq",
                    1 << 32)
    assert "--kv-seq 4294967296" in error and "at most 1048576 column blocks" in error


# ---- Kernels on a GPU that they are not for ----


@pytest.mark.parametrize("name", ["t4", "a100-80gb", "b200", "mi300x"])
def test_a_hopper_kernel_elsewhere(name, capsys):
    error = refused(capsys, "predict", "--kernel", "flash2_wgmma", "--gpu", name, "--seq", 512)
    assert name in error and ("needs sm_90a" in error or "CUDA" in error)


# ---- Kernels that fail on a GPU: the text that users report, as one line ----


class CompileError(Exception):
    """As CuPy's: its text is NVRTC's whole log."""


@pytest.fixture
def gpu(monkeypatch):
    """CuPy with an H200 on which kernels are only stamped."""
    found = fake_cupy.cupy([])
    found.cuda.compiler = SimpleNamespace(CompileException=CompileError)
    monkeypatch.setattr(runner, "require_gpu", lambda: found)
    runner._module.cache_clear()
    yield found
    runner._module.cache_clear()


def test_more_than_48_kib_of_shared_memory_is_asked_for_before_the_launch(gpu):  # C26
    """Without, CuPy says CUDA_ERROR_INVALID_VALUE: invalid argument."""
    kernel, tiles = kernels.get("flash2"), Tiles(128, 64)
    problem = Attention(1, 1, 256, 128)
    for function, launch in runner._functions(kernel, problem, tiles, "row", False, None)[1]:
        assert launch.shared_bytes > 48 << 10
        function((launch.grid,), (launch.threads,), (), shared_mem=launch.shared_bytes)


def test_missing_cuda_headers_are_named(gpu, monkeypatch):  # C27
    def compile_():
        raise CompileError('kernel.cu(1): warning\n/x/vector_functions.h(1): catastrophic error: '
                           'cannot open source file "vector_types.h"\n1 error detected')

    gpu.RawModule = lambda **options: SimpleNamespace(compile=compile_)
    with pytest.raises(Unavailable) as error:
        runner._module("", ())
    assert '"vector_types.h"' in str(error.value) and "pip install" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gpu_that_fails_in_mid_run_is_one_line(monkeypatch, capsys):
    class CUDADriverError(RuntimeError):
        __module__ = "cupy_backends.cuda.api.driver"

    def fails(args):
        raise CUDADriverError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure\nmore")

    monkeypatch.setattr("hbmeter.experiments.commands.gpus.run", fails)
    assert "CUDA_ERROR_LAUNCH_FAILED" in refused(capsys, "gpus", code=3)


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    def fails(args):
        raise ZeroDivisionError

    monkeypatch.setattr("hbmeter.experiments.commands.gpus.run", fails)
    with pytest.raises(ZeroDivisionError):
        main(["gpus"])


def test_with_stderr_closed_stdout_stays_for_the_answer(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    assert main(["gpus", "nope"]) == 2
    assert capsys.readouterr().out == ""


def test_a_files_own_text_in_a_message_cannot_move_the_cursor(tmp_path, capsys):
    path = tmp_path / "times.csv"
    path.write_text("\x1b[2Jheads,ms\n1,2\n", encoding="utf-8")
    assert "it has ?[2jheads, ms" in refused(capsys, "verify", "--times", path)


@pytest.mark.parametrize("given", [
    "--recorded --seq 1024", "--recorded --pass backward", "--recorded --br 64",
    "--recorded --quick", "--recorded --order head", "--recorded --blocks-per-sm 2",
    "--seq 1024", "--random 5 --seq 64",
])
def test_verify_refuses_what_its_own_points_ignore(given, capsys):
    assert main(["verify", *given.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "does nothing here" in error
    assert error.split()[1] in given
