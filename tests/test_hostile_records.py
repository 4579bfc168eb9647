"""Do records that users hand in, and places that they name for output, fail well?"""

import json
import os
import stat

import pytest
from hbmeter.experiments import files, records
from hbmeter.experiments.cli import main

VERIFY, RATES, L2 = (records.FOLDER / name for name in (
    "h200.json", "h200-calibration.json", "h200-l2.json"))


def refused(capsys, *argv):
    """The one line on stderr."""
    code = main([str(word) for word in argv])
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and len(err) < 500, err
    return err


def changed(source, tmp_path, change, points=None):
    document = json.loads(source.read_text(encoding="utf-8"))
    if points is not None:
        document["points"] = document["points"][:points]
    change(document)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def of_entry(name, value):
    def change(document):
        attributes = document["points"][0]["attributes"]
        attributes[next(iter(attributes))][name] = value
    return change


@pytest.mark.parametrize("change", [
    of_entry("blocks_per_sm", None),
    lambda document: document["points"][0].update(counted=[]),
    lambda document: document["points"][0].update(times_ms={"a": 1}),
    lambda document: document["provenance"].update(sm_partitions=3),
])
def test_a_record_of_verify_with_something_else_in_it_is_refused(change, tmp_path, capsys):
    path = changed(VERIFY, tmp_path, change, points=1)
    assert "mine.json: not a record of hbmeter verify" in refused(
        capsys, "verify", "--recorded", path)


@pytest.mark.parametrize("source, change", [
    (RATES, lambda document: document["probes"]["occupancy"][0].update(samples=[{}])),
    (RATES, lambda document: document["probes"]["occupancy"][0]["at"].update(threads="x")),
    (L2, lambda document: document["scans"][0].update(passes="x")),
    (L2, lambda document: document["scans"][0].update(read_bytes=10**30)),
])
def test_a_record_of_calibrate_with_something_else_in_it_is_refused(source, change, tmp_path,
                                                                    capsys):
    path = changed(source, tmp_path, change)
    assert "mine.json" in refused(capsys, "calibrate", "--recorded", path)


@pytest.mark.parametrize("content", ["{}", '{"points": [1]}', '{"provenance": {}, "points": 3}'])
def test_a_record_of_random_errors_that_lacks_all_is_refused(content, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert "mine.json: not a record of hbmeter verify --random" in refused(
        capsys, "verify", "--random", "--recorded", path)


def test_what_json_cannot_say_leaves_stdout_empty(tmp_path, capsys):
    path = changed(VERIFY, tmp_path, lambda d: d["provenance"].update(date=float("nan")), points=1)
    assert main(["verify", "--recorded", str(path), "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_mistakes_of_ours_are_not_laid_on_files():
    with pytest.raises(KeyError), files.reading([], "a record"):
        raise KeyError("ours")


def test_what_is_no_file_stays_what_it_is(tmp_path):
    """As root, a rename over /dev/null would take its place."""
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomic(pipe, "content")
    assert os.read(reader, 100) == b"content" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    target.write_text("old")
    link.symlink_to(target)
    files.write_atomic(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_the_ladders_picture_has_a_name_that_fits(capsys):
    assert "must end in .png" in refused(capsys, "bench", "--ladder", "x.txt")
