"""The attention of a model, layer by layer, from its Hugging Face style ``config.json``.

Only fields that say something of attention are read, by any of the names they go by; all others
are ignored. A field that is absent or null gets the default that the model's code gives it, or is
named as missing. The rules are those of the models' published code (transformers); each is beside
its field.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config_fields import DTYPES, HEADS, NESTED, Fields
from .errors import InputError
from .layer_kinds import Layer, find_layers

MAX_FILE_BYTES = 16 << 20
MAX_NAME = 200  # letters that are kept

@dataclass(frozen=True)
class Model:
    """A model's name, the dtype it is published in (None: not said) and its layers in order."""

    name: str
    dtype: str | None
    layers: tuple[Layer, ...]

    @property
    def kinds(self) -> dict[Layer, tuple[int, ...]]:
        """Each distinct layer and the numbers of the layers that are like it."""
        found: dict[Layer, list[int]] = {}
        for number, layer in enumerate(self.layers):
            found.setdefault(layer, []).append(number)
        return {layer: tuple(numbers) for layer, numbers in found.items()}

    def cache_bytes(self, context: int, dtype_bytes: int, batch: int = 1) -> int:
        """Bytes of the KV cache of ``batch`` sequences of ``context`` tokens."""
        return batch * dtype_bytes * sum(
            layer.cache_elements_per_token * layer.cached_tokens(context) for layer in self.layers
        )


def read(path: str) -> Model:
    """The model of a config file. Raises InputError, naming the file and all that is wrong."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"model config {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise InputError(f"model config {path}: {len(text):,} B is no config; at most "
                         f"{MAX_FILE_BYTES:,} B are read")
    try:
        config = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"model config {path}: not JSON ({str(error)[:120]})") from error
    return parse(config, path)


def parse(config: Mapping[str, Any], where: str = "config.json") -> Model:
    """The model of a config that was read already; ``where`` names it in messages.

    Raises InputError, naming every field that is missing or wrong.
    """
    if not isinstance(config, Mapping):
        raise InputError(f"model config {where}: the file holds {type(config).__name__}, "
                         "not an object with fields")
    fields = Fields(_text_part(config))
    layers = find_layers(fields)
    if fields.wrong:
        raise InputError(f"model config {where}: {'; '.join(fields.wrong)}")
    name = next((str(source[key]) for source in (config, fields.config)
                 for key in ("_name_or_path", "name", "model_type") if source.get(key)), where)
    stated = fields.first(("torch_dtype", "dtype")) or config.get("torch_dtype")
    name = "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_NAME])
    return Model(name, DTYPES.get(str(stated).removeprefix("torch.")), layers)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: configs of multimodal models nest it."""
    for _ in range(4):
        inside = next((config[name] for name in NESTED if isinstance(config.get(name), Mapping)),
                      None)
        if inside is None or any(config.get(name) is not None for name in HEADS):
            return config
        config = inside
    return config
