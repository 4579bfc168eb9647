"""Is a claimed measurement of attention possible, and if not, what went wrong?

A claim is a time or a rate for one problem on one GPU. It is held against what no run beats
(datasheet peaks, at the claimed clock when one is given), and against the usual ways of counting
FLOPs wrongly, each named with its factor. It is impossible, or doubtful, or plausible.
"""

from dataclasses import dataclass, replace
from math import ceil, log2

from ..simulator.bounds import pass_bound
from ..simulator.errors import InputError
from ..simulator.problem import Attention

SLACK = 1.02  # of roofs
NEAR_ROOF = 0.95  # of a peak that no attention kernel has been seen to reach
LAUNCH_S = 2e-6  # no kernel is launched and done in less
LEAST_SECONDS, MOST_SECONDS = 1e-9, 1e9  # outside, a unit is wrong
VERDICTS = ("plausible", "doubtful", "impossible")


@dataclass(frozen=True)
class Finding:
    """One thing to know about a claim; ``weight`` is its verdict's place in VERDICTS."""

    weight: int
    text: str


@dataclass(frozen=True)
class Claim:
    """``seconds`` for ``problem`` on ``gpu`` (a Profile), at ``clock_hz`` (None: not said), moving
    ``dram_bytes`` (None: not said)."""

    problem: Attention
    gpu: object
    seconds: float
    as_rate: bool  # whether FLOP/s were claimed, so that FLOPs may have been miscounted
    clock_hz: float | None = None
    dram_bytes: float | None = None

    @property
    def flop_per_s(self) -> float:
        """Products of unmasked pairs over the time."""
        return self.problem.flops / self.seconds

    @property
    def clock_share(self) -> float:
        """The claimed clock over the boost clock; 1 when none is claimed."""
        return (self.clock_hz or self.gpu.boost_clock_hz) / self.gpu.boost_clock_hz

    @property
    def peak(self) -> float | None:
        """The dtype's dense FLOP/s; at the claimed clock what an SM's units do in a clock, which is
        a power of two (datasheets take another clock than the highest)."""
        flops = getattr(self.gpu.flops, self.problem.dtype)
        if flops is None or self.clock_hz is None:
            return flops
        of_sm = flops / self.gpu.sm_count / self.gpu.boost_clock_hz
        return min(flops, 2 ** ceil(log2(0.99 * of_sm)) * self.gpu.sm_count * self.clock_hz)


def claim(problem: Attention, gpu, *, tflops=None, ms=None, clock_mhz=None, dram_gb=None) -> Claim:
    """From the command line's numbers; either ``tflops`` or ``ms``. Raises InputError."""
    given = {"--tflops": tflops, "--ms": ms, "--clock-mhz": clock_mhz, "--dram-gb": dram_gb}
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} {value:g} must be a number above 0")
    if (tflops is None) == (ms is None):
        raise InputError("give what was measured: either --tflops or --ms")
    if tflops is not None and not problem.flops:
        raise InputError(f"--tflops {tflops:g}: the softmax alone has no products to count; give "
                         "--ms")
    seconds = ms * 1e-3 if ms is not None else problem.flops / (tflops * 1e12)
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        named, value = ("--ms", ms) if ms is not None else ("--tflops", tflops)
        raise InputError(f"{named} {value:g} is a call of {seconds:.3g} s; a time from "
                         f"{LEAST_SECONDS:g} to {MOST_SECONDS:g} s can be judged")
    return Claim(problem, gpu, seconds, tflops is not None,
                 clock_mhz and clock_mhz * 1e6, dram_gb and dram_gb * 1e9)


def judge(claimed: Claim) -> tuple[str, list[Finding]]:
    """(verdict, findings), the gravest first."""
    checks = (_beyond_peak, _beyond_exp, _beyond_dram, _too_short, _clock, _speed)
    found = [finding for check in checks for finding in check(claimed)]
    found.sort(key=lambda finding: -finding.weight)
    return VERDICTS[max((finding.weight for finding in found), default=0)], found


def _beyond_peak(claimed: Claim):
    """Above the roof: impossible, and which miscount would bring it under."""
    peak, rate = claimed.peak, claimed.flop_per_s
    if peak is None or rate <= peak * NEAR_ROOF:
        return
    what = f"{rate / 1e12:,.4g} TFLOP/s {claimed.problem.dtype}"
    if rate <= peak * SLACK:
        yield Finding(1, f"{what} is {rate / peak:.0%} of {claimed.gpu.name}'s dense peak of "
                         f"{peak / 1e12:,.4g}: no attention kernel is known to come so near")
    else:
        yield Finding(2, f"{what} is above {claimed.gpu.name}'s dense peak of "
                         f"{peak / 1e12:,.4g} TFLOP/s: no kernel does that")
        yield Finding(1, _what_went_wrong(claimed, peak))


def _what_went_wrong(claimed: Claim, peak: float) -> str:
    mistimed = ("the time is wrong: was the GPU synchronised before the clock was read, and did "
                "the kernel run at all?")
    if not claimed.as_rate:
        return mistimed
    fitting = [
        f"{name} (the true rate is then {claimed.flop_per_s / factor / 1e12:,.4g} TFLOP/s, "
        f"{claimed.flop_per_s / factor / peak:.0%} of the peak)"
        for name, factor in miscounts(claimed.problem)
        if claimed.flop_per_s / factor <= peak * NEAR_ROOF
    ]
    if not fitting:
        return mistimed
    return f"what would explain it: {'; '.join(fitting)}. Else {mistimed}"


def miscounts(problem: Attention) -> list[tuple[str, float]]:
    """Usual ways to count too many FLOPs, with the factor by which the rate is too high."""
    full = replace(problem, mask="full")
    found = []
    if problem.pairs < full.pairs:
        found.append((f"counting all {problem.seq:,} × {problem.kv_seq:,} pairs though the mask is "
                      f"{problem.mask}", full.pairs / problem.pairs))
    if problem.direction == "forward":
        found.append(("counting forward and backward though only forward was timed", 3.5))
    return [*found, ("counting a multiply-add as four FLOPs", 2.0)]


def _beyond_exp(claimed: Claim):
    """More exponentials than the special-function units do (polynomials on FMA units can help)."""
    bound = pass_bound(claimed.problem, claimed.gpu).seconds
    if "exp" in bound and claimed.seconds * SLACK < bound["exp"] / claimed.clock_share:
        least = bound["exp"] / claimed.clock_share
        weight = 1 if claimed.peak and claimed.flop_per_s <= claimed.peak else 2
        yield Finding(weight, f"its exponentials alone take {least * 1e3:.4g} ms on the special-"
                              f"function units, the claim is {claimed.seconds * 1e3:.4g} ms: only "
                              "a kernel that computes part of them on FMA units could do that")


def _beyond_dram(claimed: Claim):
    """More bytes a second than DRAM moves: claimed ones, or the compulsory ones."""
    problem, gpu = claimed.problem, claimed.gpu
    bytes_moved = claimed.dram_bytes or problem.compulsory_read_bytes
    rate = bytes_moved / claimed.seconds
    if rate <= gpu.hbm_bytes_per_s * SLACK:
        return
    what = "the claimed DRAM bytes" if claimed.dram_bytes else "reading every input once"
    text = (f"{what} ({bytes_moved / 1e9:.4g} GB) in that time is {rate / 1e12:.4g} TB/s, "
            f"{gpu.name}'s DRAM moves {gpu.hbm_bytes_per_s / 1e12:.4g}")
    if not claimed.dram_bytes and bytes_moved <= gpu.l2.size_bytes:
        yield Finding(0, text + ": possible only because the inputs fit in L2 and were there from "
                                "the run before")
    else:
        yield Finding(2, text)


def _too_short(claimed: Claim):
    if claimed.seconds < LAUNCH_S:
        yield Finding(2, f"{claimed.seconds * 1e6:.3g} µs is less than a launch takes (about "
                         f"{LAUNCH_S * 1e6:.0f} µs): the time is that of something else")


def _clock(claimed: Claim):
    """A clock below boost lowers every roof; one above it cannot be."""
    if claimed.clock_hz is None:
        return
    boost, share = claimed.gpu.boost_clock_hz, claimed.clock_share
    if share > SLACK:
        yield Finding(2, f"a clock of {claimed.clock_hz / 1e6:,.0f} MHz is above "
                         f"{claimed.gpu.name}'s {boost / 1e6:,.0f}: the memory clock, perhaps?")
    elif share < NEAR_ROOF:
        yield Finding(0, f"throttled: {claimed.clock_hz / 1e6:,.0f} MHz is {share:.0%} of the "
                         f"boost clock; the peak is {claimed.peak / 1e12:,.4g} TFLOP/s there, and "
                         f"the same kernel at full clock would make about "
                         f"{claimed.flop_per_s / share / 1e12:,.4g}")


def _speed(claimed: Claim):
    """Where a possible claim stands: share of the peak, and beside the predicted usual kernel."""
    if claimed.peak is None or claimed.flop_per_s > claimed.peak:
        return
    text = (f"{claimed.flop_per_s / 1e12:,.4g} TFLOP/s of unmasked pairs, "
            f"{claimed.flop_per_s / claimed.peak:.0%} of the peak")
    usual = _usual_s(claimed)
    if usual is not None:
        ratio = claimed.seconds / usual
        text += (f"; {ratio:.2f} times the time predicted for a usual tiled kernel "
                 f"({usual * 1e3:.4g} ms)")
        if ratio > 1.25:
            text += _why_slow(claimed, ratio)
    yield Finding(0, text)


def _why_slow(claimed: Claim, ratio: float) -> str:
    least = claimed.problem.head_count * -(-claimed.problem.seq // 128)
    if least < claimed.gpu.sm_count:
        return (f": {least} row blocks of 128 do not fill {claimed.gpu.sm_count} SMs; smaller "
                "blocks or splits of the keys would")
    if claimed.clock_hz is None and ratio < 2:
        return ": a throttled clock would do that; give --clock-mhz as measured while it ran"
    return ": a slower kind of kernel, a cold start, or launches that waited for the host"


def _usual_s(claimed: Claim) -> float | None:
    from ..simulator.blocks import explore

    if claimed.problem.direction != "forward":
        return None
    found = explore("flash2", claimed.problem, claimed.gpu, br=128, stages=1)
    timed = [c.prediction.seconds for c in found.candidates if c.prediction is not None]
    return min(timed, default=None)
