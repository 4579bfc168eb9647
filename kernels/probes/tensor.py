"""Launcher of tensor.cu: rates of mma.sync by type, and fed from shared memory by ldmatrix.

Importing this needs no CuPy.
"""

from pathlib import Path

import numpy as np

from .bench import (
    PART_REPEATS,
    Bench,
    Fact,
    best,
    clocks,
    cycles_each,
    per_clock,
    rates,
    rates_per_clock,
    select,
    sustained,
)

SOURCE = Path(__file__).with_suffix(".cu")
TYPES = {"fp16": 16, "bf16": 16, "tf32": 8, "fp8": 32}  # k of one m16n8 product
FP8_CAPABILITY = 89
WARPS = (4, 8, 16)  # of an SM
PRODUCTS = 16  # an iteration of a warp
WARP_ITERATIONS, CHAIN_ITERATIONS, SHARED_ITERATIONS = 1 << 16, 4096, 1 << 14
ROWS = {16: (4, 8, 16), 32: (4, 8, 16), 64: (4, 8)}  # of A a warp holds: warps of an SM to try
WIDEST = 256  # threads of a block that reads B from shared memory
SUSTAINED_ITERATIONS, SUSTAINED_REPEATS = 1 << 15, 200


def measure(bench: Bench) -> None:
    """Add this probe's points."""
    function = bench.functions(SOURCE)
    for name, k in TYPES.items():
        if name == "fp8" and bench.capability < FP8_CAPABILITY:
            continue
        _from_registers(bench, function, name, 2 * 16 * 8 * k)
    for rows, choices in ROWS.items():
        for warps in choices:
            bench.step(f"mma.sync fp16, B from shared memory, {rows} rows a warp, {warps} warps")
            iterations = SHARED_ITERATIONS // (rows // 16)
            blocks = -(-32 * warps // WIDEST)
            samples = bench.time(function(f"mma_rows{rows}"), blocks * bench.sms,
                                 32 * warps // blocks, (np.int32(iterations), bench.sink))
            work = bench.sms * warps * iterations * 2 * rows * 64 * 64
            bench.add("mma_from_shared", work, "flops", samples, rows=rows, warps=warps,
                      sms=bench.sms)


def _from_registers(bench: Bench, function, name: str, flops: int) -> None:
    for warps in WARPS:
        if name == "fp8" and warps > 8:
            continue  # its conversions, where a GPU needs them, take registers
        bench.step(f"mma.sync {name}, {warps} warps an SM")
        iterations = WARP_ITERATIONS // warps
        samples = bench.time(function(f"mma_{name}"), bench.sms, 32 * warps,
                             (np.int32(iterations), bench.sink))
        work = bench.sms * warps * iterations * PRODUCTS * flops
        bench.add(f"mma_{name}", work, "flops", samples, warps=warps, sms=bench.sms)
    samples = bench.time(function(f"mma_{name}_chain"), 1, 32,
                         (np.int32(CHAIN_ITERATIONS), bench.sink))
    bench.add(f"mma_{name}_latency", CHAIN_ITERATIONS, "products", samples)
    if name == "fp16":
        bench.step("mma.sync fp16 for a second")
        samples = bench.time(function("mma_fp16"), bench.sms, 256, (
            np.int32(SUSTAINED_ITERATIONS), bench.sink), repeats=SUSTAINED_REPEATS)
        bench.add("mma_fp16_sustained", bench.sms * 8 * SUSTAINED_ITERATIONS * PRODUCTS * flops,
                  "flops", samples, warps=8, sms=bench.sms)
        for sms in bench.parts():
            bench.step(f"mma.sync fp16 on {sms} SMs")
            samples = bench.time(function("mma_fp16"), sms, 256, (
                np.int32(SUSTAINED_ITERATIONS), bench.sink), repeats=PART_REPEATS)
            bench.add("mma_fp16_partial", sms * 8 * SUSTAINED_ITERATIONS * PRODUCTS * flops,
                      "flops", samples, warps=8, sms=sms)


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say."""
    found = []
    for name in TYPES:
        mine = select(points, f"mma_{name}")
        if point := best(mine, rates_per_clock):
            fact = Fact(
                f"mma_{name}", "flop_per_s", rates(point), "mma.sync m16n8 with fp32 accumulation, "
                f"random operands in registers, {point['at']['warps']} warps an SM", clocks(point),
                peak=f"flops.{name}")
            found += [fact, per_clock(fact, point, mine, "warps", "warps_per_sm")]
        found += [Fact(f"mma_{name}_latency", "cycles", cycles_each(chain), "one warp, each "
                       "mma.sync accumulating on the one before")
                  for chain in select(points, f"mma_{name}_latency")]
    mine = select(points, "mma_from_shared")
    if point := best(select(mine, "mma_from_shared", rows=16), rates_per_clock):
        fact = Fact(
            "mma_fp16_from_smem", "flop_per_s", rates(point), "mma.sync fp16, each warp reading "
            "all of B with ldmatrix.x4; for 16 rows of A a warp, a curve against its rows",
            clocks(point), peak="flops.fp16")
        found += [fact, per_clock(fact, point, mine, "rows", "rows_per_warp")]
    return found + sustained(points, "mma_fp16", "mma.sync fp16 on random operands")
