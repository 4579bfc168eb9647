"""Does every command answer, refuse bad input in one line, and keep stdout for the answer?"""

import json
import re
import subprocess
import sys

import pytest
from hbmeter.experiments.cli import command_names, main
from hbmeter.hwprofiles import FOLDER
from hbmeter.hwprofiles import names as gpu_names
from hbmeter.simulator import schedules

SMALL = ["--batch", "1", "--heads", "2", "--seq", "256", "--head-dim", "64"]
TRAFFIC_KEYS = {
    "gpu", "schedule", "problem", "tiles", "order", "blocks_per_sm", "flops",
    "smem_bytes_per_block", "footprint_bytes", "sm", "l2", "dram", "compulsory", "time",
}


def output(capsys, *argv):
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", command_names())
def test_help_teaches_by_an_example(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"hbmeter {name}" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", schedules.names())
def test_traffic_keeps_the_contract(schedule, capsys):
    code, out, _ = output(capsys, "traffic", "--schedule", schedule, *SMALL, "--json")
    point = json.loads(out)
    assert code == 0 and point.keys() >= TRAFFIC_KEYS
    time = point["time"]
    assert time["predicted_s"] is None or time["predicted_s"] >= time["bound_s"]  # never 0
    assert point["sm"]["read_bytes"] == sum(
        tensor["read_bytes"] for tensor in point["sm"]["by_tensor"].values())


def test_without_the_l2_engine_its_parts_are_null(capsys):
    _, out, _ = output(capsys, "traffic", "--schedule", "flash2", *SMALL, "--json", "--engine",
                       "scratchpad")
    point = json.loads(out)
    assert point["l2"] is None and point["dram"] is None


@pytest.mark.parametrize("gpu", gpu_names())
def test_every_gpu_runs_every_schedule(gpu, capsys):
    code, out, _ = output(capsys, "compare", "--gpu", gpu, *SMALL, "--json")
    assert code == 0 and len(json.loads(out)) == 4


@pytest.mark.parametrize(("argv", "says"), [
    (["--seq", "0"], "seq 0 must be a whole number from 1"),
    (["--seq", "-5"], "seq -5 must be"),
    (["--heads", "16", "--kv-heads", "3"], "heads 16 is not divisible by --kv-heads 3"),
    (["--kv-seq", "0"], "hbmeter: --kv-seq 0 must be"), (["--value-dim", "0"], "--value-dim 0"),
    (["--kv-order", "up"], "hbmeter: --kv-order 'up' is not known"),
    (["--page-size", "16"], "schedule flash2 takes no --page-size; paged does"),
    (["--mask", "window:0"], "mask 'window:0' is not known"),
    (["--seq", "100000000"], "too large"),
    (["--gpu", "h20"], "h200"),
    (["--blocks-per-sm", "0"], "--blocks-per-sm 0"),
    (["--br", "256", "--bc", "128", "--stages", "4"],
     "flash2: Br 256, Bc 128, 4 stages need 327,680 B of shared memory, h200 allows 232,448; "
     "the largest Bc that fits is 80"),
    (["--br", "0", "--bc", "16"], "br 0 must be a whole number"),
    (["--stages", "0"], "stages 0 must be a whole number"),
    (["--br", "100000000", "--bc", "100000000"], "no smaller Br or Bc alone fits"),
    (["--blocks-per-sm", "33"], "from 1 to 32, the most of h200"),
    (["--batch", "1", "--heads", "1", "--head-dim", "1", "--kv-seq", "1", "--seq",
      "10000000000000"], "seq 10000000000000 is too large: it is at most 2^32"),
    (["--seeds", "0"], "hbmeter: --seeds 0 must be"),
    (["--gpu", "."], "unknown GPU '.'"), (["--gpu", "/"], "is a folder"),
])
def test_bad_input_gets_one_line(argv, says, capsys):
    code, out, err = output(capsys, "traffic", "--schedule", "flash2", *argv)
    assert code == 2 and out == "" and says in err
    assert err.count("\n") == 1


def test_a_type_that_the_gpu_has_no_units_for_is_said(capsys):
    code, out, err = output(capsys, *POINT, "--gpu", "v100", "--dtype", "bf16", "--json")
    assert code == 0 and json.loads(out)["problem"]["dtype"] == "bf16"
    assert " has no units for bf16: " in err and err.count("\n") == 1
    assert output(capsys, *POINT, "--gpu", "v100")[2] == ""


@pytest.mark.parametrize(("argv", "says"), [
    (["trafic"], "hbmeter: argument COMMAND: unknown command 'trafic'; did you mean 'traffic'?"),
    (["explain", "--tflop", "3"], "hbmeter explain: unrecognized arguments: --tflop 3; did you "
                                  "mean --tflops? (see hbmeter explain --help)"),
    (["gpus", "h200", "l4"], "hbmeter gpus: unrecognized arguments: l4 (see hbmeter gpus --help)"),
    (["compare", "--engine", "l2tile"], "unknown value 'l2tile'; did you mean 'l2-tile'?"),
])
def test_an_unknown_word_of_the_command_line_names_the_nearest(argv, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    captured = capsys.readouterr()
    assert stop.value.code == 2 and captured.out == ""
    assert says in captured.err and captured.err.count("\n") == 1


def test_an_unknown_schedule_names_the_nearest(capsys):
    code, _, err = output(capsys, "traffic", "--schedule", "flsh2")
    assert code == 2 and "did you mean 'flash2'?" in err


def test_a_check_that_passes_and_its_error(capsys):
    code, out, _ = output(capsys, "check", "--schedule", "flash1", "--dtype", "fp64", "--seq",
                          "65", "--kv-seq", "33", "--mask", "causal", "--json")
    result = json.loads(out)
    assert code == 0 and result["passed"] and result["relative_error"] <= 1e-12


def test_the_rules_are_marked_among_the_blocks(capsys):
    code, out, _ = output(capsys, "blocks", *SMALL, "--json")
    found = json.loads(out)
    assert code == 0 and {"M/3d", "M/4d", "least traffic"} <= found["marks"].keys()
    assert all(row["fits"] == (row["why_not"] is None) for row in found["blocks"])


# ---- What a user's machine or file does ----

POINT = ["traffic", "--schedule", "flash2", *SMALL, "--engine", "scratchpad"]


@pytest.mark.parametrize("seq", ["1e3", "x", "٣", "1__0", "", "9" * 5000])
def test_what_is_no_whole_number_is_refused(seq, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["traffic", "--schedule", "flash2", "--seq", seq])
    captured = capsys.readouterr()
    assert stop.value.code == 2 and captured.out == ""
    assert "--seq" in captured.err and "is not a whole number" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("argv", [
    ["--mask", "causal", "--kv-seq", "7"], ["--mask", "window:1"], ["--seq", "1"],
    ["--kv-seq", "1"], ["--mask", f"window:{10**12 - 1}"], ["--br", "1", "--bc", "3"],
    ["--head-dim", "77", "--value-dim", "33"], ["--dtype", "fp64", "--gpu", "rtx4090"],
    ["--br", "1000", "--bc", "16"],
])
def test_shapes_at_the_edges_give_finite_numbers(argv, capsys):
    code, out, err = output(capsys, *POINT[:-2], *argv, "--json")
    point = json.loads(out, parse_constant=pytest.fail)
    assert code == 0 and err == "" and point["time"]["bound_s"] > 0


def test_a_check_takes_no_seed_below_0_nor_a_shape_for_hours(capsys):
    code, _, err = output(capsys, "check", "--schedule", "flash2", "--seed", "-1")
    assert code == 2 and "--seed -1" in err
    code, _, err = output(capsys, "check", "--schedule", "flash2", "--seq", "100000")
    assert code == 2 and "20,000,000,000 (query, key) pairs" in err


def test_compare_says_at_once_that_a_schedule_fits_nowhere(capsys):
    code, out, err = output(capsys, "compare", "--seq", "300", "--head-dim", "40000")
    assert code == 2 and out == "" and "no tile fits h200" in err


def test_a_cache_larger_than_memory_is_one_line(tmp_path, capsys):
    text = (FOLDER / "h200.yaml").read_text()
    text = re.sub(r"(?m)^( *size_bytes:).*", rf"\1 {2**53}", text)
    path = tmp_path / "huge.yaml"
    path.write_text(text)
    code, out, err = output(capsys, *POINT[:-2], "--gpu", str(path))
    assert code == 2 and out == "" and "memory" in err and err.count("\n") == 1


@pytest.mark.parametrize("change", [
    lambda record: record["provenance"].pop("gpu"),
    lambda record: record["points"][0].update(attributes=[]),
    lambda record: record["points"][0].update(error={}),
    lambda record: record["points"][0].pop("counters"),
])
def test_a_record_that_is_broken_is_refused(change, tmp_path, capsys):
    point = {"kernel": "flash2", "problem": {"seq": 64}, "tiles": {"br": 64, "bc": 64},
             "order": "row", "blocks_per_sm": None, "attributes": {}, "times_ms": [],
             "error": {"O": {"written": True, "relative": 0.0}}, "counted": {}, "counters": []}
    record = {"provenance": {"format": 1, "gpu": "NVIDIA H200"}, "points": [point]}
    change(record)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    code, out, err = output(capsys, "verify", "--recorded", str(path))
    assert code == 2 and out == "" and "is not a record of hbmeter verify" in err


@pytest.mark.parametrize("argv", [["verify", "--quick"], ["bench"], ["verify", "--out", "x.json"]])
def test_without_a_gpu_the_remedy_is_said(argv, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, out, err = output(capsys, *argv)
    assert code == 3 and out == "" and "pip install" in err


def test_report_wants_a_folder_that_can_be_written(capsys, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    for out in ("", str(path), str(path / "inside")):
        assert output(capsys, "report", "--out", out)[0] == 2


def shell(script, **environment):
    """Run a shell line in which $HB is the command, with Python's own buffering."""
    line = f"HB='{sys.executable} -m hbmeter.experiments.cli'; {script}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", **environment}, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("script", [
    "$HB gpus | true", "$HB gpus | head -1 > /dev/null", "$HB gpus --json | head -1 > /dev/null",
    "$HB --help | true", "$HB gpus --json >&-",
])
def test_a_reader_that_leaves_early_is_no_failure(script):
    done = shell(script + "; test ${PIPESTATUS[0]} = 0")
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["gpus", "--help", "sweep --help", "--version"])
def test_a_full_disk_is_one_line(arguments):
    done = shell(f"$HB {arguments} > /dev/full")
    assert done.returncode == 2 and done.stderr == "hbmeter: output: No space left on device\n"


def test_a_terminal_without_unicode_and_without_a_home():
    done = shell(f"$HB {' '.join(POINT)}", PYTHONIOENCODING="ascii", HOME="/nonexistent",
                 NUMBA_DISABLE_JIT="1")  # without a home nothing compiled is kept
    assert done.returncode == 0 and done.stderr == "" and done.stdout.isascii()
