"""Are the attention layers of a config the ones that the model runs? Key fields as published."""

import json

import pytest
from hbmeter.experiments.cli import main
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.footprint import model_memory
from hbmeter.simulator.model_config import parse, read
from hypothesis import given
from hypothesis import strategies as st

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 4}
DEEPSEEK_V3 = {"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
               "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
               "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
               "num_hidden_layers": 61}


def shapes(**config):
    """(heads, kv_heads, head_dim, window) of each layer."""
    return [(x.heads, x.kv_heads, x.head_dim, x.window) for x in parse(config).layers]


def test_head_dim_is_not_hidden_over_heads_where_it_is_given():
    nemo = shapes(hidden_size=5120, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                  sliding_window=None, num_hidden_layers=40)
    assert nemo == [(32, 8, 128, None)] * 40


def test_gemma_2_alternates_without_saying_so():
    gemma = shapes(model_type="gemma2", hidden_size=3584, num_attention_heads=16,
                   num_key_value_heads=8, head_dim=256, sliding_window=4096, num_hidden_layers=42)
    assert gemma == [(16, 8, 256, 4096), (16, 8, 256, None)] * 21


def test_gpt_oss_lists_its_layers():
    listed = ["sliding_attention", "full_attention"] * 12
    layers = shapes(model_type="gpt_oss", hidden_size=2880, num_attention_heads=64,
                    num_key_value_heads=8, head_dim=64, sliding_window=128, layer_types=listed,
                    num_hidden_layers=24)
    assert layers == [(64, 8, 64, 128), (64, 8, 64, None)] * 12


def test_latent_attention_caches_one_vector_for_all_heads():
    model = parse(DEEPSEEK_V3)
    layer = model.layers[0]
    prefill, decode = layer.prefill(4096), layer.decode(4096)
    assert (prefill.kv_heads, prefill.head_dim, prefill.value_dim) == (128, 192, 128)
    assert (decode.kv_heads, decode.head_dim, decode.value_dim) == (1, 576, 512)
    assert model.cache_bytes(1, dtype_bytes=2) == 61 * 1152


@pytest.mark.parametrize(("config", "kv_heads"), [
    ({"model_type": "falcon", "multi_query": True}, 1),
    ({"model_type": "falcon", "multi_query": False, "new_decoder_architecture": False}, 32),
    ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
    ({"model_type": "gpt_bigcode"}, 1),
    ({"multi_query_attention": True, "multi_query_group_num": 2}, 2),
    ({"multi_query_attention": False, "multi_query_group_num": 2}, 32),
    ({"attn_config": {"attn_type": "multiquery_attention"}}, 1),
    ({"attn_config": {"kv_n_heads": 4}}, 4),
    ({"num_key_value_heads": None}, 32),
])
def test_every_way_to_say_how_many_kv_heads(config, kv_heads):
    assert parse(LLAMA | config).layers[0].kv_heads == kv_heads


@pytest.mark.parametrize(("config", "windows"), [
    ({"sliding_window": 8}, [8] * 4),
    ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, [None] * 4),
    ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True,
      "max_window_layers": 3}, [None, None, None, 8]),
    ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2},
     [8, None, 8, None]),
    ({"model_type": "llama4_text", "attention_chunk_size": 16}, [16, 16, 16, None]),
    ({"model_type": "modernbert", "sliding_window": 8, "global_attn_every_n_layers": 3},
     [None, 8, 8, None]),
    ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 8, "use_sliding_window": False},
     [None] * 4),  # listed, and not in use
])
def test_which_layers_see_a_window(config, windows):
    assert [layer.window for layer in parse(LLAMA | config).layers] == windows


def test_layers_without_softmax_attention_are_there_but_move_nothing():
    jamba = parse(LLAMA | {"attn_layer_period": 4, "attn_layer_offset": 2})
    assert [layer.kind for layer in jamba.layers] == ["none", "none", "full", "none"]
    assert jamba.cache_bytes(10, 2) == 10 * 2 * 32 * 256
    with pytest.raises(InputError, match="no softmax attention"):
        jamba.layers[0].prefill(16)


def test_layers_of_different_heads():
    openelm = shapes(num_query_heads=[4, 8], num_kv_heads=[2, 4], head_dim=64,
                     num_transformer_layers=2)
    assert openelm == [(4, 2, 64, None), (8, 4, 64, None)]
    blocks = [{"attention": {"n_heads_in_group": 8}}, {"attention": {"no_op": True}}]
    nemotron = parse(LLAMA | {"block_configs": blocks})
    assert [(x.kind, x.kv_heads) for x in nemotron.layers] == [("full", 4), ("none", 0)]


@pytest.mark.parametrize(("config", "says"), [
    ({"num_query_heads": [4, 8], "num_kv_heads": [2, 4]},
     "2 numbers of heads and 2 of KV heads for 4 layers"),
    ({"num_query_heads": [4, 8, 8, 8], "num_kv_heads": [2, 3, 0, 8]},
     "layer 1: 8 heads with 3 KV heads.*layer 2: 8 heads with 0 KV heads"),
    ({"block_configs": [{"attention": {"n_heads_in_group": 5}}] * 4},
     "block_configs 0: n_heads_in_group 5 does not divide 32 heads"),
])
def test_heads_of_layers_that_do_not_go_together_are_told(config, says):
    given = {name: value for name, value in LLAMA.items() if name != "num_attention_heads"
             or "block_configs" in config}
    with pytest.raises(InputError, match=says):
        parse(given | {"head_dim": 64} | config)


def test_a_layer_without_attention_has_no_cache_and_no_calls():
    model = parse(LLAMA | {"model_type": "jamba", "attn_layer_period": 4})
    assert [layer.kind for layer in model.layers] == ["none", "none", "none", "full"]
    assert model.layers[0].cache_elements_per_token == 0
    assert model.cache_bytes(100, dtype_bytes=2) == 100 * 2 * 32 * 128 * 2  # K and V of one layer
    one = parse(LLAMA | {"num_hidden_layers": 1})
    assert model_memory(model, 100) == model_memory(one, 100)


def test_the_language_model_of_a_multimodal_config():
    nested = {"model_type": "some_vlm", "vision_config": {"num_attention_heads": 16},
              "text_config": LLAMA, "torch_dtype": "bfloat16"}
    model = parse(nested)
    assert model.layers == parse(LLAMA).layers and model.dtype == "bf16"


def test_encoders_see_everything():
    bert = parse(LLAMA | {"model_type": "bert"})
    assert bert.layers[0].prefill(64).mask == "full"


def test_windows_cap_the_cache():
    model = parse(LLAMA | {"model_type": "gemma2", "sliding_window": 8})
    whole, windowed = model.cache_bytes(8, 2), model.cache_bytes(1000, 2)
    assert windowed == whole // 2 + whole // 2 * 125  # half of the layers keep all 1,000


def test_chunks_are_causal_calls_of_their_own():
    layer = parse(LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 16}).layers[0]
    problem = layer.prefill(64, batch=3)
    assert (problem.batch, problem.seq, problem.mask) == (12, 16, "causal")
    assert layer.prefill(8).pairs == 36


@pytest.mark.parametrize(("config", "says"), [
    ({}, "num_hidden_layers .* is missing; num_attention_heads .* is missing"),
    ({"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 100},
     "hidden_size 100 is not divisible by 3 heads"),
    (LLAMA | {"num_key_value_heads": 5}, "32 heads are not divisible by 5 KV heads"),
    (LLAMA | {"num_attention_heads": "many"}, "num_attention_heads 'many' must be a whole"),
    (LLAMA | {"head_dim": True}, "head_dim True must be a whole number"),
    (LLAMA | {"layer_types": ["full_attention"]}, "1 entries for 4 layers"),
    (LLAMA | {"layer_types": ["holographic"] * 4}, "'holographic' is not known"),
    (LLAMA | {"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
    (LLAMA | {"kv_lora_rank": 512}, "qk_nope_head_dim is missing.*v_head_dim is missing"),
    (LLAMA | {"num_hidden_layers": 10**9}, "layers are more than"),
    ([1, 2], "not an object"),
])
def test_what_is_missing_or_wrong_is_named(config, says):
    with pytest.raises(InputError, match=says):
        parse(config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside),
    max_leaves=6,
)
FIELDS = ("model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window",
          "layer_types", "num_hidden_layers", "kv_lora_rank", "attn_config", "text_config",
          "block_configs", "multi_query", "sliding_window_pattern", "num_kv_heads", "hidden_size",
          "torch_dtype", "max_window_layers", "attention_chunk_size")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_is_a_model_or_one_clear_error(fields):
    try:
        model = parse(LLAMA | fields)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert all(x.kind == "none" or x.heads % x.kv_heads == 0 for x in model.layers)


@pytest.mark.parametrize(("text", "says"), [
    ("{", "not JSON"), ("[" * 100_000, "not JSON"), ("\xff", "not JSON"),
    (" " * ((16 << 20) + 1), "16,777,217 B is no config; at most 16,777,216 B"),
])
def test_files_that_are_no_config(tmp_path, text, says):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=says):
        read(str(path))


def test_a_layer_of_a_model_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": "gemma2", "sliding_window": 64}))
    asked = ["traffic", "--schedule", "flash2", "--engine", "scratchpad", "--seq", "256",
             "--model", str(path), "--json"]
    assert main(asked) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["problem"]["mask"] == "window:64"
    assert "--layer 1 (full)" in out.err
    assert main([*asked, "--layer", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["problem"]["mask"] == "causal"
    assert main([*asked, "--layer", "4"]) == 2
    assert main([*asked, "--heads", "4"]) == 2
    assert "--heads and --model contradict" in capsys.readouterr().err


def test_the_per_layer_table_sums_to_its_total(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": "gemma2", "sliding_window": 64}))
    assert main(["model", str(path), "--seq", "256", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["layers"] for row in found["kinds"]] == [[0, 2], [1, 3]]
    for name in ("prefill_flops", "prefill_sm_bytes", "decode_dram_bytes_min"):
        assert found["total"][name] == 2 * sum(row[name] for row in found["kinds"])
    assert found["kinds"][0]["prefill_flops"] < found["kinds"][1]["prefill_flops"]
