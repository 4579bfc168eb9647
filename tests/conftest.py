"""Shared by all tests: a flag that rewrites golden files instead of comparing with them, and
hypothesis without wall-clock limits, which busy machines break."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", deadline=None, max_examples=10,
                          suppress_health_check=[HealthCheck.too_slow])  # tests/coverage.sh
settings.load_profile("untimed")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from the present output"
    )
    parser.addoption("--kills", type=int, default=3, metavar="N",
                     help="times that a sweep is killed at random moments (3)")


@pytest.fixture
def update_golden(request) -> bool:
    """Whether golden files are to be rewritten."""
    return request.config.getoption("--update-golden")
