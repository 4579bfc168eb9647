"""The fields of a model's config by meaning, whatever name they have, and what is wrong."""

from collections.abc import Iterable, Mapping
from typing import Any

# One meaning, the names it has had; the first that is there and not null counts.
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads",
            "multi_query_group_num", "n_head_kv")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "attention_key_value_dim")
NESTED = ("text_config", "language_config", "llm_config", "decoder", "thinker_config",
          "text_model_config", "language_model")
DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "half": "fp16",
          "bfloat16": "bf16"}
ENCODERS = ("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra",
            "esm", "modernbert", "mpnet", "nomic_bert", "roberta", "vit", "xlm-roberta")


class Fields:
    """The attention fields of one config; what is wrong with them is collected in ``wrong``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.wrong: list[str] = []

    def first(self, names: Iterable[str], default: Any = None) -> Any:
        """The first of ``names`` that is there and not null."""
        sources = (self.config, self.config.get("attn_config") or {})
        for source in sources:
            for name in names if isinstance(source, Mapping) else ():
                if source.get(name) is not None:
                    return source[name]
        return default

    def whole(self, names: tuple[str, ...], default: int | None = None,
              least: int = 1) -> int | None:
        """A whole number from ``least``, or ``default``."""
        value = self.first(names)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 40:
            named = next(name for name in names if self.first((name,)) is not None)
            self.wrong.append(f"{named} {value!r} must be a whole number from {least}")
            return default
        return value

    def required(self, names: tuple[str, ...], why: str = "") -> int | None:
        """A whole number that has to be there."""
        value = self.whole(names)
        if value is None and not any(text.startswith(tuple(names)) for text in self.wrong):
            also = f" (or {', '.join(names[1:3])})" if len(names) > 1 else ""
            self.wrong.append(f"{names[0]}{also} is missing{why}")
        return value
