"""Does a user's own Nsight Compute export get the right verdict? All exports are synthetic."""

import json

import pytest
from hbmeter.experiments import cli, ncu, own_export
from hbmeter.experiments.ncu_csv import Profiled
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, Tiles, traffic

PROBLEM = Attention(1, 4, 256, 64)
SHAPE = ("--batch", 1, "--heads", 4, "--seq", 256, "--head-dim", 64, "--br", 64, "--bc", 64)


def run(capsys, *arguments):
    code = cli.main(["verify", *map(str, arguments)])
    return code, *capsys.readouterr()


def export(path, factor=1.0, extra="", **changes):
    point = traffic("flash2", PROBLEM, load("h200"), Tiles(64, 64))
    values = {ncu.SM_READ: point["sm"]["read_bytes"] * factor,
              ncu.SM_WRITE: point["sm"]["write_bytes"],
              ncu.DRAM_READ: point["dram"]["read_bytes"]} | changes
    cells = [f"{value / 1e6:.6f}" for value in values.values()]
    head = ["ID", "Process ID", "Kernel Name", *values]
    rows = [head, ["", "", "", *["Mbyte"] * len(values)], ["0", "1", "my_fa<64, 2>(int)", *cells]]
    path.write_text("\n".join(",".join(f'"{x}"' for x in row) for row in rows) + extra)
    return path


def test_own_export_that_agrees(tmp_path, capsys):
    code, out, _ = run(capsys, "--ncu", export(tmp_path / "e.csv"), *SHAPE)
    assert code == 0 and out.count("  agrees") == 3
    assert "not in the export: add dram__bytes_write.sum" in out


def test_own_export_that_differs_names_the_boundary_and_causes(tmp_path, capsys):
    code, out, _ = run(capsys, "--ncu", export(tmp_path / "e.csv", 1.2), *SHAPE)
    assert code == 1 and out.count("DIFFERS") == 1
    assert "SM read: other tiles or schedule" in out


def test_own_export_json_and_calls(tmp_path, capsys):
    path = export(tmp_path / "e.csv", 2.0)
    code, out, _ = run(capsys, "--ncu", path, *SHAPE, "--calls", 2, "--json")
    lines = {x["boundary"]: x for x in json.loads(out)["boundaries"]}
    assert lines["SM read"]["agrees"] is True and lines["SM write"]["agrees"] is False
    assert code == 1


def test_a_rounded_export_is_judged_with_its_rounding(tmp_path):
    point = {"sm": {"read_bytes": 104, "write_bytes": 1}, "l2": None, "dram": None}
    launch = Profiled("x", {ncu.SM_READ: 100}, {ncu.SM_READ: 5.0})
    assert own_export.compare([launch], point)[0]["agrees"] is True
    exact = Profiled("x", {ncu.SM_READ: 100}, {ncu.SM_READ: 0.0})
    assert own_export.compare([exact], point)[0]["agrees"] is False


def test_a_spilling_kernel_is_named_as_a_cause(tmp_path, capsys):
    path = export(tmp_path / "e.csv", 1.2, **{ncu.LOCAL: 5e6})
    _, out, _ = run(capsys, "--ncu", path, *SHAPE)
    assert "spills registers" in out


def test_several_launches_are_predicted_with_the_cache_flushed_before_each(tmp_path, capsys):
    arguments = ("standard", PROBLEM, load("h200"), Tiles(64, 64))
    cold = own_export.predict(*arguments, "row", 2)["dram"]["read_bytes"]
    warm = traffic(*arguments, order="row", blocks_per_sm=2)["dram"]["read_bytes"]
    score_bytes = 4 * 256 * 256 * 2
    assert cold == warm + 2 * score_bytes  # S and P are fetched again


def test_no_such_file(tmp_path, capsys):
    assert run(capsys, "--ncu", tmp_path / "none.csv")[0] == 2


@pytest.mark.parametrize("arguments, words", [
    (("--kernel", "gemm"), "it has my_fa"), (("--kernel", "("), "regular expression"),
    (("--schedule", "flsh2"), "did you mean"),
])
def test_own_export_bad_input(tmp_path, capsys, arguments, words):
    code, _, err = run(capsys, "--ncu", export(tmp_path / "e.csv"), *SHAPE, *arguments)
    assert code == 2 and words in err


def test_own_export_without_boundary_counters(tmp_path, capsys):
    path = tmp_path / "e.csv"
    path.write_text('"ID","Process ID","Kernel Name","sm__x.sum"\n"0","1","k","3"\n')
    code, _, err = run(capsys, "--ncu", path, *SHAPE)
    assert code == 2 and ncu.SM_READ in err
