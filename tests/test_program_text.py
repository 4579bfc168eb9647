"""Is each schedule still the program it was? Golden text; --update-golden rewrites it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hbmeter.simulator import schedules
from hbmeter.simulator.masks import UNBOUNDED
from hbmeter.simulator.printer import instruction_text, to_text
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles

GOLDEN = Path(__file__).parent / "golden"
PROBLEM = Attention(batch=1, heads=4, kv_heads=2, seq=1000, kv_seq=1100, head_dim=64, value_dim=32)
CASES = {
    **{f"{name}-full": (name, replace(PROBLEM, direction=schedules.direction(name)))
       for name in schedules.names()},
    "flash1-window": ("flash1", replace(PROBLEM, mask="window:100")),
    "flash2_backward-causal": (
        "flash2_backward", replace(PROBLEM, mask="causal", kv_heads=4, direction="backward")),
    "flash2-causal": ("flash2", replace(PROBLEM, mask="causal")),
    "flash1-prefix": ("flash1", replace(PROBLEM, mask="prefix:300")),
    "flash2-documents": ("flash2", replace(PROBLEM, mask="documents:300,100")),
    "flash2_backward-strided": (
        "flash2_backward", replace(PROBLEM, mask="strided:4", kv_heads=4, direction="backward")),
    "flash2-sawtooth": ("flash2", PROBLEM, Tiles(128, 64, 2, kv_order="sawtooth:3")),
    "standard-long-rows": ("standard", replace(PROBLEM, kv_seq=1 << 15)),
    **{f"{name}-splits": (name, replace(PROBLEM, seq=2, mask="window:1000"),
                          Tiles(br=16, bc=64, stages=2, splits=3))
       for name in ("split_kv", "paged", "mla_decode")},
}


def program(case):
    name, problem, *tiles = CASES[case]
    return schedules.build(name, problem, *tiles or [Tiles(br=128, bc=64, stages=2)])


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_the_program_it_was(case, update_golden):
    path, text = GOLDEN / f"{case}.txt", to_text(program(case))
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is not there: pytest --update-golden writes it"
    assert text == path.read_text(encoding="utf-8")


def test_every_golden_file_has_its_case_and_no_other_is_there():
    found = {path.stem for path in GOLDEN.glob("*.txt")}
    assert found == set(CASES), "pytest --update-golden writes what is missing"


@pytest.mark.parametrize("case", CASES)
def test_an_unbounded_shift_is_never_printed(case):
    assert str(UNBOUNDED)[:6] not in to_text(program(case))


@pytest.mark.parametrize("case", CASES)
def test_every_instruction_but_the_ends_of_loops_has_its_line(case):
    built = program(case)
    lines = [line.strip() for line in to_text(built).splitlines()]
    for address, row in enumerate(built.tape):
        assert (instruction_text(built, address) in lines) == (row["kind"] != Kind.END)


@pytest.mark.parametrize(("case", "lines"), [
    ("flash2-causal", ["S = dot_t(Q, K)", "O += dot(P, V)", "S = mask(S, r0, c0)",
                       "S = scale(S, 0.125)", "m = fill(-inf) like LSE[r0:+128, :]",
                       "K = load K[c0:+64, :]", "store O[r0:+128, :] = O",
                       "for c0 in 0 .. clip(r0 + 228, 0, 1100) step 64:"]),
    ("flash1-window", ["for r0 in align_down(max(c0 - 100, 0), 128) .. clip(c0 + 63, 0, 1000) "
                       "step 128:", "for r0 in 0 .. 0 step 128:  # never"]),
    ("standard-full", ["Q = load Q[r0:+128, k0:+32]", "S += dot_t(Q, K)", "P = mask(S, r0, 0)"]),
])
def test_the_text_reads_as_the_algorithm_does(case, lines):
    text = to_text(program(case))
    for line in lines:
        assert f" {line}\n" in text
