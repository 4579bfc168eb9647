"""Timeline of a schedule for Perfetto: thread blocks on SMs, tiles in flight, misses, bytes.

  hbmeter trace --schedule flash2 --seq 2048 --mask causal --out t.json
  hbmeter trace --schedule standard --heads 2 --seq 1024 --out t.json --max-events 500000

Open the file in https://ui.perfetto.dev (it stays on your machine) or chrome://tracing.
predicted: every time and every miss is of the L2 reader, whose bytes hbmeter traffic prints; it is
that very run, noted. Long runs are cut after --max-events: the file says how far it goes.
"""

MOST_EVENTS = 1_000_000


def add_arguments(parser):
    """Schedule, shape, GPU, tiles, launch, file."""
    from .. import options

    parser.add_argument("--schedule", required=True, metavar="S",
                        help="hbmeter schedules lists them")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="file to write")
    parser.add_argument("--max-events", type=options.whole, default=100_000, metavar="N",
                        help="most slices in the file, about 150 bytes each (%(default)s)")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_tiles(parser)
    options.add_launch(parser)
    options.add_json(parser)


def run(args):
    """Simulate, noting, and write the file."""
    import sys

    from ...simulator import schedules
    from ...simulator.engines.l2_log import Log
    from ...simulator.errors import InputError
    from ...simulator.point import traffic
    from .. import options
    from ..files import output_file, write_atomic
    from ..output import print_json
    from ..progress import Progress
    from ..trace_events import SLICES_OF_AN_EVENT, Trace

    if not SLICES_OF_AN_EVENT <= args.max_events <= MOST_EVENTS:
        raise InputError(f"--max-events {args.max_events} must be from {SLICES_OF_AN_EVENT} to "
                         f"{MOST_EVENTS:,}")
    target = output_file(args.out)
    problem, gpu = options.problem_and_gpu(args)
    schedules.get(args.schedule)
    progress = Progress(sys.stderr)
    progress.start("simulating thread blocks", 100)
    tiles = options.tiles(args, args.schedule, problem, gpu)
    log = Log(args.max_events // SLICES_OF_AN_EVENT)
    point = traffic(args.schedule, problem, gpu, tiles, order=args.order, engine="l2-tile",
                    blocks_per_sm=args.blocks_per_sm, log=log, on_progress=progress.share)
    program = schedules.build(args.schedule, problem, tiles)
    progress.start("making slices", 100)
    trace = Trace(program, gpu, log.events, progress.share)
    summary = _summary(point, program, trace, log.full)
    write_atomic(target, trace.text(summary))
    progress.end()
    summary["out"] = str(target)
    print_json(summary) if args.json else _show(summary, args.max_events)


def _summary(point: dict, program, trace, cut: bool) -> dict:
    """What the trace is of and what is in it; bytes are those of its slices."""
    from math import prod

    grids = [program.problem.head_count // phase.group * prod(axis.blocks for axis in phase.axes)
             for phase in program.phases]
    return {
        **{name: point[name] for name in ("gpu", "schedule", "problem", "tiles", "order",
                                          "blocks_per_sm")},
        "l2_model": point["l2"]["model"], "complete": not cut,
        "slices": len(trace.slices), "blocks": trace.blocks, "blocks_of_grids": sum(grids),
        "predicted_span_s": trace.span_ns / 1e9, **trace.moved(),
    }


def _show(summary: dict, max_events: int):
    from ..output import seconds, si

    print(f"{summary['out']}: {summary['slices']:,} slices, {summary['blocks']:,} thread blocks, "
          f"{seconds(summary['predicted_span_s'])} predicted; open it in https://ui.perfetto.dev")
    for boundary, name, kind in (("sm", "SM", "counted"), ("dram", "DRAM", "predicted")):
        moved = summary[boundary]
        print(f"{name} boundary ({kind}): {si(moved['read_bytes'])} read, "
              f"{si(moved['write_bytes'])} written")
    if not summary["complete"]:
        print(f"only the beginning of the run, cut after --max-events {max_events:,}: the grid has "
              f"{summary['blocks_of_grids']:,} thread blocks")
