"""Block sizes: every (Br, Bc, stages) of a schedule, whether it fits, and what it moves.

  hbmeter blocks --schedule flash2 --gpu h200 --head-dim 128
  hbmeter blocks --gpu rtx4090 --head-dim 256 --dtype bf16 --all

Marks: M/3d (one block each of Q, K, V), M/4d (FlashAttention's rule, with O), the largest square
that fits the strict count, and the least-traffic choice. Shared memory is counted from the
schedule's tiles; threads and registers are estimates.
"""


def add_arguments(parser):
    """Schedule, GPU, shape and how much to print."""
    from .. import options

    parser.add_argument("--schedule", default="flash2", metavar="S",
                        help="hbmeter schedules lists them (%(default)s)")
    options.add_gpu(parser)
    options.add_shape(parser)
    parser.add_argument("--br", type=options.whole, metavar="N", help="only this Br")
    parser.add_argument("--bc", type=options.whole, metavar="N", help="only this Bc")
    parser.add_argument("--stages", type=options.whole, metavar="N", help="only this many stages")
    parser.add_argument("--all", action="store_true",
                        help="every candidate, not only the best twelve and the marks")
    options.add_json(parser)


def run(args):
    """Explore and print."""
    from ...simulator.blocks import explore
    from .. import options
    from ..output import print_json

    problem, gpu = options.problem(args), options.profile(args)
    found = explore(args.schedule, problem, gpu, br=args.br, bc=args.bc, stages=args.stages)
    rows = [_row(candidate, found.marks) for candidate in found.candidates]
    if args.json:
        marks = {name: {"br": t.br, "bc": t.bc, "stages": t.stages}
                 for name, t in found.marks.items()}
        print_json({"gpu": gpu.name, "schedule": args.schedule, "marks": marks, "blocks": rows})
        return
    fitting = [row for row in rows if row["fits"]]
    print(f"{args.schedule} on {gpu.name}: {len(fitting)} of {len(rows)} tiles fit in "
          f"{gpu.smem.bytes_per_block_max:,} B of shared memory and the registers (estimate)")
    _show(rows if args.all else _best(rows))


def _row(candidate, marks):
    tiles, need, occupancy = candidate.tiles, candidate.resources, candidate.occupancy
    return {
        "br": tiles.br, "bc": tiles.bc, "stages": tiles.stages,
        "fits": candidate.why_not is None, "why_not": candidate.why_not,
        "smem_bytes": need.smem_bytes, "threads_estimate": need.threads,
        "registers_per_thread_estimate": need.registers_per_thread,
        "blocks_per_sm": occupancy.blocks_per_sm, "limiters": list(occupancy.limiters),
        "sm_read_bytes": candidate.count.read_bytes,
        "sm_write_bytes": candidate.count.write_bytes,
        "predicted_s": None,
        "marks": [name for name, marked in marks.items() if marked == tiles],
    }


def _best(rows):
    ranked = sorted((r for r in rows if r["fits"]),
                    key=lambda r: (r["sm_read_bytes"] + r["sm_write_bytes"], -r["bc"]))
    keep = {id(row) for row in ranked[:12]} | {id(row) for row in rows if row["marks"]}
    return [row for row in rows if id(row) in keep]


def _show(rows):
    from ..output import si, table

    cells = [
        [f"{r['br']}×{r['bc']}", r["stages"], f"{r['smem_bytes']:,}",
         r["registers_per_thread_estimate"], r["blocks_per_sm"], si(r["sm_read_bytes"]),
         si(r["sm_write_bytes"]), r["why_not"] or "yes", ", ".join(r["marks"])]
        for r in rows
    ]
    header = ["Br×Bc", "stages", "smem B", "regs ~", "blocks/SM", "SM read", "SM write", "fits",
              "mark"]
    print(table(header, cells))
