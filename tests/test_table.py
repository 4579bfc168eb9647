"""Are a sweep's rows filtered, pivoted and exported as they are, and never made up?"""

import csv
import io
import json
import sqlite3
import sys

import pytest
from hbmeter.experiments.cli import main
from hbmeter.experiments.files import csv_text
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.sweeps import runner, spec, store, table, where
from hypothesis import given
from hypothesis import strategies as st

GRID = {"schedule": ["flash2", "flash1"], "seq": [1024, 256], "mask": ["full", "causal"],
        "br": [64, 256], "bc": [64, 256], "heads": 2, "head_dim": 256, "engine": "scratchpad"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep")
    runner.run(spec.read({"title": "small", "grid": GRID}), path)
    return path


def output(capsys, *argv):
    code = main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- Filters ----

@pytest.mark.parametrize(("text", "keeps"), [
    ("schedule = flash2", lambda r: r["schedule"] == "flash2"),
    ("schedule=flash2 and seq>=1000", lambda r: r["schedule"] == "flash2" and r["seq"] >= 1000),
    ("seq < 1e3 or br != 64", lambda r: r["seq"] < 1000 or r["br"] != 64),
    ("not (seq = 256 or mask = 'full')", lambda r: r["seq"] != 256 and r["mask"] != "full"),
    ("br = bc", lambda r: r["br"] == r["bc"]),
    ("seq in (256, 512) AND mask not in (full)",
     lambda r: r["seq"] == 256 and r["mask"] == "causal"),
    ("why_not is null", lambda r: r["why_not"] is None),
    ("why_not IS NOT NULL and br > 1", lambda r: r["why_not"] is not None),
    ('mask ~ "aus"', lambda r: "aus" in r["mask"]),
    ("sm_read_bytes > 1_000_000 and -1 < 0", None),
    ("sm_read_bytes > 10000000", lambda r: (r["sm_read_bytes"] or 0) > 10_000_000),
    ("schedule = flash2 or schedule = flash1 and seq = 256",
     lambda r: r["schedule"] == "flash2" or r["seq"] == 256),
])
def test_a_filter_keeps_what_it_says(folder, text, keeps):
    if keeps is None:
        with pytest.raises(InputError, match="a column's name"):
            table.rows(folder, text)
        return
    everything = table.rows(folder)
    kept = table.rows(folder, text)
    assert kept == [row for row in everything if keeps(row)]
    assert 0 < len(kept) < len(everything)


@pytest.mark.parametrize(("text", "says"), [
    ("sed = 3", "did you mean 'seq'"), ("seq =", "a value, but it ends"), ("seq 3", "a comparison"),
    ("(seq = 3", "')', but it ends"), ("seq = 3 br = 4", "'and', 'or' or the end"),
    ("seq = 3; drop table results", "cannot read"), ("", "a column's name"),
    ("seq in 3", "'('"), ("not", "a column's name"), ("(" * 100 + "seq = 1", "nested"),
    ("seq = 1 or " * 1000 + "seq = 1", "characters"), ("seq = 'unclosed", "cannot read"),
    ("1 = 1", "a column's name"), ("seq is 3", "'null'"),
])
def test_a_filter_that_cannot_be_read_is_a_line(folder, text, says, capsys):
    code, out, err = output(capsys, "table", folder, "--where", text)
    if text == "":  # no filter
        assert code == 0
        return
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


@given(st.text(max_size=40))
def test_no_filter_breaks_out_of_its_values(text):
    """Whatever is typed is refused, or is SQL whose texts are all bound."""
    try:
        condition, values = where.sql(f"mask = '{text}' or {text}", ["mask", "seq"])
    except InputError:
        return
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE points (mask, seq)")
    connection.execute(f"SELECT * FROM points WHERE {condition}", values)
    assert condition.count("?") == len(values)


def test_the_table_cannot_change_the_file(folder):
    with pytest.raises(sqlite3.OperationalError):
        store.read_only(folder).execute("DELETE FROM results")


# ---- Pivots ----

def test_a_pivot_has_each_value_in_its_place(folder):
    rows = table.rows(folder, "br = 64 and bc = 64 and mask = full")
    found = table.pivot(rows, ["seq"], ["schedule"], "sm_read_bytes")
    assert [line["seq"] for line in found] == [256, 1024]  # numbers in their order
    assert list(found[0]) == ["seq", "flash2", "flash1"]  # texts as they come
    for line in found:
        for row in rows:
            if row["seq"] == line["seq"]:
                assert line[row["schedule"]] == row["sm_read_bytes"]


def test_a_pivot_of_rows_that_share_a_cell_names_what_tells_them_apart(folder):
    with pytest.raises(InputError, match="differ in mask, br, bc"):
        table.pivot(table.rows(folder), ["seq"], ["schedule"], "sm_read_bytes")


@pytest.mark.parametrize("how", table.AGGREGATES)
def test_an_aggregate_is_of_what_was_computed(folder, how):
    rows = table.rows(folder)
    line, = table.pivot(rows, ["heads"], [], "sm_read_bytes", how)
    values = [row["sm_read_bytes"] for row in rows if row["sm_read_bytes"] is not None]
    assert len(values) < len(rows)
    assert line["sm_read_bytes"] == table.AGGREGATES[how](values)


def test_a_cell_without_a_value_is_none(folder):
    found = table.pivot(table.rows(folder, "mask = full and seq = 256 and schedule = flash1"),
                        ["br"], ["bc"], "sm_read_bytes")
    assert found[1]["256"] is None  # does not fit
    assert found[0]["64"] > 0


@pytest.mark.parametrize(("argv", "says"), [
    (["--rows", "seq"], "a pivot needs --values"),
    (["--values", "seq"], "a pivot needs --values A and --rows or --columns"),
    (["--rows", "sec", "--values", "br"], "did you mean 'seq'"),
    (["--rows", "seq", "--values", "mask", "--aggregate", "mean"], "mask holds text"),
    (["--rows", "seq", "--values", "br", "--aggregate", "men"], "did you mean 'mean'"),
    (["--select", "mask,sq"], "did you mean 'seq'"), (["--sort", "sq"], "did you mean 'seq'"),
    (["--csv", "/no-such-folder/x.csv"], "there is no folder /no-such-folder"),
])
def test_options_that_are_wrong_are_a_line(folder, argv, says, capsys):
    code, out, err = output(capsys, "table", folder, *argv)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


def test_a_folder_without_a_sweep_is_a_line(tmp_path, capsys):
    code, _, err = output(capsys, "table", tmp_path)
    assert code == 2 and "no sweep.sqlite there" in err and err.count("\n") == 1


# ---- Text and files ----

def test_the_text_tells_rows_apart_and_says_what_they_share(folder, capsys):
    code, out, _ = output(capsys, "table", folder, "--sort", "sm_read_bytes", "--largest")
    first, header = out.splitlines()[:2]
    assert code == 0 and "head_dim 256" in first and "seq" in header and "kv_seq" not in header
    assert "–" in out and "shared memory" in out
    _, out, _ = output(capsys, "table", folder, "--rows", "seq", "--columns", "mask", "--values",
                       "sm_read_bytes", "--aggregate", "min")
    assert out.splitlines()[0].split() == ["seq", "full", "causal"]
    assert " MB" in out


def test_csv_and_parquet_hold_the_rows(folder, tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    files = tmp_path / "t.csv", tmp_path / "t.parquet"
    code, out, _ = output(capsys, "table", folder, "--csv", files[0], "--parquet", files[1])
    assert code == 0 and out.startswith("32 rows in ")
    expected = table.rows(folder)
    with open(files[0], newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [{name: "" if value is None else str(value) for name, value in row.items()}
            for row in expected] == found
    frame = pandas.read_parquet(files[1], dtype_backend="numpy_nullable")
    for name in ("sm_read_bytes", "br", "mask", "bound_s"):
        assert [None if value is pandas.NA else value for value in frame[name]] == [
            row[name] for row in expected]


def test_json_is_one_document_with_bytes_by_tensor_as_objects(folder, capsys):
    code, out, err = output(capsys, "table", folder, "--json", "--where", "why_not is null")
    rows = json.loads(out)["rows"]
    assert code == 0 and err == "" and rows
    assert all(sum(tensor["read_bytes"] for tensor in row["sm_by_tensor"].values())
               == row["sm_read_bytes"] for row in rows)


@pytest.mark.parametrize("cell", ["=cmd|' /C calc'!A0", "+1+1", "-2", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_that_a_spreadsheet_would_run_is_made_harmless(cell):
    header, line = csv.reader(io.StringIO(csv_text([{"x": cell, "=y": -2}]), newline=""))
    assert header == ["x", "'=y"]
    assert line[0] == "'" + cell.replace("\r", " ") and line[1] == "-2"  # a number stays a number


def test_without_pyarrow_the_remedy_is_said(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, out, err = output(capsys, "table", folder, "--parquet", tmp_path / "t.parquet")
    assert code == 3 and out == "" and "pip install 'hbmeter[tables]'" in err


# ---- DataFrames ----

def test_frames_keep_whole_numbers_and_what_is_missing(folder):
    pandas = pytest.importorskip("pandas")
    from hbmeter.simulator import sweep_table
    frame = sweep_table(folder)
    assert len(frame) == 32 and str(frame.sm_read_bytes.dtype) == "Int64"
    assert frame.sm_read_bytes.isna().sum() == frame.why_not.notna().sum() > 0
    assert (frame[frame.why_not.isna()].sm_read_bytes > 0).all()
    assert isinstance(frame, pandas.DataFrame)


def test_a_frame_of_block_sizes_has_their_marks():
    pytest.importorskip("pandas")
    from hbmeter.hwprofiles import load
    from hbmeter.simulator import Attention, explore, frame
    found = explore("flash2", Attention(), load("h200"), br=128)
    rows = frame(found)
    assert len(rows) == len(found.candidates)
    assert rows[rows.marks.str.contains("least traffic")].bc.tolist() == [
        found.marks["least traffic"].bc]


def test_without_pandas_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    from hbmeter.simulator import sweep
    with pytest.raises(ImportError, match="pip install"):
        sweep({"points": [{"seq": 64, "engine": "scratchpad"}]})
