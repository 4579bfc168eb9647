"""Does a sweep refuse what it cannot run, say what traffic says, and compute each point once?"""

import json
import re
from pathlib import Path

import hbmeter.experiments
import numpy as np
import pytest
from hbmeter.experiments.commands import sweep as command
from hbmeter.hwprofiles import FOLDER, load
from hbmeter.simulator import Attention, Tiles, jit, traffic
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.sweeps import points, runner, spec, store, table

SPECS = Path(hbmeter.experiments.__file__).parent / "specs"
SHAPES = {"batch": 1, "heads": 2, "head_dim": 64, "engine": "scratchpad"}
SMALL = {"common": SHAPES, "grid": {"schedule": ["flash1", "flash2"], "seq": [100, 256, 512],
                                    "mask": ["full", "causal"], "br": [32, 64], "bc": [32, 64]}}


def swept(source, folder, **how) -> runner.Outcome:
    folder.mkdir(exist_ok=True)
    return runner.run(spec.read(source), folder, **how)


def refusal(source) -> str:
    with pytest.raises(InputError) as caught:
        spec.read(source)
    return str(caught.value)


def written(folder, text) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- What a spec may hold ----

def test_all_mistakes_of_a_file_are_told_at_once_with_their_lines(tmp_path):
    path = written(tmp_path, "grid:\n  gpu: H20\n  schedule: [flash2, flsh1]\n  seq: [64, -5]\n"
                             "  mask: windw:3\n  br: [64, chose]\n  heds: 3\npoints:\n"
                             "  - {dtype: fp17}\ncomon: {}\n")
    message = refusal(path)
    for line, says in enumerate(["did you mean 'h200'", "did you mean 'flash1'", "got -5",
                                 "full, causal or window:W", "a whole number or choose",
                                 "did you mean 'heads'", "points.0.dtype.0: got 'fp17'",
                                 "did you mean 'common'"], 2):
        place = line + (line > 7)  # "points:" is a line of its own
        assert any(text.startswith(f"{path}:{place}: ") and says in text
                   for text in message.splitlines()), says
    assert len(message.splitlines()) == 8


@pytest.mark.parametrize(("source", "says"), [
    ({"grid": {"seq": range(1, 5001), "br": range(1, 5001)}}, "25,000,000 points are too many"),
    ({"grid": {"seq": list(range(1, 20_000))}}, "at most 10000 items"),
    ({}, "no points"), ({"grid": {"seq": []}}, "at least 1 item"),
    ({"grid": {"seq": 1.5}}, "whole number"), ({"grid": {"seq": True}}, "whole number"),
    ({"grid": None}, "a mapping"), ({"points": {"seq": 4}}, "a list"),
])
def test_what_is_no_sweep_is_refused(source, says):
    message = refusal(source)
    assert says in message and "\n" not in message


@pytest.mark.parametrize(("text", "says"), [
    ("a: &a [1, 2]\nb: [*a, *a]\n", "aliases are not accepted"), ("[]", "a sweep is a mapping"),
    ("grid: {seq: [1}", "not valid YAML"), ("", "is empty"),
    ("grid: {seq: !!python/object:os.system x}", "tags"), ("grid: " + "[" * 100, "nested"),
])
def test_yaml_that_is_no_plain_mapping_is_refused(text, says, tmp_path):
    assert says in refusal(written(tmp_path, text))


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "none.yaml")
    assert "is a folder" in refusal(tmp_path)
    assert "larger than" in refusal(written(tmp_path, "#" * (spec.MAX_BYTES + 1)))


def test_a_gpu_file_is_found_beside_the_spec(tmp_path):
    (tmp_path / "mine.yaml").write_text((FOLDER / "l4.yaml").read_text(encoding="utf-8"))
    found = spec.read(written(tmp_path, "grid: {gpu: mine.yaml}"))
    assert [gpu.name for gpu in found.profiles.values()] == ["l4"]


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_specs_that_are_shipped_are_right(path):
    assert 10 <= spec.read(path).count <= 10_000


# ---- What a row holds ----

def test_rows_are_what_traffic_says_point_by_point(tmp_path):
    source = {"common": {"batch": 1, "heads": 2, "head_dim": 32}, "grid": {
        "gpu": ["h200", "t4"], "schedule": ["flash2", "standard"], "seq": [64, 200],
        "engine": ["scratchpad", "l2"], "order": ["row", "head"], "br": 32, "bc": [16, "choose"]}}
    swept(source, tmp_path)
    rows = table.rows(tmp_path)
    assert len(rows) == 64
    for row in rows:
        problem = Attention(batch=1, heads=2, seq=row["seq"], head_dim=32)
        found = traffic(row["schedule"], problem, load(row["gpu"]), Tiles(row["br"], row["bc"]),
                        order=row["order"], engine=row["engine"])
        for boundary in ("sm", "dram", "l2"):
            part = found[boundary] or dict.fromkeys(("read_bytes", "sectors_read"))
            for name in part.keys() - {"by_tensor"}:
                if f"{boundary}_{name}" in row:
                    assert row[f"{boundary}_{name}"] == part[name], (boundary, name)
        assert json.loads(row["sm_by_tensor"]) == found["sm"]["by_tensor"]
        assert (row["dram_read_bytes"] is None) == (row["engine"] == "scratchpad")
        assert row["bound_s"] == found["time"]["bound_s"]


def test_dropout_is_a_column_that_filters_and_pivots_know(tmp_path):
    swept({"common": SHAPES | {"seq": 256, "br": 64, "bc": 32, "engine": "l2"}, "grid": {
        "schedule": ["standard_separate", "flash2", "standard"], "dropout": [0, 0.25]}}, tmp_path)
    rows = table.rows(tmp_path, "dropout = 0.25")
    assert [row["schedule"] for row in rows] == ["standard_separate", "flash2", "standard"]
    problem = Attention(batch=1, heads=2, head_dim=64, seq=256, dropout=0.25)
    for row in rows[:2]:
        found = traffic(row["schedule"], problem, load("h200"), Tiles(64, 32))
        assert row["sm_write_bytes"] == found["sm"]["write_bytes"]
        assert row["dram_read_bytes"] == found["dram"]["read_bytes"]
    assert "standard takes no dropout" in rows[2]["why_not"]
    wide = table.pivot(table.rows(tmp_path), ["schedule"], ["dropout"], "sm_write_bytes", "max")
    separate = next(row for row in wide if row["schedule"] == "standard_separate")
    none, some = (value for name, value in separate.items() if name != "schedule")
    assert some > none  # its pass writes P, and the mask that the backward pass needs


def test_a_point_with_other_dropout_is_another_point(tmp_path):
    grid = {"common": SHAPES, "grid": {"seq": 256, "dropout": [0.1]}}
    assert swept(grid, tmp_path).computed == 1
    assert swept(grid, tmp_path).computed == 0
    grid["grid"]["dropout"] = [0.1, 0.2]
    assert swept(grid, tmp_path).computed == 1


@pytest.mark.parametrize(("dropout", "says"), [
    (1, "should be less than 1"), (-0.1, "should be greater than or equal to 0"),
    (True, "should be a number"), ([0.1, 1.5], "grid.dropout.1: got 1.5"),
])
def test_a_dropout_that_is_no_probability_is_refused_before_anything_runs(dropout, says):
    assert says in refusal({"grid": {"dropout": dropout}})


def test_what_cannot_be_run_is_a_row_that_says_why(tmp_path):
    outcome = swept({"points": [{"br": 256, "bc": 256, "head_dim": 256}, {"kv_heads": 3},
                                {"blocks_per_sm": 1000}]}, tmp_path)
    rows = table.rows(tmp_path)
    assert outcome.refused == 3
    for row, says in zip(rows, ("shared memory", "not divisible", "most of h200"), strict=True):
        assert says in row["why_not"]
        assert row.get("sm_read_bytes") is None


def test_passes_splits_and_times_are_those_of_a_point(tmp_path):
    decode = {"schedule": "split_kv", "seq": 1, "kv_seq": 4096}
    swept({"common": SHAPES | {"seq": 256}, "points": [
        {"schedule": "flash2_backward", "br": 64, "bc": 64}, decode | {"splits": [4, "choose"]},
        {"times": [False, True], "br": 64, "bc": 64}, {"splits": 4}]}, tmp_path)
    backward, four, chosen, counted, timed, refused = table.rows(tmp_path)
    assert backward["pass"] == "backward" and backward["why_not"] is None
    assert four["splits"] == 4 and chosen["splits"] >= 1
    assert counted["predicted_s"] is None and timed["predicted_s"] > timed["bound_s"]
    assert "splits" in refused["why_not"]


def test_orders_of_keys_and_listed_masks_are_swept(tmp_path):
    swept({"common": SHAPES | {"seq": 256, "br": 64, "bc": 64, "engine": "scratchpad"}, "grid": {
        "kv_order": ["forward", "sawtooth:2"], "mask": ["prefix:100", "documents:64"]}}, tmp_path)
    read = {(row["kv_order"], row["mask"]): row["sm_read_bytes"] for row in table.rows(tmp_path)}
    assert len(read) == 4
    for mask in ("prefix:100", "documents:64"):
        assert read["forward", mask] == read["sawtooth:2", mask] > 0
    assert read["forward", "prefix:100"] > read["forward", "documents:64"]
    for wrong, says in (("kv_order", "is not known"), ("mask", "there is no file b.npy")):
        with pytest.raises(InputError, match=says):
            spec.read({"grid": {wrong: "blocks:b.npy"}})


def masked_by_file(folder, kept) -> spec.Spec:
    """A spec in ``folder`` that sweeps a matrix of blocks beside it."""
    np.save(folder / "kept.npy", kept)
    file = folder / "spec.yaml"
    file.write_text("common: {batch: 1, heads: 1, seq: 256, head_dim: 64, engine: scratchpad}\n"
                    "grid: {mask: ['blocks:kept.npy@64', full], br: 64, bc: 64}\n")
    return spec.read(file)


def test_a_mask_in_a_file_is_what_the_file_holds(tmp_path):
    one_block = np.zeros((4, 4), bool)
    one_block[3, 0] = True
    for kept, computed in ((one_block, 2), (one_block, 0), (np.ones((4, 4), bool), 1)):
        outcome = runner.run(masked_by_file(tmp_path, kept), tmp_path)
        assert outcome.computed == computed
    listed, full = table.rows(tmp_path)
    assert listed["mask"] == f"blocks:{tmp_path / 'kept.npy'}@64"
    assert 0 < listed["sm_read_bytes"] - full["sm_read_bytes"] < 1000  # the list itself
    assert len(table.rows(tmp_path, everything=True)) == 3
    (elsewhere := tmp_path / "elsewhere").mkdir()
    key = points.key(next(masked_by_file(elsewhere, one_block).points()), "profile")
    assert key == points.key(next(masked_by_file(tmp_path, one_block).points()), "profile")


def test_a_mask_file_that_changes_during_a_sweep_ends_it(tmp_path):
    found = masked_by_file(tmp_path, np.ones((4, 4), bool))
    profiles = {"h200": (points.profile_hash(found.profiles["h200"]), found.profiles["h200"])}
    values = next(found.points())
    name = points.key(values, profiles["h200"][0])
    assert points.compute([(name, values)], profiles)[1][0]["key"] == name
    np.save(tmp_path / "kept.npy", np.eye(4, dtype=bool))
    with pytest.raises(InputError, match="changed during the sweep"):
        points.compute([(name, values)], profiles)
    (tmp_path / "kept.npy").unlink()
    with pytest.raises(InputError, match="No such file"):
        points.compute([(name, values)], profiles)


def test_every_field_of_a_problem_can_be_swept():
    assert {name for _, name in points._SHAPE} < set(spec.AXES)
    assert set(spec.AXES) < set(points.INPUTS)
    assert set(spec.AXES) <= set(re.findall(r"\w+", command.__doc__))  # and stands in the help


# ---- Each point once ----

def test_points_that_are_the_same_are_computed_once(tmp_path):
    same = [{"seq": 64}, {"seq": 64, "kv_seq": 64}, {"seq": 64, "heads": 2, "kv_heads": 2},
            {"seq": 64, "gpu": "NVIDIA H200"}, {"seq": 64, "br": "choose"}]
    assert swept({"common": SHAPES, "points": same}, tmp_path).computed == 1


def test_a_changed_spec_computes_only_what_is_new(tmp_path):
    first = swept(SMALL, tmp_path)
    assert (first.points, first.found, first.computed) == (48, 0, 48)
    assert swept(SMALL, tmp_path) == runner.Outcome(48, 48, 0, 0)
    larger = {**SMALL, "grid": {**SMALL["grid"], "seq": [512, 1024, 100]}}
    assert swept(larger, tmp_path) == runner.Outcome(48, 32, 16, 0)
    assert list(dict.fromkeys(row["seq"] for row in table.rows(tmp_path))) == [512, 1024, 100]
    assert len(table.rows(tmp_path, everything=True)) == 64
    assert swept(SMALL, tmp_path).computed == 0
    assert {row["seq"] for row in table.rows(tmp_path)} == {100, 256, 512}


def test_other_code_or_another_profile_makes_other_points(tmp_path, monkeypatch):
    swept(SMALL, tmp_path)
    text = (FOLDER / "h200.yaml").read_text(encoding="utf-8")
    (tmp_path / "gpu.yaml").write_text(text.replace("sm_count: 132", "sm_count: 128")
                                       .replace("sm_partitions", "# sm_partitions"))
    other = {**SMALL, "common": SHAPES | {"gpu": str(tmp_path / "gpu.yaml")}}
    assert swept(other, tmp_path).computed == 48
    monkeypatch.setattr(jit, "CODE_VERSION", "0123456789abcdef")
    assert swept(SMALL, tmp_path).computed == 48
    assert {row["code"] for row in table.rows(tmp_path)} == {"0123456789abcdef"}
    assert len(table.rows(tmp_path, everything=True)) == 3 * 48


def test_spec_code_and_profiles_stand_beside_the_rows(tmp_path):
    path = written(tmp_path, "title: mine\ngrid: {seq: [64, 128], engine: scratchpad}\n")
    swept(path, tmp_path)
    file = store.read_only(tmp_path)
    title, text, code, profiles = file.execute(
        "SELECT title, spec, code, profiles FROM sweeps").fetchone()
    assert (title, text, code) == ("mine", path.read_text(), jit.CODE_VERSION)
    document, = file.execute("SELECT document FROM profiles WHERE profile = ?",
                             json.loads(profiles)).fetchone()
    assert json.loads(document) == json.loads(load("h200").model_dump_json())
    assert {row["profile"] for row in table.rows(tmp_path)} == set(json.loads(profiles))
