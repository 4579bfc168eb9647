#!/usr/bin/env bash
# Branch coverage of simulator/ and hwprofiles/: tests/coverage.sh [PYTHON], some 15 minutes.
# The whole suite first; compiled functions cannot be seen there, so the tests that run each of them
# on small programs run once more with NUMBA_DISABLE_JIT=1, where Python interprets them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python}
"$python" -m coverage erase
# (test_ctrl_c stops processes while they start, where coverage starts too.)
"$python" -m coverage run -m pytest -q -n auto --ignore tests/test_ctrl_c.py
NUMBA_DISABLE_JIT=1 "$python" -m coverage run -m pytest -q -n auto --hypothesis-profile=few \
    tests/test_{theory,scratchpad_shortcuts,scratchpad,verifier,lru_lines,l2_scan,softmax}.py \
    tests/test_{stack_distance,l2,l2_merge,l2_repeat,backward,decode,numeric}.py \
    -k "not compile and not cached and not folder_only and not what_repeats" \
    || true  # those that ask Numba itself fail
"$python" -m coverage combine -q
"$python" -m coverage report --skip-covered
