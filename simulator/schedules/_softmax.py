"""What the schedules of the softmax alone share: S in, P out, both [seq, kv_seq] of every head."""

from ..program import ProgramBuilder, Role, Tensor


def scores_and_weights(p: ProgramBuilder) -> tuple[Tensor, Tensor]:
    """Declare S, given, and P."""
    rows, cols = p.problem.seq, p.problem.kv_seq
    return p.tensor("S", rows, cols, Role.INPUT), p.tensor("P", rows, cols, Role.OUTPUT)
