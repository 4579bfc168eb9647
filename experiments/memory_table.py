"""The tables of ``hbmeter memory``."""

from dataclasses import asdict

from ..hwprofiles import load
from ..simulator.footprint import (
    METHODS,
    activations,
    model_memory,
    score_bytes,
    shapes_of_scores,
)
from ..simulator.model_config import read
from ..simulator.point import describe
from ..simulator.problem import DTYPE_BYTES
from .output import binary, print_json, table

CONTEXTS = tuple(1 << power for power in range(13, 21))  # 8k to 1M
SHOWN_SHAPES = 40


def show_call(problem, as_json: bool):
    """Activations of one attention call, standard beside flash."""
    calls = {method: activations(problem, method, dropout=problem.dropout > 0)
             for method in METHODS}
    cache = problem.kv_heads * (problem.head_dim + problem.value_dim) * problem.dtype_bytes
    if as_json:
        print_json({"problem": describe(problem), "score_bytes": score_bytes(problem),
                    "kv_cache_bytes_per_token": cache,
                    **{method: _call_document(call) for method, call in calls.items()}})
        return
    names = dict.fromkeys(a.name for call in calls.values() for a in call.allocations)
    by_name = {m: {a.name: a for a in call.allocations} for m, call in calls.items()}
    rows = [[name, *(_cell(by_name[method].get(name)) for method in METHODS)] for name in names]
    for label in ("forward", "saved", "recomputed", "training"):
        rows.append([_TOTALS[label], *(binary(getattr(calls[m], f"{label}_bytes"))
                                       for m in METHODS)])
    print(table(["", *METHODS], rows))
    print("* saved for the backward pass; bwd: made in the backward pass alone")
    print(f"KV cache: {cache:,} B per token and layer; one score matrix: "
          f"{score_bytes(problem):,} B")


_TOTALS = {"forward": "forward, nothing freed", "saved": "saved for backward",
           "recomputed": "saved when all is recomputed", "training": "forward + backward peak"}


def _cell(allocation) -> str:
    if allocation is None:
        return "–"
    mark = "bwd" if allocation.backward else " * " if allocation.saved else "   "
    return f"{binary(allocation.bytes)} {mark}"


def _call_document(call) -> dict:
    return {"allocations": [asdict(a) for a in call.allocations],
            **{f"{label}_bytes": getattr(call, f"{label}_bytes") for label in _TOTALS}}


def show_model(args):
    """Attention memory of a whole model at each context length."""
    model, gpu = read(args.model), load(args.gpu)
    dtype, batch = args.dtype or model.dtype or "fp16", args.batch or 1
    contexts = args.contexts or CONTEXTS
    rows = [model_memory(model, n, batch=batch, dtype=dtype, dropout=bool(args.dropout))
            for n in contexts]
    per_token = model.cache_bytes(1, DTYPE_BYTES[dtype])
    if args.json:
        print_json({"model": model.name, "layers": len(model.layers), "dtype": dtype,
                    "batch": batch, "gpu": gpu.name, "hbm_bytes": gpu.hbm_bytes,
                    "kv_cache_bytes_per_token": per_token,
                    "contexts": [asdict(row) for row in rows]})
        return
    print(f"{model.name}: {len(model.layers)} layers, {dtype}, batch {batch}; KV cache "
          f"{per_token:,} B per token while it is within every window")
    header = ["context", "KV cache", "call, standard", "call, flash", "saved, standard",
              "saved, flash", "saved, recomputed"]
    print(table(header, [
        [f"{row.context:,}", *(_fit(value, gpu) for value in (
            row.kv_cache_bytes, row.call_standard_bytes, row.call_flash_bytes,
            row.saved_standard_bytes, row.saved_flash_bytes, row.saved_recomputed_bytes))]
        for row in rows
    ]))
    print("call: tensors of the largest layer's prefill; saved: kept for the backward pass by all "
          f"layers\n! alone more than the {binary(gpu.hbm_bytes)} of {gpu.name}; weights and other "
          "activations come on top")


def _fit(value: int, gpu) -> str:
    return binary(value) + (" !" if value > gpu.hbm_bytes else "  ")


def show_shapes(total: int, dtype: str | None, as_json: bool):
    """Square score matrices of exactly ``total`` bytes."""
    shapes = shapes_of_scores(total, (dtype,)) if dtype else shapes_of_scores(total)
    if as_json:
        print_json({"score_bytes": total, "shapes": [asdict(shape) for shape in shapes]})
        return
    print(f"{total:,} B = batch·heads × seq² × bytes of an element:")
    print(table(["seq", "batch·heads", "dtype"],
                [[f"{s.seq:,}", f"{s.head_count:,}", f"{s.dtype}"] for s in shapes[:SHOWN_SHAPES]]))
    if len(shapes) > SHOWN_SHAPES:
        print(f"and {len(shapes) - SHOWN_SHAPES} shorter ones (--json lists all)")
    print("fp32 stands for tf32, fp16 for bf16")
