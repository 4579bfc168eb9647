"""Do the commands that speak of time answer, in the contract's words, and refuse what is wrong?"""

import json

import pytest
from hbmeter.experiments.claims_of_speed import claim, judge, miscounts
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator.bounds import pass_bound
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import given, settings
from hypothesis import strategies as st

SMALL = ("--batch", "1", "--heads", "8", "--seq", "512", "--head-dim", "64")


def output(capsys, *argv):
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- predict ----


def test_predict_says_where_the_time_goes(capsys):
    code, out, _ = output(capsys, "predict", *SMALL, "--br", "64", "--bc", "64", "--json")
    found = json.loads(out)
    assert code == 0 and found["calibrated_s"] is None
    assert found["bound_s"] <= found["zero_shot_s"]
    phases = sum(phase["predicted_s"] for phase in found["phases"])
    assert phases <= found["zero_shot_s"] < phases + 1e-5
    for phase in found["phases"]:
        assert max(phase["units_s"].values()) <= phase["predicted_s"]


@pytest.mark.parametrize("kernel", ["flash1", "flash2", "flash2_mma", "standard"])
def test_a_kernel_is_predicted_with_what_it_declares(kernel, capsys):
    code, out, _ = output(capsys, "predict", "--kernel", kernel, *SMALL, "--json")
    found = json.loads(out)
    assert code == 0 and found["runs"] == kernel and found["zero_shot_s"] > 0
    _, text, _ = output(capsys, "predict", "--kernel", kernel, *SMALL)
    assert "limited by" in text and "zero-shot" in text


@pytest.mark.parametrize(("kernel", "shape", "phases"), [
    ("flash2_backward", ("--seq", "2048"), 3),  # which says its pass
    ("flash2_backward_fma", ("--pass", "backward", "--seq", "512", "--kv-heads", "4"), 5),
    ("softmax_online", ("--pass", "softmax", "--seq", "3000"), 1),
    ("split_kv", ("--seq", "1", "--kv-seq", "8192", "--kv-heads", "4"), 1),
    ("paged", ("--seq", "1", "--kv-seq", "8192", "--kv-heads", "4"), 1),
])
def test_kernels_of_other_passes_are_predicted_phase_by_phase(kernel, shape, phases, capsys):
    code, out, _ = output(capsys, "predict", "--kernel", kernel, "--batch", "4", "--heads", "16",
                          *shape, "--json")
    found = json.loads(out)
    assert code == 0 and len(found["phases"]) == phases
    assert found["zero_shot_s"] > found["bound_s"] > 0


def test_a_known_run_calibrates_every_other_shape(capsys):
    tile = ("--kernel", "flash2_mma", *SMALL, "--br", "64", "--bc", "64")
    _, out, _ = output(capsys, "predict", *tile, "--json")
    zero = json.loads(out)["zero_shot_s"]
    _, out, _ = output(capsys, "predict", *tile, "--json", "--known-seq", "512", "--known-ms",
                       str(zero * 1e3 * 1.5))
    same = json.loads(out)
    assert same["calibrated_s"] == pytest.approx(1.5 * zero) and same["factor"] > 1.5
    longer = [*tile, "--seq", "4096", "--json"]
    _, out, _ = output(capsys, "predict", *longer, "--known-seq", "512", "--known-ms",
                       str(zero * 1e3 * 1.5))
    found = json.loads(out)
    assert found["calibrated_s"] / found["zero_shot_s"] == pytest.approx(found["factor"], rel=0.02)


def test_a_call_that_takes_long_beside_dram_has_a_sustained_time(capsys):
    """Heads side by side whose keys the L2 cannot hold."""
    shape = ("--kernel", "flash2_mma", "--heads", "256", "--seq", "2048", "--head-dim", "64",
             "--order", "head", "--br", "64", "--bc", "64", "--stages", "2")
    _, out, _ = output(capsys, "predict", *shape, "--json", "--known-seq", "2048", "--known-ms",
                       "1.2")
    found = json.loads(out)
    assert 1.05 * found["zero_shot_s"] < found["sustained_s"] < 1.4 * found["zero_shot_s"]
    assert found["calibrated_s"] < found["calibrated_sustained_s"]
    assert 0.02 < found["first_clock_s"] < 0.1
    _, text, _ = output(capsys, "predict", *shape)
    assert "\nsustained " in text
    _, out, _ = output(capsys, "predict", *SMALL, "--dtype", "fp32", "--kernel", "flash2", "--json")
    assert json.loads(out)["sustained_s"] is None  # no tensor cores


@pytest.mark.parametrize(("argv", "says"), [
    (("--known-ms", "1"), "go together"),
    (("--known-ms", "-1", "--known-seq", "512"), "above 0"),
    (("--known-ms", "0.0001", "--known-seq", "512"), "less than the launch"),
    (("--kernel", "flash3"), "flash3"),
    (("--schedule", "split_kv"), "no time is predicted"),
    (("--recorded",), "--batch does nothing here: --recorded shows all recorded times"),
    (("--kernel", "softmax_safe", "--dtype", "fp64"), "unknown dtype of kernel softmax_safe"),
    (("--kernel", "flash2_mma", "--head-dim", "63"), "--head-dim 63: kernel flash2_mma needs"),
    (("--kernel", "flash2_mma", "--pass", "backward"), "computes the forward pass"),
    (("--kernel", "flash2_mma", "--br", "17"), "no such default tiles (for this problem: Br 1"),
])
def test_predict_refuses_in_one_line(argv, says, capsys):
    code, out, err = output(capsys, "predict", *SMALL, *argv)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


# ---- blocks ----


def test_blocks_are_ranked_by_predicted_time(capsys):
    _, out, _ = output(capsys, "blocks", *SMALL, "--json")
    found = json.loads(out)
    timed = [row for row in found["blocks"] if row["predicted_s"] is not None]
    best = min(timed, key=lambda row: row["predicted_s"])
    assert "fastest" in best["marks"] and best["predicted_limiter"]
    assert found["marks"]["fastest"] == {name: best[name] for name in ("br", "bc", "stages")}
    _, text, _ = output(capsys, "blocks", *SMALL)
    first = text.splitlines()[3].split()
    assert first[0] == f"{best['br']}×{best['bc']}"


@pytest.mark.parametrize(("minimize", "key"), [
    ("sm", lambda row: row["sm_read_bytes"] + row["sm_write_bytes"]),
    ("dram", lambda row: row["dram_bytes"]),
])
def test_blocks_can_be_ranked_by_bytes(minimize, key, capsys):
    tiles = ("--br", "64", "--stages", "1")
    _, out, _ = output(capsys, "blocks", *SMALL, *tiles, "--minimize", minimize, "--json")
    rows = [row for row in json.loads(out)["blocks"] if row["fits"]]
    known = [row for row in rows if key(row) is not None]
    _, text, _ = output(capsys, "blocks", *SMALL, *tiles, "--minimize", minimize)
    first = text.splitlines()[3].split()
    assert known and first[0] in {f"{r['br']}×{r['bc']}" for r in known
                                  if key(r) == min(map(key, known))}


def test_blocks_compile_gives_the_compilers_registers(capsys):
    pytest.importorskip("cuda.bindings")
    from hbmeter import kernels
    from hbmeter.kernels import compiler

    problem = Attention(1, 8, 512, 64)
    built = compiler.resources(kernels.get("flash2_mma"), problem, Tiles(64, 64), "sm_90")
    code, out, _ = output(capsys, "blocks", *SMALL, "--br", "64", "--bc", "64", "--stages", "1",
                          "--compile", "--kernel", "flash2_mma", "--json")
    row = json.loads(out)["blocks"][0]["compiled"]
    assert code == 0 and row["why_not"] is None and row["spill_bytes"] == 0
    assert row["registers"] == built["hbmeter_flash2_mma"].registers
    assert row["blocks_per_sm"] >= 1 and row["predicted_s"] > 0


def test_blocks_compile_refuses_another_schedules_kernel(capsys):
    code, _, err = output(capsys, "blocks", *SMALL, "--compile", "--kernel", "flash1")
    assert code == 2 and "flash1" in err and err.count("\n") == 1


# ---- traffic, compare, published ----


def test_traffic_and_compare_say_predicted_times(capsys):
    _, out, _ = output(capsys, "compare", *SMALL, "--engine", "scratchpad", "--json")
    times = {point["schedule"]: point["time"] for point in json.loads(out)}
    assert times["standard_minimal"]["predicted_s"] is None  # a paper's count is no kernel
    for name in ("standard", "flash2"):
        assert times[name]["predicted_s"] >= times[name]["bound_s"] > 0
    _, out, _ = output(capsys, "traffic", "--schedule", "flash2", *SMALL, "--br", "64", "--bc",
                       "64", "--engine", "scratchpad")
    assert "predicted" in out and "limited by" in out


def test_published_tables_have_their_errors(capsys):
    code, out, _ = output(capsys, "published", "--method", "flash3")
    assert code == 0 and "FlashAttention-3" in out and "%" in out
    code, _, err = output(capsys, "published", "--method", "flash9")
    assert code == 2 and "flash9" in err
    _, out, _ = output(capsys, "published", "--method", "cudnn", "--json")
    assert all(row["predicted_s"] is None for row in json.loads(out)["rows"])


# ---- explain: is a claimed speed possible? ----


def explained(capsys, *argv):
    code, out, _ = output(capsys, "explain", *argv, "--json")
    return code, json.loads(out)


def test_475_tflops_on_an_rtx_4090_are_above_its_peak(capsys):
    """Case C12: fp16, head_dim 16."""
    code, found = explained(capsys, "--gpu", "rtx4090", "--head-dim", "16", "--tflops", "475")
    texts = " ".join(x["text"] for x in found["findings"])
    assert code == 1 and found["verdict"] == "impossible"
    assert "above rtx4090's dense peak of 165.2" in texts and "synchronised" in texts


def test_322_causal_tflops_at_64k_counted_the_whole_square(capsys):
    """Case C12: an A800's 312 TFLOP/s are an A100's."""
    code, found = explained(capsys, "--gpu", "a100-80gb", "--mask", "causal", "--batch", "1",
                            "--seq", "65536", "--tflops", "322")
    texts = " ".join(x["text"] for x in found["findings"])
    assert code == 1 and found["verdict"] == "impossible" and "dense peak of 312" in texts
    assert "though the mask is causal (the true rate is then 161 TFLOP/s, 52%" in texts


@pytest.mark.parametrize(("argv", "code", "says"), [
    (("--ms", "0.001"), 1, "less than a launch"),
    (("--ms", "2", "--dram-gb", "40"), 1, "DRAM moves 4.8"),
    (("--ms", "3", "--clock-mhz", "2619"), 1, "memory clock"),
    (("--ms", "3", "--clock-mhz", "1200"), 0, "throttled: 1,200 MHz is 61%"),
    (("--tflops", "960"), 0, "97% of h200's dense peak"),
    (("--ms", "3", "--batch", "1", "--heads", "1"), 0, "do not fill 132 SMs"),
])
def test_claims_are_judged_with_a_reason(argv, code, says, capsys):
    found_code, found = explained(capsys, *argv)
    assert found_code == code, found
    assert says in " ".join(x["text"] for x in found["findings"])


@pytest.mark.parametrize(("argv", "says"), [
    ((), "either --tflops or --ms"), (("--tflops", "1", "--ms", "1"), "either --tflops or --ms"),
    (("--ms", "0"), "above 0"), (("--tflops", "nan"), "above 0"),
])
def test_explain_refuses_in_one_line(argv, says, capsys):
    code, _, err = output(capsys, "explain", *argv)
    assert code == 2 and says in err and err.count("\n") == 1


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0.05, 3.0), seq=st.sampled_from([512, 4096, 32768]),
       mask=st.sampled_from(["full", "causal"]), gpu=st.sampled_from(["h200", "a100-40gb", "t4"]))
def test_what_is_slower_than_every_roof_is_never_impossible(share, seq, mask, gpu):
    problem, profile = Attention(2, 16, seq, 128, mask=mask), load(gpu)
    bound = pass_bound(problem, profile)
    verdict, findings = judge(claim(problem, profile, ms=bound.bound_s / share * 1e3))
    assert findings
    if share <= 0.9:
        assert verdict == "plausible"
    if share >= 1.1 and bound.limiter != "dram":  # inputs may be in L2
        assert verdict != "plausible"


def test_a_full_mask_has_no_causal_miscount():
    assert not any("mask" in name for name, _ in miscounts(Attention(seq=1024)))
    causal = dict(miscounts(Attention(seq=1024, mask="causal")))
    assert max(causal.values()) == 3.5 and any(1.99 < x < 2 for x in causal.values())


def test_a_claim_needs_one_number():
    with pytest.raises(InputError, match="either --tflops or --ms"):
        claim(Attention(), load("h200"))


# ---- a whole model over context lengths ----


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 2048, "torch_dtype":
                                "bfloat16", "num_attention_heads": 16, "num_key_value_heads": 4,
                                "num_hidden_layers": 6}))
    return str(path)


def test_a_models_attention_time_grows_with_its_context(config, capsys):
    code, out, _ = output(capsys, "model", config, "--seq", "6000", "--times", "--json")
    rows = json.loads(out)["lengths"]
    assert code == 0 and [row["seq"] for row in rows] == [1024, 2048, 4096, 6000]
    for kind in ("prefill", "decode"):
        times = [row[f"{kind}_s"] for row in rows]
        assert times == sorted(times)
        assert all(row[f"{kind}_s"] > row[f"{kind}_bound_s"] for row in rows)
    assert all(row["standard_prefill_s"] > row["prefill_s"] for row in rows)  # heads enough
    _, text, _ = output(capsys, "model", config, "--seq", "2048", "--times")
    assert "6 attention layers" in text and "steps/s" in text


def test_layers_without_softmax_attention_have_no_time(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers":
                                2, "layer_types": ["linear_attention"] * 2}))
    code, _, err = output(capsys, "model", str(path), "--times")
    assert code == 2 and "no layer of softmax attention" in err
