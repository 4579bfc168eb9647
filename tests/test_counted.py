"""Are the L2's probes that a profiler counts the recorded ones, and are they run and kept right?"""

import json
from pathlib import Path
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest
from hbmeter.experiments import cli, counted, counted_child, ncu, records
from hbmeter.experiments.ncu_csv import Profiled
from hbmeter.kernels import probes, runner
from hbmeter.kernels.errors import Unavailable
from hbmeter.kernels.probes import bench, l2

NAMES = probes.profiled()


def recorded(name):
    return json.loads((records.FOLDER / name / "h200.json").read_text(encoding="utf-8"))


def two_sides(count, stride_bytes, rounds=4):
    """Cycles of the latency probe: SMs below 66 find the even addresses near, the others far."""
    near = (np.arange(132)[:, None] < 66) == (np.arange(count) % 2 == 0)
    return np.arange(132), np.where(near, 290, 490).astype(np.uint16)


def test_there_is_a_record_of_each():
    assert {"merging", "phases"} <= {*NAMES}
    for name in NAMES:
        assert counted.load(records.FOLDER / name / "h200.json").probe == name


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_that_of_the_record(name):
    """So that the command makes the record again."""
    for key, part in probes.get(name).parts().items():
        asked = [{what: value for what, value in launch.items() if what in part.launches[0]}
                 for launch in recorded(name)[key]]
        assert asked == part.launches


@pytest.mark.parametrize("name", NAMES)
def test_words_tell_what_is_launched(name):
    for part in probes.get(name).parts().values():
        assert all(0 < len(part.words(launch)) < 80 for launch in part.launches)


@pytest.mark.parametrize("name", NAMES)
def test_launchers_launch_every_entry_with_what_the_kernel_takes(name, monkeypatch):
    """On a stand-in GPU, which counts parameters and shared memory."""
    launches = []
    fake = fake_cupy.cupy(launches)
    monkeypatch.setattr(bench, "require_gpu", lambda: fake)
    monkeypatch.setattr(bench, "_module", lambda source, arch: (fake.RawModule(), None))
    monkeypatch.setattr(l2, "latency", two_sides)
    for key, part in probes.get(name).parts().items():
        launch = probes.get(name).launcher(bench.Bench(), key)
        before = len(launches)
        for entry in part.launches[:3]:
            launch(entry)
        assert launches[before:].count(part.entry) == 3 if part.counters else launches[before:]


# ---- Measuring ----

@pytest.fixture
def fake_gpu(monkeypatch):
    """A machine that seems to have a GPU and ncu: each counter is the number of its launch."""
    runs = []

    def profile(path, module, arguments, metrics, on_line):
        spec, name, key = arguments
        launches = json.loads(Path(spec).read_text())
        runs.append((name, key))
        for number in range(len(launches)):
            on_line(f"{counted_child.PROGRESS}{number}")
        entry = probes.get(name).parts()[key].entry
        return ncu.Answer([Profiled(f"{entry}(int)", dict.fromkeys(metrics, number))
                           for number in range(len(launches))], ())

    def provenance(cupy, version, kernel_hash, notes):
        return {"gpu": "NVIDIA H200", "driver": "1", "date": "2030-01-02T00:00:00Z",
                "kernel_sources": kernel_hash, **notes}

    monkeypatch.setattr(runner, "require_gpu", lambda: SimpleNamespace())
    monkeypatch.setattr(ncu, "find", lambda: "ncu")
    monkeypatch.setattr(ncu, "version", lambda path: "2099.1")
    monkeypatch.setattr(ncu, "profile", profile)
    monkeypatch.setattr(records, "provenance", provenance)
    return runs


def run(capsys, *arguments):
    code = cli.main(["calibrate", *map(str, arguments)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ["merging", "phases"])
def test_the_command_measures_and_keeps_what_the_record_has(name, fake_gpu, tmp_path, capsys):
    code, out, _ = run(capsys, "--l2", name, "--out", tmp_path / "x.json")
    assert code == 0 and f"{name} on NVIDIA H200, 2030-01-02" in out
    document, kept = json.loads((tmp_path / "x.json").read_text()), recorded(name)
    assert {*document} == {*kept}
    for key in {*kept} - {"provenance"}:
        assert [list(launch) for launch in document[key]] == [list(x) for x in kept[key]]
        assert [np.shape(v) for v in document[key][0].values()] == [
            np.shape(v) for v in kept[key][0].values()]
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert run(capsys, "--recorded", tmp_path / "x.json") == (0, out, "")


def test_a_run_that_was_stopped_goes_on(fake_gpu, tmp_path, capsys, monkeypatch):
    whole, out = ncu.profile, tmp_path / "x.json"

    def stops(*arguments):
        if fake_gpu:
            raise Unavailable("the driver went away")
        return whole(*arguments)

    monkeypatch.setattr(ncu, "profile", stops)
    code, _, err = run(capsys, "--l2", "phases", "--out", out)
    assert code == 3 and "went away" in err and not out.exists()
    monkeypatch.setattr(ncu, "profile", whole)
    code, _, err = run(capsys, "--l2", "phases", "--out", out)
    assert code == 0 and "going on from" in err and len(fake_gpu) == 2  # of two runs, one each time
    assert not (tmp_path / "x.json.partial").exists()


def test_recorded_ones_are_printed(capsys):
    code, out, _ = run(capsys, "--recorded", records.FOLDER / "merging" / "h200.json")
    assert code == 0 and "132 SMs" in out and "l2 read requests" in out
    code, out, _ = run(capsys, "--json", "--recorded", records.FOLDER / "phases" / "h200.json")
    assert code == 0 and json.loads(out)["records"][0]["scans"] == recorded("phases")["scans"]


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--l2", "merge"], 2, "did you mean 'merging'?"),
    (["--l2", "merging", "--out", "x.yaml"], 2, "ends in .json"),
    (["--recorded", records.FOLDER / "merging" / "h200.json", "--out", "x.yaml"], 2,
     "go into no profile"),
])
def test_bad_input(arguments, code, words, fake_gpu, capsys):
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "") and words in err and err.count("\n") == 1


def test_lost_launches_and_counters_are_no_record(fake_gpu, capsys, monkeypatch):
    whole = ncu.profile
    monkeypatch.setattr(ncu, "profile", lambda *a: ncu.Answer(whole(*a).launches[:-1], ()))
    assert "125 launches, 126 were run" in run(capsys, "--l2", "merging")[2]
    monkeypatch.setattr(ncu, "profile", lambda *a: ncu.Answer(whole(*a).launches, ("lts__x",)))
    code, _, err = run(capsys, "--l2", "merging")
    assert code == 3 and "no counter lts__x" in err


@pytest.mark.parametrize("change", [
    lambda d: d["walks"][3].pop("l2_read_sectors"), lambda d: d.pop("provenance"),
    lambda d: d.update(walks=[7]), lambda d: d["provenance"].pop("how"),
])
def test_files_that_are_no_records(change, tmp_path, capsys):
    document = recorded("merging")
    change(document)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    code, _, err = run(capsys, "--recorded", path)
    assert code == 2 and "is not a record" in err and err.count("\n") == 1


# ---- On a GPU ----

@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_every_part_runs_on_this_gpu(name):
    """Once, without a profiler; what times itself says something."""
    try:
        run_on = bench.Bench()
    except Unavailable as error:
        pytest.skip(str(error))
    if run_on.capability != 90:
        pytest.skip("the probes name SMs of a GH100")
    for key, part in probes.get(name).parts().items():
        found = probes.get(name).launcher(run_on, key)(part.launches[0])
        assert part.counters or part.row(part.launches[0] | found)
