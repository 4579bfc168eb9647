"""A claimed speed of attention, judged: possible, doubtful, or beyond what the GPU can do, and why.

  hbmeter explain --gpu rtx4090 --head-dim 16 --tflops 475
  hbmeter explain --gpu a100-80gb --mask causal --seq 65536 --tflops 322
  hbmeter explain --seq 8192 --ms 2.8 --clock-mhz 1410

Roofs are the profile's datasheet peaks, at --clock-mhz when it is given. Exits with 1 when the
claim is impossible.
"""


def add_arguments(parser):
    """The claim, its shape and GPU."""
    from .. import options

    group = parser.add_argument_group("what was measured (--tflops or --ms)")
    group.add_argument("--tflops", type=float, metavar="X", help="claimed TFLOP/s")
    group.add_argument("--ms", type=float, metavar="X", help="claimed milliseconds of one call")
    group.add_argument("--clock-mhz", type=float, metavar="X", help="SM clock while it ran")
    group.add_argument("--dram-gb", type=float, metavar="X",
                       help="GB (10⁹ bytes) that DRAM is claimed to have moved")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_json(parser)


def run(args):
    """Judge and print."""
    from .. import claims_of_speed as claims
    from .. import options
    from ..output import print_json, seconds

    claimed = claims.claim(options.problem(args), options.profile(args), tflops=args.tflops,
                           ms=args.ms, clock_mhz=args.clock_mhz, dram_gb=args.dram_gb)
    verdict, findings = claims.judge(claimed)
    if args.json:
        print_json({"verdict": verdict, "seconds": claimed.seconds,
                    "tflop_per_s": claimed.flop_per_s / 1e12, "gpu": claimed.gpu.name,
                    "findings": [{"verdict": claims.VERDICTS[x.weight], "text": x.text}
                                 for x in findings]})
    else:
        print(f"{verdict}: {seconds(claimed.seconds)}, {claimed.flop_per_s / 1e12:,.4g} TFLOP/s "
              f"on {claimed.gpu.full_name}")
        for finding in findings:
            print(f"- {finding.text}")
    return 1 if verdict == "impossible" else 0
