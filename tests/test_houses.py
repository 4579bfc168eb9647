"""Does each folder import only what it may, and does all source stay short enough to read?"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSES = ("simulator", "hwprofiles", "kernels", "experiments")
SOURCES = sorted(path for house in HOUSES for path in (ROOT / house).rglob("*.py"))
TESTS = sorted((ROOT / "tests").glob("*.py"))

# Who may import which of our modules, by the longest prefix that fits; None is anything of ours.
MAY_IMPORT = {
    "hwprofiles": {"hwprofiles"},
    "simulator": {"simulator", "hwprofiles"},
    "simulator/schedules": {
        f"simulator/{name}" for name in ("errors", "problem", "program", "tiles", "schedules")
    },
    "simulator/engines": {
        f"simulator/{name}"
        for name in ("dropout", "engines", "errors", "grid_order", "jit", "masks", "ops", "problem",
                     "program", "tape")
    } | {"hwprofiles/schema"},
    "simulator/theory": {f"simulator/{name}" for name in ("errors", "masks", "problem", "tiles")},
    "simulator/theory_decode": {f"simulator/{name}" for name in ("problem", "theory", "tiles")},
    "kernels": {"kernels", "simulator", "hwprofiles"},
    "experiments": None,
}


def name_of(path: Path) -> str:
    """simulator/engines/walk.py -> simulator/engines/walk; a package by its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "/".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it runs on import) of every import; ours as folder/module paths."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(node) for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    package, found = path.relative_to(ROOT).parent.parts, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = [*base, *(node.module or "").split(".")] if node.module else list(base)
            modules = [".".join([*module, alias.name]) for alias in node.names]
        else:
            continue
        found += [(module.removeprefix("hbmeter.").replace(".", "/"), id(node) not in lazy)
                  for module in modules]
    return found


def within(module: str, prefixes) -> bool:
    return any(module == prefix or module.startswith(prefix + "/") for prefix in prefixes)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_imports_only_what_its_house_may(path):
    name = name_of(path)
    rule = max((rule for rule in MAY_IMPORT if within(name, [rule])), key=len)
    ours = [module for module, _ in imports(path) if within(module, HOUSES)]
    if MAY_IMPORT[rule] is not None:
        assert not [module for module in ours if not within(module, MAY_IMPORT[rule])]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_cupy_is_imported_in_kernels_only_and_only_when_needed(path):
    found = [eager for module, eager in imports(path) if within(module, ["cupy", "cupyx"])]
    assert not any(found)
    assert not found or name_of(path).startswith("kernels")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_matplotlib_is_imported_in_experiments_only(path):
    found = [module for module, _ in imports(path) if within(module, ["matplotlib"])]
    assert not found or name_of(path).startswith("experiments")


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name_of)
def test_a_file_and_its_functions_stay_readable(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > 60
    ]
    assert not long


def test_the_import_reader_sees_relative_absolute_and_lazy_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "simulator" / "engines" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import cupy\nfrom . import walk\nfrom ..schedules import get\n"
        "from hbmeter.experiments import cli\n"
        "def f():\n    from ...hwprofiles import load\n    import cupy.cuda\n"
    )
    assert imports(path) == [
        ("cupy", True), ("simulator/engines/walk", True), ("simulator/schedules/get", True),
        ("experiments/cli", True), ("hwprofiles/load", False), ("cupy/cuda", False),
    ]
