"""Is what compute-sanitizer prints read as it is meant?"""

import subprocess
from types import SimpleNamespace

import pytest
from hbmeter import kernels
from hbmeter.experiments import sanitize
from hbmeter.kernels.errors import Unavailable

RACE = """========= COMPUTE-SANITIZER
ran flash2
========= Error: Race reported between Write access at hbmeter_control+0xb0
=========     and Read access at hbmeter_control+0x100 [63 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
BOUNDS = """========= Invalid __global__ write of size 4 bytes
=========     at hbmeter_flash2+0x90
=========     by thread (63,0,0) in block (0,0,0)
========= Invalid __global__ write of size 4 bytes
=========     at hbmeter_control+0x90
========= ERROR SUMMARY: 2 errors
"""


def test_reports_are_counted_by_entry_point():
    assert sanitize.reports_of(RACE) == {"hbmeter_control": 1}
    assert sanitize.reports_of(BOUNDS) == {"hbmeter_flash2": 1, "hbmeter_control": 1}
    assert sanitize.reports_of("========= ERROR SUMMARY: 0 errors\n") == {}


@pytest.mark.parametrize(("text", "code"), [(RACE, 0), (BOUNDS, 1), ("ran flash2\n", 1)])
def test_silence_about_a_wrong_kernel_is_no_pass(monkeypatch, capsys, text, code):
    monkeypatch.setattr(sanitize, "find", lambda: "compute-sanitizer")
    monkeypatch.setattr(subprocess, "run",
                        lambda *_, **__: SimpleNamespace(stdout=text, stderr=""))
    monkeypatch.setattr(sanitize, "build_ahead", lambda builds, report: None)
    from hbmeter.kernels import runner

    monkeypatch.setattr(runner, "require_gpu", lambda: None)
    assert sanitize.main(["--tool", "racecheck", "--kernel", "flash2"]) == code
    assert "reported" in capsys.readouterr().out


def test_without_the_tool_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: None)
    monkeypatch.setattr(sanitize, "PLACES", ())
    with pytest.raises(Unavailable, match="CUDA toolkit"):
        sanitize.find()
    from hbmeter.kernels import runner

    monkeypatch.setattr(runner, "require_gpu", lambda: None)
    assert sanitize.main([]) == 3
    assert "compute-sanitizer" in capsys.readouterr().err


def test_every_kernel_takes_its_problem():
    for name in kernels.names():
        kernel, problem = kernels.get(name), sanitize._problem(name)
        tiles = kernel.tile_choices(problem)[0]
        assert kernel.accepts(problem, tiles)
        assert problem.kv_seq > 2 * tiles.bc or kernel.direction == "softmax", name
