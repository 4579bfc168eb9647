"""Does decode move what serving engines declare, and is the number of splits well chosen?"""

import io
import json
from dataclasses import replace
from math import gcd

import numpy as np
import pytest
from hbmeter.experiments import bench_decode, records
from hbmeter.experiments.cli import main
from hbmeter.experiments.progress import Progress
from hbmeter.hwprofiles import load
from hbmeter.kernels import ahead
from hbmeter.simulator import schedules, splits, traffic
from hbmeter.simulator.engines import l2, numeric, scratchpad
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.schedules._decode import cut
from hbmeter.simulator.tiles import Tiles
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

MIB, KIB = 1 << 20, 1 << 10
DECODE = ("split_kv", "paged", "mla_decode")
STEP = Tiles(16, 64, 3)


def count(schedule, problem, tiles):
    return scratchpad.count(schedules.build(schedule, problem, tiles)).by_tensor


# ---- How keys are cut ----


@given(p=problems(), number=st.integers(1, 50), step=st.integers(1, 30))
def test_splits_cover_every_key_that_is_seen_and_none_is_empty(p, number, step):
    found = cut(p, number, step)
    starts = [found.first + i * found.keys for i in range(found.splits)]
    assert len(starts) <= number and starts[-1] < found.end <= starts[-1] + found.keys
    assert found.keys % step == 0 and found.first % step == 0
    seen = np.flatnonzero(p.mask_bounds.dense(p.seq, p.kv_seq).any(axis=0))
    assert found.first <= seen.min() < found.first + step and found.end == seen.max() + 1


@given(p=problems(dtypes=("fp64",)), number=st.integers(2, 9))
def test_more_splits_change_nothing_but_rounding(p, number):
    inputs = numeric.random_inputs(p)
    one, many = (
        numeric.run(schedules.build("split_kv", p, Tiles(8, 4, splits=n)), inputs)["O"]
        for n in (1, number)
    )
    np.testing.assert_allclose(many, one, rtol=1e-12, atol=1e-13)


def test_parts_are_softmax_of_their_own_keys_and_their_logsumexp():
    p = Attention(1, 4, 1, 8, kv_heads=2, kv_seq=24, dtype="fp64")
    inputs = numeric.random_inputs(p)
    machine = numeric.Machine(schedules.build("split_kv", p, Tiles(4, 4, splits=3)), inputs)
    machine.run()
    o_part, lse = machine.memory[-2], machine.memory[-1]
    for split in range(3):
        keys = slice(8 * split, 8 * split + 8)
        mine = replace(p, kv_seq=8)
        part = {"Q": inputs["Q"], "K": inputs["K"][:, :, keys], "V": inputs["V"][:, :, keys]}
        want = numeric.reference(mine, part).reshape(1, 2, 2, 8)
        np.testing.assert_allclose(o_part[..., 8 * split:8 * split + 8], want, rtol=1e-12)
        q = inputs["Q"].reshape(1, 2, 2, 8)
        scores = q @ part["K"].swapaxes(-1, -2) * p.softmax_scale
        np.testing.assert_allclose(lse[..., split], np.log(np.exp(scores).sum(-1)), rtol=1e-12)


# ---- Bytes ----


@pytest.mark.parametrize("gpu", ["h100"])
@pytest.mark.parametrize(("problem", "read", "written"), [
    (Attention(64, 64, 1, 128, kv_heads=8, kv_seq=32), 9 * MIB, MIB),
    (Attention(64, 64, 1, 128, kv_heads=8, kv_seq=256), 65 * MIB, MIB),
    (Attention(1, 32, 1, 128, kv_seq=32), 520 * KIB, 8 * KIB),
])
def test_paged_decode_moves_what_a_serving_engine_declares(gpu, problem, read, written):
    """A public report of paged decode: Q, K, V read and O written; the table comes on top."""
    assert problem.compulsory_read_bytes == read and problem.compulsory_write_bytes == written
    point = traffic("paged", problem, load(gpu), replace(STEP, splits=1, page=16))
    table = point["sm"]["by_tensor"]["table"]["read_bytes"]
    entries = problem.batch * problem.kv_heads * -(-problem.kv_seq // 16)
    assert table == 4 * entries
    assert point["sm"]["read_bytes"] - table == read and point["sm"]["write_bytes"] == written


def test_grouped_heads_cost_no_more_keys_and_values():
    one = count("split_kv", Attention(2, 4, 1, 64, kv_heads=4, kv_seq=500), STEP)
    eight = count("split_kv", Attention(2, 32, 1, 64, kv_heads=4, kv_seq=500), STEP)
    assert eight["K"] == one["K"] and eight["V"] == one["V"]
    assert eight["Q"]["read_bytes"] == 8 * one["Q"]["read_bytes"]


def test_reading_keys_again_for_each_query_head_is_l2_traffic_not_dram():
    """24 query and 4 KV heads, 32 sequences, a 96 MB L2: 42 MB of KV fit, so 6 times the reads
    cost no DRAM traffic."""
    problem, gpu = Attention(32, 24, 1, 128, kv_heads=4, kv_seq=640), load("l40s")
    again, once = (traffic(name, problem, gpu, Tiles(16, 64)) for name in ("flash2", "split_kv"))
    keys = [point["sm"]["by_tensor"]["K"]["read_bytes"] for point in (again, once)]
    assert keys[0] == 6 * keys[1]
    for point in (again, once):
        assert point["dram"]["read_bytes"] == problem.compulsory_read_bytes


def test_keys_outside_every_window_are_not_compulsory_and_not_read():
    problem = Attention(1, 8, 1, 64, kv_heads=2, kv_seq=4096, mask="window:1024")
    whole = replace(problem, kv_seq=1024, mask="full")
    assert problem.compulsory_read_bytes == whole.compulsory_read_bytes
    point = traffic("split_kv", problem, load("h200"), STEP)
    assert point["sm"]["read_bytes"] == problem.compulsory_read_bytes
    assert point["time"]["bound_s"] == traffic("split_kv", whole, load("h200"),
                                               STEP)["time"]["bound_s"]


def test_one_latent_cache_is_keys_and_values_of_all_heads():
    """DeepSeek-V3: 576 elements a token and layer, 1,152 B in fp16."""
    problem = Attention(1, 128, 1, 576, kv_heads=1, kv_seq=1000, value_dim=512, shared_kv=True)
    q = 128 * 576 * 2
    assert problem.compulsory_read_bytes - q == 1000 * 1152
    moved = count("mla_decode", problem, Tiles(128, 64))
    assert moved["K"]["read_bytes"] == 1000 * 1152 and "V" not in moved
    point = traffic("mla_decode", replace(problem, shared_kv=False), load("h200"),
                    Tiles(64, 64, splits=1))
    assert point["compulsory"]["read_bytes"] == problem.compulsory_read_bytes
    assert point["dram"]["read_bytes"] == problem.compulsory_read_bytes


def test_latent_attention_that_does_not_fit_a_v100():
    """16 heads × 576 queries, 32 keys × 512 values, staged as fp32 there: 102,400 B needed,
    98,304 allowed; 16 keys need 69,632."""
    problem = Attention(1, 16, 1, 576, kv_heads=1, kv_seq=512, value_dim=512, dtype="fp32")
    limit = load("v100-16gb").smem.bytes_per_block_max
    needed = {bc: schedules.build("mla_decode", problem, Tiles(16, bc)).smem_bytes_per_block
              for bc in (32, 16)}
    assert needed == {32: 102_400, 16: 69_632} and limit == 98_304


@pytest.mark.parametrize("page", [1, 16, 48, 256])
def test_pages_move_dram_bytes_as_if_there_were_none(page):
    """Whole pages of 128-byte rows: where they lie changes no byte."""
    gpu = load("h200")
    problem = Attention(4, 8, 1, 64, kv_heads=2, kv_seq=768)
    tiles = Tiles(16, 48, page=page, splits=2)
    plain, paged = (
        l2.simulate(schedules.build(name, problem, tiles), gpu, blocks_per_sm=1).by_tensor
        for name in ("split_kv", "paged")
    )
    assert all(paged[name]["read_bytes"] == plain[name]["read_bytes"] for name in "QKV")
    entries = problem.batch * -(-768 // page) * 4
    assert entries <= paged["table"]["read_bytes"] < entries + 32 * problem.batch + 32


@given(problems(), st.integers(1, 20))
def test_every_page_has_a_place_of_its_own(p, page):
    program = schedules.build("paged", p, Tiles(16, 16, page=page))
    for row in program.tensor_records[1:3]:
        pages = p.batch * p.kv_heads * -(-p.kv_seq // page)
        assert row["pages"] == pages and gcd(int(row["page_stride"]), pages) == 1


# ---- The number of splits ----


def test_a_grid_smaller_than_the_gpu_is_slow_and_splits_fill_it():
    """A public report, RTX 4090: 16/8 heads, 2,048 keys, batch 1: 16 programs 0.916 ms, with splits
    0.054 ms, floor 8.3 µs."""
    problem, gpu = Attention(1, 16, 1, 128, kv_heads=8, kv_seq=2048), load("rtx4090")
    points = splits.every("split_kv", problem, gpu, Tiles(16, 16))
    one, best = points[0], splits.best(points)
    floor_s = problem.compulsory_read_bytes / gpu.hbm_bytes_per_s
    assert f"{floor_s * 1e6:.1f}" == "8.3"
    assert one.splits == 1 and one.waves < 0.1 and one.limiter == "latency"
    assert best.blocks >= 0.9 * gpu.sm_count
    assert one.predicted_s > 4 * best.predicted_s > 4 * floor_s


def test_a_full_grid_is_not_split():
    problem = Attention(64, 32, 1, 128, kv_heads=8, kv_seq=8192)
    points = splits.every("split_kv", problem, load("h200"), STEP)
    assert splits.best(points).splits == 1
    assert [p.splits for p in points] == sorted({p.splits for p in points})


@pytest.mark.parametrize("schedule", DECODE)
def test_more_splits_write_more_parts_and_no_prediction_beats_dram(schedule):
    problem = Attention(2, 8, 1, 64, kv_heads=1, kv_seq=3000)
    points = splits.every(schedule, problem, load("a100-80gb"), Tiles(16, 64, 2))
    parts = [p.part_bytes for p in points]
    assert parts == sorted(parts) and parts[0] == 0
    for p in points:
        assert p.part_bytes == (p.splits > 1) * p.splits * 2 * 8 * (64 + 1) * 4
        assert p.blocks == 2 * p.splits
        assert p.predicted_s > problem.compulsory_read_bytes / 2.039e12 / 2  # K is V in one


@pytest.mark.parametrize("schedule", DECODE)
@pytest.mark.parametrize("gpu", ["h200", "t4", "rtx4090"])
def test_chosen_tiles_fit_and_keep_what_is_given(schedule, gpu):
    problem = Attention(1, 128, 1, 576, kv_heads=1, kv_seq=4096, value_dim=512)
    profile = load(gpu)
    chosen = splits.choose_tiles(schedule, problem, profile, {"splits": 3})
    program = schedules.build(schedule, problem, chosen)
    assert program.smem_bytes_per_block <= profile.smem.bytes_per_block_max
    assert program.phases[0].axes[1].blocks == 3
    free = splits.choose_tiles(schedule, problem, profile, {"bc": 16})
    assert free.bc == 16 and free.splits > 1


def test_tiles_that_fit_with_no_number_of_splits_say_why():
    p = Attention(1, 8, 1, 256, kv_seq=4096)
    for tried in (lambda: splits.every("split_kv", p, load("t4"), Tiles(16, 256, 3)),
                  lambda: splits.choose_tiles("split_kv", p, load("t4"), {"bc": 256, "stages": 3})):
        with pytest.raises(InputError, match="shared memory"):
            tried()


def test_a_page_table_too_long_for_shared_memory_says_so_or_is_split():
    problem, gpu = Attention(1, 8, 1, 128, kv_heads=1, kv_seq=1 << 20), load("t4")
    with pytest.raises(InputError, match="shared memory"):
        traffic("paged", problem, gpu, Tiles(16, 16, page=16, splits=1), engine="scratchpad")
    assert splits.choose_tiles("paged", problem, gpu, {}).splits > 1


# ---- The recorded H200 ----


@pytest.fixture(scope="module")
def h200():
    found, = [r for r in bench_decode.recorded() if r["provenance"]["gpu"] == "NVIDIA H200"]
    return found


def test_recorded_decode_is_at_the_bandwidth_and_ahead_of_pytorchs_flash(h200):
    rows = {(r["batch"], r["heads"], r["kv_seq"], r["head_dim"], r["contender"]): r
            for r in bench_decode.rows(h200)}
    ours = rows[64, 32, 8192, 128, "split_kv"]
    assert ours["share_of_read"] >= 0.85 and ours["ratio_to_torch_flash"] >= 1
    assert rows[64, 32, 8192, 128, "paged"]["share_of_read"] >= 0.85


def test_the_chosen_number_of_splits_is_among_the_fastest_recorded(h200):
    """Of the numbers tried, the one nearest to the choice takes at most 10% longer than the best;
    what is predicted for it is within 20%."""
    for point in h200["points"]:
        problem, gpu = Attention(**point["problem"]), load("h200")
        points = {p.splits: p for p in splits.every("split_kv", problem, gpu, STEP)}
        times = {int(n): np.median(ms) / 1e3 for n, ms in point["by_splits"].items()}
        chosen = splits.best(tuple(points.values())).splits
        near = min(times, key=lambda n: abs(n - chosen))
        assert times[near] <= 1.1 * min(times.values())
        assert points[near].predicted_s == pytest.approx(times[near], rel=0.2)


def test_the_recorded_table_prints_anywhere(capsys):
    assert main(["decode", "--recorded"]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA H200" in text and "torch flash" in text
    assert main(["decode", "--recorded", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["points"]


# ---- The command line ----


def test_the_table_of_splits_as_json(capsys):
    shape = ["--batch", "1", "--heads", "16", "--kv-heads", "8", "--kv-seq", "2048"]
    assert main(["splits", "--gpu", "rtx4090", *shape, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["splits"] for row in found["splits"] if row["best"]] == [found["best"]]
    assert all(row["sm_read_bytes"] >= 8 * MIB for row in found["splits"])
    assert main(["splits", "--gpu", "rtx4090", *shape]) == 0
    assert "best" in capsys.readouterr().out


def test_splits_and_pages_reach_the_schedule(capsys):
    shape = ["--seq", "1", "--kv-seq", "1024", "--heads", "8", "--kv-heads", "2", "--batch", "2"]
    given = ["--splits", "7", "--page-size", "32"]
    arguments = ["traffic", "--schedule", "paged", *shape, *given, "--json"]
    assert main(arguments) == 0
    tiles = json.loads(capsys.readouterr().out)["tiles"]
    assert tiles["page"] == 32 and tiles["splits"] == 6  # of three column blocks each


def test_compare_shows_decode_with_and_without_packing_and_splits(capsys):
    shape = ["--batch", "1", "--heads", "32", "--kv-heads", "8", "--seq", "1", "--kv-seq", "8192"]
    assert main(["compare", *shape, "--engine", "scratchpad", "--json"]) == 0
    found = {p["schedule"]: p["sm"]["read_bytes"] for p in json.loads(capsys.readouterr().out)}
    assert found["split_kv"] < found["flash2"] / 3  # four query heads read K and V once
    assert main(["compare", "--seq", "256", "--engine", "scratchpad", "--json"]) == 0
    assert "split_kv" not in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "says"), [
    (["traffic", "--schedule", "flash2", "--splits", "2"], "flash2 takes no --splits"),
    (["traffic", "--schedule", "split_kv", "--page-size", "16"], "split_kv takes no --page-size"),
    (["traffic", "--schedule", "split_kv", "--splits", "0"], "splits 0 must be"),
    (["traffic", "--schedule", "mla_decode", "--value-dim", "256"], "--value-dim 256 must be"),
    (["splits", "--schedule", "flash2"], "flash2 takes no --splits"),
    (["splits", "--splits", "4"], "leave it out"),
    (["splits", "--blocks-per-sm", "99"], "blocks-per-sm 99"),
])
def test_bad_input_is_one_line(arguments, says, capsys):
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert says in text and text.count("\n") == 1


def test_a_run_that_was_stopped_goes_on_where_it_was(monkeypatch, tmp_path):
    timed, problems = [], bench_decode.shapes()[:3]
    monkeypatch.setattr(ahead, "build_ahead", lambda builds, report: None)
    monkeypatch.setattr(bench_decode, "read_bytes_per_s", lambda: timed.append("read") or 4.4e12)
    monkeypatch.setattr(bench_decode, "_inputs", lambda problem: None)
    monkeypatch.setattr(bench_decode, "_by_splits", lambda problem, inputs: {})

    def race(problem, inputs):
        if len(timed) == 3:
            raise KeyboardInterrupt
        timed.append(problem)
        return {"split_kv": {"times_ms": [1.0]}}

    monkeypatch.setattr(bench_decode, "_race", race)
    path, quiet = str(tmp_path / "d.partial"), Progress(io.StringIO())
    with pytest.raises(KeyboardInterrupt):
        bench_decode.measure(problems, records.Partial(path, {}), quiet)
    timed.remove("read")
    read, points = bench_decode.measure(problems, records.Partial(path, {}), quiet)
    assert timed == problems and read == 4.4e12
    assert [point["problem"]["kv_seq"] for point in points] == [p.kv_seq for p in problems]
