"""Mutation testing of the closed forms, the scratchpad count and occupancy: which small changes of
the code does no test notice? (pip install cosmic-ray, which makes the mutants.)

    NUMBA_DISABLE_JIT=1 python tests/mutants.py              all modules
    NUMBA_DISABLE_JIT=1 python tests/mutants.py occupancy    one; --share 0.25: a quarter, by hash

Each mutant lives in a forked process that imports its module from the changed source and runs the
module's tests until one fails: no file is changed, and several of these can run at once. Each
survivor is printed as its line before and after; what takes too long (an endless loop) is killed.
"""

import argparse
import hashlib
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 60  # of a processor, for one mutant
# Module of the simulator: the tests that run against its mutants, the quickest first.
HAND = "test_theory_by_hand.py"
TESTS = {
    "occupancy": ["test_occupancy_by_hand.py"],
    "theory_softmax": [HAND, "test_theory.py", "-k", "closed_form or softmax or chunked"],
    "theory_decode": [HAND, "test_theory.py", "-k",
                      "hand or compulsory_output or split or decode or paged or mla"],
    "theory_backward": [HAND, "test_theory.py", "test_backward.py", "-k",
                        "hand or long_rows and backward or compulsory_output or paper or figure_2 "
                        "or 8nd or engine_counts and backward"],
    "theory": [HAND, "test_theory.py", "-k", "not (backward or softmax_safe or softmax_online or "
               "softmax_fused or split_kv or paged or mla or chunked)"],
    "engines/scratchpad": ["test_scratchpad_shortcuts.py", "test_scratchpad.py", "-k",
                           "shortcuts or naive or as_they_run or dtype"],
}
# cosmic-ray has eleven replacements for each operator; these two or so are the hard ones.
BINARY = {"Add_Sub", "Sub_Add", "Mul_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul",
          "FloorDiv_Div", "Mod_FloorDiv", "Pow_Mul"}
COMPARED = {"Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
            "Eq_NotEq", "NotEq_Eq"}


def mutants(path: Path):
    """(name of the change, number of its line, line before, line after, whole changed source)."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    code = path.read_text(encoding="utf-8")
    for full_name in operator_names():
        kind, _, change = full_name.removeprefix("core/").partition("_")
        operator = get_operator(full_name)
        unwanted = {"ReplaceBinaryOperator": BINARY, "ReplaceComparisonOperator": COMPARED}
        if operator.arguments() or change not in unwanted.get(kind, {change}):
            continue
        places = sum(len(list(operator().mutation_positions(node)))
                     for node in ast_nodes(get_ast(code)))
        for occurrence in range(places):
            changed = mutate_code(code, operator(), occurrence)
            if changed.count("@njit") == code.count("@njit"):  # not compiled here anyway
                yield full_name.removeprefix("core/"), *_difference(code, changed), changed


def _difference(code: str, changed: str) -> tuple[int, str, str]:
    pairs = zip(code.splitlines(), [*changed.splitlines(), ""], strict=False)
    return next((number, a.strip(), b.strip()) for number, (a, b) in enumerate(pairs, 1) if a != b)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from a source that is in no file."""

    def __init__(self, name: str, path: Path, source: str):
        self.name, self.path, self.source = name, str(path), source

    def find_spec(self, fullname, path, target=None):
        if fullname == self.name:
            return importlib.util.spec_from_file_location(fullname, self.path, loader=self)
        return None

    def get_filename(self, fullname):
        return self.path

    def get_data(self, path):
        return self.source.encode()


def killed(module: str, path: Path, source: str) -> bool:
    """Does a test of the module fail with this source in its place?"""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        name = f"hbmeter.simulator.{module.replace('/', '.')}"
        sys.meta_path.insert(0, _Changed(name, path, source))
        import pytest

        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=unshrunk",
                              *(str(HERE / part) if part.endswith(".py") else part
                                for part in TESTS[module])])
        os._exit(0 if status == 0 else 1)
    return os.waitpid(child, 0)[1] != 0


def main():
    """Every mutant of the modules named, then a line a module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, by hash")
    args = parser.parse_args()
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        parser.error("set NUMBA_DISABLE_JIT=1")
    import ml_dtypes  # noqa: F401  (once, for all children)
    import numba  # noqa: F401
    import pydantic  # noqa: F401
    import yaml  # noqa: F401
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile("unshrunk", deadline=None, max_examples=30, database=None,
                              phases=(Phase.explicit, Phase.generate),
                              suppress_health_check=list(HealthCheck))
    for module in args.modules:
        path = HERE.parent / "simulator" / f"{module}.py"
        if killed(module, path, path.read_text(encoding="utf-8")):
            raise SystemExit(f"{module}: its tests fail without any change")
        dead = total = 0
        for name, number, before, after, changed in mutants(path):
            key = hashlib.sha256(f"{module}{name}{before}{after}".encode()).digest()[0]
            if key >= args.share * 256:
                continue
            total += 1
            if killed(module, path, changed):
                dead += 1
            else:
                print(f"{path.name}:{number}: {name}\n    {before}\n    {after}", flush=True)
        print(f"{module}: {dead} of {total} killed ({dead / max(total, 1):.1%})", flush=True)


if __name__ == "__main__":
    main()
