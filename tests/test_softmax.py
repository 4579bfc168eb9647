"""The softmax alone: is it exact, and are the accesses per element those that the paper counts?"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import compare, schedules, theory, traffic
from hbmeter.simulator.bounds import pass_bound
from hbmeter.simulator.engines import numeric, scores, scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TILES, problems

SOFTMAX = schedules.names("softmax")
ACCESSES = {"softmax_safe": 4, "softmax_online": 3, "softmax_fused": 2}


def test_there_are_the_three_that_the_paper_compares():
    assert set(SOFTMAX) == set(ACCESSES)


@settings(deadline=None, max_examples=50)
@given(p=problems(dtypes=("fp64",)), seed=st.integers(0, 99))
def test_the_reference_is_the_softmax_row_by_row(p, seed):
    p = replace(p, direction="softmax")
    given_scores = scores.random_scores(p, seed)
    got = scores.reference_softmax(p, given_scores)["P"]
    visible = p.visibility.dense(p.seq, p.kv_seq)
    for b, h, i in np.ndindex(p.batch, p.heads, p.seq):
        row = given_scores["S"][b, h, i][visible[i]]
        want = np.exp(row) / np.exp(row).sum() if len(row) else row
        np.testing.assert_allclose(got[b, h, i][visible[i]], want, rtol=1e-12)
        assert (got[b, h, i][~visible[i]] == 0).all()


@pytest.mark.parametrize("schedule", SOFTMAX)
@settings(deadline=None, max_examples=40)
@given(p=problems(dtypes=("fp64",)), tiles=TILES, seed=st.integers(0, 99))
def test_every_schedule_is_the_exact_softmax(schedule, p, tiles, seed):
    p = replace(p, direction="softmax")
    given_scores = scores.random_scores(p, seed)
    got = numeric.run(schedules.build(schedule, p, tiles), given_scores)["P"]
    assert numeric.relative_error(
        got, scores.reference_softmax(p, given_scores)["P"]) <= 1e-12


@pytest.mark.parametrize("schedule", SOFTMAX)
def test_large_scores_do_not_overflow(schedule):
    p = Attention(1, 1, 4, kv_seq=50, dtype="fp32", direction="softmax")
    given_scores = {"S": np.full((1, 1, 4, 50), 1e4, np.float32)}
    got = numeric.run(schedules.build(schedule, p, Tiles(1, 16)), given_scores)["P"]
    np.testing.assert_allclose(got, 1 / 50, rtol=1e-6)


@pytest.mark.parametrize("schedule", SOFTMAX)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_accesses_per_element_are_those_of_the_paper(schedule, dtype):
    p = Attention(3, 5, 70, kv_seq=1000, dtype=dtype, mask="causal", direction="softmax")
    count = scratchpad.count(schedules.build(schedule, p, Tiles(1, 96)))
    elements = 3 * 5 * 70 * 1000
    assert count.read_bytes + count.write_bytes == ACCESSES[schedule] * elements * p.dtype_bytes
    assert count.write_bytes == elements * p.dtype_bytes


def test_rows_in_flight_stay_in_the_l2_between_passes():
    """132 × 8 rows of 8 KiB: the second and third pass read them from the L2 of an H200."""
    p = Attention(1, 4, 4096, kv_seq=4096, direction="softmax")
    for schedule in SOFTMAX:
        point = traffic(schedule, p, load("h200"), Tiles(1, 2048))
        assert p.compulsory_read_bytes == 4 * 4096 * 4096 * 2
        assert 1 <= point["dram"]["read_bytes"] / p.compulsory_read_bytes < 1.02


def test_a_row_that_shared_memory_does_not_hold_is_refused():
    p = Attention(1, 1, 1, kv_seq=1 << 20, direction="softmax")
    with pytest.raises(InputError, match="softmax_fused: no tile fits"):
        traffic("softmax_fused", p, load("h200"))


@pytest.mark.parametrize("schedule", SOFTMAX)
@pytest.mark.parametrize(("tiles", "dtype", "says"), [
    (Tiles(2, 2048), "fp16", "br 2: .* needs 1: a thread block takes a row"),
    (Tiles(1, 1000), "fp16", "bc 1000: .* 2048 to 16384 in steps of 2048 with fp16"),
    (Tiles(1, 16384), "fp32", "bc 16384: .* 1024 to 8192 in steps of 1024 with fp32"),
    (Tiles(1, 2048), "fp8", "fp8"),
])
def test_tiles_of_a_kernel_are_steps_of_a_row(schedule, tiles, dtype, says):
    p = Attention(1, 1, 64, head_dim=100, dtype=dtype, direction="softmax")
    with pytest.raises(InputError, match=says):
        kernels.get(schedule).check(p, tiles)


def test_the_fused_kernel_refuses_rows_that_shared_memory_does_not_hold():
    p = Attention(1, 1, 1, kv_seq=1 << 17, direction="softmax")
    kernels.get("softmax_online").check(p, Tiles(1, 2048))
    with pytest.raises(InputError, match="shared memory"):
        kernels.get("softmax_fused").check(p, Tiles(1, 2048))


def test_the_bound_has_no_products():
    p = Attention(1, 4, 4096, direction="softmax")
    bound = pass_bound(p, load("h200"))
    assert bound.seconds["matmul"] == 0 and p.flops == 0 and bound.limiter == "dram"
    assert bound.seconds["exp"] > 0


def test_the_bound_has_what_the_l2_cannot_keep_of_p():
    gpu, small, large = load("h200"), Attention(1, 1, 4096, direction="softmax"), \
        Attention(1, 1, 16384, direction="softmax")
    assert pass_bound(small, gpu).seconds["dram"] == 4096**2 * 2 / gpu.hbm_bytes_per_s
    moved = 2 * 16384**2 * 2 - gpu.l2.size_bytes
    assert pass_bound(large, gpu).seconds["dram"] == moved / gpu.hbm_bytes_per_s


def test_attention_commands_do_not_list_them_and_their_own_do():
    gpu = load("h200")
    assert not set(SOFTMAX) & {point["schedule"] for point in compare(
        Attention(1, 1, 256), gpu, engine="scratchpad")}
    points = compare(Attention(1, 1, 256, direction="softmax"), gpu, engine="scratchpad")
    assert [point["schedule"] for point in points] == list(ACCESSES)


# ---- Chunked attention ----


@settings(deadline=None, max_examples=30)
@given(p=problems(dtypes=("fp64",)), tiles=TILES)
def test_the_parts_of_a_chunk_pair_are_softmax_of_its_own_keys(p, tiles):
    machine = numeric.Machine(schedules.build("chunked", p, tiles), numeric.random_inputs(p))
    machine.run()
    inputs, visible = machine.inputs, p.visibility.dense(p.seq, p.kv_seq)
    o_part, m_part, l_part = machine.memory[-3:]
    k, v = (np.repeat(inputs[name], p.group, axis=1) for name in "KV")
    for chunk in range(m_part.shape[-1]):
        keys = slice(chunk * tiles.bc, (chunk + 1) * tiles.bc)
        s = inputs["Q"] @ k[:, :, keys].swapaxes(-1, -2) * p.softmax_scale
        s = np.where(visible[:, keys], s, -np.inf)
        m = s.max(-1)
        weights = np.exp(s - np.where(np.isneginf(m), 0, m)[..., None])
        np.testing.assert_allclose(m_part[..., chunk], m, rtol=1e-12)
        np.testing.assert_allclose(l_part[..., chunk], weights.sum(-1), rtol=1e-11)
        part = o_part[..., chunk * p.value_dim:(chunk + 1) * p.value_dim]
        np.testing.assert_allclose(part, weights @ v[:, :, keys], rtol=1e-9, atol=1e-11)


def test_one_chunk_of_keys_moves_what_flash2_moves_and_its_parts():
    p, tiles = Attention(2, 4, 512, 64, kv_seq=128), Tiles(128, 128)
    chunked, flash2 = (theory.bytes_by_tensor(name, p, tiles) for name in ("chunked", "flash2"))
    assert all(chunked[name] == flash2[name] for name in "QKVO")
    assert chunked["O_part"] == (2 * 4 * 512 * 64 * 4,) * 2


# ---- The command line ----


@pytest.mark.parametrize("schedule", SOFTMAX)
def test_check_and_traffic_run_them(schedule, capsys):
    shape = ["--schedule", schedule, "--seq", "64", "--heads", "2"]
    assert main(["check", *shape, "--dtype", "fp64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["relative_errors"].keys() == {"P"}
    assert main(["traffic", *shape, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problem"]["pass"] == "softmax"
    assert main(["traffic", *shape]) == 0
    assert f"{ACCESSES[schedule]} accesses an element" in capsys.readouterr().out


def test_a_pass_that_a_schedule_does_not_compute_is_one_line(capsys):
    assert main(["traffic", "--schedule", "flash2", "--pass", "softmax", "--seq", "64"]) == 2
    text = capsys.readouterr().err
    assert "computes the forward pass" in text and text.count("\n") == 1
