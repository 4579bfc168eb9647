"""Many points at once: every combination of a spec's lists, kept in one SQLite file that resumes.

  hbmeter sweep block_sizes.yaml --out sweep --jobs 8
  hbmeter sweep block_sizes.yaml --out sweep --dask local:4
  hbmeter sweep block_sizes.yaml --out sweep --dask tcp://10.0.0.7:8786

A spec, where each key takes a value or a list of values:

  common: {gpu: h200, engine: scratchpad}
  grid:
    schedule: [flash1, flash2]
    seq: [1024, 4096, 16384]
    mask: [full, causal]
    br: [64, 128, choose]          # choose, or no key: the tool's choice
  points:                          # one by one, or small grids
    - {schedule: standard, seq: 4096}

Keys, with the command line's defaults: gpu schedule batch heads kv_heads seq kv_seq head_dim
value_dim shared_kv dtype mask dropout pass br bc stages splits page kv_order order blocks_per_sm
engine, and times (true: predict times too, ten times slower than counting).

Rows go to DIR/sweep.sqlite about once a second. Stopped at any moment, the same command goes on
where it was. A point is computed once, for this spec and for later ones; with other code of the
simulator or another profile of a GPU it is another point. Tiles that do not fit are rows too
(why_not). hbmeter table DIR shows, filters, pivots and exports what is there.
"""

MOST_JOBS = 1024


def add_arguments(parser):
    """Spec, folder, workers."""
    from .. import options

    parser.add_argument("spec", metavar="SPEC.yaml", help="what to compute")
    parser.add_argument("--out", required=True, metavar="DIR",
                        help="folder of sweep.sqlite; created when absent")
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument("--jobs", type=options.whole, metavar="N",
                         help="processes (as many as CPUs, when there is enough to do)")
    workers.add_argument("--dask", metavar="ADDRESS|local:N",
                         help="workers of a Dask scheduler, or N of this machine's processes")
    options.add_json(parser)


def run(args):
    """Compute what is missing, and say how much that was."""
    from ...simulator.errors import InputError
    from ...simulator.sweeps import spec
    from ...simulator.sweeps.store import FILE
    from ..files import output_folder
    from ..output import print_json

    if args.jobs is not None and not 1 <= args.jobs <= MOST_JOBS:
        raise InputError(f"--jobs {args.jobs} must be a whole number from 1 to {MOST_JOBS}")
    found = spec.read(args.spec)
    folder = output_folder(args.out)
    outcome = _computed(args, found, folder)
    if args.json:
        print_json({"out": str(folder), **vars(outcome)})
        return
    print(f"{outcome.points:,} points: {outcome.computed:,} computed, {outcome.found:,} found in "
          f"{folder / FILE}")
    if outcome.refused:
        print(f"{outcome.refused:,} of them cannot be run (why_not): tiles that do not fit, say")


def _computed(args, found, folder):
    import sys

    from ...simulator.sweeps import pool, runner
    from ..cluster import open_dask
    from ..progress import Progress

    progress = Progress(sys.stderr)

    def on_progress(done, total):
        if not done:
            progress.start("sweep", total)
        progress.done(done)

    try:
        if args.dask is None:
            jobs = args.jobs or pool.usable_cpus()
            return runner.run(found, folder, jobs=jobs, on_progress=on_progress)
        with open_dask(args.dask) as (executor, jobs):
            return runner.run(found, folder, jobs=jobs, executor=executor,
                              on_progress=on_progress)
    finally:
        progress.end()
