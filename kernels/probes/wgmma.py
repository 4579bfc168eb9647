"""Launcher of wgmma.cu: rates of Hopper's warpgroup products by type, N and where A is.

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
    per_clock,
    rates,
    rates_per_clock,
    select,
    sustained,
)

SOURCE = Path(__file__).with_suffix(".cu")
CAPABILITY = 90  # the only one that has wgmma
GROUP = 128  # threads
K_BYTES, ELEMENT_BYTES = 32, {"fp16": 2, "bf16": 2, "tf32": 4, "fp8": 1}
PRODUCTS, STAGES, ROW_BYTES = 16, 2, 128  # of an iteration; of wgmma.cu
NS = {"fp16": (64, 128, 256), "bf16": (64, 128, 256), "tf32": (256,), "fp8": (256,)}
GROUPS = {64: (1, 2, 4), 128: (1, 2, 4), 256: (1, 2)}  # warpgroups of an SM to try, by N
ITERATIONS, SUSTAINED_ITERATIONS, SUSTAINED_REPEATS = 1024, 2048, 250


def measure(bench: Bench) -> None:
    """Add this probe's points; none on a GPU without wgmma."""
    if bench.capability != CAPABILITY:
        return
    function = bench.functions(SOURCE)
    for name, sizes in NS.items():
        for n in sizes:
            for where in ("shared", "registers") if ELEMENT_BYTES[name] == 2 else ("shared",):
                for groups in GROUPS[n]:
                    bench.step(f"wgmma {name}, n {n}, A in {where}, {groups} warpgroups an SM")
                    iterations = ITERATIONS * 256 // n // groups
                    _run(bench, function, f"wgmma_{name}", name, n, where, groups, iterations)
    bench.step("wgmma fp16 for a second")
    _run(bench, function, "wgmma_fp16_sustained", "fp16", 256, "shared", 2, SUSTAINED_ITERATIONS,
         SUSTAINED_REPEATS)
    for sms in bench.parts():
        bench.step(f"wgmma fp16 on {sms} SMs")
        _run(bench, function, "wgmma_fp16_partial", "fp16", 256, "shared", 2,
             SUSTAINED_ITERATIONS, PART_REPEATS, sms)


def _run(bench, function, series, name, n, where, groups, iterations, repeats=None,
         sms=None) -> None:
    sms = sms or bench.sms
    samples = bench.time(
        function(f"wgmma_{name}_n{n}_{where}"), sms, GROUP * groups,
        (np.int32(iterations), bench.sink), STAGES * (n + 64) * ROW_BYTES,
        **({"repeats": repeats} if repeats else {}))
    flops = 2 * 64 * n * (K_BYTES // ELEMENT_BYTES[name])
    bench.add(series, sms * groups * iterations * PRODUCTS * flops, "flops", samples,
              n=n, a_in=where, warpgroups=groups, sms=sms)


# ---- Facts ------------------------------------------------------------------------------------


def facts(points: list[dict]) -> list[Fact]:
    """What the points say: each type at N 256, and by N with A in either place."""
    found = []
    for name in NS:
        for suffix, where in (("", "shared"), ("_a_registers", "registers")):
            mine = select(points, f"wgmma_{name}", a_in=where)
            if point := best(select(mine, f"wgmma_{name}", n=256), rates_per_clock):
                where = "shared memory" if where == "shared" else "registers"
                fact = Fact(
                    f"wgmma_{name}{suffix}", "flop_per_s", rates(point), "wgmma m64n256 with fp32 "
                    f"accumulation, random operands, A in {where}, B in shared memory, "
                    f"{point['at']['warpgroups']} warpgroups an SM; a curve is against n",
                    clocks(point), peak=f"flops.{name}")
                found += [fact, per_clock(fact, point, mine, "n", "n")]
    return found + sustained(points, "wgmma_fp16", "wgmma fp16, n 256, on random operands")
