"""Is every backward schedule the gradient of attention, and are its bytes those of the papers?"""

import json

import numpy as np
import pytest
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules, theory, theory_backward
from hbmeter.simulator.engines import gradients, l2, numeric, scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.printer import to_text
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.program import Program, ProgramBuilder, Role, Space
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.verifier import ProgramError, verify
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TILES, posed_for, problems

SCHEDULES = schedules.names("backward")
GPT2 = Attention(batch=64, heads=16, seq=1024, head_dim=64)  # FlashAttention Figure 2
GPT2_BACKWARD = posed_for("flash1_backward", GPT2)
STATISTICS = ("m", "l", "D", "LSE")


def all_inputs(p, seed=0):
    inputs = numeric.random_inputs(p, seed)
    return inputs | gradients.backward_inputs(p, inputs, seed)


def errors(schedule, p, tiles, seed=0):
    p = posed_for(schedule, p)
    inputs = all_inputs(p, seed)
    outputs = numeric.run(schedules.build(schedule, p, tiles), inputs)
    want = gradients.reference_gradients(p, inputs)
    return {name: numeric.relative_error(outputs[name], want[name]) for name in want}


def loss_of(p, inputs):
    """⟨O, dO⟩, whose derivatives are dQ, dK and dV."""
    return float((numeric.reference(p, inputs) * inputs["dO"]).sum())


@settings(deadline=None, max_examples=30)
@given(problems(dtypes=("fp64",)), st.integers(0, 99))
def test_the_reference_is_the_slope_of_attention(p, seed):
    """Against central differences of the forward reference, along one random direction."""
    inputs, rng = all_inputs(p, seed), np.random.default_rng(seed)
    found = gradients.reference_gradients(p, inputs)
    for name in "QKV":
        direction = rng.standard_normal(inputs[name].shape)
        step = 1e-5 / np.linalg.norm(direction)
        up, down = (loss_of(p, inputs | {name: inputs[name] + sign * step * direction})
                    for sign in (1, -1))
        slope = (found[f"d{name}"] * direction).sum()
        size = np.linalg.norm(found[f"d{name}"]) * np.linalg.norm(direction)
        assert abs((up - down) / (2 * step) - slope) <= 1e-5 * (1 + size)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=60)
@given(p=problems(dtypes=("fp64",)), tiles=TILES, seed=st.integers(0, 99))
def test_every_backward_schedule_is_the_exact_gradient(schedule, p, tiles, seed):
    assert max(errors(schedule, p, tiles, seed).values()) <= 1e-11


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mask", ["full", "causal", "window:1", "window:50"])
@pytest.mark.parametrize(("seq", "kv_seq"), [(1, 1), (1, 300), (300, 1), (193, 257), (257, 130)])
def test_every_backward_schedule_is_exact_at_default_tiles(schedule, mask, seq, kv_seq):
    p = Attention(batch=2, heads=4, kv_heads=2, seq=seq, kv_seq=kv_seq, head_dim=20, value_dim=12,
                  dtype="fp64", mask=mask)
    assert max(errors(schedule, p, None).values()) <= 1e-11


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("dtype", "limit"), [("fp32", 1e-5), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_lower_precision_costs_about_its_roundoff(schedule, dtype, limit):
    p = Attention(batch=1, heads=2, seq=70, kv_seq=90, head_dim=16, value_dim=8, dtype=dtype)
    found = errors(schedule, p, Tiles(br=32, bc=24))
    assert all(limit / 1000 < error <= limit for error in found.values())


def test_standard_backward_is_exact_when_rows_do_not_stay_on_chip():
    p = Attention(batch=1, heads=1, seq=3, kv_seq=3073, head_dim=4, dtype="fp64", mask="causal")
    program = schedules.build("standard_backward", posed_for("standard_backward", p))
    assert len(program.phases[2].tiles) == 5  # two passes over the row
    assert max(errors("standard_backward", p, None).values()) <= 1e-11


def test_rows_that_see_nothing_have_no_gradient():
    p = Attention(batch=1, heads=2, seq=50, kv_seq=13, head_dim=8, dtype="fp64", mask="window:5")
    for schedule in SCHEDULES:
        posed = posed_for(schedule, p)
        inputs = all_inputs(posed)
        outputs = numeric.run(schedules.build(schedule, posed, Tiles(br=16, bc=8)), inputs)
        assert (outputs["dQ"][:, :, :37] == 0).all() and (outputs["dQ"][:, :, 37:] != 0).any()


@pytest.mark.parametrize("schedule", ["flash1_backward", "flash2_backward"])
def test_recomputing_costs_five_products_and_reading_p_four(schedule):
    p = GPT2_BACKWARD
    flops = scratchpad.count(schedules.build(schedule, p, Tiles(64, 64))).flops["matmul"]
    kept = scratchpad.count(schedules.build("standard_backward", p)).flops["matmul"]
    assert flops == p.flops == 2.5 * p.forward_flops
    assert kept == 2 * p.forward_flops


def test_compulsory_bytes_of_the_backward_pass():
    p = posed_for("flash2_backward", Attention(batch=3, heads=4, kv_heads=2, seq=10, kv_seq=20,
                                               head_dim=8, value_dim=6))
    q, k, v, o = 3 * 4 * 10 * 8, 3 * 2 * 20 * 8, 3 * 2 * 20 * 6, 3 * 4 * 10 * 6
    assert p.compulsory_read_bytes == 2 * (q + k + v + 2 * o) + 4 * 3 * 4 * 10
    assert p.compulsory_write_bytes == 2 * (q + k + v)


def test_a_schedule_computes_its_own_pass_only():
    with pytest.raises(InputError, match=r"flash2 computes the forward pass.*flash2_backward"):
        schedules.build("flash2", GPT2_BACKWARD)
    with pytest.raises(InputError, match=r"flash2_backward computes the backward pass.*standard"):
        schedules.build("flash2_backward", GPT2)
    with pytest.raises(InputError, match=r"direction .sideways.*backward"):
        Attention(direction="sideways")


# ---- The papers' numbers ------------------------------------------------------------------------


def matrix_bytes(schedule, bc):
    """Counted bytes of the main launch over the SM boundary, row statistics left out."""
    count = scratchpad.count(schedules.build(schedule, posed_for(schedule, GPT2), Tiles(64, bc)))
    names = [tensor.name for tensor in count.program.tensors]
    main = [phase.name for phase in count.program.phases].index("attention")
    return sum(int(count.phase_bytes[main, names.index(name)].sum())
               for name in names if name not in STATISTICS)


@pytest.mark.parametrize("bc", [64, 128, 256, 512, 1000])
def test_flash1_forward_and_backward_count_what_the_paper_counts(bc):
    counted = matrix_bytes("flash1", bc) + matrix_bytes("flash1_backward", bc)
    assert matrix_bytes("flash1_backward", bc) == theory_backward.flash1_backward_paper_bytes(
        GPT2, bc)
    assert counted == theory_backward.flash1_training_paper_bytes(GPT2, bc)


def test_figure_2_flash_forward_and_backward_move_4_4_gb():
    moved = theory_backward.flash1_training_paper_bytes(GPT2, bc=256)  # Tc = 4
    assert moved == 33 * theory.nd_bytes(GPT2)
    assert f"{moved / 1e9:.2f}" == "4.43"


def test_standard_backward_counts_7n2_and_8nd():
    count = scratchpad.count(schedules.build("standard_backward_minimal", GPT2_BACKWARD))
    paper = theory_backward.standard_backward_paper_bytes(GPT2)
    assert count.read_bytes + count.write_bytes == paper
    assert paper == 7 * theory.n2_bytes(GPT2) + 8 * theory.nd_bytes(GPT2)


def test_figure_2_standard_with_mask_and_dropout_passes_moves_40_3_gb():
    """A reconstruction: the paper does not say which passes it counts."""
    n2, nd = theory.n2_bytes(GPT2), theory.nd_bytes(GPT2)
    assert theory_backward.standard_training_paper_bytes(GPT2) == 11 * n2 + 12 * nd
    moved = theory_backward.standard_training_paper_bytes(GPT2, mask_pass=True, dropout=True)
    assert theory_backward.standard_training_paper_bytes(GPT2, dropout=True) == moved - 2 * n2
    assert moved == 18 * n2 + 12 * nd and isinstance(moved, int)
    assert f"{moved / 1e9:.1f}" == "40.3"


# ---- Atomic adds in the other readers -----------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_an_l2_that_holds_everything_reads_each_input_once(kv_heads):
    p = Attention(2, 4, 256, 64, kv_heads=kv_heads, direction="backward")
    gpu = load("h200")
    big = gpu.l2.model_copy(update={"size_bytes": 1 << 30, "dirty_bytes_max": None})
    gpu = gpu.model_copy(update={"l2": big})
    count = l2.simulate(schedules.build("flash2_backward", p), gpu, blocks_per_sm=1)
    counted = scratchpad.count(count.program)
    assert count.dram_read_bytes == p.compulsory_read_bytes
    assert count.dram_write_bytes == 0
    assert count.sectors_asked * 32 == counted.read_bytes
    assert count.sectors_written * 32 == counted.write_bytes


def test_sums_that_have_left_the_l2_are_fetched_for_an_add():
    p = Attention(1, 8, 1024, 64, direction="backward")
    gpu = load("h200")
    small = gpu.l2.model_copy(update={"size_bytes": 1 << 20, "dirty_bytes_max": None})
    count = l2.simulate(schedules.build("flash2_backward", p),
                        gpu.model_copy(update={"l2": small}), blocks_per_sm=1)
    sums = count.by_tensor["dQ_acc"]
    assert sums["read_bytes"] > p.head_count * p.seq * p.head_dim * 4  # more than the last phase's
    assert 0 <= count.hit_rate <= 1


def summing(*, zero=True, load_too=False, of_queries=False, role=Role.OUTPUT) -> Program:
    """dK of two query heads added up, with one thing wrong or nothing."""
    problem = Attention(batch=1, heads=2, kv_heads=1, seq=8, head_dim=3, direction="backward")
    p = ProgramBuilder("sums", problem, Tiles(br=4, bc=4))
    dk = p.tensor("dK", 8, 3, role, kv=not of_queries, statistic=True)
    if zero:
        with p.phase("zero", ("c0", 8, 4), kv=True) as (c0,):
            tile = p.tile("zeros", 4, 3, Space.REGISTERS, accumulator=True)
            p.fill(tile, 0.0, dk, c0)
            p.store(tile, dk, c0)
    with p.phase("add", ("c0", 8, 4)) as (c0,):
        tile = p.tile("ones", 4, 3, Space.REGISTERS, accumulator=True)
        p.fill(tile, 1.0, dk, c0)
        if load_too:
            p.load(tile, dk, c0)
        p.reduce(tile, dk, c0)
    return p.build()


def test_heads_that_share_a_tensor_add_up_in_it():
    verify(summing())
    assert (numeric.run(summing(), {})["dK"] == 2).all()
    assert "reduce dK[c0:+4, :] += ones" in to_text(summing())


@pytest.mark.parametrize(("wrong", "words"), [
    ({"zero": False}, "uses what has not been stored everywhere before"),
    ({"load_too": True}, "adds to dK, which this phase loads or stores too"),
    ({"of_queries": True}, "a thread block for 2 query heads has no one slice of dK"),
    ({"role": Role.INPUT, "zero": False}, "stores the input dK"),
])
def test_adds_that_cannot_be_right_are_refused(wrong, words):
    with pytest.raises(ProgramError, match=words):
        verify(summing(**wrong))


# ---- The command line ---------------------------------------------------------------------------

SMALL = ("--batch", "1", "--heads", "4", "--kv-heads", "2", "--seq", "128", "--head-dim", "32")


def command(capsys, *argv):
    code = main([*argv, *SMALL])
    return code, capsys.readouterr()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_check_says_the_error_of_every_gradient(schedule, capsys):
    code, said = command(capsys, "check", "--schedule", schedule, "--json")
    found = json.loads(said.out)
    assert code == 0 and found["relative_errors"].keys() == {"dQ", "dK", "dV"}
    assert found["relative_error"] == max(found["relative_errors"].values()) <= found["limit"]


def test_a_schedule_decides_the_pass_unless_it_is_said(capsys):
    for more in ((), ("--pass", "backward")):
        code, said = command(capsys, "traffic", "--schedule", "flash2_backward", "--engine",
                             "scratchpad", "--json", *more)
        assert code == 0 and json.loads(said.out)["problem"]["pass"] == "backward"
    code, said = command(capsys, "traffic", "--schedule", "flash2", "--pass", "backward")
    assert code == 2 and "flash2 computes the forward pass" in said.err


def test_compare_takes_the_schedules_of_the_pass(capsys):
    code, said = command(capsys, "compare", "--pass", "backward", "--engine", "scratchpad",
                         "--json")
    points = json.loads(said.out)
    others = {"standard_separate_backward"}  # compared where there is dropout
    assert code == 0 and {point["schedule"] for point in points} == set(SCHEDULES) - others
    flops = {point["flops"] for point in points}
    assert flops == {2 * 128 * 128 * 5 * 32 * 4}
