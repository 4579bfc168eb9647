"""Fuzz every importer with atheris, guided by coverage, for some time (pip install atheris):

    python tests/fuzz/run.py --seconds 3600

Inputs that reach new code are kept in a folder of their own (``--keep``); tests/fuzz/seeds holds
small ones, and those that failed once, which tests replay (tests/test_fuzz_seeds.py). It goes on
after a failure: each kind is written once, to ``crash-N`` in the present folder, with its traceback
on stderr. To run one again:

    python tests/fuzz/run.py --replay crash-1
"""

import argparse
import os
import sys
import traceback
from pathlib import Path

import atheris

SEEDS = Path(__file__).parent / "seeds"
COMPILED = [f"hbmeter.simulator.engines.{name}" for name in (
    "l2", "l2_blocks", "l2_cache", "l2_moves", "l2_repeat", "scratchpad", "walk", "steps",
    "dispatch")]  # instrumented bytecode is not Numba's
failures: dict[tuple, str] = {}

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["hbmeter", "yaml"], exclude=COMPILED):
    from importers import take


def test_one(data: bytes):
    """Run one input; keep the first of each kind of failure."""
    try:
        take(data)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        kind = (type(error).__name__, frame.filename, frame.lineno)
        if kind not in failures:
            failures[kind] = f"crash-{len(failures) + 1}"
            Path(failures[kind]).write_bytes(data)
            print(f"\n{failures[kind]}:", file=sys.stderr)
            traceback.print_exc()


def main():
    """Parse the command line, then hand over to libFuzzer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", default="fuzz-corpus", help="folder of inputs (%(default)s)")
    parser.add_argument("--replay", help="one input instead")
    args = parser.parse_args()
    if args.replay:
        take(Path(args.replay).read_bytes())
        return
    os.makedirs(args.keep, exist_ok=True)
    atheris.Setup([sys.argv[0], f"-max_total_time={args.seconds}", "-timeout=100", "-max_len=20000",
                   "-print_final_stats=1", args.keep, str(SEEDS)], test_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
