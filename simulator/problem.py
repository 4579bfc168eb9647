"""The attention problem: shape, dtype and mask, with what any schedule must do at least."""

from dataclasses import dataclass
from functools import cached_property

from .errors import InputError, unknown_name
from .listed_mask import ListedMask
from .mask_forms import parse
from .masks import Mask

DIRECTIONS = ("forward", "backward", "softmax")
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}

MAX_INT64 = 2**63 - 1
MAX_LENGTH = 1 << 32  # of seq and kv_seq: far below masks.UNBOUNDED


@dataclass(frozen=True)
class Attention:
    """One attention call: Q [batch, heads, seq, head_dim], K [batch, kv_heads, kv_seq, head_dim],
    V [batch, kv_heads, kv_seq, value_dim], O [batch, heads, seq, value_dim].

    ``kv_heads``, ``kv_seq`` and ``value_dim`` default to ``heads``, ``seq`` and ``head_dim``.
    ``mask`` is ``full``, ``causal`` (aligned at the end), ``window:W`` or any that mask_forms.parse
    names.
    Q, K, V and O are stored in ``dtype``; row statistics (m, l, L) in fp32, or fp64 for fp64.
    ``direction`` is the pass: ``forward`` makes O of Q, K, V; ``backward`` makes dQ, dK, dV, shaped
    as Q, K, V, of these, dO, and what the forward pass saved (O and the logsumexp); ``softmax`` is
    the softmax alone, P of scores S, both [batch, heads, seq, kv_seq].
    ``dropout`` is the probability that a weight of P is left out; the others are divided by 1 − it.
    With ``shared_kv`` the values are the first value_dim columns of the keys (MLA's latent cache).

    Raises InputError for sizes that are not whole numbers from 1, heads that kv_heads do not
    divide, unknown dtypes, masks and directions, a dropout that is not from 0 to below 1, shared
    values wider than keys, and problems whose counts would not fit in int64.

    >>> Attention(batch=1, heads=2, seq=4, head_dim=8, mask="causal").pairs
    10
    """

    batch: int = 4
    heads: int = 16
    seq: int = 4096
    head_dim: int = 128
    kv_heads: int = None  # type: ignore[assignment]  # heads; __post_init__ fills these in
    kv_seq: int = None  # type: ignore[assignment]  # seq
    value_dim: int = None  # type: ignore[assignment]  # head_dim
    dtype: str = "fp16"
    mask: str = "full"
    direction: str = "forward"
    shared_kv: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        defaults = {"kv_heads": self.heads, "kv_seq": self.seq, "value_dim": self.head_dim}
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "value_dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} {value!r} must be a whole number from 1")
        for name in ("seq", "kv_seq"):
            if getattr(self, name) > MAX_LENGTH:
                raise InputError(f"{name} {getattr(self, name)} is too large: it is at most 2^32")
        if self.heads % self.kv_heads:
            raise InputError(
                f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}; "
                "each KV head must serve the same number of query heads"
            )
        if self.dtype not in DTYPE_BYTES:
            raise unknown_name("dtype", self.dtype, DTYPE_BYTES)
        if self.direction not in DIRECTIONS:
            raise unknown_name("direction", self.direction, DIRECTIONS)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) \
                or not 0 <= self.dropout < 1:
            raise InputError(f"dropout {self.dropout!r} must be a probability from 0 to below 1")
        if self.shared_kv and self.value_dim > self.head_dim:
            raise InputError(f"value_dim {self.value_dim} must be at most head_dim "
                             f"{self.head_dim}: the values are the first columns of the keys")
        # The largest count any schedule makes is below this product (16 covers every rereading).
        most = 16 * self.batch * self.heads * self.seq * self.kv_seq
        most *= (self.head_dim + self.value_dim) * max(self.dtype_bytes, 4)
        if most > MAX_INT64:
            raise InputError(
                f"batch {self.batch} × heads {self.heads} × seq {self.seq} × kv_seq {self.kv_seq} "
                f"× head_dim {self.head_dim} is too large: byte counts would pass 2^63 − 1"
            )
        _ = self.visibility

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element of Q, K, V and O."""
        return DTYPE_BYTES[self.dtype]

    @property
    def stat_bytes(self) -> int:
        """Bytes of one row statistic (running max, running sum, logsumexp)."""
        return max(4, self.dtype_bytes)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def head_count(self) -> int:
        """Query heads over the whole batch."""
        return self.batch * self.heads

    @cached_property
    def visibility(self) -> Mask | ListedMask:
        """The mask: which pairs, how many, which blocks."""
        return parse(self.mask, self.seq, self.kv_seq)

    @property
    def listed_mask(self) -> ListedMask:
        """The mask as a list of bands. Raises InputError for full, causal and windows."""
        if isinstance(self.visibility, ListedMask):
            return self.visibility
        raise InputError(f"mask {self.mask} is no list of bands")

    @property
    def mask_bounds(self) -> Mask:
        """The mask as clipped affine bounds. Raises InputError for one that has none."""
        if isinstance(self.visibility, ListedMask):
            raise InputError(f"mask {self.mask} is not possible here, where rows see one interval "
                             "that moves with them: full, causal or window:W")
        return self.visibility

    @cached_property
    def pairs(self) -> int:
        """Unmasked (query, key) pairs of one head."""
        return self.visibility.pairs(self.seq, self.kv_seq)

    @property
    def forward_flops(self) -> int:
        """Matmul FLOPs of the forward pass: 2·(d_qk + d_v) for each unmasked pair."""
        return 2 * self.pairs * (self.head_dim + self.value_dim) * self.head_count

    @property
    def backward_flops(self) -> int:
        """Matmul FLOPs of the backward pass: 2·(3·d_qk + 2·d_v) for each unmasked pair.

        dV = PᵀdO, dP = dO·Vᵀ, dQ = dS·K, dK = dSᵀ·Q, and S = Q·Kᵀ once more: 2.5 times the forward
        pass when d_v = d_qk, as FlashAttention-2 counts it (arXiv 2307.08691, section 4.1).
        Schedules that read P instead compute four products, 2·(2·d_qk + 2·d_v) a pair.
        """
        return 2 * self.pairs * (3 * self.head_dim + 2 * self.value_dim) * self.head_count

    @property
    def flops(self) -> int:
        """Matmul FLOPs of the pass; the softmax has none."""
        return {"forward": self.forward_flops, "backward": self.backward_flops,
                "softmax": 0}[self.direction]

    @property
    def compulsory_read_bytes(self) -> int:
        """Every input once, keys that no query sees left out: Q, K and V; backward also O, dO and
        the logsumexp; S of the softmax alone."""
        if self.direction == "softmax":
            return self._scores_bytes
        inputs = self._qkv_bytes(self.keys_seen)
        if self.direction == "forward":
            return inputs
        return inputs + 2 * self._o_bytes + self.head_count * self.seq * self.stat_bytes

    @property
    def compulsory_write_bytes(self) -> int:
        """Every output once: O; backward dQ, dK and dV; P of the softmax alone."""
        if self.direction == "softmax":
            return self._scores_bytes
        return self._o_bytes if self.direction == "forward" else self._qkv_bytes(self.kv_seq)

    @property
    def keys_seen(self) -> int:
        """Keys of a KV head that some query sees."""
        return self.visibility.keys_seen(self.seq, self.kv_seq)

    def _qkv_bytes(self, keys: int) -> int:
        q = self.head_count * self.seq * self.head_dim
        width = self.head_dim + (0 if self.shared_kv else self.value_dim)
        kv = self.batch * self.kv_heads * keys * width
        return (q + kv) * self.dtype_bytes

    @property
    def _scores_bytes(self) -> int:
        return self.head_count * self.seq * self.kv_seq * self.dtype_bytes

    @property
    def _o_bytes(self) -> int:
        return self.head_count * self.seq * self.value_dim * self.dtype_bytes

    @property
    def softmax_scale(self) -> float:
        """1/√d, the factor on QKᵀ."""
        return float(self.head_dim**-0.5)
