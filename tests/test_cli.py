"""Does every command answer, refuse bad input in one line, and keep stdout for the answer?"""

import json

import pytest
from hbmeter.experiments.cli import command_names, main
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
    assert point["time"]["predicted_s"] is None  # not computed: null, never 0
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
    (["--heads", "16", "--kv-heads", "3"], "heads 16 is not divisible by kv_heads 3"),
    (["--mask", "window:0"], "mask 'window:0' is not known"),
    (["--seq", "100000000"], "too large"),
    (["--gpu", "h20"], "h200"),
    (["--blocks-per-sm", "0"], "blocks_per_sm 0"),
    (["--br", "256", "--bc", "128", "--stages", "4"],
     "flash2: Br 256, Bc 128, 4 stages need 327,680 B of shared memory, h200 allows 232,448; "
     "the largest Bc that fits is 80"),
    (["--br", "0", "--bc", "16"], "br 0 must be a whole number"),
])
def test_bad_input_gets_one_line(argv, says, capsys):
    code, out, err = output(capsys, "traffic", "--schedule", "flash2", *argv)
    assert code == 2 and out == "" and says in err
    assert err.count("\n") == 1


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
