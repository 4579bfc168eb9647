"""Shared by all tests: a flag that rewrites golden files instead of comparing with them, hypothesis
without wall-clock limits, which busy machines break, and with -n which tests come first and which
stay together."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy, as the command line does
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", deadline=None, max_examples=10,
                          suppress_health_check=[HealthCheck.too_slow])  # tests/coverage.sh
settings.load_profile("untimed")

# Files whose tests share what takes seconds to make.
TOGETHER = {"test_calibrate", "test_claims", "test_houses", "test_numerics", "test_probes",
            "test_recorded_times", "test_report", "test_report_browser", "test_verify"}
# Files that begin: one process compiles the engines with Numba and keeps what it predicts for all,
# the others meanwhile compile kernels, which needs none of it.
FIRST = ("test_recorded_times", "test_kernels_compile", "test_probes")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from the present output"
    )
    parser.addoption("--kills", type=int, default=3, metavar="N",
                     help="times that a sweep is killed at random moments (3)")


def pytest_collection_modifyitems(items):
    """FIRST, then what is together, then all others."""
    def turn(item):
        file = item.path.stem
        return FIRST.index(file) if file in FIRST else len(FIRST) + (file not in TOGETHER)

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With -n, the tests of some files go to one process: what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return file if Path(file).stem in TOGETHER else nodeid

    config.option.loadscopereorder = False  # in the order of the items
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture
def update_golden(request) -> bool:
    """Whether golden files are to be rewritten."""
    return request.config.getoption("--update-golden")
