"""Do the example scripts run on a machine without a GPU, and show what they promise?"""

import re
import subprocess
import sys
from pathlib import Path

import hbmeter.experiments
import pytest

pytest.importorskip("pandas")
FOLDER = Path(hbmeter.experiments.__file__).parent / "examples"
SHOWS = {
    "block_size_rule": r"h200 +128 +M/3d +Br 288, Bc 288 .*registers",
    "io_complexity": r"flash2: bytes grow as n\^1\.99; .* counted ([0-9,]+), closed form \1\n",
    "verify_on_a_gpu": r"all +SM read +\d+ +0\.000% +0\.000% +0\.000%",
}


def test_every_example_is_tried():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs_and_draws(name, tmp_path):
    """In its own process, where CuPy cannot be imported even if it is installed."""
    script = ("import runpy, sys; sys.modules['cupy'] = None; "
              f"runpy.run_path({str(FOLDER / name)!r} + '.py', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(SHOWS[name], done.stdout), done.stdout
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
