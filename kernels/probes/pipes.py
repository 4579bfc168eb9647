"""Launcher of pipes.cu: rates and latencies of fp32 arithmetic, exp2, packing and shuffles.

Importing this needs no CuPy.
"""

from pathlib import Path

import numpy as np

from .bench import (
    Bench,
    Fact,
    clocks,
    curve,
    cycles_each,
    rates,
    rates_per_clock,
    select,
    sustained,
)

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, BLOCKS_PER_SM, WARP = 1024, 2, 32
STEPS, CHAINS = 32, 8
MIXED_STEPS, MIXED_CHAINS = 4, 4  # of pipes.cu
OPERATIONS = ("fma", "add", "multiply", "max", "exp2", "pack", "shuffle")
MIXED = (2, 4, 6, 7, 8, 12, 16)  # fused multiply-adds to an exp2
CHAIN_ITERATIONS = 1024
ITERATIONS = {"fma": 512, "add": 512, "multiply": 512, "max": 256, "pack": 256}
FEW_ITERATIONS, MIXED_ITERATIONS = 128, 1024
SUSTAINED_ITERATIONS, SUSTAINED_REPEATS = 2_500, 100


def measure(bench: Bench) -> None:
    """Add this probe's points: 64 warps an SM for rates, one warp for latencies."""
    function = bench.functions(SOURCE)
    numbers = (np.float32(0.999), np.float32(0.001), bench.sink)
    grid = BLOCKS_PER_SM * bench.sms
    for name in OPERATIONS:
        bench.step(f"arithmetic, {name}")
        iterations = ITERATIONS.get(name, FEW_ITERATIONS)
        samples = bench.time(function(name), grid, THREADS, (np.int32(iterations), *numbers))
        bench.add(name, grid * THREADS * iterations * STEPS * CHAINS, "operations", samples,
                  sms=bench.sms)
        samples = bench.time(function(f"{name}_chain"), 1, WARP,
                             (np.int32(CHAIN_ITERATIONS), *numbers))
        bench.add(f"{name}_latency", CHAIN_ITERATIONS * STEPS, "operations", samples)
    bench.step("arithmetic, fma for half a second")
    samples = bench.time(function("fma"), grid, THREADS, (np.int32(SUSTAINED_ITERATIONS),
                                                          *numbers), repeats=SUSTAINED_REPEATS)
    bench.add("fma_sustained", grid * THREADS * SUSTAINED_ITERATIONS * STEPS * CHAINS,
              "operations", samples, sms=bench.sms)
    for fmas in MIXED:
        bench.step(f"arithmetic, {fmas} fma to an exp2")
        samples = bench.time(function(f"exp2_fma{fmas}"), grid, THREADS,
                             (np.int32(MIXED_ITERATIONS), *numbers))
        bench.add("exp2_mixed", grid * THREADS * MIXED_ITERATIONS * MIXED_STEPS * MIXED_CHAINS,
                  "operations", samples, sms=bench.sms, fma_per_exp2=fmas)


# ---- Facts ------------------------------------------------------------------------------------

UNIT = "operations_per_clock_per_sm"


def facts(points: list[dict]) -> list[Fact]:
    """What the points say."""
    found = []
    for point in select(points, "fma"):
        flops = tuple(2 * rate for rate in rates(point))
        found.append(Fact("fp32_fma", "flop_per_s", flops, "fma.rn.f32, 8 independent chains a "
                          "thread, 64 warps an SM; an FMA counts as 2 FLOPs", clocks(point),
                          peak="flops.fp32"))
    for name in OPERATIONS:
        for point in select(points, name):
            what = {"exp2": "ex2.approx.ftz.f32 (MUFU)", "pack": "cvt.rn.f16x2.f32, two floats "
                    "to two halves", "shuffle": "shfl.sync, a lane each"}.get(name, f"{name}.f32")
            found.append(Fact(f"{name}_rate", UNIT, rates_per_clock(point), f"{what}, 8 "
                              "independent chains a thread, 64 warps an SM", clocks(point),
                              peak="exp_per_clock_per_sm" if name == "exp2" else None))
        found += [Fact(f"{name}_latency", "cycles", cycles_each(point),
                       "one warp, each operation on the result of the one before")
                  for point in select(points, f"{name}_latency")]
    mixed = select(points, "exp2_mixed")
    found += [Fact("exp2_mixed_rate", UNIT, rates_per_clock(point), "exp2 a clock and SM with 8 "
                   "independent fma to each; the curve against fma to an exp2", clocks(point),
                   curve(mixed, "fma_per_exp2", rates_per_clock), "fma_per_exp2",
                   "exp_per_clock_per_sm")
              for point in select(mixed, "exp2_mixed", fma_per_exp2=8)]
    return found + sustained(points, "fma", "fma.rn.f32")
