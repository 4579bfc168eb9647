"""Shared by all tests: one flag, which rewrites golden files instead of comparing with them."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from the present output"
    )


@pytest.fixture
def update_golden(request) -> bool:
    """Whether golden files are to be rewritten."""
    return request.config.getoption("--update-golden")
