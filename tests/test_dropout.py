"""Dropout: is the result that of the weights that stay, and what does it move?"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments.cli import main
from hbmeter.simulator import compare, schedules, theory, theory_backward
from hbmeter.simulator.dropout import kept
from hbmeter.simulator.engines import gradients, numeric, scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.verifier import verify
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TILES, posed_for, problems

DROPPING = [name for name in schedules.names() if getattr(schedules.get(name), "DROPOUT", False)]
RATES = st.sampled_from([0.1, 0.5, 0.9])
GPT2 = Attention(batch=64, heads=16, seq=1024, head_dim=64, dropout=0.1)  # FlashAttention Figure 2


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_so_many_stay_and_no_row_or_head_is_like_another(rate):
    stay = kept(Attention(2, 3, 200, kv_seq=300, dropout=rate), 0, 0, 200, 300)
    n = stay.size
    assert abs(stay.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / n) ** 0.5
    flat = stay.reshape(-1, 300).astype(float)
    likeness = np.corrcoef(flat[:100])
    assert np.abs(likeness[~np.eye(100, dtype=bool)]).max() < 0.35


def test_a_part_is_part_of_the_whole():
    p = Attention(1, 2, 40, kv_seq=50, dropout=0.3)
    assert (kept(p, 8, 16, 8, 16) == kept(p, 0, 0, 40, 50)[..., 8:16, 16:32]).all()


@pytest.mark.parametrize("schedule", DROPPING)
@settings(deadline=None, max_examples=40)
@given(p=problems(dtypes=("fp64",)), tiles=TILES, rate=RATES, seed=st.integers(0, 99))
def test_every_schedule_is_exact(schedule, p, tiles, rate, seed):
    p = replace(posed_for(schedule, p), dropout=rate)
    inputs = numeric.random_inputs(p, seed)
    if p.direction == "backward":
        inputs |= gradients.backward_inputs(p, inputs, seed)
        wanted = gradients.reference_gradients(p, inputs)
    else:
        wanted = {"O": numeric.reference(p, inputs)}
    program = schedules.build(schedule, p, tiles)
    verify(program)
    got = numeric.run(program, inputs)
    for name, right in wanted.items():
        assert numeric.relative_error(got[name], right) <= 1e-11


@settings(deadline=None, max_examples=20)
@given(p=problems(dtypes=("fp64",)), rate=RATES, seed=st.integers(0, 99))
def test_the_reference_is_the_slope_of_attention_with_the_same_weights_left_out(p, rate, seed):
    p = replace(p, direction="backward", dropout=rate)
    inputs, rng = numeric.random_inputs(p, seed), np.random.default_rng(seed)
    inputs |= gradients.backward_inputs(p, inputs, seed)
    found = gradients.reference_gradients(p, inputs)
    for name in "QKV":
        step = 1e-5 * rng.standard_normal(inputs[name].shape)
        up, down = ((numeric.reference(p, inputs | {name: inputs[name] + sign * step})
                     * inputs["dO"]).sum() for sign in (1, -1))
        slope = (found[f"d{name}"] * step).sum()
        assert abs((up - down) / 2 - slope) <= 1e-4 * (
            np.linalg.norm(found[f"d{name}"]) * np.linalg.norm(step) + 1e-6)


@pytest.mark.parametrize("schedule", [n for n in DROPPING if n.startswith("flash")])
@given(p=problems(), tiles=TILES)
def test_flash_moves_nothing_for_it(schedule, p, tiles):
    p = posed_for(schedule, p)
    plain, dropping = (scratchpad.count(schedules.build(schedule, replace(p, dropout=x), tiles))
                       for x in (0.0, 0.1))
    assert plain.by_tensor == dropping.by_tensor


@settings(deadline=None, max_examples=40)
@given(p=problems(), dropout=st.sampled_from([0.0, 0.1]))
def test_standard_attention_pays_for_its_passes(p, dropout):
    for schedule in ("standard_separate", "standard_separate_backward"):
        posed = replace(posed_for(schedule, p), dropout=dropout)
        count = scratchpad.count(schedules.build(schedule, posed, Tiles(8, 8)))
        assert {n: (x["read_bytes"], x["write_bytes"]) for n, x in count.by_tensor.items()} == \
            theory.bytes_by_tensor(schedule, posed, Tiles(8, 8))


def test_the_program_counts_what_the_paper_measured():
    """18N² + 12Nd = 40.27 GB, printed 40.3 (FlashAttention Figure 2)."""
    moved = 0
    for schedule in ("standard_separate", "standard_separate_backward"):
        count = scratchpad.count(schedules.build(schedule, posed_for(schedule, GPT2)))
        moved += count.read_bytes + count.write_bytes
    assert moved == theory_backward.standard_training_paper_bytes(
        GPT2, mask_pass=True, dropout=True)
    assert round(moved / 1e9, 2) == 40.27


def test_compare_has_those_that_take_it():
    from hbmeter.hwprofiles import load

    points = compare(Attention(1, 2, 256, dropout=0.1), load("h200"), engine="scratchpad")
    assert [point["schedule"] for point in points] == ["standard_separate", "flash1", "flash2"]
    assert points[0]["problem"]["dropout"] == 0.1


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1, "0.1", True, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match=r"dropout .* probability from 0 to below 1"):
        Attention(dropout=rate)


def test_who_does_not_drop_says_so():
    with pytest.raises(InputError, match="split_kv takes no dropout; flash1, flash2, "):
        schedules.build("split_kv", Attention(dropout=0.1))
    with pytest.raises(InputError, match=r"dropout 0\.1: kernel flash2_mma needs 0"):
        kernels.get("flash2_mma").check(Attention(dropout=0.1), Tiles(128, 64))


# ---- The command line ----


def test_traffic_check_and_memory_take_it(capsys):
    shape = ["--seq", "64", "--heads", "2", "--batch", "1"]
    for schedule in ("standard_separate", "flash2", "flash2_backward"):
        arguments = ["--schedule", schedule, *shape, "--dropout", "0.25"]
        assert main(["check", *arguments, "--dtype", "fp64", "--json"]) == 0
        assert max(json.loads(capsys.readouterr().out)["relative_errors"].values()) <= 1e-11
        assert main(["traffic", *arguments, "--engine", "scratchpad", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["problem"]["dropout"] == 0.25
        assert ("kept" in found["sm"]["by_tensor"]) == (schedule == "standard_separate")
    for option, mask in ((["--dropout"], True), ([], False)):
        assert main(["memory", *shape, *option]) == 0
        assert ("dropout mask" in capsys.readouterr().out) == mask


@pytest.mark.parametrize(("given", "says"), [
    ("traffic --dropout 1", "'1' is not a probability from 0 to below 1"),
    ("memory --dropout nan", "'nan' is not a probability"),
    ("traffic --schedule standard --dropout 0.1", "standard takes no --dropout; flash1, flash2"),
    ("predict --kernel flash2_mma --dropout 0.1", "kernel flash2_mma"),
])
def test_what_cannot_be_is_one_line(given, says, capsys):
    try:
        code = main([*given.split(), "--seq", "256"])
    except SystemExit as stop:
        code = stop.code
    text = capsys.readouterr().err
    assert code == 2 and says in text
