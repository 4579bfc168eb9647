"""Attention timed beside PyTorch's backends, either pass: the same inputs, in turn, in one run.

Shapes keep batch × seq at 16,384 tokens and heads × head_dim at 2,048, as the FlashAttention
papers do. A round times a batch of back-to-back launches of each contender; what a contender
cannot run (no memory, no such head_dim) is kept with the reason. Standard attention takes part as
we write it and as a library has it: cuBLAS, PyTorch's softmax, cuBLAS (its "math" backend works in
fp32). The kernels without tensor cores, slow as they are, take part at one length. A backward pass
is timed from what a forward pass saved: ours from the O and LSE of flash2_mma, PyTorch's by its
autograd.
"""

import json
import subprocess
from dataclasses import replace
from functools import cache
from math import prod
from statistics import median

import numpy as np

from .. import kernels
from ..kernels.base import tensor_shape
from ..kernels.errors import Unavailable
from ..simulator.errors import InputError
from ..simulator.problem import Attention
from .grid import Point, of_problem

TOKENS, WIDTH = 16_384, 2_048
LENGTHS = tuple(512 << i for i in range(7))
HEAD_DIMS = (64, 128, 256)
OURS = {"forward": ("flash2_wgmma", "flash2_mma", "flash1_mma", "standard_mma"),
        "backward": ("flash2_backward",)}
WITHOUT_TENSOR_CORES = {"forward": ("flash2", "flash1", "standard"),
                        "backward": ("flash2_backward_fma",)}
LADDER_SEQ = 4096  # where those take part
SAVES = "flash2_mma"  # what a backward pass reads
PEERS = {"torch flash": "FLASH_ATTENTION", "torch cudnn": "CUDNN_ATTENTION",
         "torch efficient": "EFFICIENT_ATTENTION", "torch math": "MATH"}
LIBRARY = "cuBLAS + softmax"
STORES_SCORES = ("standard", "standard_mma", "torch math", LIBRARY)
ROUNDS, LEAST_ROUNDS, WARM_UP = 7, 3, 2
ENOUGH_SECONDS = 0.3  # of samples: who has spent them takes part in LEAST_ROUNDS
BATCH_SECONDS = 0.008  # of back-to-back launches in one sample
SCORES_BYTES = 1 << 32  # most that those who store them are asked for


def shapes(lengths=LENGTHS, head_dims=HEAD_DIMS, direction="forward") -> list[Attention]:
    """fp16 problems, full and causal."""
    return [
        Attention(max(TOKENS // seq, 1), WIDTH // d, seq, d, mask=mask, direction=direction)
        for d in head_dims for mask in ("full", "causal") for seq in lengths
    ]


def ours(problem: Attention) -> tuple[str, ...]:
    """Our kernels that take part."""
    slow = problem.seq == LADDER_SEQ
    return OURS[problem.direction] + slow * WITHOUT_TENSOR_CORES[problem.direction]


def measure(problems, partial, report) -> list[dict]:
    """One dict a problem: {"problem", "sm_clock_mhz", "contenders": {name: {"times_ms", "tiles"
    (of ours)} or {"why_not"}}}. Each is kept in ``partial`` (records.Partial) as it is measured;
    those that are there already are not measured again.

    Raises Unavailable without a GPU.
    """
    from ..kernels import runner
    from ..kernels.ahead import build_ahead

    runner.require_gpu()
    missing = [problem for problem in problems if _key(problem) not in partial]
    build_ahead([build for problem in missing for build in _builds(problem)], report,
                meanwhile=lambda: missing and _inputs(missing[0]))
    report.start("timing", len(missing))
    for number, problem in enumerate(missing):
        report.step(number, f"{problem.seq} d{problem.head_dim} {problem.mask}")
        contenders = _race(problem)
        partial.put(_key(problem), {"problem": of_problem(problem), "sm_clock_mhz": _clock_mhz(),
                                    "contenders": contenders})
    report.end()
    return [partial[_key(problem)] for problem in problems]


def _builds(problem: Attention) -> list[tuple]:
    """What ahead.build_ahead builds."""
    builds = [(name, problem, tiles) for name in ours(problem) for tiles in _tiles(name, problem)]
    if problem.direction == "backward":
        forward = replace(problem, direction="forward")
        builds.append((SAVES, forward, _tiles(SAVES, forward)[0]))
    return [(*build, "row", False) for build in builds]


def _key(problem: Attention) -> str:
    return json.dumps(of_problem(problem))


def _clock_mhz() -> int | None:
    """The SM clock right after a race; None when nvidia-smi cannot say."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        return int(answer.stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def torch_versions() -> dict:
    """Versions of PyTorch and cuDNN; empty without PyTorch."""
    try:
        import torch
    except ImportError:
        return {}
    return {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}


@cache
def _normals(number: int, size: int):
    """Standard normal fp16 numbers, made once for all problems: drawing them takes a second."""
    from ..kernels import runner

    drawn = np.random.default_rng(number).standard_normal(size, dtype=np.float32)
    return runner.to_storage(runner.require_gpu().asarray(drawn), "fp16")


def _inputs(problem: Attention) -> dict:
    """Q, K, V and a dO by name."""
    shapes = {name: tensor_shape(name, problem) for name in ("Q", "K", "V", "dO")}
    most = max(LENGTHS[-1], TOKENS) * WIDTH
    return {
        name: _normals(number, max(most, prod(shape)))[: prod(shape)].reshape(shape)
        for number, (name, shape) in enumerate(shapes.items())
    }


def _race(problem: Attention) -> dict:
    """Samples of every contender on one problem, a round of all after the other."""
    inputs = _inputs(problem)
    launches, result = {}, {}
    for name in (*ours(problem), *PEERS, LIBRARY):
        try:
            _check_scores(name, problem)
            launch, about = (_ours if name in ours(problem) else _peer)(name, problem, inputs)
            launches[name] = launch, _batch(launch)
            result[name] = {"times_ms": [], **about}
        except (InputError, Unavailable, RuntimeError) as error:
            result[name] = {"why_not": str(error).splitlines()[0][:200]}
    for number in range(ROUNDS):
        for name, (launch, batch) in launches.items():
            times = result[name]["times_ms"]
            if number < LEAST_ROUNDS or sum(times) * batch < ENOUGH_SECONDS * 1e3:
                times.append(_time_ms(launch, batch))
    return result


def _check_scores(name: str, problem: Attention):
    scores = problem.head_count * problem.seq * problem.kv_seq * problem.dtype_bytes
    if name in STORES_SCORES and scores > SCORES_BYTES:
        raise InputError(f"{scores:,} B of scores")


def _tiles(name: str, problem: Attention) -> tuple:
    """The tiles a kernel uses by default, alone, or none."""
    return kernels.get(name).tile_choices(problem)[:1]


def _ours(name: str, problem: Attention, inputs: dict):
    """A launch, and with which tiles."""
    from ..kernels import runner

    kernel, found = kernels.get(name), _tiles(name, problem)
    if not found:
        raise InputError(f"kernel {name} has no tiles for this problem")
    tiles, q_k_v = found[0], [inputs[x] for x in "QKV"]
    more = None if problem.direction == "forward" else _saved(problem, inputs)
    prepared = runner.Prepared(kernel, problem, tiles, *q_k_v, "row", False, None, more)
    return prepared.launch, {"tiles": Point(name, problem, tiles).document["tiles"]}


def _saved(problem: Attention, inputs: dict) -> dict:
    """O and LSE of a forward pass, and a dO."""
    from ..kernels import runner

    forward = replace(problem, direction="forward")
    saved = runner.run(kernels.get(SAVES), forward, _tiles(SAVES, forward)[0],
                       *(inputs[x] for x in "QKV")).outputs
    return saved | {"dO": inputs["dO"]}


def _peer(name: str, problem: Attention, inputs: dict):
    """A launch of PyTorch's, and nothing more to say of it."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        raise Unavailable(f"PyTorch is not there ({error})") from error
    q, k, v, d_out = (torch.from_dlpack(array) for array in inputs.values())
    if name == LIBRARY:
        return _library(problem, q, k, v), {}
    backend = getattr(SDPBackend, PEERS[name])

    def forward():
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=problem.mask == "causal")

    if problem.direction == "forward":
        return forward, {}
    for array in (q, k, v):
        array.requires_grad_()
    o = forward()
    return lambda: torch.autograd.grad(o, (q, k, v), d_out, retain_graph=True), {}


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
