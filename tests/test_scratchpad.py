"""Is the compiled count that of a plain interpreter, and do counts obey the laws they must?"""

from dataclasses import replace
from itertools import product

import numba
import numpy as np
import pytest
from hbmeter.simulator import jit, schedules
from hbmeter.simulator.engines import scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.ops import BY_CODE
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.program import Program
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MASKS, TILES, posed_for, problems

SCHEDULES = schedules.names()
TILED = ("flash1", "flash2", "flash1_backward", "flash2_backward")
RETAINING = ("standard_backward", "standard_backward_minimal",
             "standard_separate_backward")  # P is kept by the forward pass


def build(schedule, problem, tiles=None):
    """The schedule's program for the problem, in the pass that the schedule computes."""
    return schedules.build(schedule, posed_for(schedule, problem), tiles)


def naive_count(program: Program):
    """Bytes of each tensor (read, written) and FLOPs of each unit, in plain Python."""
    moved = {tensor.name: [0, 0] for tensor in program.tensors}
    flops = {"matmul": 0, "exp": 0, "alu": 0, "none": 0}
    variables, shape = {-1: 0}, {}

    def run(first, end):
        pc = first
        while pc < end:
            row = {name: int(program.tape[pc][name]) for name in program.tape.dtype.names}
            if row["kind"] == Kind.LOOP:
                start = max(variables[row["start_var"]] + row["start_add"], 0)
                stop = min(variables[row["stop_var"]] + row["stop_add"], row["limit"])
                trips = range(start - start % row["step"], stop, row["step"])
                for offset in trips[::-1] if variables[row["back_var"]] % 2 else trips:
                    variables[row["var"]] = offset
                    run(pc + 1, row["partner"])
                pc = row["partner"]
            elif row["kind"] == Kind.LET:
                offset = variables[row["start_var"]] + row["start_add"]
                offset = offset // row["divide"] * row["times"]
                listed = program.listing_at(row["listing"])
                variables[row["var"]] = listed.values[offset] if listed else offset
            elif row["kind"] == Kind.COMPUTE:
                op = BY_CODE[row["op"]]
                a, b = np.zeros(shape[row["a"]]), np.zeros(shape.get(row["b"], (1, 1)))
                if op.name.startswith("t_dot"):
                    a = a.T
                out = a @ (b.T if "dot_t" in op.name else b) if "dot" in op.name else a
                if op.name in ("row_max", "row_sum"):
                    out = a[:, :1]
                work = a.size * (out.shape[1] if "dot" in op.name else 1)
                flops[op.unit.name.lower()] += op.flops_per_element * work * blocks
                shape[row["out"]] = out.shape
            else:
                tensor, tile = program.tensors[row["tensor"]], program.tile_table[row["tile"]]
                rows = range(tensor.rows)[variables[row["row_var"]]:][:tile.rows]
                cols = range(tensor.cols)[variables[row["col_var"]]:][:tile.cols]
                if row["kind"] in (Kind.LOAD, Kind.FILL):
                    shape[row["tile"]] = (len(rows), len(cols))
                if row["kind"] != Kind.FILL:
                    size = len(rows) * len(cols) * tensor.element_bytes
                    moved[tensor.name][row["kind"] != Kind.LOAD] += size * blocks
            pc += 1

    for phase in program.phases:
        blocks = program.problem.head_count // phase.group
        for offsets in product(*(range(0, axis.extent, axis.step) for axis in phase.axes)):
            variables.update(enumerate(offsets))
            run(phase.first, phase.end)
    return (
        {name: {"read_bytes": r, "write_bytes": w} for name, (r, w) in moved.items()},
        {unit: n for unit, n in flops.items() if unit != "none"},
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=40)
@given(p=problems(), tiles=TILES)
def test_the_compiled_count_is_the_naive_one(schedule, p, tiles):
    program = build(schedule, p, tiles)
    count = scratchpad.count(program)
    assert (count.by_tensor, count.flops) == naive_count(program)
    assert count.read_bytes == sum(b["read_bytes"] for b in count.by_tensor.values())
    assert count.write_bytes == sum(b["write_bytes"] for b in count.by_tensor.values())


@settings(deadline=None, max_examples=40)
@given(p=problems(), tiles=TILES, kv_order=st.sampled_from(["forward", "reversed", "sawtooth:2"]),
       mask=st.sampled_from(["causal", "prefix:5", "documents:7,4", "random:0.4,1@5"]))
def test_orders_of_keys_and_lists_of_blocks_are_counted_as_they_run(p, tiles, kv_order, mask):
    try:
        p = replace(p, mask=mask)
    except InputError:  # no pair is left
        return
    program = build("flash2", p, replace(tiles, kv_order=kv_order))
    count = scratchpad.count(program)
    assert (count.by_tensor, count.flops) == naive_count(program)


def needed_flops(program: Program) -> int:
    """Those of the pass; standard backward reads P and computes four products, not five."""
    p = program.problem
    return 2 * p.forward_flops if program.schedule in RETAINING else p.flops


def moved(schedule, problem, tiles):
    count = scratchpad.count(build(schedule, problem, tiles))
    return count.read_bytes + count.write_bytes


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=30)
@given(p=problems(masks=st.just("full")), tiles=TILES)
def test_without_a_mask_exactly_the_needed_products_are_computed(schedule, p, tiles):
    program = build(schedule, p, tiles)
    assert scratchpad.count(program).flops["matmul"] == needed_flops(program)


@pytest.mark.parametrize("schedule", TILED)
@settings(deadline=None, max_examples=30)
@given(p=problems())
def test_tiles_of_one_element_compute_no_masked_pair(schedule, p):
    program = build(schedule, p, Tiles(br=1, bc=1))
    assert scratchpad.count(program).flops["matmul"] == needed_flops(program)


@pytest.mark.parametrize("schedule", TILED)
@settings(deadline=None, max_examples=30)
@given(p=problems(), tiles=TILES)
def test_tiles_never_skip_a_visible_pair(schedule, p, tiles):
    program = build(schedule, p, tiles)
    assert scratchpad.count(program).flops["matmul"] >= needed_flops(program)


@settings(deadline=None, max_examples=30)
@given(p=problems(masks=st.just("full")), tiles=TILES)
def test_taller_row_blocks_never_cost_flash2_bytes(p, tiles):
    costs = [moved("flash2", p, Tiles(br=br, bc=tiles.bc)) for br in range(1, 48)]
    assert costs == sorted(costs, reverse=True)


@settings(deadline=None, max_examples=30)
@given(p=problems(masks=st.just("full")), tiles=TILES)
def test_wider_column_blocks_never_cost_flash1_bytes(p, tiles):
    costs = [moved("flash1", p, Tiles(br=tiles.br, bc=bc)) for bc in range(1, 48)]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=30)
@given(p=problems(masks=st.just("full")), mask=MASKS, tiles=TILES)
def test_a_mask_never_adds_bytes(schedule, p, mask, tiles):
    tiles = replace(tiles, splits=1)  # else fewer keys may be cut into more splits
    assert moved(schedule, replace(p, mask=mask), tiles) <= moved(schedule, p, tiles)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=20)
@given(p=problems(), tiles=TILES, times=st.integers(2, 5))
def test_heads_and_batch_multiply_bytes_and_flops(schedule, p, tiles, times):
    one = scratchpad.count(build(schedule, p, tiles))
    more = [replace(p, batch=p.batch * times),
            replace(p, heads=p.heads * times, kv_heads=p.kv_heads * times)]
    shared = schedules.direction(schedule) == "backward"  # heads that share KV heads add up
    if not shared and not any(tensor.packed for tensor in one.program.tensors):
        more.append(replace(p, heads=p.heads * times))
    for bigger in more:
        many = scratchpad.count(build(schedule, bigger, tiles))
        np.testing.assert_array_equal(many.phase_bytes, one.phase_bytes * times)
        np.testing.assert_array_equal(many.phase_flops, one.phase_flops * times)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_dtype_scales_the_matrices_and_not_the_statistics(schedule):
    p = Attention(batch=1, heads=1, seq=100, head_dim=8, dtype="fp8")
    fp8, fp16 = (
        scratchpad.count(build(schedule, replace(p, dtype=dtype))).by_tensor
        for dtype in ("fp8", "fp16")
    )
    for name, got in fp16.items():
        wide = name in ("m", "l", "LSE", "D", "table") or name.endswith(("_acc", "_part"))
        factor = 1 if wide else 2
        assert got == {side: factor * size for side, size in fp8[name].items()}


def test_new_shapes_and_schedules_compile_nothing():
    compiled = [f for f in vars(scratchpad).values() if hasattr(f, "nopython_signatures")]
    assert compiled
    scratchpad.count(build("flash2", Attention(seq=64)))
    before = [len(f.nopython_signatures) for f in compiled]
    for schedule in SCHEDULES:
        for p in (Attention(seq=33, batch=7), Attention(seq=5, kv_seq=9, mask="window:3"),
                  Attention(heads=8, kv_heads=2, seq=70, dtype="fp64", mask="causal")):
            for tiles in (Tiles(br=1, bc=7), Tiles(br=64, bc=64, stages=3)):
                scratchpad.count(build(schedule, p, tiles))
    assert [len(f.nopython_signatures) for f in compiled] == before


def test_an_edit_anywhere_in_the_package_changes_the_cache_folder(tmp_path, monkeypatch):
    (tmp_path / "engines").mkdir()
    walk = tmp_path / "engines" / "walk.py"
    walk.write_text("STEP = 1\n")
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    monkeypatch.setenv("HBMETER_CACHE_DIR", str(tmp_path / "cache"))
    before = jit._prepare_cache()
    assert jit._prepare_cache() == before
    walk.write_text("STEP = 2\n")
    assert jit._prepare_cache() != before


def test_compiled_engines_are_kept_in_that_folder_only():
    assert str(jit.CACHE_DIR) != numba.config.CACHE_DIR
    assert str(jit.CACHE_DIR) in scratchpad._count_phase.stats.cache_path


def test_without_a_place_to_write_nothing_is_cached(tmp_path, monkeypatch):
    """Numba's own fallback, beside the sources, would not see edits in other modules."""
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HBMETER_CACHE_DIR", str(tmp_path / "file"))
    assert jit._prepare_cache() is None
    monkeypatch.setattr(jit, "CACHE_DIR", None)
    assert jit.njit(_one).stats.cache_path is None


def test_python_is_told_of_functions_for_compiled_code_only():
    """They have nothing for Python to call: without the message the process would crash."""
    with pytest.raises(TypeError, match="_one is for compiled code"):
        jit.borrowing(_one)()


def _one():
    return 1
