"""Splits of decode: counts, blocks, waves and a predicted time for every number of splits.

  hbmeter splits --gpu rtx4090 --batch 1 --heads 16 --kv-heads 8 --kv-seq 2048
  hbmeter splits --schedule paged --batch 64 --heads 32 --kv-heads 8 --kv-seq 8192 --page-size 64
  hbmeter splits --schedule mla_decode --heads 128 --kv-heads 1 --head-dim 576 --value-dim 512

Fewer thread blocks than SMs leave the GPU idle; more splits write and read more partial results.
counted: bytes over the SM boundary, partial results of both phases among them.
predicted: time, by latency, port, DRAM and product rates of the profile, in waves of thread
blocks; nothing is fitted to a kernel. Predictions within 5% are not told apart: of these the best
is the fewest splits that fill nearly every SM.
"""


def add_arguments(parser):
    """Schedule, shape, GPU and tiles."""
    from .. import options

    parser.add_argument("--schedule", default="split_kv", metavar="S",
                        help="split_kv, paged or mla_decode (%(default)s)")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_tiles(parser)
    parser.add_argument("--blocks-per-sm", type=options.whole, metavar="N",
                        help="thread blocks that share an SM (from occupancy)")
    parser.add_argument("--all", action="store_true",
                        help="every number that cuts the keys otherwise, not only powers of two")
    options.add_json(parser)
    parser.set_defaults(seq=1)


def run(args):
    """Count, predict and print."""
    from ...simulator import splits
    from ...simulator.bounds import pass_bound
    from ...simulator.errors import InputError
    from ...simulator.point import describe
    from .. import options
    from ..output import print_json

    splits.require_option(args.schedule, "splits")
    if args.splits is not None:
        raise InputError(f"--splits {args.splits}: this command tries every number; leave it out")
    problem, gpu = options.problem_and_gpu(args)
    if args.blocks_per_sm is not None and not 1 <= args.blocks_per_sm <= gpu.max_blocks_per_sm:
        raise InputError(f"--blocks-per-sm {args.blocks_per_sm} must be from 1 to "
                         f"{gpu.max_blocks_per_sm}")
    tiles = options.tiles(args, args.schedule, problem, gpu)
    points = splits.every(args.schedule, problem, gpu, tiles, args.blocks_per_sm)
    best = splits.best(points)
    problem = best.program.problem
    rows = [_row(point, point is best) for point in points]
    bound = pass_bound(problem, gpu)
    if args.json:
        print_json({"gpu": gpu.name, "schedule": args.schedule, "problem": describe(problem),
                    "tiles": {"br": tiles.br, "bc": tiles.bc, "stages": tiles.stages,
                              "page": tiles.page if args.schedule == "paged" else None},
                    "bound": {"bound_s": bound.bound_s, "limiter": bound.limiter},
                    "best": best.splits, "splits": rows})
    else:
        _show(args, gpu, problem, tiles, rows, bound)


def _row(point, best: bool) -> dict:
    count = point.candidate.count
    return {
        "splits": point.splits, "keys_per_split": point.keys, "blocks": point.blocks,
        "blocks_per_sm": point.blocks_per_sm, "waves": point.waves,
        "sm_read_bytes": count.read_bytes, "sm_write_bytes": count.write_bytes,
        "part_bytes": point.part_bytes, "attention_s": point.attention_s,
        "combine_s": point.combine_s, "predicted_s": point.predicted_s,
        "limiter": point.limiter, "best": best,
    }


def _show(args, gpu, problem, tiles, rows, bound):
    from ..output import seconds, si, table

    print(f"{args.schedule} on {gpu.name}: batch {problem.batch}, heads {problem.heads}/"
          f"{problem.kv_heads}, {problem.seq} against {problem.kv_seq} keys, d {problem.head_dim}, "
          f"{problem.dtype}, {problem.mask}")
    pages = f", pages of {tiles.page}" if args.schedule == "paged" else ""
    print(f"tiles Br {tiles.br}, Bc {tiles.bc}, stages {tiles.stages}{pages}; "
          f"{rows[0]['blocks_per_sm']} block(s) on each of {gpu.sm_count} SMs")
    kept = [row for row in rows if args.all or row["best"] or _is_power_of_two(row["splits"])]
    print(table(
        ["splits", "keys", "blocks", "waves", "SM read", "SM write", "parts", "attention",
         "combine", "predicted", "waits for", ""],
        [[row["splits"], row["keys_per_split"], row["blocks"], f"{row['waves']:.2f}",
          *(si(row[name]) for name in ("sm_read_bytes", "sm_write_bytes", "part_bytes")),
          *(seconds(row[name] or None) for name in ("attention_s", "combine_s", "predicted_s")),
          row["limiter"], "best" * row["best"]] for row in kept],
    ))
    print(f"bytes counted, times predicted; no run is faster than {seconds(bound.bound_s)} "
          f"({bound.limiter})")


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
