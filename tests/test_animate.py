"""Do the moving pictures show what is counted, and play anywhere?"""

import re

import numpy as np
import pytest
from hbmeter.experiments.animation import gif
from hbmeter.experiments.animation.html import html
from hbmeter.experiments.animation.panel import HEIGHT, WIDTH, panel, times_moved
from hbmeter.experiments.cli import main
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import numeric, scratchpad, steps
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from PIL import Image

FORWARD = ("standard", "standard_minimal", "flash1", "flash2")
SMALL = Attention(batch=1, heads=1, seq=20, head_dim=8, mask="causal")


def build(name, problem=SMALL):
    return schedules.build(name, problem, Tiles(8, 8, bk=4))


@pytest.mark.parametrize("name", FORWARD)
def test_the_bytes_on_screen_are_the_bytes_that_are_counted(name):
    program = build(name)
    shown = steps.steps(program, numeric.random_inputs(program.problem))
    count = scratchpad.count(program)
    for kind, total in (("load", count.read_bytes), ("store", count.write_bytes)):
        assert sum(step.bytes for step in shown if step.kind == kind) == total


def test_the_numbers_on_screen_are_those_of_the_computation():
    """The last running maximum shown for a row block is the row's true maximum."""
    program = build("flash2")
    inputs = numeric.random_inputs(SMALL)
    last = {step.block: step.statistics["m"] for step in steps.steps(program, inputs)
            if "m" in step.statistics}
    q, k = (inputs[name][0, 0].astype(np.float64) for name in "QK")
    for (row,), shown in last.items():
        scores = q[row] @ k[:row + 1].T * SMALL.softmax_scale
        log_sum = np.log(np.exp(scores - scores.max()).sum())
        assert shown == pytest.approx(scores.max(), rel=1e-3) or shown == pytest.approx(
            scores.max() + log_sum, rel=1e-3)


@pytest.mark.parametrize("name", FORWARD)
def test_everything_is_drawn_inside_its_panel(name):
    shown = panel(build(name), name)
    for box in (*shown.tensors, *shown.tiles):
        assert box.x >= 0 and box.y >= 0 and box.x + box.w <= WIDTH and box.y + box.h <= HEIGHT
    assert all(a < b for a, b in zip(shown.ends, shown.ends[1:], strict=False))
    assert all(words for words in shown.words)


def test_the_player_needs_nothing_from_elsewhere():
    text = html([panel(build("flash2"), "<b>flash2</b>")], "a & b")
    assert not re.findall(r"(?:src|href)=", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<b>flash2" not in text and "a &amp; b" in text


def test_a_gif_of_two_schedules(tmp_path, capsys, monkeypatch):
    frames = gif.FRAMES
    monkeypatch.setattr(gif, "FRAMES", 8)
    path = tmp_path / "both.gif"
    assert main(["animate", "--seq", "16", "--head-dim", "8", "--br", "8", "--bc", "8",
                 "--out", str(path)]) == 0
    picture = Image.open(path)
    assert picture.n_frames == 8 and path.stat().st_size / 8 * frames < 5 << 20
    assert "flash2" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_said_before_anything_is_drawn(monkeypatch, capsys):
    monkeypatch.setattr(schedules, "build", lambda *_: pytest.fail("drawn in vain"))
    assert main(["animate", "--out", "no/such/folder/a.gif"]) == 2
    assert "there is no folder no/such/folder" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [
    ["--out", "picture.txt"], ["--schedule", "flash9"], ["--seq", "0"], ["--seq", "100000"],
    ["--out", "no/such/folder/a.html"],
])
def test_bad_input_is_one_line(arguments, capsys):
    assert main(["animate", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_only_one_head_can_be_watched():
    program = build("flash2", Attention(batch=2, heads=1, seq=8, head_dim=8))
    with pytest.raises(InputError, match="one head"):
        steps.steps(program, numeric.random_inputs(program.problem))


def test_what_is_read_again_and_again_is_told():
    """standard reads K once for each row block; the least is every input and output once."""
    shown = panel(build("standard", Attention(batch=1, heads=1, seq=32, head_dim=8)), "standard")
    names = {box.name: box.number for box in shown.tensors}
    read = sum(step.bytes for step in shown.steps
               if step.kind == "load" and step.region[0] == names["K"])
    assert times_moved(read, shown.tensor_bytes[names["K"]]) == "4×"
    assert shown.compulsory_bytes == 4 * 32 * 8 * 2 < shown.bytes
    assert shown.where(shown.steps[0]) == "kernel 1 of 3: scores, block at row 0 and column 0"
    text = html([shown, panel(build("flash2"), "flash2")], "both")
    assert f"In all: standard {shown.bytes:,} B, flash2" in text
