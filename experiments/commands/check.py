"""Run a schedule's program numerically: its error against float64 attention, gradients, softmax.

  hbmeter check --schedule flash2 --seq 300 --kv-seq 500 --mask causal --dtype fp64 --batch 1
  hbmeter check --schedule flash1 --dtype bf16 --seq 512
  hbmeter check --schedule flash2_backward --mask causal --kv-heads 1
"""

import sys

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
    errors = _errors(program, args.seed)
    worst = max(errors.values(), key=lambda error: (error != error, error))  # NaN is the worst
    limit = LIMITS[problem.dtype]
    passed = bool(worst <= limit)  # NaN never passes
    if args.json:
        finite = {name: error if error == error else None for name, error in errors.items()}
        print_json({"schedule": args.schedule, "relative_error": worst if worst == worst else None,
                    "relative_errors": finite, "limit": limit, "passed": passed,
                    "tiles": {"br": tiles.br, "bc": tiles.bc, "stages": tiles.stages}})
    else:
        found = ", ".join(f"{name} {error:.3g}" for name, error in errors.items())
        print(f"{args.schedule} ({tiles}, {problem.dtype}): relative error {found} against "
              f"float64, limit {limit:g}: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _errors(program, seed: int) -> dict[str, float]:
    """The relative error of each output that the pass is for."""
    from ...simulator.engines import gradients, numeric, scores
    from ..progress import Progress

    problem, progress = program.problem, Progress(sys.stderr)
    if problem.direction == "softmax":
        inputs = scores.random_scores(problem, seed)
    else:
        inputs = numeric.random_inputs(problem, seed)
    if problem.direction == "backward":
        inputs |= gradients.backward_inputs(problem, inputs, seed)
    progress.start("running the program", 100)
    outputs = numeric.run(program, inputs, on_progress=progress.share)
    progress.start("attention in float64", 100)
    if problem.direction == "softmax":
        wanted = scores.reference_softmax(problem, inputs)
    elif problem.direction == "backward":
        wanted = gradients.reference_gradients(problem, inputs)
    else:
        wanted = {"O": numeric.reference(problem, inputs, progress.share)}
    progress.end()
    return {name: numeric.relative_error(outputs[name], want) for name, want in wanted.items()}
