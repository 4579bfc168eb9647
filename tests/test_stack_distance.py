"""Does the miss curve equal a dictionary LRU of every size, and obey the laws of caches?"""

import json
from collections import OrderedDict

import numpy as np
import pytest
from hbmeter.experiments import cli, l2_curve
from hbmeter.experiments.figures import miss_curve as figure
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import lru_stack, scratchpad, stack_distance
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.grid_order import ORDERS
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import TILES, problems

H200 = load("h200")
FOUR_SMS = H200.model_copy(update={"sm_count": 4})
FORWARD = ("flash1", "flash2", "standard", "standard_minimal")
EVERYTHING = 1 << 40


def curve(program, sizes, order="row", gpu=FOUR_SMS, blocks_per_sm=1):
    return stack_distance.miss_curve(program, gpu, sizes, blocks_per_sm=blocks_per_sm, order=order)


# ---- Twins: Python that anyone can read ----


def dictionary_lru(uses, capacity):
    """Bytes read that miss in an LRU of ``capacity`` bytes; uses are (item, bytes, reads)."""
    cache, held, missed = OrderedDict(), 0, 0
    for item, n_bytes, reads in uses:
        if item in cache:
            cache.move_to_end(item)
        else:
            missed += n_bytes * reads
            cache[item] = n_bytes
            held += n_bytes
            while held > capacity:
                held -= cache.popitem(last=False)[1]
    return missed


def moves_of_a_block(program, phase, r0, c0):
    """(instruction, variables) of each load and store of a thread block, in order."""
    tape, variables, stops, pc = program.tape, {-1: 0, 0: r0, 1: c0}, {}, phase.first
    while pc < phase.end:
        row = {name: int(program.tape[pc][name]) for name in tape.dtype.names}
        if row["kind"] == Kind.LOOP:
            start = max(variables.get(row["start_var"], 0) + row["start_add"], 0)
            start -= start % row["step"]
            stop = variables.get(row["stop_var"], 0) + row["stop_add"]
            stops[row["var"]] = min(max(stop, 0), row["limit"])
            variables[row["var"]] = start
            pc = pc + 1 if start < stops[row["var"]] else row["partner"] + 1
            continue
        if row["kind"] == Kind.END:
            variables[row["var"]] += row["step"]
            pc = row["partner"] + 1 if variables[row["var"]] < stops[row["var"]] else pc + 1
            continue
        if row["kind"] in (Kind.LOAD, Kind.STORE):
            yield row, dict(variables)
        pc += 1


def uses_in_step(program, slots, order):
    """(granule, bytes, reads) of a program's thread blocks that go in step."""
    granules = stack_distance.granule_records(program)
    for phase in program.phases:
        axes = [range(0, axis.extent, axis.step) for axis in phase.axes]
        axes += [range(1)] * (2 - len(axes))
        blocks = [(r0, c0) for r0 in axes[0] for c0 in axes[1]]
        heads = range(program.problem.head_count)
        if order == "longest":
            blocks.reverse()
        grid = ([(h, b) for h in heads for b in blocks] if order == "row"
                else [(h, b) for b in blocks for h in heads])
        waiting = iter(grid)
        running = [None] * min(slots, len(grid))
        ahead, busy = [None] * len(running), True
        while busy:
            busy = False
            for slot in range(len(running)):
                if ahead[slot] is None and (following := next(waiting, None)):
                    head, (r0, c0) = following
                    running[slot] = head, moves_of_a_block(program, phase, r0, c0)
                    ahead[slot] = next(running[slot][1], None)
                if ahead[slot] is not None:
                    yield from granules_of(program, granules, running[slot][0], *ahead[slot])
                    ahead[slot], busy = next(running[slot][1], None), True


def granules_of(program, granules, head, row, variables):
    tensor, tile = program.tensors[row["tensor"]], program.tile_table[row["tile"]]
    size = granules[row["tensor"]]
    r0, c0 = variables.get(row["row_var"], 0), variables.get(row["col_var"], 0)
    for r in range(r0, min(r0 + tile.rows, tensor.rows), int(size["rows"])):
        for c in range(c0, min(c0 + tile.cols, tensor.cols), int(size["cols"])):
            height = min(int(size["rows"]), tensor.rows - r)
            width = min(int(size["cols"]), tensor.cols - c)
            yield ((tensor.name, head // tensor.group, r, c),
                   height * width * tensor.element_bytes, row["kind"] == Kind.LOAD)


# ---- Naive == fast ----


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=1500), st.lists(st.integers(1, 99), min_size=31,
                                                             max_size=31), st.integers(1, 2000))
def test_the_stack_is_a_dictionary_lru_of_every_size(items, n_bytes, capacity):
    stack = lru_stack.empty_stack(31)
    distances = [lru_stack.use(item, n_bytes[item], *stack) for item in items]
    missed = sum(n_bytes[item] for item, distance in zip(items, distances, strict=True)
                 if distance == lru_stack.NEVER or distance > capacity)
    assert missed == dictionary_lru([(item, n_bytes[item], True) for item in items], capacity)


@settings(max_examples=40, deadline=None)
@given(problems(), TILES, st.sampled_from(FORWARD), st.integers(0, 40_000),
       st.sampled_from(ORDERS), st.integers(1, 3))
def test_a_curve_is_a_dictionary_lru_of_the_blocks_in_step(problem, tiles, schedule, capacity,
                                                           order, blocks_per_sm):
    program = schedules.build(schedule, problem, tiles)
    found = curve(program, [capacity], order, blocks_per_sm=blocks_per_sm)
    uses = uses_in_step(program, 4 * blocks_per_sm, order)
    assert found.read_bytes[0] == dictionary_lru(uses, capacity)


# ---- Laws ----


@settings(max_examples=40, deadline=None)
@given(problems(), TILES, st.sampled_from(FORWARD), st.sampled_from(["row", "head"]))
def test_no_l2_is_the_sm_boundary_and_an_endless_one_compulsory(problem, tiles, schedule, order):
    program = schedules.build(schedule, problem, tiles)
    sizes = [0, *(1 << k for k in range(4, 24)), EVERYTHING]
    reads = curve(program, sizes, order).read_bytes
    assert reads[0] == scratchpad.count(program).read_bytes
    touched = scratchpad.count(program).by_tensor
    least = sum(program.tensor_bytes(t) for t in program.tensors
                if t.role == "input" and touched[t.name]["read_bytes"])
    assert reads[-1] <= least
    if problem.mask == "full":
        assert reads[-1] == least == problem.compulsory_read_bytes
    assert (np.diff(reads) <= 0).all()


def test_granules_are_what_all_tiles_of_a_tensor_consist_of():
    program = schedules.build("standard", Attention(1, 1, 4096, 128), Tiles(256, 224))
    names = [tensor.name for tensor in program.tensors]
    sizes = {name: (int(row["rows"]), int(row["cols"]))
             for name, row in zip(names, stack_distance.granule_records(program), strict=True)}
    assert sizes["S"] == (1, 224)  # stored 256×224, read by rows
    assert sizes["P"] == (1, 32)  # stored by rows, read 256×32
    assert sizes["V"] == (32, 128)


def test_head_order_needs_room_for_the_heads_in_flight_and_row_order_for_one():
    problem = Attention(1, 16, 1024, 64)  # K and V of a head: 256 KiB
    program = schedules.build("flash2", problem, Tiles(64, 64))
    gpu = H200.model_copy(update={"sm_count": 16})
    row, head = (curve(program, [600_000, 5 << 20], order, gpu).read_bytes
                 for order in ("row", "head"))
    assert row[0] == head[1] == problem.compulsory_read_bytes
    assert head[0] > 10 * row[0]


def test_more_pieces_than_memory_holds_are_refused():
    program = schedules.build("standard", Attention(64, 16, 8192, 128), Tiles(128, 128))
    with pytest.raises(InputError, match=r"follows .* pieces .* at most: fewer heads"):
        curve(program, [0])


# ---- What users see ----

SMALL = ("--batch", "1", "--heads", "2", "--seq", "256", "--head-dim", "64", "--br", "64", "--bc",
         "64")


def test_traffic_prints_the_curve_as_an_array(capsys):
    assert cli.main(["traffic", "--schedule", "flash2", *SMALL, "--json", "--l2-curve"]) == 0
    point = json.loads(capsys.readouterr().out)
    found = point["l2_curve"]
    assert [row["l2_bytes"] for row in found] == l2_curve.sizes(point["footprint_bytes"])
    assert found[0] == {"l2_bytes": 0, "dram_read_bytes": point["sm"]["read_bytes"], "gpus": []}
    assert found[-1]["dram_read_bytes"] == point["compulsory"]["read_bytes"]
    assert {"h200"} <= {name for row in found for name in row["gpus"]}


def test_without_asking_there_is_no_curve(capsys):
    assert cli.main(["traffic", "--schedule", "flash2", *SMALL, "--json", "--engine",
                     "scratchpad"]) == 0
    assert json.loads(capsys.readouterr().out)["l2_curve"] is None


def test_the_table_marks_gpus(capsys):
    assert cli.main(["traffic", "--schedule", "flash2", *SMALL, "--l2-curve"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("60 MiB") and line.endswith("h200") for line in lines)


def test_the_figure_draws_equal_orders_once_and_says_where_it_is_enough():
    problem = Attention(1, 4, 1024, 64)
    table = figure.run(problem, H200)
    assert set(figure.curves(table)) >= {("flash2", "row"), ("flash2", "head")}
    assert ("flash1", figure.EITHER) in figure.drawn(table)
    for rows in figure.curves(table).values():
        size = figure.enough(rows)
        assert all((row["dram_read_bytes"] == problem.compulsory_read_bytes)
                   == (row["l2_bytes"] >= size) for row in rows)
    assert figure.plot(table).axes
    assert "MiB on" in figure.describe(table)
