"""Are people's own times read as they meant them, and judged fairly?"""

import json

import pytest
from hbmeter.experiments import own_times
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, InputError, Tiles, traffic
from hbmeter.simulator.bounds import pass_bound


def read(tmp_path, text, **defaults):
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return own_times.read_csv(str(path), "flash2", defaults)


def test_columns_by_any_of_their_names(tmp_path):
    (one,) = read(tmp_path, "Batch Size,num_heads,seqlen,headdim,causal,comment,time_ms\n"
                            "2,8,1024,64,True,\"a, b\",1.5\n")
    assert one.problem == Attention(2, 8, 1024, 64, mask="causal")
    assert one.seconds == pytest.approx(1.5e-3) and one.tiles is None


@pytest.mark.parametrize(("text", "seconds"), [
    ("seq,us\n512,\"1,234.5\"\n", 1234.5e-6), ("seq;ms\n512;0,25\n", 0.25e-3),
    ("seq,s\n512,1e-3\n", 1e-3), ("\ufeffseq,median_us\n512,7\n", 7e-6),
])
def test_units_separators_and_decimal_commas(tmp_path, text, seconds):
    assert read(tmp_path, text)[0].seconds == pytest.approx(seconds)


def test_options_stand_for_absent_columns_and_tiles_are_taken(tmp_path):
    (one,) = read(tmp_path, "seq,br,bc,ms\n512,64,32,1\n", heads=4, head_dim=64)
    assert (one.problem.heads, one.tiles.br, one.tiles.bc) == (4, 64, 32)


@pytest.mark.parametrize(("text", "says"), [
    ("seq,heads\n512,4\n", "no column with a time"), ("ms\n1\n", "no column seq"),
    ("seq,ms\n", "no rows"), ("seq,ms\n512,n/a\n", "'n/a' must be a number"),
    ("seq,ms\n512,0\n", "must be a number above 0"), ("seq,ms\n512,inf\n", "above 0"),
    ("seq,ms\nmany,1\n0,1\n", "line 2: .*line 3: "), ("seq,dtype,ms\n8,int4,1\n", "int4"),
    ("seq,schedule,ms\n8,flash9,1\n", "flash9"),
])
def test_every_mistake_is_named(tmp_path, text, says):
    with pytest.raises(InputError, match=says):
        read(tmp_path, text)


def trace(*events):
    return json.dumps({"traceEvents": [
        {"ph": "X", "cat": cat, "name": name, "dur": dur} for cat, name, dur in events
    ]})


def test_a_torch_trace_is_the_sum_of_its_attention_kernels(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(trace(("kernel", "flash_fwd_kernel<…>", 100.0), ("kernel", "gemm", 50.0),
                          ("kernel", "flash_fwd_splitkv_combine", 20.0),
                          ("cpu_op", "aten::flash_attention", 900.0)))
    seconds, by_name = own_times.read_torch_trace(str(path), None)
    assert seconds == pytest.approx(120e-6) and len(by_name) == 2
    assert own_times.read_torch_trace(str(path), "gemm")[0] == pytest.approx(50e-6)


@pytest.mark.parametrize(("text", "pattern", "says"), [
    ("{}", None, "not a torch profiler trace"), ("[1, 2", None, "not a torch"),
    (trace(("kernel", "gemm", 5.0)), None, "no GPU kernel matches.*gemm"),
    (trace(("kernel", "flash", 5.0)), "(", "not a regular expression"),
])
def test_traces_that_say_nothing(tmp_path, text, pattern, says):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        own_times.read_torch_trace(str(path), pattern)


def test_a_time_below_the_bound_is_no_time(tmp_path, capsys):
    gpu, problem = load("h200"), Attention(4, 16, 4096, 128)
    bound_ms = pass_bound(problem, gpu).bound_s * 1e3
    path = tmp_path / "mine.csv"
    path.write_text(f"batch,heads,seq,head_dim,ms\n4,16,4096,128,{bound_ms / 2}\n")
    assert main(["verify", "--times", str(path)]) == 1
    assert "impossible: 2.00× faster than the bound" in capsys.readouterr().out
    path.write_text(f"batch,heads,seq,head_dim,dtype,ms\n4,16,4096,128,fp32,{bound_ms}\n")
    assert main(["verify", "--times", str(path)]) == 1
    assert "its products were TF32" in capsys.readouterr().out


@pytest.mark.parametrize(("times_predicted", "verdict"), [
    (0.7, "faster"), (0.85, "agrees"), (1.0, "agrees"), (1.3, "agrees"), (1.4, "slower"),
    (50.0, "slower"),
])
def test_a_time_is_judged_by_the_prediction(times_predicted, verdict):
    gpu, problem, tiles = load("h200"), Attention(4, 16, 4096, 128), Tiles(128, 64)
    seconds = traffic("flash2", problem, gpu, tiles, engine="scratchpad",
                      times=True)["time"]["predicted_s"]
    own = own_times.OwnTime("here", problem, "flash2", tiles, seconds * times_predicted)
    row = own_times.compare(own, gpu)
    assert (row["verdict"], row["predicted_s"]) == (verdict, seconds)
    assert row["bound_s"] == pass_bound(problem, gpu).bound_s  # whatever the schedule and tiles


def test_where_nothing_is_predicted_nothing_is_judged():
    own = own_times.OwnTime("here", Attention(1, 2, 512, 64), "standard_minimal", None, 1.0)
    row = own_times.compare(own, load("h200"))
    assert row["predicted_s"] is None and row["verdict"] is None and not row["note"]
