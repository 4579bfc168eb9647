"""Is attention's memory what frameworks are seen to allocate?"""

import json

import pytest
from hbmeter.experiments.cli import main
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.footprint import activations, model_memory, score_bytes, shapes_of_scores
from hbmeter.simulator.model_config import parse
from hbmeter.simulator.problem import Attention
from hypothesis import given
from hypothesis import strategies as st

MIB, GIB = 1 << 20, 1 << 30


def test_the_score_matrix_of_a_bug_report():
    """"Tried to allocate 10973.48 GB" for [2, 48, 247726, 64] bf16: the label means GiB."""
    problem = Attention(batch=2, heads=48, seq=247_726, head_dim=64, dtype="bf16")
    assert f"{score_bytes(problem) / GIB:.2f}" == "10973.48"


def test_allocations_step_by_step_on_an_a100():
    problem = Attention(batch=1, heads=32, seq=4096, head_dim=96, dtype="bf16")
    size = {a.name: a.bytes for a in activations(problem, "standard", dropout=True).allocations}
    assert size["S = QKᵀ"] == size["P = softmax(S)"] == 1024 * MIB
    assert size["dropped P"] + size["dropout mask"] == 1536 * MIB
    assert size["O"] == 24 * MIB


def test_all_shapes_of_a_score_allocation():
    shapes = shapes_of_scores(9_948_865_536)
    found = {(s.head_count, s.seq, s.dtype) for s in shapes}
    assert {(32, 12_468, "fp16"), (16, 12_468, "fp32")} <= found
    assert [s.seq for s in shapes] == sorted((s.seq for s in shapes), reverse=True)


@given(st.integers(1, 20_000))
def test_the_inverse_finds_exactly_the_shapes_that_fit(elements):
    """Against trying every length."""
    found = {(s.head_count, s.seq) for s in shapes_of_scores(elements, ("fp8",))}
    tried = {(elements // n**2, n) for n in range(1, 142) if elements % n**2 == 0}
    assert found == tried


@given(st.integers(1, 4096), st.integers(1, 1 << 20))
def test_a_shape_is_among_the_shapes_of_its_own_bytes(heads, seq):
    shapes = shapes_of_scores(2 * heads * seq**2, ("fp16",))
    assert (heads, seq) in {(s.head_count, s.seq) for s in shapes}


def test_flash_memory_is_linear_and_standard_memory_quadratic():
    def saved(method, seq):
        return activations(Attention(1, 1, seq, 64), method).saved_bytes

    assert saved("flash", 2048) == 2 * saved("flash", 1024)
    growth = saved("standard", 2048) - 2 * saved("standard", 1024)
    assert growth == 2 * score_bytes(Attention(1, 1, 1024, 64))


def test_recomputing_keeps_only_the_inputs():
    problem = Attention(2, 8, 512, 64, kv_heads=2)
    for method in ("standard", "flash"):
        assert activations(problem, method).recomputed_bytes == problem.compulsory_read_bytes


def test_a_model_is_the_sum_of_its_layers():
    config = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6}
    six, one = parse(config), parse(config | {"num_hidden_layers": 1})
    memory, alone = (model_memory(model, 1024) for model in (six, one))
    assert memory.saved_standard_bytes == 6 * alone.saved_standard_bytes
    assert memory.call_standard_bytes == alone.call_standard_bytes
    assert memory.kv_cache_bytes == 6 * 1024 * 2 * 512 * 2


@pytest.mark.parametrize("arguments", [
    ["--score-bytes", "0"], ["--contexts", "8192"], ["--contexts", "0,5"],
    ["--contexts", "many"], ["--model", "nowhere.json"],
])
def test_bad_input_is_one_line(arguments, capsys):
    try:
        code = main(["memory", *arguments])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_json_of_all_three_tables(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 512, "num_attention_heads": 8,
                                "num_hidden_layers": 6}))
    for arguments in (["--seq", "64"], ["--score-bytes", "2048"],
                      ["--model", str(path), "--contexts", "64,128"]):
        assert main(["memory", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)
    with pytest.raises(InputError):
        activations(Attention(), "imaginary")
