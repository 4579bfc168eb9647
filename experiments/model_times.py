"""Attention time of a whole model over context lengths: prefill and one decode step, predicted.

Prefill by flash2 and decode by splitting the keys (mla_decode where the cache is latent), each with
the tiles and splits predicted to be fastest, kernels of the usual kind; beside them the prefill of
standard attention, which stores its scores. Layers without softmax attention take no time here, nor
does anything but attention.
"""

from ..simulator import splits
from ..simulator.blocks import Candidate
from ..simulator.bounds import pass_bound
from ..simulator.errors import InputError
from ..simulator.schedules import build
from ..simulator.tiles import Tiles
from .output import seconds, table

SHORTEST = 1024
TRIED = {"flash2": tuple(Tiles(br, bc) for br in (64, 128) for bc in (32, 64, 96, 128)),
         "standard": (Tiles(64, 64), Tiles(128, 128))}
LONGEST_STANDARD = 32_768  # tokens: beyond, few memories hold the scores
NAMES = ("prefill_s", "prefill_bound_s", "standard_prefill_s", "decode_s", "decode_bound_s")


def lengths(most: int) -> list[int]:
    """Powers of two from SHORTEST below ``most``, and ``most``."""
    found = []
    length = SHORTEST
    while length < most:
        found.append(length)
        length *= 2
    return [*found, most]


def document(model, gpu, *, seq: int, batch: int = 1, dtype: str | None = None) -> dict:
    """What ``hbmeter model --times --json`` prints: for each length the seconds of all layers.

    Raises InputError for a model without softmax attention.
    """
    dtype = dtype or model.dtype or "fp16"
    layers = {layer: len(numbers) for layer, numbers in model.kinds.items()
              if layer.kind != "none"}
    if not layers:
        raise InputError(f"{model.name} has no layer of softmax attention")
    rows = []
    for length in lengths(seq):
        times = [(_times(layer, gpu, length, batch, dtype), count)
                 for layer, count in layers.items()]
        rows.append({"seq": length} | {
            name: _sum(found[name] and found[name] * count for found, count in times)
            for name in NAMES
        })
    return {"model": model.name, "gpu": gpu.name, "batch": batch, "dtype": dtype,
            "layers": sum(layers.values()), "lengths": rows}


def _sum(parts) -> float | None:
    """The sum, None when a part is not predicted."""
    parts = list(parts)
    return None if None in parts else sum(parts)


def _times(layer, gpu, length: int, batch: int, dtype: str) -> dict:
    """Seconds of one layer."""
    prefill = layer.prefill(length, batch=batch, dtype=dtype)
    decode = layer.decode(length, batch=batch, dtype=dtype)
    return {
        "prefill_s": _prefill_s("flash2", prefill, gpu),
        "prefill_bound_s": pass_bound(prefill, gpu).bound_s,
        "standard_prefill_s": (_prefill_s("standard", prefill, gpu)
                               if length <= LONGEST_STANDARD else None),
        "decode_s": _decode_s("mla_decode" if layer.latent else "split_kv", decode, gpu),
        "decode_bound_s": pass_bound(decode, gpu).bound_s,
    }


def _prefill_s(schedule: str, problem, gpu) -> float | None:
    candidates = (Candidate(build(schedule, problem, tiles), gpu) for tiles in TRIED[schedule])
    timed = (found.seconds for candidate in candidates
             if (found := candidate.prediction) is not None)
    return min(timed, default=None)


def _decode_s(schedule: str, problem, gpu) -> float | None:
    try:
        tiles = splits.choose_tiles(schedule, problem, gpu, {})
    except InputError:
        return None  # no tile of this schedule fits the GPU
    return splits.SplitPoint(*_resident(schedule, problem, gpu, tiles)).predicted_s


def _resident(schedule: str, problem, gpu, tiles: Tiles):
    candidate = Candidate(build(schedule, problem, tiles), gpu)
    return candidate, max(candidate.occupancy.blocks_per_sm, 1)


def show(found: dict):
    """Print the document as a table."""
    print(f"{found['model']}: {found['layers']} attention layers, batch {found['batch']}, "
          f"{found['dtype']}, on {found['gpu']}: attention only, all layers")
    rows = [[f"{row['seq']:,}", *(seconds(row[name]) for name in NAMES[:2]), _standard(row),
             *(seconds(row[name]) for name in NAMES[3:]),
             "–" if row["decode_s"] is None else f"{1 / row['decode_s']:,.0f}"]
            for row in found["lengths"]]
    print(table(["tokens", "prefill", "bound", "standard", "decode step", "bound",
                 "steps/s at most"], rows))
    print("predicted zero-shot, kernels of the usual kind; bounds hold for any kernel; standard "
          "attention's prefill, and over ours")


def _standard(row) -> str:
    slow, fast = row["standard_prefill_s"], row["prefill_s"]
    return "–" if None in (slow, fast) else f"{seconds(slow)} ({slow / fast:.1f}×)"
