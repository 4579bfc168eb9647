#!/usr/bin/env bash
# Branch coverage of simulator/ and hwprofiles/: tests/coverage.sh [PYTHON], some 15 minutes.
# The whole suite first; compiled functions cannot be seen there, so the tests that run each of them
# on small programs run once more with NUMBA_DISABLE_JIT=1, where Python interprets them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python}
"$python" -m coverage erase
"$python" -m coverage run -m pytest -q -n auto
NUMBA_DISABLE_JIT=1 "$python" -m coverage run -m pytest -q -n auto tests/test_theory.py \
    tests/test_scratchpad.py tests/test_verifier.py tests/test_lru_lines.py tests/test_l2_scan.py \
    tests/test_stack_distance.py tests/test_backward.py tests/test_softmax.py \
    -k "not compile and not cached and not kept_in_that" --hypothesis-profile=untimed || true
"$python" -m coverage combine -q
"$python" -m coverage report --skip-covered
