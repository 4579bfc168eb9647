"""Does the verifier pass every schedule, and refuse every program that is broken on purpose?"""

from dataclasses import replace

import numpy as np
import pytest
from hbmeter.simulator import schedules
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.ops import CODES
from hbmeter.simulator.printer import instruction_text
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.program import Program, ProgramBuilder, Role, Space
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.verifier import ProgramError, verify
from hypothesis import given, settings
from strategies import TILES, posed_for, problems

PROBLEM = Attention(batch=1, heads=2, seq=100, kv_seq=90, head_dim=24, value_dim=20)


def build(schedule, problem=PROBLEM, **tiles) -> Program:
    problem = posed_for(schedule, problem)
    return schedules.build(schedule, problem, Tiles(**{"br": 32, "bc": 16, "bk": 8, **tiles}))


def at(program, text, nth=0) -> int:
    """The address of the nth instruction that reads ``text``."""
    found = [a for a in range(len(program.tape)) if instruction_text(program, a) == text]
    return found[nth]


def rearranged(program, order) -> Program:
    """The program with its instructions in this order of addresses; some may be left out or
    come twice. Loops and phases keep their instructions."""
    tape = program.tape[order].copy()
    places = {address: place for place, address in reversed(list(enumerate(order)))}
    for row in tape:
        if row["partner"] >= 0:
            row["partner"] = places.get(int(row["partner"]), row["partner"])
    phases, first = [], 0
    for phase in program.phases:
        end = first + sum(phase.first <= address < phase.end for address in order)
        phases.append(replace(phase, first=first, end=end))
        first = end
    return replace(program, tape=tape, phases=tuple(phases))


def without(program, address) -> Program:
    return rearranged(program, [a for a in range(len(program.tape)) if a != address])


def repeated(program, address) -> Program:
    return rearranged(program, sorted([*range(len(program.tape)), address]))


def swapped(program, one, other) -> Program:
    order = list(range(len(program.tape)))
    order[one], order[other] = other, one
    return rearranged(program, order)


def changed(program, address, **fields) -> Program:
    tape = program.tape.copy()
    for name, new in fields.items():
        tape[address][name] = new
    return replace(program, tape=tape)


def refuses(program, *words):
    with pytest.raises(ProgramError) as caught:
        verify(program)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("schedule", schedules.names())
@settings(deadline=None, max_examples=60)
@given(p=problems(), tiles=TILES)
def test_every_schedule_is_well_formed(schedule, p, tiles):
    verify(schedules.build(schedule, posed_for(schedule, p), tiles))


@pytest.mark.parametrize("kv_seq", [24577, 30000])
def test_standard_with_long_rows_is_well_formed(kv_seq):
    verify(schedules.build("standard", replace(PROBLEM, kv_seq=kv_seq)))


def test_the_message_names_schedule_phase_instruction_and_place():
    program = build("flash2")
    broken = without(program, at(program, "K = load K[c0:+16, :]"))
    refuses(broken, "schedule flash2, phase attention, instruction 5 `S = dot_t(Q, K)`: ",
            "before anything is loaded", "(at r0 = 0, c0 = 0)")
    assert issubclass(ProgramError, InputError)


@pytest.mark.parametrize(("schedule", "text"), [
    ("flash2", "Q = load Q[r0:+32, :]"), ("flash2", "O = fill(0) like O[r0:+32, :]"),
    ("flash2", "V = load V[c0:+16, :]"), ("flash1", "Q = load Q[r0:+32, :]"),
    ("standard", "P = load P[r0:+32, k0:+8]"), ("standard_minimal", "K = load K[:, :]"),
])
def test_a_dropped_load_is_found_where_it_is_missed(schedule, text):
    program = build(schedule)
    broken = without(program, at(program, text))
    refuses(broken, f"schedule {schedule}", "before anything is loaded")


@pytest.mark.parametrize(("schedule", "text", "words"), [
    ("flash2", "store O[r0:+32, :] = O", "output tensor O is not stored exactly once: row 0"),
    ("flash2", "store LSE[r0:+32, :] = l", "output tensor LSE"),
    ("standard", "store O[r0:+32, v0:+16] = O", "output tensor O"),
    ("standard", "store S[r0:+32, c0:+16] = S", "phase softmax, instruction"),
    ("standard_minimal", "store P[r0:+100, :] = P", "phase output, instruction"),
])
def test_a_dropped_store_is_missed(schedule, text, words):
    program = build(schedule)
    refuses(without(program, at(program, text)), words)


def test_a_dropped_store_of_an_updated_tensor_is_missed():
    program = build("flash1")
    address = at(program, "store m[r0:+32, :] = m", 1)  # of the first column block
    refuses(without(program, address), "`m = load m[r0:+32, :]`", "has not been stored")


@pytest.mark.parametrize(("schedule", "text"), [
    ("flash2", "store O[r0:+32, :] = O"), ("standard", "store S[r0:+32, c0:+16] = S"),
    ("standard", "store P[r0:+1, :] = P"), ("standard_minimal", "store O[:, :] = O"),
])
def test_a_doubled_store_is_found(schedule, text):
    program = build(schedule)
    with pytest.raises(ProgramError, match=r"not stored exactly once|has not been stored"):
        verify(repeated(program, at(program, text)))


def test_a_doubled_store_of_an_updated_tensor_is_found():
    program = build("flash1")
    broken = repeated(program, at(program, "store O[r0:+32, :] = O", 1))
    refuses(broken, "`store O[r0:+32, :] = O`", "again without loading it")


def test_rewriting_without_reading_back_is_found():
    program = build("flash1")
    address = at(program, "O = load O[r0:+32, :]")
    fill = program.tape[at(program, "O = fill(0) like O[r0:+32, :]")]
    broken = changed(program, address, kind=Kind.FILL, constant=fill["constant"])
    refuses(broken, "`store O[r0:+32, :] = O`", "again without loading it")


@pytest.mark.parametrize(("schedule", "one", "other"), [
    ("flash2", "K = load K[c0:+16, :]", "S = dot_t(Q, K)"),
    ("flash2", "V = load V[c0:+16, :]", "O += dot(P, V)"),
    ("flash2", "S = dot_t(Q, K)", "P = copy(S)"),
    ("standard_minimal", "Q = load Q[:, :]", "store S[:, :] = S"),
])
def test_an_instruction_before_its_operands_is_found(schedule, one, other):
    program = build(schedule)
    refuses(swapped(program, at(program, one), at(program, other)), "before anything is loaded")


def test_a_load_shifted_by_another_variable_leaves_its_tensor():
    program = build("flash2", replace(PROBLEM, kv_seq=64))
    address = at(program, "K = load K[c0:+16, :]")
    refuses(changed(program, address, row_var=0), "`K = load K[r0:+16, :]`",
            "begins beyond its tensor", "r0 = 64")


def test_a_load_that_stands_still_disagrees_at_the_ragged_end():
    program = build("flash2")
    address = at(program, "V = load V[c0:+16, :]")
    refuses(changed(program, address, row_var=-1), "`O += dot(P, V)`", "do not agree", "c0 = 80")


def test_a_store_that_stands_still_covers_one_block_only():
    program = build("flash2", replace(PROBLEM, seq=96))
    broken = changed(program, at(program, "store LSE[r0:+32, :] = l"), row_var=-1)
    refuses(broken, "output tensor LSE is not stored exactly once: row 0 has 3 stores for 1")


def test_gaps_and_overlaps_that_cancel_are_found():
    """Columns 0, 0, 3, 3 instead of 0, 1, 2, 3: the same count and the same sum of indices."""
    p = ProgramBuilder("overlap", PROBLEM, Tiles(br=1, bc=1))
    out = p.tensor("out", 1, 4, Role.OUTPUT)
    with p.phase("write"):
        tile = p.tile("tile", 1, 1, Space.REGISTERS)
        for _ in range(2):
            with p.loop("c0", 3, 4) as c0:
                p.fill(tile, 1.0, out, None, c0)
                p.store(tile, out, None, c0)
    refuses(p.build(), "out is not stored exactly once: row 0 has 4 stores for 4 columns")


@pytest.mark.parametrize("field", ["tile", "out", "a", "b"])
def test_a_tile_of_another_phase_is_refused(field):
    program = build("standard")
    text = "V = load V[k0:+8, v0:+16]" if field == "tile" else "O += dot(P, V)"
    broken = changed(program, at(program, text), **{field: 0})
    refuses(broken, "phase output", "uses a tile of another phase")


@pytest.mark.parametrize(("text", "fields"), [
    ("S = dot_t(Q, K)", {"op": CODES["dot"]}), ("O += dot(P, V)", {"op": CODES["dot_t_add"]}),
    ("m_block = row_max(S)", {"op": CODES["copy"]}), ("P = copy(S)", {"op": CODES["row_sum"]}),
    ("O = mul_rows(O, alpha)", {"b": 3}),  # S
    ("l = add(l, l_block)", {"b": 5}),  # O
])
def test_operands_of_shapes_that_do_not_agree_are_refused(text, fields):
    program = build("flash2")
    refuses(changed(program, at(program, text), **fields), "phase attention",
            "shapes of the tiles do not agree")


@pytest.mark.parametrize(("text", "fields", "words"), [
    ("P = copy(S)", {"b": 3}, "copy takes 1 tiles"),
    ("S = dot_t(Q, K)", {"b": -1}, "dot_t takes 2 tiles"),
    ("S = scale(S, 0.204124)", {"constant": -1}, "no such constant"),
    ("P = copy(S)", {"constant": 0}, "copy takes no constant"),
    ("store O[r0:+32, :] = O", {"tensor": 1}, "stores the input K"),
    ("Q = load Q[r0:+32, :]", {"row_var": 2}, "that it is not inside"),
    ("K = load K[c0:+16, :]", {"tensor": 99}, "no such tensor"),
    ("K = load K[c0:+16, :]", {"tensor": -1}, "no such tensor"),
    ("K = load K[c0:+16, :]", {"tile": -1}, "tile of another phase"),
    ("m = fill(-inf) like LSE[r0:+32, :]", {"constant": 9}, "no such constant"),
    ("S = dot_t(Q, K)", {"op": 99}, "no such operation"),
    ("S = dot_t(Q, K)", {"kind": 9}, "no such kind"),
])
def test_an_operand_that_cannot_be_is_refused(text, fields, words):
    program = build("flash2")
    with pytest.raises(ProgramError, match=words):
        verify(changed(program, at(program, text), **fields))


def test_loops_must_be_matched():
    program = build("flash2")
    loop = int(np.flatnonzero(program.tape["kind"] == Kind.LOOP)[0])
    end = int(program.tape[loop]["partner"])
    refuses(without(program, end), "no end in this phase")
    refuses(without(program, loop), "that it is not inside")
    refuses(repeated(program, end), "does not close the innermost loop")
    refuses(changed(program, end, step=1), "does not close the innermost loop")
    refuses(changed(program, loop, step=0), "step 0 is not positive")
    refuses(changed(program, loop, var=0), "variable is in use")
    refuses(changed(program, loop, start_var=2), "that it is not inside")


def test_phases_must_cover_the_tape():
    program = build("standard")
    refuses(replace(program, phases=program.phases[1:]), "phase 0 begins at")
    refuses(replace(program, phases=program.phases[:-1]), "after the last phase")


def two_phase(first_stores: bool, same_phase: bool) -> Program:
    p = ProgramBuilder("scratch", PROBLEM, Tiles(br=4, bc=4))
    x, y = p.tensor("X", 8, 3, Role.SCRATCH), p.tensor("Y", 8, 3, Role.OUTPUT)

    def write(r0):
        tile = p.tile("x", 4, 3, Space.REGISTERS)
        p.fill(tile, 0.0, x, r0)
        p.store(tile, x, r0)

    def read(r0):
        tile = p.tile("y", 4, 3, Space.REGISTERS)
        p.load(tile, x, r0)
        p.store(tile, y, r0)

    steps = [write, read] if first_stores else [read, write]
    if same_phase:
        with p.phase("both", ("r0", 8, 4)) as (r0,):
            for step in steps:
                step(r0)
    else:
        for step in steps:
            with p.phase(step.__name__, ("r0", 8, 4)) as (r0,):
                step(r0)
    return p.build()


def test_scratch_is_read_in_a_later_phase_than_it_was_stored():
    verify(two_phase(first_stores=True, same_phase=False))
    refuses(two_phase(first_stores=False, same_phase=False), "phase read", "not been stored")
    refuses(two_phase(first_stores=True, same_phase=True), "phase both", "not been stored")


def updating(phases: int, blocks: int, rows_again: int = 8) -> Program:
    """A phase that stores an updated tensor, then rewrites it; by 1 or 2 thread blocks."""
    p = ProgramBuilder("update", PROBLEM, Tiles(br=8, bc=8))
    x = p.tensor("X", 8, 1, Role.OUTPUT, updated=True)

    def pass_(rows, first):
        tile = p.tile("x", rows, 1, Space.REGISTERS)
        if first:
            p.fill(tile, 0.0, x)
        else:
            p.load(tile, x)
        p.store(tile, x)

    if phases == 2:
        with p.phase("start"):
            pass_(8, True)
    with p.phase("update", ("b", blocks, 1)):
        if phases == 1:
            pass_(8, True)
        pass_(rows_again, False)
    return p.build()


def test_an_updated_tensor_is_rewritten_by_the_block_that_read_it():
    verify(updating(phases=1, blocks=1))
    verify(updating(phases=2, blocks=1))
    refuses(updating(phases=1, blocks=2), "X", "without loading it")
    refuses(updating(phases=2, blocks=2), "another thread block of this phase", "b = 1")
    refuses(updating(phases=1, blocks=1, rows_again=4), "this is another region")


def test_several_query_heads_may_not_store_one_kv_slice():
    p = ProgramBuilder("dk", replace(PROBLEM, kv_heads=1), Tiles(br=4, bc=4))
    dk = p.tensor("dK", 8, 3, Role.OUTPUT, kv=True)
    with p.phase("write"):
        tile = p.tile("dK", 8, 3, Space.REGISTERS)
        p.fill(tile, 0.0, dk)
        p.store(tile, dk)
    refuses(p.build(), "2 query heads would store the same slice of dK")


def test_capacity_is_that_of_the_hungriest_phase():
    program = build("flash2", stages=2)
    needed = 2 * (32 * 24 + 2 * 16 * 24 + 2 * 16 * 20)  # Q, and K and V twice, in fp16
    assert program.smem_bytes_per_block == needed
    verify(program, needed)
    with pytest.raises(ProgramError, match=f"phase attention: its tiles take {needed} bytes"):
        verify(program, needed - 1)


def test_an_idealised_program_is_not_held_to_a_capacity():
    verify(build("standard_minimal"), smem_bytes_per_block=1)


def test_looking_up_beyond_a_list_is_found():
    program = schedules.build("flash2", replace(PROBLEM, mask="documents:20"), Tiles(32, 16))
    verify(program)
    broken = changed(program, at(program, "c0 = blocks[e0]"), start_add=1000)
    refuses(broken, "`c0 = blocks[e0 + 1000]`", "looks up a number beyond its list")
    broken = changed(program, at(program, "first = begins[n0]"), start_add=-1000)
    refuses(broken, "looks up a number beyond its list")


def test_a_direction_by_a_variable_that_is_not_there_is_found():
    program = schedules.build("flash2", PROBLEM, Tiles(32, 16, kv_order="sawtooth"))
    broken = without(program, at(program, "back = r0 / 32"))
    refuses(broken, "uses a variable of a loop or axis that it is not inside")


def test_a_division_by_nothing_is_found():
    program = schedules.build("flash2", PROBLEM, Tiles(32, 16, kv_order="sawtooth"))
    refuses(changed(program, at(program, "back = r0 / 32"), divide=0), "divides by 0")


def test_an_operation_that_is_in_no_table_is_refused():
    p = ProgramBuilder("made up", PROBLEM, Tiles(4, 4))
    with p.phase("all"):
        tile = p.tile("t", 4, 4, Space.REGISTERS)
        with pytest.raises(InputError, match="no operation 'online_softmax'"):
            p.compute("online_softmax", tile, tile)


def test_new_schedules_and_shapes_compile_nothing():
    from hbmeter.simulator.engines import dataflow

    verify(build("flash2"))
    compiled = [f for f in vars(dataflow).values() if hasattr(f, "nopython_signatures")]
    before = [len(f.nopython_signatures) for f in compiled]
    for schedule in schedules.names():
        for p in (replace(PROBLEM, mask="window:3"), Attention(seq=33, batch=5, dtype="fp64")):
            verify(build(schedule, p))
    assert [len(f.nopython_signatures) for f in compiled] == before
