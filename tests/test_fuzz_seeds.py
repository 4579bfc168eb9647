"""Does every importer still take or refuse in its own words the inputs that fuzzing kept?

``tests/fuzz/run.py`` makes them; the names of those that once failed say what was wrong.
"""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(FOLDER))
from importers import IMPORTERS, take  # noqa: E402

SEEDS = sorted((FOLDER / "seeds").iterdir())


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_a_kept_input_is_taken_or_refused(seed):
    take(seed.read_bytes())


def test_every_importer_has_a_seed():
    assert {chr(seed.read_bytes()[0]) for seed in SEEDS} >= set(IMPORTERS)
