"""Attention timed beside PyTorch's backends, either pass: the same inputs, in turn, in one run.

Shapes keep batch × seq at 16,384 tokens and heads × head_dim at 2,048, as the FlashAttention
papers do. A round times a batch of back-to-back launches of each contender; what a contender
cannot run (no memory, no such head_dim) is kept with the reason. Standard attention takes part as
we write it and as a library has it: cuBLAS, PyTorch's softmax, cuBLAS (its "math" backend works in
fp32). A backward pass is timed from what a forward pass saved: ours from the O and LSE of
flash2_mma, PyTorch's by its autograd.
"""

import os
from dataclasses import replace
from statistics import median

from .. import kernels
from ..kernels.errors import Unavailable
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from .grid import of_problem

TOKENS, WIDTH = 16_384, 2_048
LENGTHS = tuple(512 << i for i in range(7))
HEAD_DIMS = (64, 128, 256)
OURS = {"forward": ("flash2_mma", "flash2_wgmma", "standard_mma"),
        "backward": ("flash2_backward",)}
PEERS = {"torch flash": "FLASH_ATTENTION", "torch cudnn": "CUDNN_ATTENTION",
         "torch efficient": "EFFICIENT_ATTENTION", "torch math": "MATH"}
LIBRARY = "cuBLAS + softmax"
STORES_SCORES = ("standard_mma", "torch math", LIBRARY)
ROUNDS, WARM_UP = 7, 2
BATCH_SECONDS = 0.01  # of back-to-back launches in one sample
SCORES_BYTES = 1 << 32  # most that those who store them are asked for


def shapes(lengths=LENGTHS, head_dims=HEAD_DIMS, direction="forward") -> list[Attention]:
    """fp16 problems, full and causal."""
    return [
        Attention(max(TOKENS // seq, 1), WIDTH // d, seq, d, mask=mask, direction=direction)
        for d in head_dims for mask in ("full", "causal") for seq in lengths
    ]


def measure(problems, report) -> list[dict]:
    """One dict a problem: {"problem", "contenders": {name: {"times_ms" or "why_not"}}}.

    Raises Unavailable without a GPU.
    """
    from ..kernels import runner

    runner.require_gpu()
    report.start("timing", len(problems))
    points = []
    for number, problem in enumerate(problems):
        report.step(number, f"{problem.seq} d{problem.head_dim} {problem.mask}")
        points.append({"problem": of_problem(problem), "contenders": _race(problem)})
    report.end()
    return points


def torch_versions() -> dict:
    """Versions of PyTorch and cuDNN; empty without PyTorch."""
    try:
        import torch
    except ImportError:
        return {}
    return {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}


def _race(problem: Attention) -> dict:
    """Samples of every contender on one problem, a round of all after the other."""
    from ..kernels import runner

    inputs = runner.random_inputs(problem)
    launches, result = {}, {}
    ours = OURS[problem.direction]
    for name in (*ours, *PEERS, LIBRARY):
        try:
            _check_scores(name, problem)
            launch = (_ours if name in ours else _peer)(name, problem, inputs)
            launches[name] = launch, _batch(launch)
        except (InputError, Unavailable, RuntimeError) as error:
            result[name] = {"why_not": str(error).splitlines()[0][:200]}
    samples = {name: [] for name in launches}
    for _ in range(ROUNDS):
        for name, (launch, batch) in launches.items():
            samples[name].append(_time_ms(launch, batch))
    return result | {name: {"times_ms": times} for name, times in samples.items()}


def _check_scores(name: str, problem: Attention):
    scores = problem.head_count * problem.seq * problem.kv_seq * problem.dtype_bytes
    if name in STORES_SCORES and scores > SCORES_BYTES:
        raise InputError(f"{scores:,} B of scores")


def _ours(name: str, problem: Attention, inputs):
    from ..kernels import runner

    kernel = kernels.get(name)
    tiles = next(iter(kernel.tile_choices(problem)), None)
    if tiles is None:
        raise InputError(f"kernel {name} has no tiles for this problem")
    more = None if problem.direction == "forward" else _saved(problem, inputs)
    return runner.Prepared(kernel, problem, tiles, *inputs, "row", False, None, more).launch


def _saved(problem: Attention, inputs) -> dict:
    """O and LSE of a forward pass, and a dO."""
    from ..kernels import runner

    kernel, forward = kernels.get("flash2_mma"), replace(problem, direction="forward")
    saved = runner.run(kernel, forward, kernel.tile_choices(forward)[0], *inputs).outputs
    return saved | {"dO": runner.random_inputs(problem, seed=1)[0]}


def _peer(name: str, problem: Attention, inputs):
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        raise Unavailable(f"PyTorch is not there ({error})") from error
    q, k, v = (torch.from_dlpack(array) for array in inputs)
    if name == LIBRARY:
        return _library(problem, q, k, v)
    backend = getattr(SDPBackend, PEERS[name])

    def forward():
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=problem.mask == "causal")

    if problem.direction == "forward":
        return forward
    for array in (q, k, v):
        array.requires_grad_()
    o = forward()
    d_out = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, (q, k, v), d_out, retain_graph=True)


def _library(problem: Attention, q, k, v):
    """Standard attention of library calls in the inputs' dtype; a mask is one call more."""
    import torch

    if problem.direction == "backward":
        raise InputError(f"{LIBRARY} is timed forward only")
    causal = problem.mask == "causal"
    hidden = torch.ones(problem.seq, problem.kv_seq, dtype=torch.bool, device="cuda").triu(1)

    def forward():
        scores = torch.matmul(q * problem.softmax_scale, k.transpose(-1, -2))
        if causal:
            scores.masked_fill_(hidden, float("-inf"))
        return torch.matmul(torch.softmax(scores, -1), v)

    return forward


def _time_ms(launch, batch: int) -> float:
    """Milliseconds of one launch, over ``batch`` of them in a row (CuPy and PyTorch both use the
    null stream)."""
    from ..kernels import runner

    cuda = runner.require_gpu().cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    for _ in range(batch):
        launch()
    stop.record()
    stop.synchronize()
    return cuda.get_elapsed_time(start, stop) / batch


def _batch(launch) -> int:
    """Warm up; launches that take about BATCH_SECONDS."""
    for _ in range(WARM_UP):
        once_ms = _time_ms(launch, 1)
    return max(1, min(round(BATCH_SECONDS * 1e3 / max(once_ms, 1e-3)), 200))


def rows(points: list[dict]) -> list[dict]:
    """Flat rows: shape, contender, median ms, TFLOP/s (unmasked pairs), ratio to torch flash."""
    found = []
    for point in points:
        problem = Attention(**point["problem"])
        times = {name: median(entry["times_ms"]) for name, entry in point["contenders"].items()
                 if "times_ms" in entry}
        for name, ms in times.items():
            base = times.get("torch flash")
            found.append({
                "batch": problem.batch, "heads": problem.heads, "seq": problem.seq,
                "head_dim": problem.head_dim, "mask": problem.mask, "contender": name,
                "pass": problem.direction, "median_ms": ms,
                "tflop_per_s": problem.flops / ms / 1e9,
                "ratio_to_torch_flash": base / ms if base else None,
            })
    return found


def recorded() -> list[dict]:
    """Every bench record of the repository, by file name: {"name", "provenance", "points"}."""
    from . import records

    return records.documents(records.FOLDER / "bench")


def save(path: str, document: dict):
    """Write a record whole or not at all."""
    from .records import save as write

    write(os.fspath(path), document)
