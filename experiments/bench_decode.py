"""Decode timed beside PyTorch's backends and a read-only sweep of device memory, in one run.

One query a head against a KV cache. A sample is a CUDA graph of back-to-back calls, so that
launching from Python does not count. Splits are those that simulator/splits.py predicts to be
fastest on this GPU, made before anything is timed. The share of bandwidth is compulsory bytes over
time against what the memory probe's best read-only kernel reaches, measured first.
"""

import json
from dataclasses import replace
from statistics import median

from .. import kernels
from ..hwprofiles import ProfileError, load
from ..kernels.errors import Unavailable
from ..simulator import splits
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from . import records
from .bench import PEERS
from .grid import of_problem

OURS = ("split_kv", "paged")
TORCH = ("torch flash", "torch cudnn")
FOLDER = records.FOLDER / "decode"
ROUNDS = 7
SPLITS = (1, 2, 4, 8, 16, 32, 64)  # tried on every shape, beside the chosen number
BATCH_SECONDS = 5e-3  # of back-to-back calls in one graph
MOST_CALLS = 50


def shapes() -> list[Attention]:
    """fp16, 32 query and 8 KV heads unless said otherwise."""
    cache = dict(heads=32, kv_heads=8, seq=1, head_dim=128)
    return [
        *(Attention(batch=batch, kv_seq=kv_seq, **cache) for batch, kv_seq in (
            (64, 8192), (1, 8192), (1, 131072), (8, 8192), (16, 2048), (64, 1024))),
        Attention(batch=32, kv_seq=8192, **cache | {"heads": 8}),
        Attention(batch=64, kv_seq=8192, **cache | {"head_dim": 64}),
    ]


def read_bytes_per_s() -> float:
    """The best that a read-only kernel gets of this GPU's memory. Raises Unavailable without."""
    from ..kernels.probes import memory
    from ..kernels.probes.bench import Bench

    bench = Bench()
    memory.measure(bench)
    return next(fact.value for fact in memory.facts(bench.points) if fact.name == "hbm_read")


def measure(problems, partial, report) -> tuple[float, list[dict]]:
    """(read-only bytes a second, one dict a problem: {"problem", "contenders": {name: {"times_ms",
    …} or {"why_not"}}, "by_splits": {number of splits: times_ms of split_kv}}). Each is kept in
    ``partial`` (records.Partial) as it is measured; those that are there are not measured again.

    Raises Unavailable without a GPU.
    """
    from ..kernels.ahead import build_ahead

    missing = [problem for problem in problems if _key(problem) not in partial]
    build_ahead([(name, problem, kernels.get(name).tile_choices(problem)[0], "row", False)
                 for problem in missing for name in OURS], report)
    if "hbm_read" not in partial:
        partial.put("hbm_read", read_bytes_per_s())
    report.start("timing", len(missing))
    for number, problem in enumerate(missing):
        report.step(number, f"{problem.batch} × {problem.kv_seq} d{problem.head_dim}")
        inputs = _inputs(problem)
        partial.put(_key(problem), {"problem": of_problem(problem),
                                    "contenders": _race(problem, inputs),
                                    "by_splits": _by_splits(problem, inputs)})
    report.end()
    return partial["hbm_read"], [partial[_key(problem)] for problem in problems]


def _key(problem: Attention) -> str:
    return json.dumps(of_problem(problem))


def _race(problem: Attention, inputs) -> dict:
    """Samples of every contender, a round of all after the other."""
    graphs, result = {}, {}
    for name in (*OURS, *TORCH):
        try:
            if name in OURS:
                tiles = chosen_tiles(kernels.get(name), problem, _profile())
                result[name] = {"splits": kernels.get(name).cut(problem, tiles).splits}
                graphs[name] = _ours(name, problem, tiles, inputs)
            else:
                result[name], graphs[name] = {}, _peer(name, problem, inputs)
            result[name]["times_ms"] = []
        except (InputError, Unavailable, RuntimeError) as error:
            result[name] = {"why_not": str(error).splitlines()[0][:200]}
    for _ in range(ROUNDS):
        for name, (replay, calls) in graphs.items():
            result[name]["times_ms"].append(_time_ms(replay) / calls)
    return result


def _by_splits(problem: Attention, inputs) -> dict:
    """Samples of split_kv at each of SPLITS that cuts the keys into so many."""
    kernel, found = kernels.get("split_kv"), {}
    for number in SPLITS:
        tiles = replace(kernel.tile_choices(problem)[0], splits=number)
        if kernel.cut(problem, tiles).splits == number:
            replay, calls = _ours("split_kv", problem, tiles, inputs)
            found[str(number)] = [_time_ms(replay) / calls for _ in range(ROUNDS)]
    return found


def _inputs(problem: Attention):
    """Standard normal Q, K, V, made on the GPU."""
    from ..kernels import runner
    from ..kernels.base import tensor_shape

    cupy = runner.require_gpu()
    random = cupy.random.default_rng(0)
    return tuple(
        runner.to_storage(random.standard_normal(tensor_shape(name, problem), dtype=cupy.float32),
                          problem.dtype)
        for name in "QKV"
    )


def _ours(name: str, problem: Attention, tiles, inputs):
    from ..kernels import runner

    kernel = kernels.get(name)
    launch = runner.Prepared(kernel, problem, tiles, *inputs, "row", False, None).launch
    stream = runner.require_gpu().cuda.Stream(non_blocking=True)

    def capture(calls):
        with stream:
            stream.begin_capture()
            for _ in range(calls):
                launch()
            graph = stream.end_capture()

        def replay():
            graph.launch(runner.require_gpu().cuda.Stream.null)

        replay.keeps = launch  # whose tensors the graph uses
        return replay

    launch()  # compiles
    return _sized(capture)


def chosen_tiles(kernel, problem: Attention, profile):
    """The kernel's first tiles, with the splits predicted to be fastest on the GPU of a profile
    (None: one split)."""
    tiles = kernel.tile_choices(problem)[0]
    if profile is None:
        return tiles
    points = splits.every(kernel.schedule, problem, profile, tiles)
    return replace(tiles, splits=splits.best(points).splits)


def _profile():
    from ..kernels import runner

    properties = runner.require_gpu().cuda.runtime.getDeviceProperties(0)
    try:
        return load(properties["name"].decode())
    except ProfileError:
        return None


def _peer(name: str, problem: Attention, inputs):
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        raise Unavailable(f"PyTorch is not there ({error})") from error
    q, k, v = (torch.from_dlpack(array) for array in inputs)
    backend = getattr(SDPBackend, PEERS[name])

    def launch():
        with sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def capture(calls):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                launch()
        return graph.replay

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # first calls may allocate: not in a capture
        launch()
    torch.cuda.synchronize()
    return _sized(capture)


def _sized(capture):
    """(replay, calls) of a graph that takes about BATCH_SECONDS."""
    once = capture(1)
    for _ in range(2):
        once_ms = _time_ms(once)
    calls = max(1, min(round(BATCH_SECONDS * 1e3 / max(once_ms, 1e-3)), MOST_CALLS))
    return capture(calls), calls


def _time_ms(replay) -> float:
    from ..kernels import runner

    cuda = runner.require_gpu().cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    replay()
    stop.record()
    stop.synchronize()
    return cuda.get_elapsed_time(start, stop)


def rows(document: dict) -> list[dict]:
    """Flat rows: shape, contender, splits, median ms, bytes a second, share of the read-only
    sweep, ratio to torch flash."""
    found, read = [], document["provenance"]["hbm_read_bytes_per_s"]
    for point in document["points"]:
        problem = Attention(**point["problem"])
        timed = {name: entry for name, entry in point["contenders"].items() if "times_ms" in entry}
        times = {name: median(entry["times_ms"]) for name, entry in timed.items()}
        for name, ms in times.items():
            rate = problem.compulsory_read_bytes / ms * 1e3
            base = times.get("torch flash")
            found.append({
                "batch": problem.batch, "heads": problem.heads, "kv_heads": problem.kv_heads,
                "kv_seq": problem.kv_seq, "head_dim": problem.head_dim, "contender": name,
                "splits": timed[name].get("splits"), "median_ms": ms, "bytes_per_s": rate,
                "share_of_read": rate / read, "ratio_to_torch_flash": base / ms if base else None,
            })
    return found


def recorded() -> list[dict]:
    """Every decode record of the repository, by file name."""
    return records.documents(FOLDER)
