"""Is a remembered prediction the one that would be made, and made anew when anything differs?"""

import pytest
from hbmeter.experiments.remembered import remembered
from hbmeter.simulator import jit


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Numbers that were computed, in order; the folder is empty."""
    monkeypatch.setattr(jit, "CACHE_DIR", tmp_path)
    return []


def ask(made, number, **asked):
    def compute():
        made.append(number)
        return {"bytes": number, "model": None}

    return remembered(compute, **asked)


def test_the_same_question_is_computed_once(made):
    assert ask(made, 1, n=64, tiles=(16, 16)) == ask(made, 2, tiles=(16, 16), n=64)
    assert made == [1]


def test_another_question_or_another_simulator_is_computed(made, monkeypatch):
    ask(made, 1, n=64)
    assert ask(made, 2, n=128)["bytes"] == 2
    assert ask(made, 3, n="64")["bytes"] == 3
    monkeypatch.setattr(jit, "CODE_VERSION", "edited")
    assert ask(made, 4, n=64)["bytes"] == 4
    assert made == [1, 2, 3, 4]


def test_a_file_that_is_cut_short_is_written_anew(made, tmp_path):
    ask(made, 1, n=64)
    file, = tmp_path.iterdir()
    file.write_text(file.read_text()[:5])
    assert ask(made, 2, n=64)["bytes"] == ask(made, 3, n=64)["bytes"] == 2


def test_without_a_folder_everything_is_computed(made, tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "CACHE_DIR", tmp_path / "absent")
    assert ask(made, 1, n=64) == ask(made, 1, n=64)
    monkeypatch.setattr(jit, "CACHE_DIR", None)
    assert ask(made, 2, n=64)["bytes"] == 2
    assert made == [1, 1, 2]
