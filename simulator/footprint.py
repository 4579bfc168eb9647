"""How much memory attention takes in HBM: activations, KV cache, score matrices.

Activations follow the operations one by one as a framework runs them: standard attention keeps a
row of tensors of seq × kv_seq elements, flash attention none (arXiv 2205.14135, section 3 and
Table 21). What the backward pass needs is *saved*; the rest is freed when its reader is done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

from .errors import InputError, unknown_name
from .problem import DTYPE_BYTES, Attention

if TYPE_CHECKING:
    from .model_config import Model

METHODS = ("standard", "flash")
BYTE_MASK = 1  # of one dropped or kept probability
MAX_SCORE_BYTES = 1 << 62


@dataclass(frozen=True)
class Allocation:
    """One tensor: its bytes, whether the backward pass needs it kept, whether it is a gradient
    or another tensor of the backward pass alone."""

    name: str
    bytes: int
    saved: bool
    backward: bool = False


@dataclass(frozen=True)
class Activations:
    """The tensors of one attention call, in the order that they are made."""

    method: str
    allocations: tuple[Allocation, ...]

    def _sum(self, wanted: Callable[[Allocation], bool]) -> int:
        return sum(a.bytes for a in self.allocations if wanted(a))

    @property
    def forward_bytes(self) -> int:
        """All tensors of the forward pass, none freed: its peak when a framework keeps them."""
        return self._sum(lambda a: not a.backward)

    @property
    def saved_bytes(self) -> int:
        """What stays until the backward pass."""
        return self._sum(lambda a: a.saved)

    @property
    def recomputed_bytes(self) -> int:
        """What stays when the whole call is recomputed (activation checkpointing): Q, K, V."""
        return self._sum(lambda a: a.name in ("Q", "K", "V"))

    @property
    def training_bytes(self) -> int:
        """Saved tensors and those of the backward pass: its peak."""
        return self._sum(lambda a: a.saved or a.backward)


def activations(problem: Attention, method: str, *, dropout: bool = False) -> Activations:
    """What one forward and backward pass of ``method`` ("standard" or "flash") allocates.

    Standard attention keeps P, and with dropout a byte for each element and the dropped P; flash
    keeps O and the logsumexp, and draws its dropout mask again.
    Raises InputError for an unknown method.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    p = problem
    rows = p.head_count * p.seq
    keys = p.batch * p.kv_heads * p.kv_seq
    size = {"Q": rows * p.head_dim, "K": keys * p.head_dim, "V": keys * p.value_dim,
            "O": rows * p.value_dim}
    size = {name: elements * p.dtype_bytes for name, elements in size.items()}
    scores = score_bytes(p)
    statistic = rows * p.stat_bytes
    tensors = [Allocation(name, size[name], True) for name in "QKV"]
    if method == "standard":
        tensors += [Allocation("S = QKᵀ", scores, False),
                    Allocation("P = softmax(S)", scores, True)]
        if dropout:
            mask = scores // p.dtype_bytes * BYTE_MASK
            tensors += [Allocation("dropped P", scores, True),
                        Allocation("dropout mask", mask, True)]
        tensors += [Allocation("O", size["O"], False)]
        extra = [("dP", scores), ("dS", scores)]
    else:
        tensors += [Allocation("O", size["O"], True), Allocation("LSE", statistic, True)]
        accumulator = rows * p.head_dim * p.stat_bytes  # dQ is summed by atomic adds
        extra = [("D = rowsum(dO∘O)", statistic), ("dQ accumulator", accumulator)]
    extra += [("dO", size["O"]), *((f"d{name}", size[name]) for name in "QKV")]
    tensors += [Allocation(name, count, False, backward=True) for name, count in extra]
    return Activations(method, tuple(tensors))


def score_bytes(problem: Attention) -> int:
    """Bytes of one score matrix over batch and query heads: batch · heads · seq · kv_seq · b."""
    return problem.head_count * problem.seq * problem.kv_seq * problem.dtype_bytes


@dataclass(frozen=True)
class ScoreShape:
    """A square score matrix of ``head_count`` (batch × heads) heads and ``seq`` tokens."""

    head_count: int
    seq: int
    dtype: str


def shapes_of_scores(total_bytes: int,
                     dtypes: tuple[str, ...] = ("fp64", "fp32", "fp16", "fp8")) -> list[ScoreShape]:
    """All square score matrices of exactly ``total_bytes``: longest sequence first.

    The answer is seldom unique: every seq whose square divides the elements gives one, for each
    element size. ``dtypes`` stand for their element size. Raises InputError for a size below one
    byte or beyond 2^62.
    """
    if isinstance(total_bytes, bool) or not 1 <= total_bytes <= MAX_SCORE_BYTES:
        raise InputError(f"score bytes {total_bytes} must be a whole number from 1 to 2^62")
    found = []
    for dtype in dtypes:
        elements, rest = divmod(total_bytes, DTYPE_BYTES[dtype])
        if not rest:
            found += [ScoreShape(elements // seq**2, seq, dtype)
                      for seq in _square_divisors(elements)]
    return sorted(found, key=lambda shape: (-shape.seq, shape.head_count))


def _square_divisors(number: int) -> list[int]:
    """All n with n² dividing ``number``.

    Primes to the cube root are divided out; what is left is a prime, a product of two, or a
    prime's square, and only the last adds a divisor."""
    divisors, left, prime = [1], number, 2
    while prime**3 <= left:
        power = 0
        while left % prime == 0:
            left //= prime
            power += 1
        divisors = [d * prime**k for d in divisors for k in range(power // 2 + 1)]
        prime += 1 if prime == 2 else 2
    root = isqrt(left)
    if root > 1 and root * root == left:
        divisors += [d * root for d in divisors]
    return divisors


@dataclass(frozen=True)
class ModelMemory:
    """Attention memory of a whole model at one context length, in bytes.

    ``call_*``: the tensors of the largest layer's prefill, one layer at a time; ``saved_*``: what
    all layers keep for the backward pass.
    """

    context: int
    kv_cache_bytes: int
    call_standard_bytes: int
    call_flash_bytes: int
    saved_standard_bytes: int
    saved_flash_bytes: int
    saved_recomputed_bytes: int


def model_memory(model: "Model", context: int, *, batch: int = 1, dtype: str = "fp16",
                 dropout: bool = False) -> ModelMemory:
    """Attention memory of ``model`` (a ``model_config.Model``) at ``context`` tokens a sequence.

    Raises InputError when a call's counts would not fit in int64.
    """
    calls: dict[str, list[tuple[int, Activations]]] = {method: [] for method in METHODS}
    for layer, numbers in model.kinds.items():
        if layer.kind == "none":
            continue
        problem = layer.prefill(context, batch=batch, dtype=dtype)
        for method in METHODS:
            calls[method].append((len(numbers), activations(problem, method, dropout=dropout)))
    largest = {m: max((call.forward_bytes for _, call in calls[m]), default=0) for m in METHODS}
    saved = {m: sum(n * call.saved_bytes for n, call in calls[m]) for m in METHODS}
    return ModelMemory(
        context, model.cache_bytes(context, DTYPE_BYTES[dtype], batch),
        largest["standard"], largest["flash"], saved["standard"], saved["flash"],
        sum(n * call.recomputed_bytes for n, call in calls["flash"]),
    )
