"""Predicted time of a kernel: phase by phase, unit by unit, beside the bound; and how true it is.

  hbmeter predict --kernel flash2_mma --seq 16384 --head-dim 128
  hbmeter predict --gpu a100-80gb --schedule flash2 --mask causal --br 128 --bc 64
  hbmeter predict --recorded

zero-shot: nothing is measured on the kernel, only rates of the GPU's profile and what the kernel
declares of its operations. --known-ms with --known-seq calibrates: one short run of the same kernel
and tiles, whose time scales every other shape's. sustained: launch after launch without a pause, at
the lower clock of a GPU that has worked hard for some 50 ms; printed where that makes more than 1%.
--recorded prints the errors of zero-shot and calibrated times against every time that is recorded
in the repository.
"""

MOST_MS = 1e12  # of a known run


def add_arguments(parser):
    """Kernel or schedule, shape, GPU, tiles, launch."""
    from .. import options

    parser.add_argument("--kernel", metavar="K", help="a kernel of hbmeter kernels")
    parser.add_argument("--schedule", default="flash2", metavar="S",
                        help="without --kernel: a kernel of the usual kind (%(default)s)")
    parser.add_argument("--known-ms", type=float, metavar="MS",
                        help="measured milliseconds of the same kernel and tiles at --known-seq")
    parser.add_argument("--known-seq", type=options.whole, metavar="N",
                        help="sequence length of the known run, the rest as the shape")
    parser.add_argument("--recorded", action="store_true",
                        help="errors against the recorded times")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_tiles(parser)
    options.add_launch(parser)
    options.add_json(parser)


def run(args):
    """Predict one point, or show the record."""
    from ..output import print_json

    if args.recorded:
        from .. import time_text

        _refuse_what_does_nothing(args)
        found = time_text.record()
        if args.json:
            print_json(found)
        else:
            print(time_text.record_text(found))
        return
    found = _predict(args)
    if args.json:
        print_json(found)
    else:
        _show(found)


def _refuse_what_does_nothing(args):
    """The recorded times have their own kernels, shapes and tiles."""
    from ...simulator.errors import InputError
    from .. import options

    given = options.present(args, ("kernel", "known_ms", "known_seq", *options.OF_POINT))
    if given:
        raise InputError(f"{options.option(given[0])} does nothing here: --recorded shows all "
                         "recorded times; leave one of the two out")


def _predict(args):
    from dataclasses import replace

    from ... import kernels
    from ...simulator.errors import InputError
    from .. import options, prediction

    if args.kernel is not None and args.direction is None:
        args.direction = kernels.get(args.kernel).direction
    problem, gpu = options.problem_and_gpu(args)
    if (args.known_ms is None) != (args.known_seq is None):
        raise InputError("--known-ms and --known-seq go together: the time of one known run")
    if args.known_ms is not None and not 0 < args.known_ms <= MOST_MS:
        raise InputError(f"--known-ms {args.known_ms:g} must be a time above 0, of at most "
                         f"{MOST_MS:g} ms")
    point = prediction.point(args, problem, gpu)
    known = None
    if args.known_ms is not None:
        known = replace(problem, seq=args.known_seq, kv_seq=args.known_seq)
    return prediction.document(point, problem, gpu, known, args.known_ms)


def _show(found):
    from ..output import seconds, table

    tiles = found["tiles"]
    print(f"{found['runs']} on {found['gpu']}: tiles {tiles['br']}×{tiles['bc']}, "
          f"{tiles['stages']} stage(s); blocks per SM "
          f"{', '.join(str(phase['blocks_per_sm']) for phase in found['phases'])}"
          f" ({found['residents_from']})")
    units = list(found["phases"][0]["units_s"])
    rows = [[phase["name"], phase["blocks"], f"{phase['waves']:.1f}", seconds(phase["predicted_s"]),
             *(f"{phase['units_s'][unit] / phase['predicted_s']:.0%}" for unit in units),
             phase["limiter"]] for phase in found["phases"]]
    print(table(["phase", "blocks", "waves", "time", *units, "limited by"], rows))
    print(f"bound {seconds(found['bound_s'])} by {found['bound_by']}; zero-shot "
          f"{seconds(found['zero_shot_s'])}, {found['tflop_per_s']:.0f} TFLOP/s")
    if found["sustained_s"]:
        print(f"sustained {seconds(found['sustained_s'])}: launch after launch, from some "
              f"{seconds(found['first_clock_s'])} after a rest on, at a lower clock")
    if found["calibrated_s"]:
        under = found["calibrated_sustained_s"]
        print(f"calibrated {seconds(found['calibrated_s'])}"
              f"{f', sustained {seconds(under)}' if under else ''}: the known run took "
              f"{found['factor']:.3f} times its zero-shot prediction")
