"""In whatever order blocks walk what passes them: is the result the same, what does the L2 see?"""

import json
from dataclasses import replace

import pytest
from hbmeter import kernels
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import gradients, l2, numeric, scratchpad, stack_distance, steps
from hbmeter.simulator.engines.executions import executions
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.verifier import verify
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TILES, posed_for, problems

ORDERS = st.one_of(st.sampled_from(["forward", "reversed", "sawtooth"]),
                   st.integers(1, 5).map(lambda turn: f"sawtooth:{turn}"))


TURNING = [name for name in schedules.names() if "kv_order" in schedules.options(name)]


def test_every_tiled_schedule_takes_an_order():
    assert {"flash1", "flash2", "split_kv", "paged", "mla_decode", "flash1_backward",
            "flash2_backward"} == {*TURNING}


@pytest.mark.parametrize("schedule", TURNING)
@settings(deadline=None, max_examples=40)
@given(p=problems(dtypes=("fp64",)), tiles=TILES, kv_order=ORDERS, splits=st.integers(1, 3))
def test_any_order_is_exact_and_moves_the_same_bytes(schedule, p, tiles, kv_order, splits):
    p, tiles = posed_for(schedule, p), replace(tiles, splits=splits)
    program = schedules.build(schedule, p, replace(tiles, kv_order=kv_order))
    verify(program)
    inputs, wanted = inputs_and_results(p)
    got = numeric.run(program, inputs)
    for name, right in wanted.items():
        assert numeric.relative_error(got[name], right) <= 1e-11
    forward = scratchpad.count(schedules.build(schedule, p, tiles))
    found = scratchpad.count(program)
    assert found.by_tensor == forward.by_tensor and found.flops == forward.flops


def inputs_and_results(p):
    """Random inputs of a pass, and what it must give."""
    inputs = numeric.random_inputs(p)
    if p.direction == "forward":
        return inputs, {"O": numeric.reference(p, inputs)}
    inputs |= gradients.backward_inputs(p, inputs)
    return inputs, gradients.reference_gradients(p, inputs)


@settings(deadline=None, max_examples=40)
@given(p=problems(dtypes=("fp64",)), tiles=TILES, kv_order=ORDERS)
def test_an_order_adds_no_load(p, tiles, kv_order):
    program = schedules.build("flash2", p, replace(tiles, kv_order=kv_order))
    loads = (program.tape["kind"] == Kind.LOAD).nonzero()[0]
    plain = executions(schedules.build("flash2", p, tiles), 0).sum(axis=0)
    turned = executions(program, 0).sum(axis=0)
    extra = len(turned) - len(plain)  # the instruction that says which way
    assert [turned[at] for at in loads[1:]] == [plain[at - extra] for at in loads[1:]]


def walks(kv_order, mask="full"):
    """The first key of each K tile that each row block loads, in turn."""
    p = Attention(1, 1, 40, 8, kv_seq=50, dtype="fp64", mask=mask)
    program = schedules.build("flash2", p, Tiles(8, 16, kv_order=kv_order))
    found = {}
    for step in steps.steps(program, numeric.random_inputs(p)):
        if step.kind == "load" and step.region[0] == 1:
            found.setdefault(step.block[0], []).append(step.region[1])
    return list(found.values())


def test_row_blocks_walk_as_the_order_says():
    up, down = [0, 16, 32, 48], [48, 32, 16, 0]
    assert walks("forward") == [up] * 5
    assert walks("reversed") == [down] * 5
    assert walks("sawtooth") == [up, down, up, down, up]
    assert walks("sawtooth:2") == [up, up, down, down, up]
    assert walks("sawtooth", "window:20") == [
        [0, 16], [16, 0], [0, 16, 32], [32, 16, 0], [16, 32, 48]]


def test_turning_a_wave_at_a_time_saves_dram_reads_and_turning_each_block_does_not():
    """One head whose K and V (33.5 MB) outgrow an SM's side of an H200's L2, 132 × 2 row blocks in
    flight: what a wave read last is there when the next turns; neighbours that walk towards each
    other are two streams instead of one."""
    gpu, problem = load("h200"), Attention(1, 1, 65536, 128)
    read = {}
    for kv_order in ("forward", "sawtooth", "sawtooth:264"):
        program = schedules.build("flash2", problem, Tiles(128, 64, 2, kv_order=kv_order))
        read[kv_order] = l2.simulate(program, gpu, blocks_per_sm=2).dram_read_bytes
    assert problem.compulsory_read_bytes <= read["sawtooth:264"] < 0.9 * read["forward"]
    assert read["sawtooth"] > read["forward"]


def test_an_lru_of_part_of_k_and_v_helps_only_those_who_turn():
    """One row block after the other, K and V 256 KiB, an LRU of half of that: forward, every tile
    is gone when its turn comes; turning, what fits beside Q, O and LSE is still there."""
    gpu, p = load("h200").model_copy(update={"sm_count": 1}), Attention(1, 1, 1024, 64)
    kv, held, beside = 2 * 1024 * 64 * 2, 128 << 10, 40 << 10
    read = {}
    for kv_order in ("forward", "reversed", "sawtooth"):
        program = schedules.build("flash2", p, Tiles(64, 64, kv_order=kv_order))
        read[kv_order], = stack_distance.miss_curve(program, gpu, [held],
                                                    blocks_per_sm=1).read_bytes
    q, passes = 1024 * 64 * 2, 16
    assert read["forward"] == read["reversed"] == q + passes * kv
    assert q + kv + 15 * (kv - held) <= read["sawtooth"] <= q + kv + 15 * (kv - held + beside)


def test_what_the_l2_holds_is_read_once_in_any_order():
    gpu, problem = load("h200"), Attention(1, 8, 4096, 128)
    for kv_order in ("forward", "reversed", "sawtooth:3"):
        program = schedules.build("flash2", problem, Tiles(128, 64, 2, kv_order=kv_order))
        count = l2.simulate(program, gpu, blocks_per_sm=2)
        assert count.dram_read_bytes == problem.compulsory_read_bytes


@pytest.mark.parametrize("name", kernels.names())
def test_a_kernel_walks_as_asked_or_says_that_it_does_not(name):
    kernel = kernels.get(name)
    problem = Attention(1, 8, 64 if kernel.direction == "backward" else 1, 128, kv_heads=8,
                        kv_seq=64, dtype=kernel.dtypes[-1], direction=kernel.direction)
    tiles = replace(kernel.tile_choices(problem)[0], kv_order="sawtooth:132")
    if kernel.turns:
        kernel.check(problem, tiles)
        assert kernel.defines(problem, tiles)["KV_TURN"] == "132"
    else:
        with pytest.raises(InputError, match=f"kv_order sawtooth:132: kernel {name} needs forward"):
            kernel.check(problem, tiles)


def test_the_command_line_takes_the_order(capsys):
    shape = ["--seq", "512", "--heads", "2", "--engine", "scratchpad", "--br", "64", "--bc", "64"]
    found = {}
    for kv_order in ("forward", "sawtooth:2"):
        arguments = ["traffic", "--schedule", "flash2", *shape, "--kv-order", kv_order]
        assert main([*arguments, "--json"]) == 0
        found[kv_order] = json.loads(capsys.readouterr().out)
        assert main(arguments) == 0
        assert ("K,V sawtooth:2" in capsys.readouterr().out) == (kv_order != "forward")
    assert found["sawtooth:2"]["sm"] == found["forward"]["sm"]
    assert found["sawtooth:2"]["tiles"]["kv_order"] == "sawtooth:2"
    assert "kv_order" not in found["forward"]["tiles"]


@pytest.mark.parametrize(("given", "says"), [
    ("traffic --schedule flash2 --kv-order zigzag", "--kv-order 'zigzag' is not known"),
    ("traffic --schedule flash2 --kv-order sawtooth:0", "sawtooth:N with N blocks from 1"),
    ("traffic --schedule standard --kv-order reversed", "standard takes no --kv-order; flash1, "),
    ("predict --schedule standard --kv-order reversed", "standard takes no --kv-order; flash1, "),
])
def test_an_order_that_cannot_be_is_one_line(given, says, capsys):
    assert main([*given.split(), "--seq", "256"]) == 2
    text = capsys.readouterr().err
    assert says in text and text.count("\n") == 1
