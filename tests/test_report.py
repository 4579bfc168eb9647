"""Is what the report draws, writes and says what was computed, and is the page self-contained?"""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hbmeter import kernels
from hbmeter.experiments import cli, figures, page, report, style, time_table
from hbmeter.experiments.figures import block_heatmap, block_size, io_complexity, validation
from hbmeter.experiments.files import csv_text, output_folder, write_atomic
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, InputError, schedules

SMALL = Attention(batch=1, heads=2, seq=256, head_dim=64)
VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture(scope="module")
def gpu():
    return load("h200")


@pytest.fixture(scope="module")
def made(gpu, tmp_path_factory):
    """(results, folder, page) of a small report."""
    folder, found = tmp_path_factory.mktemp("report"), time_table.timed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_complexity.run, "__defaults__", ((256, 512, 1024, 2048), 2_000_000))
        patch.setattr("hbmeter.experiments.records.load_all", lambda: [])
        patch.setattr(time_table, "timed", lambda: found[::10])
        patch.setattr(report, "open_pool", lambda jobs: ThreadPoolExecutor(1))  # sees the patches
        patch.setattr(style, "PNG_DPI", 30)  # nobody looks at these
        results = report.run_all(SMALL, gpu, folder)
    text = report.html(results, SMALL, gpu, {"command": "hbmeter <report> & 'more'"})
    return results, folder, text


class Outline(HTMLParser):
    """Tags in order, the open ones checked; attributes; texts of headings."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag



def test_while_one_process_compiles_the_l2_reader_the_other_does_without_it():
    names = figures.names()
    turns = report._turns(names)
    reads = [getattr(figures.get(name), "RUNS_L2_READER", False) for name in turns]
    assert sorted(turns) == sorted(names) and reads[0] and sum(reads) > 1
    assert reads[1:] == sorted(reads[1:]) and not reads[1]


@pytest.mark.parametrize("power", [1.0, 1.94, 2.0, 3.0])
def test_the_fitted_exponent_of_a_power_law_is_its_power(power):
    lengths = [2**k for k in range(9, 16)]
    fitted = io_complexity.fitted_exponent(lengths, [7e3 * n**power for n in lengths])
    assert fitted == pytest.approx(power)


def test_the_fit_looks_at_the_longer_half_only():
    lengths = [2**k for k in range(9, 17)]
    values = [n if n < 2**13 else n**2 for n in lengths]
    assert io_complexity.fitted_exponent(lengths[::-1], values[::-1]) == pytest.approx(2)
    assert io_complexity.fitted_exponent([1, 2], [1, 2]) is None


def test_counts_lie_on_the_closed_forms_and_above_the_compulsory_bytes(made):
    table = made[0][1].table
    assert made[0][1].name == "io_complexity"
    for schedule in {r["schedule"] for r in table} - {"compulsory"}:
        counted = io_complexity.series(table, schedule, "sm", "counted")
        assert counted == io_complexity.series(table, schedule, "sm", "theory")
    least = dict(zip(*io_complexity.series(table, "compulsory", "compulsory", "counted"),
                     strict=True))
    assert all(r["bytes"] >= least[r["n"]] for r in table)


def test_figure_2_is_counted_as_published(gpu):
    rows = [r for r in block_size.run(SMALL, gpu) if r["published_bytes"]]
    assert [r["bc"] for r in rows] == [64, 128, 256, 512]
    for r in rows:
        nd = 1024 * 64 * 2 * 16 * 64
        assert r["counted_bytes"] == r["theory_bytes"] == (1 + 3 * 1024 // r["bc"]) * nd
        assert abs(r["counted_bytes"] / r["published_bytes"] - 1) < 1e-3


def test_the_block_map_says_why_a_choice_does_not_fit(gpu):
    rows = block_heatmap.run(Attention(batch=1, heads=1, seq=512, head_dim=256), gpu)
    reasons = {r["reason"] for r in rows}
    assert {None, block_heatmap.SMEM, block_heatmap.REGISTERS} <= reasons
    for r in rows:
        assert (r["smem_bytes"] > gpu.smem.bytes_per_block_max) == (
            r["reason"] == block_heatmap.SMEM)
    best = min((r for r in rows if r["reason"] is None), key=lambda r: r["sm_bytes"])
    assert best["sm_bytes"] == next(
        r["sm_bytes"] for r in rows if "least traffic" in r["marks"])


def test_runs_of_cells_cover_every_cell_once():
    cells = [(16, 16), (16, 32), (16, 64), (32, 16), (48, 16), (48, 32)]
    runs = list(block_heatmap._runs(cells))
    assert runs == [(16, 16, 32), (16, 64, 64), (32, 16, 16), (48, 16, 32)]
    assert list(block_heatmap._runs([])) == []


def test_every_figure_is_written_with_its_table(made):
    results, folder, _ = made
    drawn = [r for r in results if r.svg]
    assert [r.name for r in drawn] == [r.name for r in results if r.table]
    assert len(drawn) >= 4
    for result in drawn:
        assert (folder / f"{result.name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{result.name}.svg").read_text()
        found = list(csv.DictReader(io.StringIO((folder / f"{result.name}.csv").read_text())))
        wanted = [{k: "" if v is None else str(v) for k, v in row.items()}
                  for row in result.table]
        assert found == wanted
    assert not [f for f in folder.iterdir() if f.name.startswith(".")]


def test_the_page_parses_and_fetches_nothing(made):
    outline = Outline(made[2])
    assert outline.open == []
    assert not {"script", "link", "iframe", "img", "object"} & set(outline.tags)
    for _, name, value in outline.attributes:
        if name in ("href", "src", "xlink:href", "srcset", "action"):
            assert value.startswith(("#", "data:image/png;base64,"))  # colour bars are images
        assert not name.startswith("on")
    assert "@import" not in made[2] and "http://" not in made[2] and "https://" not in made[2]
    assert all(part.startswith("#") for part in made[2].split("url(")[1:])
    ids = [value for _, name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {v[1:] for _, n, v in outline.attributes if n.endswith("href") and v[0] == "#"}
    assert targets <= set(ids)
    assert len(made[2]) < 4e6


def test_headings_are_in_order_and_figures_have_words(made):
    outline = Outline(made[2])
    headings = [tag for tag in outline.tags if tag in ("h1", "h2", "h3", "h4")]
    assert headings == ["h1"] + ["h2"] * (len(figures.names()) + 2)
    drawings = outline.tags.count("svg")
    assert drawings == len([r for r in made[0] if r.svg])
    assert outline.attributes.count(("svg", "role", "img")) == drawings
    assert outline.tags.count("desc") == drawings
    for result in made[0]:
        assert figures.title(result.name) in made[2].replace("&#x27;", "'")


def test_text_is_escaped(made):
    assert "hbmeter &lt;report&gt; &amp; &#x27;more&#x27;" in made[2]
    assert page.tag("p", "<b>", title='"') == '<p title="&quot;">&lt;b&gt;</p>'


def test_without_a_record_the_page_says_so(made):
    assert "No measurement is recorded" in made[2]
    assert "nothing here has been checked against counters" in made[2]


def test_a_record_is_drawn_with_its_errors(monkeypatch):
    point = {"kernel": "flash2", "shape": "1×1 64", "tiles": {"br": 64, "bc": 64}, "order": "row",
             "spills": False, "held_out": True, "l2_model": "model", "sm_read_predicted": 1000,
             "sm_read_measured": 1010, "sm_read_error": -10 / 1010, "dram_read_predicted": 500,
             "dram_read_measured": None, "dram_read_error": None}
    spilling = point | {"spills": True, "sm_read_measured": 3000, "sm_read_error": -2 / 3}
    monkeypatch.setattr("hbmeter.experiments.verify.comparison", lambda _: [point, spilling])
    record = SimpleNamespace(name="h200", gpu="NVIDIA H200", provenance={"date": "2026"})
    table = validation.run(None, None, [record])
    assert [r["boundary"] for r in table] == ["sm_read", "sm_read"]
    assert "largest 0.99%, 100% of 1 point within" in validation.answer(table)[0]
    assert "left out: 1" in validation.notes(table)[0]
    assert style.png(validation.plot(table))


def test_figures_are_the_same_every_time(gpu):
    table = block_size.run(SMALL, gpu)
    first, second = (style.svg(block_size.plot(table), "a", "t", "d") for _ in range(2))
    assert first == second


def test_every_schedule_and_kernel_looks_different():
    names = {*schedules.names(), *kernels.names()}
    looks = {(style.colour(name), style.marker(name)) for name in names}
    assert len(looks) == len(names)


def test_a_figure_of_run_and_plot_alone_is_in_the_report(gpu, tmp_path, monkeypatch):
    least = SimpleNamespace(
        __doc__="Lines of one point", ORDER=1, run=lambda problem, gpu: [{"n": problem.seq}],
        plot=style.styled(lambda table: style.figure(height=3.0)[0]))
    monkeypatch.setattr(figures, "get", lambda name: least)
    result = report._run("least", SMALL, gpu, tmp_path)
    text = report.html([result], SMALL, gpu, {})
    assert {path.name for path in tmp_path.iterdir()} == {"least.svg", "least.png", "least.csv"}
    assert "<h2" in text and "Lines of one point" in text and "figcaption" in text


def test_csv_has_the_columns_of_all_rows():
    assert csv_text([{"a": 1, "b": "x,y"}, {"a": None, "c": 2.5}]) == 'a,b,c\n1,"x,y",\n,,2.5\n'


def test_files_are_whole_or_absent(tmp_path):
    write_atomic(tmp_path / "a.txt", "π")
    write_atomic(tmp_path / "a.txt", b"b")
    assert (tmp_path / "a.txt").read_bytes() == b"b"
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(InputError, match="is a file"):
        output_folder(str(tmp_path / "a.txt"))
    with pytest.raises(InputError, match="cannot create"):
        output_folder(str(tmp_path / "a.txt" / "deeper"))
    assert output_folder(str(tmp_path / "new" / "deeper")).is_dir()


def test_the_command_refuses_a_file_and_prints_one_json_document(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    assert cli.main(["report", "--out", str(tmp_path / "file")]) == cli.BAD_INPUT
    assert "--out" in capsys.readouterr().err
    monkeypatch.setattr(figures, "names", lambda: ("block_size",))
    out = tmp_path / "folder"
    assert cli.main(["report", "--out", str(out), "--seq", "256", "--json"]) == cli.DONE
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["experiments"]) == {"block_size"}
    assert all((out / name).stat().st_size for name in answer["experiments"]["block_size"]["files"])
    assert (out / answer["page"]).read_text().startswith("<!DOCTYPE html>")
