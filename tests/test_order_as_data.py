"""Is a grid order given as data issued as it says, and is bad data refused in a clear line?"""

import json

import numpy as np
import pytest
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, InputError, Tiles, blocks, schedules, traffic
from hbmeter.simulator.engines import l2, stack_distance
from hbmeter.simulator.engines.dispatch import place_of
from hbmeter.simulator.engines.l2_log import START, Log
from hbmeter.simulator.grid_order import LISTED, LISTED_MAX, issue, order_number, read
from hbmeter.simulator.sweeps import runner, spec, table
from hbmeter.simulator.time_model import predict
from hypothesis import given
from hypothesis import strategies as st

H200 = load("h200")
NAMED = st.sampled_from(["row", "head", "longest", "head:2", "head:3", "longest:1", "longest:4"])
CAUSAL = Attention(1, 16, 2048, 64, mask="causal")
TILES = Tiles(64, 64)
HEADS, BLOCKS = 16, 32  # the grid of CAUSAL in TILES


def listing(order, heads=HEADS, per_head=BLOCKS, problem=CAUSAL):
    """A named order as data, block by block."""
    how = issue(order, problem, heads, per_head)
    places = (place_of(index, heads, per_head, how) for index in range(heads * per_head))
    return np.array([head * per_head + block for head, block in places])


def saved(path, numbers):
    if path.suffix == ".npy":
        np.save(path, numbers)
    else:
        separator = "," if path.suffix == ".csv" else "\n"
        path.write_text(separator.join(map(str, numbers)) + "\n")
    return str(path)


# ---- What is issued ----

@given(data=st.data(), heads=st.integers(1, 7), per_head=st.integers(1, 6))
def test_any_permutation_is_issued_as_it_is(data, heads, per_head):
    numbers = data.draw(st.permutations(range(heads * per_head)))
    assert listing(read(numbers), heads, per_head).tolist() == numbers


@given(order=NAMED, heads=st.integers(1, 9), per_head=st.integers(1, 6))
def test_data_that_is_a_named_order_is_known_as_one(order, heads, per_head):
    numbers = listing(order, heads, per_head)
    found = issue(read(numbers), CAUSAL, heads, per_head)
    assert found[0] != LISTED
    assert listing(read(numbers), heads, per_head).tolist() == numbers.tolist()
    if per_head > 1 and heads > 4 and "1" not in order:  # else orders are the same permutation
        assert found.tolist() == [order_number(order, CAUSAL)]


@pytest.mark.parametrize("schedule", ["flash2", "standard", "flash2_backward"])
def test_thread_blocks_start_in_the_order_of_the_list(schedule):
    """Of a program's launches, those whose grid has as many thread blocks."""
    direction = schedules.direction(schedule)
    problem = Attention(1, 4, 512, 64, direction=direction)
    program = schedules.build(schedule, problem, TILES)
    phase = program.phases[-2 if schedule == "flash2_backward" else -1]
    per_head = int(np.prod([axis.blocks for axis in phase.axes]))
    numbers = np.random.default_rng(1).permutation(4 * per_head)
    log = Log(200_000)
    l2.simulate(program, H200, blocks_per_sm=1, order=numbers, log=log)
    starts = log.events[log.events["kind"] == START]
    starts = starts[starts["phase"] == program.phases.index(phase)]
    columns = phase.axes[1].blocks if len(phase.axes) > 1 else 1
    col_step = phase.axes[1].step if len(phase.axes) > 1 else 1
    found = (starts["head"] * per_head + starts["row"] // phase.axes[0].step * columns
             + starts["col"] // col_step)
    assert found.tolist() == numbers.tolist()


# ---- The same answer as the name's, to the byte ----

@pytest.mark.parametrize("name", ["order.npy", "order.csv", "order.txt"])
@pytest.mark.parametrize("order", ["row", "head:4", "longest"])
def test_a_file_of_a_named_order_gives_the_same_point(name, order, tmp_path):
    path = saved(tmp_path / name, listing(order))
    by_name, by_file = (traffic("flash2", CAUSAL, H200, TILES, order=how, times=True)
                        for how in (order, path))
    assert by_file.pop("order") == path and by_name.pop("order") == order
    assert by_file == by_name


def test_repeats_are_skipped_for_a_file_of_a_named_order_too(tmp_path):
    problem, tiles = Attention(8, 32, 4096, 128), Tiles(128, 64)
    path = saved(tmp_path / "row.npy", np.arange(8 * 32 * 32))
    by_name, by_file = (traffic("flash2", problem, H200, tiles, order=how)
                        for how in ("row", path))
    assert by_name["l2"]["blocks_simulated"] < by_name["l2"]["blocks"]
    assert {**by_file, "order": "row"} == by_name


def test_the_command_says_the_same_for_a_file(tmp_path, capsys):
    path = saved(tmp_path / "order.npy", listing("head:4"))
    argv = ["traffic", "--schedule", "flash2", "--batch", "1", "--heads", "16", "--seq", "2048",
            "--head-dim", "64", "--mask", "causal", "--br", "64", "--bc", "64", "--l2-curve"]
    found = []
    for order in (path, "head:4"):
        assert main([*argv, "--json", "--order", order]) == 0
        found.append(json.loads(capsys.readouterr().out) | {"order": None})
    assert found[0] == found[1]
    assert main([*argv, "--order", path]) == 0
    assert f"issued as in {path}" in capsys.readouterr().out


def test_miss_curves_take_data():
    program = schedules.build("flash2", CAUSAL, TILES)
    by_name, by_list = (stack_distance.miss_curve(program, H200, [1 << 20], blocks_per_sm=1,
                                                  order=order).read_bytes[0]
                        for order in ("longest:2", listing("longest:2")))
    assert by_name == by_list


def test_times_follow_the_order():
    """Longest blocks last is a worse end than longest first, by name or as data."""
    program = schedules.build("flash2", CAUSAL, TILES)
    shortest_first = listing("longest")[::-1]
    late, longest, as_data = (predict(program, H200, blocks_per_sm=1, order=order).seconds
                              for order in (shortest_first, "longest", listing("longest")))
    assert as_data == longest < late


# ---- Orders that have no name ----

def test_an_order_without_a_name_is_simulated_whole_and_moves_the_same_over_the_sm_boundary():
    numbers = np.random.default_rng(2).permutation(HEADS * BLOCKS)
    row, shuffled = (traffic("flash2", CAUSAL, H200, TILES, order=order)
                     for order in ("row", numbers))
    assert shuffled["order"] == "given as a list"
    assert shuffled["sm"] == row["sm"]
    assert shuffled["l2"]["blocks_simulated"] == shuffled["l2"]["blocks"] == HEADS * BLOCKS


def test_an_order_decides_what_the_l2_keeps():
    """One head's K and V fit, those of all 32 are far beyond it."""
    program = schedules.build("flash2", Attention(1, 32, 8192, 128), Tiles(128, 128))
    shuffled = np.random.default_rng(3).permutation(32 * 64)
    mixed, row = (l2.simulate(program, H200, blocks_per_sm=1, order=order).dram_read_bytes
                  for order in (shuffled, "row"))
    assert mixed > 2 * row


def test_block_sizes_fit_only_where_the_grid_does():
    problem = Attention(1, 2, 1024, 64)
    found = blocks.explore("flash2", problem, H200, order=np.arange(16)[::-1])
    assert {candidate.tiles.br for candidate in found.fitting} == {128, 144}
    assert found.candidates[0].why_not == "another number of thread blocks than the order lists"
    with pytest.raises(InputError, match="lists 3 thread blocks; no tiles that fit h200"):
        blocks.explore("flash2", problem, H200, order=[2, 1, 0])


# ---- Sweeps ----

def test_sweeps_take_files_and_know_them_by_what_they_hold(tmp_path):
    saved(tmp_path / "swizzle.npy", listing("head:4"))
    (tmp_path / "spec.yaml").write_text(
        "common: {batch: 1, heads: 16, seq: 2048, head_dim: 64, mask: causal, br: 64, bc: 64}\n"
        "grid: {order: ['head:4', swizzle.npy], seq: [1024, 2048]}\n")
    sweep = spec.read(tmp_path / "spec.yaml")
    out = tmp_path / "rows"
    out.mkdir()
    assert runner.run(sweep, out).refused == 1
    rows = {(row["order"].rpartition("/")[2], row["seq"]): row for row in table.rows(out)}
    assert "lists 512 thread blocks" in rows["swizzle.npy", 1024]["why_not"]
    assert (rows["swizzle.npy", 2048]["dram_read_bytes"]
            == rows["head:4", 2048]["dram_read_bytes"])
    assert runner.run(sweep, out).computed == 0
    saved(tmp_path / "swizzle.npy", listing("head"))
    assert runner.run(spec.read(tmp_path / "spec.yaml"), out).computed == 2


def test_a_spec_whose_order_is_no_file(tmp_path):
    (tmp_path / "spec.yaml").write_text("grid: {order: nowhere.npy}\n")
    with pytest.raises(InputError, match=r"there is no file .*nowhere.npy"):
        spec.read(tmp_path / "spec.yaml")


# ---- Bad data ----

@pytest.mark.parametrize(("content", "says"), [
    ("0,1,2", "lists 3 thread blocks; the grid of flash2 with Br 64, Bc 64 has 32 (2 heads × 16)"),
    (",".join(map(str, [0, 0, *range(2, 32)])), "thread block 0 comes again at place 1; 32 num"),
    (",".join(map(str, range(1, 33))), "thread block 32 at place 31 is not there; 32 numbers"),
    ("0,1.5,2", "'1.5' is not the number of a thread block"),
    ("block\n0\n1", "'block' is not the number of a thread block"),
    ("0,-1", "'-1' is not the number"), ("9" * 400, "'9999"), ("", "one row of whole numbers"),
])
@pytest.mark.parametrize("command", ["traffic", "blocks", "predict", "compare"])
def test_bad_text_is_refused_in_a_line(command, content, says, tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    tiles = {"blocks": ["--br", "64", "--bc", "64"], "compare": []}
    argv = [command, *([] if command == "compare" else ["--schedule", "flash2"]), "--batch", "1",
            "--heads", "2", "--seq", "1024", "--head-dim", "64", "--order", str(path),
            *tiles.get(command, ["--br", "64", "--bc", "64"])]
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    if "3 thread blocks" not in says:
        assert says in captured.err
    assert "bad.csv" in captured.err


@pytest.mark.parametrize(("array", "says"), [
    (np.arange(6).reshape(2, 3), r"\[2, 3\] of int64"), (np.zeros(0, np.int64), r"\[0\]"),
    (np.arange(4.0), "float64"), (np.array([True, False]), "bool"),
    (np.array([0, 2**63], np.uint64), "at place 1 is not there"),
    (np.zeros(LISTED_MAX + 1, np.int8), "lists 4,194,305 thread blocks, at most 4,194,304"),
])
def test_bad_arrays_are_refused(array, says, tmp_path):
    path = tmp_path / "bad.npy"
    np.save(path, array)
    for order in (array, str(path)):
        with pytest.raises(InputError, match=says):
            read(order)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"[1, 2]"])
def test_what_is_no_array(content, tmp_path):
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"bad.npy: not a NumPy array"):
        read(str(tmp_path / "bad.npy"))


def test_files_that_are_not_there_or_too_large(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"nowhere.csv: No such file"):
        read("nowhere.csv")
    with pytest.raises(InputError, match="Is a directory"):
        (tmp_path / "folder.npy").mkdir()
        read(str(tmp_path / "folder.npy"))
    monkeypatch.setattr("hbmeter.simulator.grid_order.LISTED_MAX", 10)
    (tmp_path / "long.txt").write_text("1 " * 200)
    with pytest.raises(InputError, match="400 bytes are more than 10 numbers"):
        read(str(tmp_path / "long.txt"))
