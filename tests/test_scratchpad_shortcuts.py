"""Does the scratchpad count walk only what can differ, and every thing that does?"""

import numpy as np
import pytest
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import scratchpad
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.program import ProgramBuilder, Role, Space
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles


def program(schedule="flash2", seq=1000, br=128, bc=64, **more):
    tiles = Tiles(br, bc, kv_order=more.pop("kv_order", "forward"))
    return schedules.build(schedule, Attention(1, 2, seq, 64, **more), tiles)


def uniform_loops(built):
    """Of each loop of the tape, in its order."""
    return scratchpad._uniform_loops(built)[built.tape["kind"] == Kind.LOOP].tolist()


@pytest.mark.parametrize(("built", "loops"), [
    (program(), [True]), (program(mask="causal"), [True]),
    (program(kv_order="reversed"), [False]),  # the ragged end comes first
    (program(seq=64), [True]),
])
def test_trips_that_move_equal_bytes_are_walked_once(built, loops):
    assert uniform_loops(built) == loops
    assert not scratchpad._uniform_loops(built)[built.tape["kind"] != Kind.LOOP].any()


def test_a_loop_around_loops_is_walked():
    built = program("flash1")
    loops = np.flatnonzero(built.tape["kind"] == Kind.LOOP)
    around = [(built.tape["kind"][at + 1:built.tape["partner"][at]] == Kind.LOOP).any()
              for at in loops]
    assert any(around) and not all(around)
    assert uniform_loops(built) == [not outer for outer in around]


@pytest.mark.parametrize(("built", "offsets", "times"), [
    (program("standard"), [0, 896], [7, 1]),  # eight row blocks, the last of 104
    (program(mask="causal"), list(range(0, 1000, 128)), [1] * 8),  # each walks its own keys
    (program("standard", seq=256), [0, 128], [1, 1]),
    (program("standard", seq=300), [0, 256], [2, 1]),
])
def test_row_blocks_that_move_equal_bytes_are_walked_once(built, offsets, times):
    found = scratchpad._blocks(built, built.phase_records[0], 0)
    assert [part.tolist() for part in found] == [offsets, times]


@pytest.mark.parametrize(("tile_rows", "tensor_rows", "equal", "rows"), [
    (4, 10, True, 4 + 4 + 2),
    (8, 10, False, 8 + 6 + 2),  # trips overlap
    (4, 7, False, 4 + 3),  # the tensor ends before the loop does
    (4, 12, True, 4 + 4 + 4),
])
def test_trips_whose_regions_do_not_fill_their_steps_are_walked(
        tile_rows, tensor_rows, equal, rows):
    """One tensor, the first of the program, which a loop of steps of 4 to 10 places."""
    p = ProgramBuilder("made up", Attention(1, 1, 10, 8), Tiles(4, 4))
    tensor = p.tensor("Q", tensor_rows, 8, Role.INPUT)
    with p.phase("all"):
        tile = p.tile("q", tile_rows, 8, Space.SHARED)
        with p.loop("r0", 4, 10) as r0:
            p.load(tile, tensor, r0)
    built = p.build()
    assert uniform_loops(built) == [equal]
    assert scratchpad.count(built).by_tensor == {"Q": {"read_bytes": rows * 16, "write_bytes": 0}}


def test_a_loop_of_four_thousand_million_trips_is_not_walked():
    p, tiles = Attention(1, 2, 64, 64, kv_seq=1 << 32), Tiles(64, 1)
    count = scratchpad.count(schedules.build("flash2", p, tiles)).by_tensor
    assert count["K"]["read_bytes"] == count["V"]["read_bytes"] == 2 * (1 << 32) * 64 * 2


def test_bytes_are_whole_numbers():
    count = scratchpad.count(program("standard", seq=96))
    assert count.phase_bytes.dtype == count.phase_flops.dtype == np.int64
