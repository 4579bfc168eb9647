"""The table of ``hbmeter model``: each kind of layer of a model on one GPU."""

from itertools import pairwise

from ..simulator.point import describe, traffic
from ..simulator.problem import DTYPE_BYTES
from .output import binary, seconds, si, table

SCHEDULE = "flash2"


def document(model, gpu, *, seq: int, batch: int = 1, dtype: str | None = None) -> dict:
    """What ``hbmeter model --json`` prints; ``model`` is a ``model_config.Model``.

    Raises InputError when a layer's counts would not fit in int64.
    """
    dtype = dtype or model.dtype or "fp16"
    rows = [_row(layer, numbers, gpu, seq, batch, dtype)
            for layer, numbers in model.kinds.items()]
    totals = {name: sum(len(row["layers"]) * row[name] for row in rows)
              for name in ("prefill_flops", "prefill_sm_bytes", "decode_flops",
                           "decode_dram_bytes_min")}
    totals["kv_cache_bytes"] = model.cache_bytes(seq, DTYPE_BYTES[dtype], batch)
    for name in ("prefill_bound_s", "decode_bound_s"):
        totals[name] = sum(len(row["layers"]) * row[name] for row in rows)
    return {"model": model.name, "gpu": gpu.name, "seq": seq, "batch": batch, "dtype": dtype,
            "layers": len(model.layers), "kinds": rows, "total": totals}


def _row(layer, numbers, gpu, seq, batch, dtype) -> dict:
    row = {
        "layers": list(numbers), "kind": layer.kind, "heads": layer.heads,
        "kv_heads": layer.kv_heads, "head_dim": layer.head_dim, "value_dim": layer.value_dim,
        "window": layer.window,
        "cache_bytes_per_token": layer.cache_elements_per_token * DTYPE_BYTES[dtype],
        "prefill_flops": 0, "prefill_sm_bytes": 0, "prefill_bound_s": 0.0, "decode_flops": 0,
        "decode_dram_bytes_min": 0, "decode_bound_s": 0.0, "prefill": None, "decode": None,
    }
    if layer.kind == "none":
        return row
    prefill = layer.prefill(seq, batch=batch, dtype=dtype)
    decode = layer.decode(seq, batch=batch, dtype=dtype)
    point = traffic(SCHEDULE, prefill, gpu, engine="scratchpad")
    step = traffic(SCHEDULE, decode, gpu, engine="scratchpad")
    return row | {
        "prefill_flops": point["flops"],
        "prefill_sm_bytes": point["sm"]["read_bytes"] + point["sm"]["write_bytes"],
        "prefill_bound_s": point["time"]["bound_s"],
        "decode_flops": step["flops"],
        "decode_dram_bytes_min": decode.compulsory_read_bytes + decode.compulsory_write_bytes,
        "decode_bound_s": step["time"]["bound_s"],
        "prefill": describe(prefill), "decode": describe(decode),
    }


def show(found: dict):
    """Print the document as a table."""
    total = found["total"]
    print(f"{found['model']}: {found['layers']} layers, batch {found['batch']}, {found['seq']:,} "
          f"tokens, {found['dtype']}, on {found['gpu']}")
    header = ["layers", "kind", "heads", "d_qk", "d_v", "window", "cache/token", "prefill FLOP",
              "SM bytes", "bound", "decode step", "bound"]
    rows = [[
        _numbers(row["layers"]), row["kind"],
        f"{row['heads']}/{row['kv_heads']}", row["head_dim"], row["value_dim"],
        "–" if row["window"] is None else f"{row['window']:,}",
        f"{row['cache_bytes_per_token']:,} B", si(row["prefill_flops"], "FLOP"),
        si(row["prefill_sm_bytes"]), seconds(row["prefill_bound_s"]),
        si(row["decode_dram_bytes_min"]), seconds(row["decode_bound_s"]),
    ] for row in found["kinds"]]
    rows.append([f"{found['layers']} in all", "", "", "", "", "", "",
                 si(total["prefill_flops"], "FLOP"), si(total["prefill_sm_bytes"]),
                 seconds(total["prefill_bound_s"]), si(total["decode_dram_bytes_min"]),
                 seconds(total["decode_bound_s"])])
    print(table(header, rows, left=2))
    print(f"a layer each, but for the last row; SM bytes counted ({SCHEDULE}, least-traffic tiles);"
          f" KV cache {binary(total['kv_cache_bytes'])}")


def _numbers(numbers: list[int]) -> str:
    """``21 × 0,2,4…`` or ``32 × 0–31``."""
    steps = {b - a for a, b in pairwise(numbers)}
    if steps <= {1}:
        span = f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    else:
        span = ",".join(map(str, numbers[:3])) + ("…" if len(numbers) > 3 else "")
    return f"{len(numbers)} × {span}"
