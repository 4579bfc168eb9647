"""Does every public name of the simulator have an example, and is every example still true?"""

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import hbmeter.hwprofiles
import hbmeter.simulator
import pytest

pytest.importorskip("pandas")
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
PACKAGES = (hbmeter.simulator, hbmeter.hwprofiles)
MODULES = [
    *(package.__name__ for package in PACKAGES), "hbmeter.experiments.figures",
    "hbmeter.experiments.options",
    *(module.name for package in PACKAGES
      for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
]
FUNCTIONS = [name for name in hbmeter.simulator.__all__ if name != "blocks"]


@pytest.mark.parametrize("name", MODULES)
def test_every_example_is_true(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_name_has_an_example(name):
    text = getattr(hbmeter.simulator, name).__doc__
    assert doctest.DocTestParser().get_examples(text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_says_what_it_takes_and_gives(name):
    found = getattr(hbmeter.simulator, name)
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        told = [*(p.annotation for p in signature.parameters.values()),
                signature.return_annotation]
        assert inspect.Signature.empty not in told


def test_type_checkers_see_the_names_that_are_there():
    tree = ast.parse(Path(hbmeter.simulator.__file__).read_text(encoding="utf-8"))
    seen = {alias.name for node in ast.walk(tree) if isinstance(node, ast.If)
            for inner in node.body if isinstance(inner, ast.ImportFrom) for alias in inner.names}
    assert seen == set(hbmeter.simulator.__all__)


def test_blocks_is_a_module_and_the_others_are_called():
    from hbmeter.simulator import blocks, compare, sweep, traffic
    assert blocks.explore is hbmeter.simulator.explore
    assert all(map(callable, (compare, sweep, traffic)))
