"""A time that no run beats: the slowest of the roofs that the work must pass under.

Roofline model (Williams, Waterman, Patterson 2009) with datasheet peaks: matrix products at the
dtype's dense peak and exponentials at the special-function rate, both for the unmasked pairs
only, and compulsory bytes at the datasheet's DRAM bandwidth (what a kernel writes may stay in L2).
Of the backward pass only the four products count that every schedule computes: P may be read.
"""

from dataclasses import dataclass

from .problem import Attention


@dataclass(frozen=True)
class Bound:
    """Seconds for each roof; ``limiter`` is the slowest. A roof the GPU lacks is left out."""

    seconds: dict[str, float]

    @property
    def limiter(self) -> str:
        """The roof that takes longest."""
        return max(self.seconds, key=self.seconds.get)

    @property
    def bound_s(self) -> float:
        """Seconds that no run can beat."""
        return self.seconds[self.limiter]


def pass_bound(problem: Attention, gpu) -> Bound:
    """The bound of the problem's pass on ``gpu`` (a Profile); the same for every schedule."""
    forward = problem.direction == "forward"
    seconds = {"dram": problem.compulsory_read_bytes / gpu.hbm_bytes_per_s}
    peak = getattr(gpu.flops, problem.dtype)
    if peak is not None:
        seconds["matmul"] = (1 if forward else 2) * problem.forward_flops / peak
    if forward:
        exp_per_s = gpu.exp_per_clock_per_sm * gpu.sm_count * gpu.boost_clock_hz
        seconds["exp"] = problem.pairs * problem.head_count / exp_per_s
    return Bound(seconds)
