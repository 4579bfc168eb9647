"""Do measurements reach the record, the table and the exit code as they should, without a GPU?

Every measurement here is synthetic: made from predictions by tests/fake_ncu.py and by
``fake_run_point``. They test the plumbing and say nothing about hardware.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hbmeter import kernels
from hbmeter.experiments import cli, grid, measure, ncu, records, verify
from hbmeter.experiments.ncu_csv import Profiled
from hbmeter.hwprofiles import load
from hbmeter.kernels import runner
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator import Attention, Tiles, schedules, traffic
from hbmeter.simulator.engines import scratchpad
from hbmeter.simulator.errors import InputError
from sides import latency_of_sides

FAKE_NCU = Path(__file__).parent / "fake_ncu.py"
POINTS = (
    grid.Point("flash2", Attention(1, 4, 256, 64), Tiles(64, 64), "head"),
    grid.Point("flash1", Attention(1, 4, 128, 64), Tiles(64, 64)),
    grid.Point("standard", Attention(1, 2, 128, 64, mask="causal"), Tiles(64, 64)),
)


def fake_run_point(point):
    """A result as a GPU might give it; counted bytes are the schedule's."""
    kernel = kernels.get(point.kernel)
    count = scratchpad.count(schedules.build(kernel.schedule, point.problem, point.tiles))
    attributes = {"registers": 128, "local_bytes": 0, "static_shared_bytes": 0,
                  "dynamic_shared_bytes": 1, "blocks_per_sm": 2}
    error = {name: {"written": True, "relative": 1e-4 if name == "O" else None}
             for name in kernel.outputs}
    return {
        "attributes": {x.entry: attributes for x in kernel.launches(point.problem, point.tiles)},
        "error": error, "times_ms": [1.0, 3.0, 2.0], "counted": count.by_tensor,
    }


def seem_to_have_a_gpu(monkeypatch, folder):
    """An H200 and, in the folder, ncu."""
    cupy = SimpleNamespace(__version__="0", cuda=SimpleNamespace(
        Device=lambda: SimpleNamespace(id=0),
        runtime=SimpleNamespace(
            getDeviceProperties=lambda device: {"name": b"NVIDIA H200"},
            driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000),
    ))
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    script = bin_folder / "ncu"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_NCU}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    monkeypatch.setattr(measure.probes, "latency", latency_of_sides)
    monkeypatch.setenv("HBMETER_REVISION", "synthetic")
    monkeypatch.setattr(runner, "require_gpu", lambda: cupy)
    monkeypatch.setattr(measure, "run_point", fake_run_point)
    monkeypatch.setattr(grid, "points", lambda quick=False: POINTS)


@pytest.fixture
def fake_gpu(monkeypatch, tmp_path):
    """A machine that seems to have an H200 and ncu; gives the folder to write to."""
    seem_to_have_a_gpu(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A synthetic record file, measured once."""
    path = tmp_path_factory.mktemp("measured") / "synthetic.json"
    with pytest.MonkeyPatch.context() as patch:
        seem_to_have_a_gpu(patch, path.parent)
        _, why = measure.measure(POINTS, str(path), repeats=2)
    assert why is None
    return path


@pytest.fixture
def record(fake_gpu, measured):
    """A copy of it."""
    return Path(shutil.copy(measured, fake_gpu))


# ---- Measuring ----


def test_measuring_writes_a_record_with_raw_values_and_removes_the_partial_file(measured):
    found = records.load(measured)
    assert found.gpu == "NVIDIA H200"
    assert found.provenance["git_revision"] == "synthetic"
    assert found.provenance["ncu"] == "2099.1.0.0"
    assert {"driver", "cuda_runtime", "cupy", "python", "date", "command", "kernel_sources",
            "clocks", "cache_control"} <= set(found.provenance)
    assert [len(repeat) for repeat in found.points[2]["counters"]] == [3, 3]  # launches kept
    assert found.points[0]["times_ms"] == [1.0, 3.0, 2.0]
    assert [p.name for p in measured.parent.glob("synthetic*")] == ["synthetic.json"]


def test_a_run_that_was_stopped_goes_on_where_it_was(fake_gpu, monkeypatch):
    path = str(fake_gpu / "r.json")
    done = []

    def stops_at_the_second(point):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(point)
        return fake_run_point(point)

    monkeypatch.setattr(measure, "run_point", stops_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        measure.measure(POINTS, path, counters=False)
    with open(path + ".partial", "a") as file:
        file.write('{"key": "cut sho')
    monkeypatch.setattr(measure, "run_point", lambda p: done.append(p) or fake_run_point(p))
    measure.measure(POINTS, path, counters=False)
    assert sorted(map(str, done)) == sorted(map(str, POINTS))
    assert len(records.load(path).points) == 3


def test_results_of_other_kernel_sources_are_not_gone_on_from(tmp_path):
    path = str(tmp_path / "p")
    records.Partial(path, {"kernel_sources": "old"}).put("key", 1)
    assert records.Partial(path, {"kernel_sources": "old"}).resumed == 1
    assert records.Partial(path, {"kernel_sources": "new"}).resumed == 0


def test_a_failed_write_leaves_the_old_record(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    with pytest.raises(ValueError):
        records.save(path, {"provenance": {}, "points": [float("nan")]})
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_metric_that_the_gpu_lacks_is_dropped_and_the_rest_measured(fake_gpu, monkeypatch):
    monkeypatch.setenv("FAKE_NCU_LACKS", f"{ncu.SM_WRITE},{ncu.L2_HIT_SECTORS}")
    document, why = measure.measure(POINTS[:1], None, repeats=1)
    row, = verify.comparison(records.Record("synthetic", **document))
    assert why is None
    assert row["sm_write_measured"] is None and row["sm_write_error"] is None
    assert row["sm_read_error"] == 0


def test_launches_that_are_not_those_of_the_points_are_refused():
    names = ["hbmeter_flash2", "hbmeter_flash1", "hbmeter_standard_scores",
             "hbmeter_standard_softmax", "hbmeter_standard_output"]
    launches = [Profiled(name + "(int)", {}) for name in names]
    assert [len(x) for x in measure.by_point(POINTS, launches)] == [1, 1, 3]
    for wrong in (launches[:-1], [*launches, launches[0]], launches[::-1]):
        with pytest.raises(Unavailable, match="expected"):
            measure.by_point(POINTS, wrong)


def test_points_that_this_gpu_cannot_run_are_left_out(fake_gpu, monkeypatch, capsys):
    def small_gpu(point):
        if point.kernel == "flash1":
            raise InputError("needs 9 bytes of shared memory")
        return fake_run_point(point)

    monkeypatch.setattr(measure, "run_point", small_gpu)
    document, _ = measure.measure(POINTS, None, repeats=1)
    assert [p["kernel"] for p in document["points"]] == ["flash2", "standard"]
    assert "left out: needs 9 bytes" in capsys.readouterr().err


# ---- Comparing ----


def test_rows_and_summary(record):
    rows = verify.comparison(records.load(record))
    assert [row["kernel"] for row in rows] == ["flash2", "flash1", "standard"]
    for row in rows:
        assert row["sm_read_counted"] == row["sm_read_predicted"] == row["sm_read_measured"]
        assert row["counts_equal"] and not row["spills"]
        assert set(row["blocks_per_sm"]) == {2} and row["time_ms"] == 2.0
        assert row["l2_read_sectors_measured"] is None  # the fake has no such counter
        assert row["dram_read_spread"] == 0
    assert not verify.failures(rows)
    worst = {(x["kernel"], x["boundary"]): x["worst"] for x in verify.summary(rows)}
    assert worst["all", "sm_read"] == 0
    assert worst["all", "dram_read"] == max(abs(row["dram_read_error"]) for row in rows)


def test_dram_is_predicted_with_the_recorded_blocks_per_sm_and_order(record):
    row = verify.comparison(records.load(record))[0]
    point = POINTS[0]
    expected = traffic("flash2", point.problem, load("h200"), point.tiles, order="head",
                       blocks_per_sm=2)
    assert row["dram_read_predicted"] == expected["dram"]["read_bytes"]


def test_a_gpu_without_profile_has_no_dram_prediction(record):
    found = records.load(record)
    other = records.Record("x", found.provenance | {"gpu": "Unknown 9000"}, found.points)
    row = verify.comparison(other)[0]
    assert row["dram_read_predicted"] is None and row["dram_read_error"] is None
    assert row["sm_read_error"] == 0


def changed(path, change):
    document = json.loads(path.read_text())
    change(document["points"][0])
    path.write_text(json.dumps(document))
    return verify.comparison(records.load(path))


@pytest.mark.parametrize("change, words", [
    (lambda p: p["counted"]["K"].update(read_bytes=1), "some tensor differs"),
    (lambda p: p["error"]["O"].update(relative=0.5), "error against float64 is 0.5"),
    (lambda p: p["error"]["O"].update(relative=None), "not finite"),
    (lambda p: p["error"]["LSE"].update(written=False), "not written"),
])
def test_bars_that_fail(record, change, words):
    failure, = verify.failures(changed(record, change))
    assert words in failure and failure.startswith("flash2")


def test_where_other_memory_gives_other_counts_several_launches_are_predicted(record):
    def vary(point):
        for number, repeat in enumerate(point["counters"]):
            repeat[0]["metrics"][ncu.DRAM_READ] *= 1 + 0.1 * number

    rows = changed(record, vary)
    first = rows[0]
    assert first["dram_read_spread"] > 0.05 and not verify.steady(first, "dram_read")
    assert len(first["dram_reads_predicted"]) == verify.SEEDS
    assert first["dram_read_predicted"] == first["dram_reads_predicted"][0]
    assert all(len(row["dram_reads_predicted"]) == 1 for row in rows[1:])
    assert "between repeats in other memory: 1 point;" in verify.unsteady_text(rows)
    assert verify.unsteady_text(rows[1:]) == ""


def test_sm_reads_have_a_bar_except_where_a_kernel_spills(record):
    def more(point, local=0):
        for repeat in point["counters"]:
            repeat[0]["metrics"][ncu.SM_READ] *= 1.002
            repeat[0]["metrics"][ncu.LOCAL] = local

    failure, = verify.failures(changed(record, more))
    assert "SM reads predicted -0.20% off" in failure
    rows = changed(record, lambda point: more(point, local=5))
    assert rows[0]["spills"] and not verify.failures(rows)
    total = next(x for x in verify.summary(rows)
                 if (x["kernel"], x["boundary"]) == ("all", "sm_read"))
    assert total["points"] == 2 and total["spilling_left_out"] == 1


def test_equal_totals_of_other_tensors_do_not_pass(record):
    def swap(point):
        point["counted"]["K"]["read_bytes"] += 16
        point["counted"]["V"]["read_bytes"] -= 16

    assert len(verify.failures(changed(record, swap))) == 1


# ---- The command ----


def run(capsys, *arguments):
    code = cli.main(["verify", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_command_measures_prints_and_keeps(fake_gpu, capsys):
    path = fake_gpu / "r.json"
    code, out, _ = run(capsys, "--out", path, "--repeats", 1)
    assert code == 0 and path.exists()
    assert "every bar passed" in out and "L2 and DRAM predicted by" in out
    code, again, _ = run(capsys, "--recorded", path)
    assert code == 0 and again.splitlines()[1:] == out.splitlines()[1:]


def test_counters_are_kept_part_by_part(fake_gpu, capsys, monkeypatch):
    """Of three points two at a time, the second run of ncu is denied: a later command asks for the
    last point alone."""
    asked, profile = [], ncu.profile

    def denied_once(path, module, arguments, **how):
        asked.append(len(json.loads(Path(arguments[0]).read_text(encoding="utf-8"))))
        if len(asked) == 2:
            raise Unavailable("counters are not permitted")
        return profile(path, module, arguments, **how)

    monkeypatch.setattr(measure, "AT_ONCE", 2)
    monkeypatch.setattr(ncu, "profile", denied_once)
    path = fake_gpu / "r.json"
    code, out, _ = run(capsys, "--out", path, "--repeats", 1)
    assert code == 3 and "3 points, 2 with hardware counters" in out
    code, out, _ = run(capsys, "--out", path, "--repeats", 1)
    assert code == 0 and asked == [2, 1, 1] and "3 points, 3 with hardware counters" in out


def test_only_some_points_of_the_grid(fake_gpu, capsys):
    every = [str(point) for point in POINTS]
    assert grid.having(POINTS, ["flash"]) and len(every) == 3
    path = fake_gpu / "r.json"
    code, out, _ = run(capsys, "--only", every[0], "--no-counters", "--out", path)
    assert code == 0 and out.splitlines()[-2].startswith("1 points")
    code, out, err = run(capsys, "--only", "flash,nothing", "--out", path)
    assert code == 2 and "--only 'nothing': no point of the grid has it" in err and not out


def test_without_a_gpu_a_wrong_word_is_told_first(fake_gpu, capsys, monkeypatch):
    def missing():
        raise Unavailable("no GPU is visible")

    monkeypatch.setattr(runner, "require_gpu", missing)
    assert run(capsys, "--only", "flash,nothing")[0] == 2
    assert run(capsys, "--only", "flash")[0] == run(capsys)[0] == 3


def test_command_json_is_one_document(record, capsys):
    code, out, _ = run(capsys, "--recorded", record, "--json")
    document = json.loads(out)
    assert code == 0 and not document["failures"]
    assert len(document["points"]) == 3 and document["provenance"][0]["gpu"] == "NVIDIA H200"


def test_command_fails_on_a_bar(record, capsys):
    changed(record, lambda p: p["error"]["O"].update(relative=0.5))
    code, out, _ = run(capsys, "--recorded", record)
    assert code == 1 and "FAILED: flash2" in out


def test_counters_not_permitted_still_gives_results_and_the_remedy(fake_gpu, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_NCU_MODE", "denied")
    path = fake_gpu / "r.json"
    code, out, err = run(capsys, "--out", path)
    assert code == 3 and "NVreg_RestrictProfilingToAdminUsers=0" in err
    assert "3 points, 0 with hardware counters" in out
    monkeypatch.delenv("FAKE_NCU_MODE")
    monkeypatch.setattr(measure, "run_point", None)  # only the counters are made up for
    code, out, _ = run(capsys, "--out", path)
    assert code == 0 and "3 points, 3 with hardware counters" in out


def test_a_lost_launch_leaves_counters_out(fake_gpu, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_NCU_MODE", "short")
    code, _, err = run(capsys)
    assert code == 3 and "4 launches, 5 expected" in err


def test_no_counters_asks_for_no_ncu(fake_gpu, capsys, monkeypatch):
    monkeypatch.setattr(ncu, "find", None)
    assert run(capsys, "--no-counters")[0] == 0


def test_without_a_gpu_the_remedy_is_said(capsys, monkeypatch):
    def none():
        raise Unavailable("no GPU is visible: check nvidia-smi")

    monkeypatch.setattr(runner, "require_gpu", none)
    monkeypatch.setattr(grid, "points", None)  # known before the seconds that these take
    code, out, err = run(capsys)
    assert code == 3 and not out and "nvidia-smi" in err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"provenance": {"format": 9}, "points": []}',
                                  '{"provenance": {"format": 1}, "points": [{}]}', "\udcff"])
def test_files_that_are_no_records(tmp_path, capsys, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, _, err = run(capsys, "--recorded", path)
    assert code == 2 and "not a record" in err


def test_bad_places_are_bad_input(capsys, tmp_path, fake_gpu):
    assert run(capsys, "--recorded", tmp_path / "none.json")[0] == 2
    assert run(capsys, "--out", tmp_path)[0] == 2
    assert run(capsys, "--out", tmp_path / "none" / "x.json")[0] == 2


# ---- On a GPU ----


@pytest.mark.gpu
def test_quick_points_on_this_gpu(tmp_path, capsys):
    try:
        runner.require_gpu()
    except Unavailable as error:
        pytest.skip(str(error))
    code, out, _ = run(capsys, "--quick", "--no-counters", "--out", tmp_path / "r.json")
    assert code == 0, out
