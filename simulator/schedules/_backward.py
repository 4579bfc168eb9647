"""What the backward schedules share: the inputs, and gradients of KV heads that several write.

When ``group`` query heads share a KV head, each thread block has only its own head's part of dK and
dV. Then these are added up in accumulators (dK_acc, dV_acc: zeroed in a phase of their own, rounded
to dK and dV in another); with a KV head for each query head the blocks store dK and dV themselves.
"""

from ..program import ProgramBuilder, Role, Space, Tensor, Tile, Var


def gradient_inputs(p: ProgramBuilder) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Declare Q, K, V and dO."""
    return *p.inputs(), p.tensor("dO", p.problem.seq, p.problem.value_dim, Role.INPUT)


class KVGradients:
    """dK and dV, and their accumulators where query heads share them."""

    def __init__(self, p: ProgramBuilder) -> None:
        problem = p.problem
        self.p, self.shared = p, problem.group > 1
        widths = {"dK": problem.head_dim, "dV": problem.value_dim}
        self.outputs = [p.tensor(name, problem.kv_seq, width, Role.OUTPUT, kv=True)
                        for name, width in widths.items()]
        self.targets = self.outputs
        if self.shared:
            self.targets = [
                p.tensor(f"{name}_acc", problem.kv_seq, width, Role.SCRATCH, kv=True,
                         statistic=True)
                for name, width in widths.items()
            ]

    @property
    def dk(self) -> Tensor:
        """What a block's dK goes to."""
        return self.targets[0]

    @property
    def dv(self) -> Tensor:
        """What a block's dV goes to."""
        return self.targets[1]

    def put(self, tile: Tile, tensor: Tensor, row: Var, col: Var | None = None) -> None:
        """Store a block's part, or add it to those of the other heads."""
        put = self.p.reduce if self.shared else self.p.store
        put(tile, tensor, row, col)

    def zero(self, rows: int) -> None:
        """A phase that zeroes the accumulators, where there are any."""
        if not self.shared:
            return
        with self.p.phase("zero", ("c0", self.p.problem.kv_seq, rows), kv=True) as (c0,):
            for tensor in self.targets:
                zero_rows(self.p, tensor, rows, c0)

    def convert(self, rows: int) -> None:
        """A phase that rounds the accumulators to dK and dV, where there are any."""
        if not self.shared:
            return
        with self.p.phase("convert_kv", ("c0", self.p.problem.kv_seq, rows), kv=True) as (c0,):
            for source, target in zip(self.targets, self.outputs, strict=True):
                tile = self.p.tile(target.name, rows, target.cols, Space.REGISTERS,
                                   accumulator=True)
                self.p.load(tile, source, c0)
                self.p.store(tile, target, c0)


def zero_rows(p: ProgramBuilder, tensor: Tensor, rows: int, row: Var) -> None:
    """tensor[row:+rows] = 0."""
    tile = p.tile(f"zero_{tensor.name}", rows, tensor.cols, Space.REGISTERS, accumulator=True)
    p.fill(tile, 0.0, tensor, row)
    p.store(tile, tensor, row)


def row_dots(p: ProgramBuilder, o: Tensor, do: Tensor, d: Tensor, rows: int, row: Var) -> None:
    """D[row:+rows] = rowsum(dO ∘ O), the sum over P ∘ dP of each row (FlashAttention, eq. 4)."""
    O = p.tile("O", rows, o.cols, Space.REGISTERS)
    dO = p.tile("dO", rows, o.cols, Space.REGISTERS)
    product = p.tile("dO_O", rows, o.cols, Space.REGISTERS, accumulator=True)
    D = p.tile("D", rows, 1, Space.REGISTERS, accumulator=True)
    p.load(O, o, row)
    p.load(dO, do, row)
    p.compute("mul", product, dO, O)
    p.compute("row_sum", D, product)
    p.store(D, d, row)
