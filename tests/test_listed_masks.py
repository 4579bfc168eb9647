"""Masks that are lists of blocks: are they what their names say, and do bytes follow the blocks?"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import compare, schedules, theory
from hbmeter.simulator.engines import gradients, l2, numeric, scratchpad, stack_distance
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.mask_forms import parse
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.verifier import verify
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SIZES, TILES, problems

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=4)
FORMS = st.one_of(
    st.integers(1, 45).map(lambda n: f"prefix:{n}"),
    LENGTHS.map(lambda lengths: f"documents:{','.join(map(str, lengths))}"),
    st.tuples(st.integers(1, 20), st.integers(1, 45)).map(lambda n: "longformer:{},{}".format(*n)),
    st.tuples(st.integers(1, 5), st.integers(1, 12)).map(lambda n: "strided:{}@{}".format(*n)),
    st.tuples(st.floats(0.05, 1), st.integers(0, 9), st.integers(1, 12)).map(
        lambda n: "random:{:.3f},{}@{}".format(*n)),
)


@st.composite
def listed_problems(draw, direction="forward"):
    """Any small problem with a mask that is a list; those that see nothing at all left out."""
    shape, mask = draw(problems(dtypes=("fp64",))), draw(FORMS)
    try:
        return replace(shape, mask=mask, direction=direction)
    except InputError as error:
        assert "leaves no" in str(error)
        return replace(shape, mask="prefix:1", direction=direction)


# ---- What the names say, pair by pair ----


def sees(mask, i, j, n_q, n_kv):
    """Whether query i may look at key j: a twin of the masks, from their definitions."""
    name, _, argument = mask.partition(":")
    argument, _, block = argument.partition("@")
    at, block = i + n_kv - n_q, int(block or 64)  # the query's own key
    if name == "prefix":
        return j < int(argument) or j <= at
    if name == "documents":
        lengths, ends = [int(n) for n in argument.split(",")], []
        while sum(ends[-1:]) < n_kv:
            ends.append(sum(ends[-1:]) + lengths[len(ends) % len(lengths)])
        return at >= 0 and j <= at and sum(e <= at for e in ends) == sum(e <= j for e in ends)
    if name == "longformer":
        width, seen = (int(n) for n in argument.split(","))
        return j < seen or at < seen or abs(at - j) <= width
    newest = min((i // block + 1) * block, n_q) - 1 + n_kv - n_q
    age = newest // block - j // block
    return j <= at and (age < int(argument) or age % int(argument) == 0)


@settings(deadline=None, max_examples=80)
@given(mask=FORMS.filter(lambda text: not text.startswith("random")), n_q=SIZES, n_kv=SIZES)
def test_each_form_is_its_definition_pair_by_pair(mask, n_q, n_kv):
    want = np.array([[sees(mask, i, j, n_q, n_kv) for j in range(n_kv)] for i in range(n_q)])
    if not want.any():
        with pytest.raises(InputError, match="leaves no"):
            parse(mask, n_q, n_kv)
        return
    np.testing.assert_array_equal(parse(mask, n_q, n_kv).dense(n_q, n_kv), want)


SIDES = st.integers(1, 48) | st.sampled_from((16, 32, 48))  # those are made of 16 × 16 blocks


@settings(deadline=None, max_examples=80)
@given(p=listed_problems(), br=SIDES, bc=SIDES, row=st.integers(0, 39))
def test_counts_blocks_and_tiles_are_those_of_all_pairs(p, br, bc, row):
    mask = p.visibility
    pairs = mask.dense(p.seq, p.kv_seq)
    assert p.pairs == pairs.sum() and p.keys_seen == pairs.any(axis=0).sum()
    padded = np.zeros((-(-p.seq // br) * br, -(-p.kv_seq // bc) * bc), np.bool_)
    padded[:p.seq, :p.kv_seq] = pairs
    blocks = padded.reshape(-1, br, padded.shape[1] // bc, bc).any(axis=(1, 3))
    np.testing.assert_array_equal(mask.touched(br, bc), blocks)
    row = min(row, p.seq - 1)
    np.testing.assert_array_equal(mask.dense(p.seq, p.kv_seq, row, 0, 1, p.kv_seq)[0], pairs[row])


def test_a_random_mask_keeps_its_share_of_blocks_and_the_seed_chooses():
    kept = [parse(f"random:0.25,{seed}@8", 160, 160).dense(160, 160) for seed in (1, 1, 2)]
    assert kept[0].sum() == 160 * 160 // 4 == kept[2].sum()
    assert (kept[0] == kept[1]).all() and (kept[0] != kept[2]).any()


def test_a_block_matrix_is_the_mask(tmp_path):
    blocks = np.random.default_rng(0).random((5, 4)) < 0.5
    np.save(tmp_path / "blocks.npy", blocks)
    found = parse(f"blocks:{tmp_path}/blocks.npy@8", 37, 30).dense(37, 30)
    np.testing.assert_array_equal(found, np.kron(blocks, np.ones((8, 8)))[:37, :30] == 1)
    lengths = np.array([10, 20], np.int32)
    np.save(tmp_path / "lengths.npy", lengths)
    found = parse(f"documents:{tmp_path}/lengths.npy", 70, 70).dense(70, 70)
    np.testing.assert_array_equal(found, parse("documents:10,20", 70, 70).dense(70, 70))


# ---- Schedules ----


@pytest.mark.parametrize("schedule", ["flash1", "flash2"])
@settings(deadline=None, max_examples=60)
@given(p=listed_problems(), tiles=TILES, kv_order=st.sampled_from(["forward", "sawtooth:2"]))
def test_flash_is_exact_and_moves_the_blocks_that_are_touched(schedule, p, tiles, kv_order):
    program = schedules.build(schedule, p, replace(tiles, kv_order=kv_order))
    verify(program)
    inputs = numeric.random_inputs(p)
    got = numeric.run(program, inputs)["O"]
    assert numeric.relative_error(got, numeric.reference(p, inputs)) <= 1e-12
    counted = {name: tuple(moved.values())
               for name, moved in scratchpad.count(program).by_tensor.items()}
    assert counted == theory.bytes_by_tensor(schedule, p, tiles)


@pytest.mark.parametrize("schedule", ["flash1_backward", "flash2_backward", "standard_backward"])
@settings(deadline=None, max_examples=15)
@given(p=listed_problems("backward"), tiles=TILES)
def test_gradients_are_exact_and_move_the_blocks_that_are_touched(schedule, p, tiles):
    program = schedules.build(schedule, p, tiles)
    verify(program)
    inputs = numeric.random_inputs(p)
    inputs |= gradients.backward_inputs(p, inputs)
    outputs = numeric.run(program, inputs)
    for name, want in gradients.reference_gradients(p, inputs).items():
        assert numeric.relative_error(outputs[name], want) <= 1e-11
    counted = {name: tuple(moved.values())
               for name, moved in scratchpad.count(program).by_tensor.items()}
    assert counted == theory.bytes_by_tensor(schedule, p, tiles)


def count(mask, seq=1024, tiles=None, **shape):
    p = Attention(1, 2, seq, 64, mask=mask, **shape)
    program = schedules.build("flash2", p, tiles or Tiles(64, 64))
    return scratchpad.count(program).by_tensor


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 1])
def test_bytes_of_keys_and_values_are_the_share_of_blocks(share):
    """FlashAttention Proposition 4: Nd + N²d²s/M."""
    full, sparse = count("full"), count(f"random:{share},3@64")
    assert sparse["K"]["read_bytes"] == share * full["K"]["read_bytes"] == sparse["V"]["read_bytes"]
    assert sparse["Q"] == full["Q"] and sparse["O"] == full["O"]


@pytest.mark.parametrize(("listed", "simple"), [
    ("documents:1024", "causal"), ("prefix:1024", "full"), ("longformer:1024,1", "full"),
    ("strided:16", "causal"), ("strided:1", "causal"), ("prefix:1", "causal")])
def test_a_list_of_what_a_simple_mask_shows_moves_what_that_moves(listed, simple):
    for name, moved in count(simple).items():
        assert count(listed)[name] == moved


def test_packed_documents_move_no_more_than_each_alone():
    """Lengths that tiles divide: four causal documents in one sequence, or a batch of four."""
    packed, alone = count("documents:256"), count("causal", 256)
    assert packed["K"]["read_bytes"] == 4 * alone["K"]["read_bytes"]


def test_dram_bytes_follow_the_blocks_too():
    gpu, p = load("h200"), Attention(1, 4, 4096, 128, mask="random:0.1,0@128")
    program = schedules.build("flash2", p, Tiles(128, 128))
    found = l2.simulate(program, gpu, blocks_per_sm=1)
    assert found.by_tensor["K"]["read_bytes"] <= program.tensor_bytes(program.tensors[1])
    seen = p.keys_seen * 4 * 128 * 2
    assert found.by_tensor["K"]["read_bytes"] == seen and found.by_tensor["blocks"]["read_bytes"]


@settings(deadline=None, max_examples=30)
@given(p=listed_problems(), tiles=TILES, schedule=st.sampled_from(["flash1", "flash2"]))
def test_an_endless_l2_reads_what_is_touched_once_and_none_reads_it_each_time(p, tiles, schedule):
    program = schedules.build(schedule, p, tiles)
    counted = scratchpad.count(program)
    curve = stack_distance.miss_curve(program, load("h200"), [0, 1 << 40], blocks_per_sm=1)
    touched = theory.touched_blocks(p, tiles)
    keys = [min(tiles.bc, p.kv_seq - c * tiles.bc) for c in np.flatnonzero(touched.any(axis=0))]
    rows = [min(tiles.br, p.seq - r * tiles.br) for r in np.flatnonzero(touched.any(axis=1))]
    width, rows = p.head_dim + p.value_dim, p.seq if schedule == "flash2" else sum(rows)
    least = p.batch * 8 * (sum(keys) * p.kv_heads * width + p.heads * rows * p.head_dim)
    tables = sum(program.tensor_bytes(t) for t in program.tensors if t.role == "table")
    assert curve.read_bytes[0] == counted.read_bytes
    assert least < curve.read_bytes[1] <= least + tables


def test_comparing_leaves_out_what_cannot_take_the_mask():
    points = compare(Attention(1, 2, 512, 64, mask="documents:100"), load("h200"),
                     engine="scratchpad")
    assert [point["schedule"] for point in points] == [
        "standard", "standard_minimal", "flash1", "flash2"]
    decode = Attention(1, 2, 1, 64, kv_seq=512, mask="prefix:100")
    assert "split_kv" not in {point["schedule"] for point in compare(
        decode, load("h200"), engine="scratchpad")}


# ---- The command line ----


def test_traffic_and_check_take_the_masks(capsys, tmp_path):
    np.save(tmp_path / "b.npy", np.tri(4, dtype=bool))
    for mask in ("prefix:100", "documents:64,192", f"blocks:{tmp_path}/b.npy", "strided:2"):
        shape = ["--schedule", "flash2", "--seq", "256", "--heads", "2", "--mask", mask]
        assert main(["check", *shape, "--batch", "1", "--dtype", "fp64"]) == 0
        capsys.readouterr()
        assert main(["traffic", *shape, "--br", "64", "--bc", "64", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["problem"]["mask"] == mask
        assert found["sm"]["by_tensor"]["blocks"]["read_bytes"] > 0


@pytest.mark.parametrize(("schedule", "mask", "says"), [
    ("split_kv", "prefix:9", "split_kv takes the masks full, causal and window:W; mask prefix:9 is "
                             "for chunked, flash1, flash2, standard"),
    ("flash2", "prefix:0", "it is prefix:P with P keys, whole numbers from 1"),
    ("flash2", "documents:3,x", "it is documents:LEN,LEN,… or documents:FILE.npy"),
    ("flash2", "longformer:3", "it is longformer:W,G"),
    ("flash2", "random:2,1", "a share of blocks above 0, at most 1"),
    ("flash2", "random:nan,1", "a share of blocks above 0, at most 1"),
    ("flash2", "strided:2@0", "blocks of B"),
    ("flash2", "blocks:absent.npy", "absent.npy: No such file"),
    ("flash2", "blocks:" + __file__, "not a NumPy array"),
    ("flash2", "star:3", "prefix, documents, longformer, strided, random or blocks"),
])
def test_a_mask_that_cannot_be_is_one_line(schedule, mask, says, capsys):
    assert main(["traffic", "--schedule", schedule, "--seq", "256", "--mask", mask]) == 2
    text = capsys.readouterr().err
    assert says in text and text.count("\n") == 1


def test_a_block_matrix_of_another_shape_says_which_is_right(tmp_path):
    np.save(tmp_path / "b.npy", np.ones((3, 4), bool))
    with pytest.raises(InputError, match=r"need a boolean matrix \[4, 4\]"):
        Attention(seq=256, mask=f"blocks:{tmp_path}/b.npy")


@pytest.mark.parametrize("name", kernels.names())
def test_kernels_say_that_they_take_no_lists(name):
    kernel = kernels.get(name)
    p = Attention(1, 8, 64, 64, mask="prefix:9", direction=kernel.direction)
    with pytest.raises(InputError, match=f"mask prefix:9: kernel {name} needs full, causal or"):
        kernel.check(p, Tiles(64, 64))
