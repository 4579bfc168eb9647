"""Which attention each layer of a model has: the rules by which configs say it.

``layer_types`` decides where it is given; else the fields that each family of models uses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .config_fields import ENCODERS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, Fields
from .errors import InputError
from .problem import Attention

MAX_LAYERS = 4096
LAYER_TYPES = {
    "full_attention": "full", "attention": "full", "global": "full", "global_attention": "full",
    "sliding_attention": "sliding", "local": "sliding", "local_attention": "sliding",
    "sliding_window": "sliding", "chunked_attention": "chunked",
    "linear_attention": "none", "mamba": "none", "mamba2": "none", "recurrent": "none",
    "conv": "none", "moe": "none", "mlp": "none",
}
# Local layers between two global ones, one of them global: what the models' code defaults to.
ALTERNATING = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "gemma3": 6, "gemma3_text": 6}


@dataclass(frozen=True)
class Layer:
    """The attention of one layer.

    ``kind`` is full, sliding, chunked, mla or none (no softmax attention: a state-space or linear
    layer). ``window`` is the number of keys a query sees at most, None when all before it.
    ``latent`` are the (key, value) widths that MLA keeps in its cache, shared by all heads.
    """

    kind: str
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    latent: tuple[int, int] | None = None
    causal: bool = True

    @property
    def cache_elements_per_token(self) -> int:
        """Elements that the KV cache keeps of one token: K and V of every KV head, or MLA's
        latent key, whose first part is the value too."""
        if self.kind == "none":
            return 0
        if self.latent:
            return self.latent[0]
        return self.kv_heads * (self.head_dim + self.value_dim)

    def cached_tokens(self, context: int) -> int:
        """Tokens of a context that the cache has to keep."""
        return context if self.window is None else min(context, self.window)

    def mask(self) -> str:
        """The mask of ``Attention``."""
        if not self.causal:
            return "full"
        return "causal" if self.window is None else f"window:{self.window}"

    def prefill(self, seq: int, *, batch: int = 1, dtype: str = "fp16") -> Attention:
        """The attention call of a prompt of ``seq`` tokens. MLA is run with its keys and values
        expanded, chunked attention as one causal call a chunk."""
        self._require_softmax()
        shape: dict[str, Any] = dict(heads=self.heads, kv_heads=self.kv_heads, dtype=dtype,
                                     head_dim=self.head_dim, value_dim=self.value_dim)
        if self.kind == "chunked" and self.window and self.window < seq:
            return Attention(batch=batch * -(-seq // self.window), seq=self.window, mask="causal",
                             **shape)
        mask = self.mask()
        return Attention(batch=batch, seq=seq, mask="causal" if self.kind == "chunked" else mask,
                         **shape)

    def decode(self, context: int, *, batch: int = 1, dtype: str = "fp16") -> Attention:
        """The attention call of one new token against a cache of ``context`` tokens: MLA with the
        expansion absorbed into Q and O, all heads on the one latent key."""
        self._require_softmax()
        kv_heads, (head_dim, value_dim) = self.kv_heads, (self.head_dim, self.value_dim)
        if self.latent:
            kv_heads, (head_dim, value_dim) = 1, self.latent
        return Attention(batch=batch, heads=self.heads, kv_heads=kv_heads, head_dim=head_dim,
                         value_dim=value_dim, dtype=dtype, mask="full", seq=1,
                         kv_seq=self.cached_tokens(context), shared_kv=self.latent is not None)

    def _require_softmax(self) -> None:
        if self.kind == "none":
            raise InputError("this layer has no softmax attention; choose another with --layer")


def find_layers(fields: Fields) -> tuple[Layer, ...]:
    """The Layer of each layer; mistakes go to ``fields.wrong``."""
    per_layer = fields.first(("block_configs",))  # Nemotron: one entry a layer
    count = len(per_layer) if _is_list(per_layer) else fields.required(LAYERS)
    count = _checked_count(fields, count)
    shapes = _shapes(fields, count)
    if fields.wrong or count is None:
        return ()
    windows = _windows(fields, count)
    causal = _is_causal(fields)
    return tuple(_layer(shapes[i], kind, window, causal)
                 for i, (kind, window) in enumerate(windows)) if not fields.wrong else ()


def _checked_count(fields: Fields, count: int | None) -> int | None:
    if count is not None and count > MAX_LAYERS:
        fields.wrong.append(f"{count:,} layers are more than {MAX_LAYERS:,}")
        return None
    return count


def _layer(shape: dict[str, Any] | None, kind: str, window: int | None, causal: bool) -> Layer:
    if shape is None or kind == "none":
        return Layer("none")
    if kind == "full":
        window = None
    if "latent" in shape and window is None:
        kind = "mla"
    return Layer(kind, window=window, causal=causal, **shape)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_causal(fields: Fields) -> bool:
    encoder = fields.first(("model_type",)) in ENCODERS and not fields.first(("is_decoder",))
    return not encoder and fields.first(("is_causal",)) is not False


# ---- Heads and widths --------------------------------------------------------------------------


def _shapes(fields: Fields, count: int | None) -> list[Any]:
    """{"heads", "kv_heads", "head_dim", "value_dim"[, "latent"]} of each layer; None: no heads."""
    heads = fields.first(HEADS)
    if _is_list(heads):  # OpenELM: a list of heads, one of KV heads
        kv_heads = fields.first(KV_HEADS)
        return _listed_shapes(fields, heads, kv_heads if _is_list(kv_heads) else heads, count)
    heads = fields.required(HEADS)
    if fields.first(("kv_lora_rank",)) is not None:
        shape = _mla(fields, heads)
    else:
        shape = _plain(fields, heads)
    per_layer = fields.first(("block_configs",))
    if _is_list(per_layer):
        return [_nemotron(fields, shape, block, i) for i, block in enumerate(per_layer)]
    return [shape] * (count or 0)


def _plain(fields: Fields, heads: int | None) -> dict[str, Any]:
    """One set of heads for K and V; head_dim is hidden / heads only where it is not given."""
    head_dim = fields.whole(HEAD_DIM)
    if head_dim is None:
        hidden = fields.required(HIDDEN, ", and head_dim is not given either")
        if hidden and heads and hidden % heads:
            fields.wrong.append(f"head_dim is missing, and hidden_size {hidden} is not divisible "
                                f"by {heads} heads")
        head_dim = hidden // heads if hidden and heads else None
    kv_heads = _kv_heads(fields, heads)
    if heads and kv_heads and heads % kv_heads:
        fields.wrong.append(f"{heads} heads are not divisible by {kv_heads} KV heads")
    value_dim = fields.whole(("v_head_dim", "value_head_dim"), head_dim)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}


def _kv_heads(fields: Fields, heads: int | None) -> int | None:
    """KV heads. Falcon's and StarCoder's ``multi_query`` is one head, unless Falcon's newer
    architecture or ChatGLM's group number says how many; MPT names the type of its attention."""
    if fields.first(("multi_query_attention",)) is False:  # ChatGLM: the group number is idle
        return heads
    given = fields.whole(KV_HEADS)
    falcon = fields.first(("new_decoder_architecture",))
    multi_query = fields.first(("multi_query",))
    if multi_query is None and fields.first(("model_type",)) in ("gpt_bigcode", "falcon"):
        multi_query = True
    if fields.first(("attn_type",)) == "multiquery_attention":
        return 1
    if falcon:
        return given or heads
    if multi_query:
        return 1
    if falcon is False and multi_query is False:
        return heads
    return given or heads


def _mla(fields: Fields, heads: int | None) -> dict[str, Any]:
    """DeepSeek's multi-head latent attention (arXiv 2405.04434, section 2.1): every head has its
    own K and V, expanded of one latent vector; num_key_value_heads says nothing of the cache."""
    rank = fields.required(("kv_lora_rank",))
    nope = fields.required(("qk_nope_head_dim",), ", and kv_lora_rank says this is MLA")
    rope = fields.required(("qk_rope_head_dim",), ", and kv_lora_rank says this is MLA")
    value_dim = fields.required(("v_head_dim",), ", and kv_lora_rank says this is MLA")
    if rank is None or nope is None or rope is None or value_dim is None:
        return {}
    return {"heads": heads, "kv_heads": heads, "head_dim": nope + rope, "value_dim": value_dim,
            "latent": (rank + rope, rank)}


def _listed_shapes(fields: Fields, heads: Sequence[Any], kv_heads: Sequence[Any],
                   count: int | None) -> list[Any]:
    head_dim = fields.required(HEAD_DIM, ", and heads are given layer by layer")
    if not len(heads) == len(kv_heads) == count:
        fields.wrong.append(f"{len(heads)} numbers of heads and {len(kv_heads)} of KV heads for "
                            f"{count} layers")
        return []
    for i, pair in enumerate(zip(heads, kv_heads, strict=True)):
        if not all(type(n) is int and n > 0 for n in pair) or pair[0] % pair[1]:
            fields.wrong.append(f"layer {i}: {pair[0]!r} heads with {pair[1]!r} KV heads")
    return [{"heads": h, "kv_heads": kv, "head_dim": head_dim, "value_dim": head_dim}
            for h, kv in zip(heads, kv_heads, strict=True)]


def _nemotron(fields: Fields, shape: dict[str, Any], block: object,
              number: int) -> dict[str, Any] | None:
    """A layer of a pruned Nemotron: its own number of query heads to a KV head, or no attention."""
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping) or attention.get("no_op") or (
            attention.get("replace_with_linear")):
        return None
    group = attention.get("n_heads_in_group") or 1
    heads = shape.get("heads")
    if type(group) is not int or group < 1 or (heads and heads % group):
        fields.wrong.append(f"block_configs {number}: n_heads_in_group {group!r} does not divide "
                            f"{heads} heads")
        return None
    return shape | {"kv_heads": heads // group if heads else None}


# ---- Full, sliding, chunked --------------------------------------------------------------------


def _windows(fields: Fields, count: int) -> list[tuple[str, int | None]]:
    """(kind, window) of each layer."""
    window = fields.whole(("sliding_window", "window_size", "local_attention"))
    if fields.first(("use_sliding_window",)) is False:  # Qwen2
        window = None
    chunk = fields.whole(("attention_chunk_size",))  # Llama 4
    widths = {"full": None, "none": None, "sliding": window, "chunked": chunk or window}
    kinds = _listed_kinds(fields, count) or _kinds_by_rule(fields, count, window)
    for kind in dict.fromkeys(kinds):
        if kind in ("sliding", "chunked") and widths[kind] is None:
            needed = "sliding_window" if kind == "sliding" else "attention_chunk_size"
            if fields.first(("use_sliding_window",)) is False:
                continue
            fields.wrong.append(f"{needed} is missing, and some layers are {kind}")
    return [(kind if widths[kind] or kind == "none" else "full", widths[kind]) for kind in kinds]


def _listed_kinds(fields: Fields, count: int) -> list[str] | None:
    """``layer_types`` and the like, one entry a layer."""
    names = ("layer_types", "layers_block_type", "attention_types")
    listed = fields.first(names)
    if not _is_list(listed) or (listed and not isinstance(listed[0], str)):
        return None
    unknown = [entry for entry in dict.fromkeys(map(str, listed)) if entry not in LAYER_TYPES]
    if unknown:
        fields.wrong.append(f"layer type {unknown[0][:40]!r} is not known; it is one of "
                            f"{', '.join(LAYER_TYPES)}")
        return ["full"] * count
    if len(listed) != count:
        fields.wrong.append(f"layer_types has {len(listed)} entries for {count} layers")
        return ["full"] * count
    return [LAYER_TYPES[entry] for entry in listed]


def _kinds_by_rule(fields: Fields, count: int, window: int | None) -> list[str]:
    family = fields.first(("model_type",))
    period = fields.whole(("attn_layer_period", "full_attention_interval"))
    if period:  # Jamba, Qwen3-Next: one attention layer among others
        offset = fields.whole(("attn_layer_offset",), period - 1, least=0)
        return ["full" if i % period == offset else "none" for i in range(count)]
    if family == "llama4_text" and fields.first(("attention_chunk_size",)):
        period = fields.whole(("no_rope_layer_interval",)) or 4
        return ["chunked" if (i + 1) % period else "full" for i in range(count)]
    if window is None:
        return ["full"] * count
    period = fields.whole(("sliding_window_pattern", "_sliding_window_pattern",
                           "global_attn_every_n_layers"), ALTERNATING.get(family))
    if family == "modernbert" and period:  # the first layer is global
        return ["full" if i % period == 0 else "sliding" for i in range(count)]
    if period:  # Gemma, Cohere, gpt-oss: the last of each period sees everything
        return ["sliding" if (i + 1) % period else "full" for i in range(count)]
    qwen = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl")
    first = (fields.whole(("max_window_layers",), 0, least=0) or 0) if family in qwen else 0
    return ["full" if i < first else "sliding" for i in range(count)]
