"""Run a schedule's program numerically: its error against float64 attention.

  hbmeter check --schedule flash2 --seq 300 --kv-seq 500 --mask causal --dtype fp64 --batch 1
  hbmeter check --schedule flash1 --dtype bf16 --seq 512
"""

LIMITS = {"fp64": 1e-12, "fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "bf16": 2e-2, "fp8": 2e-1}


def add_arguments(parser):
    """Schedule, shape, tiles, seed."""
    from .. import options

    parser.add_argument("--schedule", required=True, metavar="S",
                        help="hbmeter schedules lists them")
    parser.add_argument("--seed", type=options.whole, default=0, help="of the random inputs")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_tiles(parser)
    options.add_json(parser)
    parser.set_defaults(batch=1, heads=2, seq=512, head_dim=64)


def run(args):
    """0 when the program verifies and its error is within the dtype's limit, else 1."""
    from ...simulator import schedules
    from ...simulator.engines import numeric
    from ...simulator.errors import InputError
    from ...simulator.verifier import verify
    from .. import options
    from ..output import print_json

    problem, gpu = options.problem(args), options.profile(args)
    schedules.get(args.schedule)
    if args.seed < 0:
        raise InputError(f"--seed {args.seed} must be a whole number from 0")
    numeric.require_small(problem)
    tiles = options.tiles(args, args.schedule, problem, gpu)
    program = schedules.build(args.schedule, problem, tiles)
    verify(program, gpu.smem.bytes_per_block_max)
    inputs = numeric.random_inputs(problem, args.seed)
    outputs = numeric.run(program, inputs)
    error = numeric.relative_error(outputs["O"], numeric.reference(problem, inputs))
    limit = LIMITS[problem.dtype]
    passed = bool(error <= limit)  # NaN never passes
    if args.json:
        print_json({"schedule": args.schedule, "relative_error": error if error == error else None,
                    "limit": limit, "passed": passed,
                    "tiles": {"br": tiles.br, "bc": tiles.bc, "stages": tiles.stages}})
    else:
        print(f"{args.schedule} ({tiles}, {problem.dtype}): relative error {error:.3g} against "
              f"float64 attention, limit {limit:g}: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1
