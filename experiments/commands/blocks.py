"""Block sizes: every (Br, Bc, stages) of a schedule, whether it fits, what it moves, how fast.

  hbmeter blocks --schedule flash2 --gpu h200 --head-dim 128
  hbmeter blocks --gpu rtx4090 --head-dim 256 --dtype bf16 --all
  hbmeter blocks --order head:8 --minimize dram --seq 16384
  hbmeter blocks --compile --kernel flash2_mma --head-dim 64

Marks: M/3d (one block each of Q, K, V), M/4d (FlashAttention's rule, with O), the largest square
that fits the strict count, least traffic, and fastest. Shared memory is counted from the schedule's
tiles; threads and registers are estimates, unless --compile asks the compiler.
predicted: time of a kernel of the usual kind, nothing measured on it (hbmeter predict --recorded
says how far such predictions are off).
"""

MINIMIZED = ("time", "sm", "dram")
SHORT_LIST = 12  # tiles that are printed, and simulated for --minimize dram, and compiled


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
    options.add_order(parser)
    parser.add_argument("--minimize", choices=MINIMIZED, default="time",
                        help="what the best are best at: predicted time, bytes at the SM boundary, "
                             "or DRAM bytes (of those with the least SM bytes, by the L2 reader; "
                             "%(default)s)")
    parser.add_argument("--all", action="store_true",
                        help=f"every candidate, not only the best {SHORT_LIST} and the marks")
    parser.add_argument("--compile", action="store_true",
                        help="registers and spills of the best tiles by compiling a kernel (no GPU "
                             "needed; pip install 'hbmeter[compile]')")
    parser.add_argument("--kernel", metavar="K", help="which kernel of the schedule to compile")
    options.add_json(parser)


def run(args):
    """Explore and print."""
    from ...simulator.blocks import explore
    from .. import options
    from ..output import print_json

    problem, gpu = options.problem_and_gpu(args)
    kernel = _kernel(args, problem) if args.compile or args.kernel else None
    found = explore(args.schedule, problem, gpu, br=args.br, bc=args.bc, stages=args.stages,
                    order=args.order)
    rows = [_row(candidate, found.marks) for candidate in found.candidates]
    best = _best(rows, found.candidates, args.minimize)
    if args.compile:
        from ..compiled_blocks import compiled

        for row in best:
            row["compiled"] = compiled(kernel, problem, gpu, row)
    if args.json:
        marks = {name: {"br": t.br, "bc": t.bc, "stages": t.stages}
                 for name, t in found.marks.items()}
        print_json({"gpu": gpu.name, "schedule": args.schedule, "order": args.order,
                    "minimize": args.minimize, "marks": marks, "why": _why(found), "blocks": rows})
        return
    fitting = [row for row in rows if row["fits"]]
    print(f"{args.schedule} on {gpu.name}: {len(fitting)} of {len(rows)} tiles fit in "
          f"{gpu.smem.bytes_per_block_max:,} B of shared memory and the registers (estimate)")
    _show(rows if args.all else best)
    if _why(found):
        print("fastest: " + _why(found))
    if args.compile:
        _show_compiled(best, kernel)


def _kernel(args, problem):
    """The kernel that --kernel names, else the first of the schedule that takes the problem."""
    from ... import kernels
    from ...simulator.errors import InputError

    ours = [k for k in map(kernels.get, kernels.names()) if k.schedule == args.schedule]
    if args.kernel:
        kernel = kernels.get(args.kernel)
        if kernel not in ours:
            raise InputError(f"kernel {args.kernel} runs schedule {kernel.schedule}, not "
                             f"{args.schedule}")
        return kernel
    ours.sort(key=lambda k: (k.matmul_dtype is not None, k.only_arch is not None))
    for kernel in ours:
        if kernel.tile_choices(problem):
            return kernel
    raise InputError(f"no kernel of schedule {args.schedule} takes {problem.dtype} with head_dim "
                     f"{problem.head_dim}; hbmeter kernels lists what there is")


def _row(candidate, marks):
    tiles, need, occupancy = candidate.tiles, candidate.resources, candidate.occupancy
    time = candidate.prediction
    return {
        "br": tiles.br, "bc": tiles.bc, "stages": tiles.stages,
        "fits": candidate.why_not is None, "why_not": candidate.why_not,
        "smem_bytes": need.smem_bytes, "threads_estimate": need.threads,
        "registers_per_thread_estimate": need.registers_per_thread,
        "blocks_per_sm": occupancy.blocks_per_sm, "limiters": list(occupancy.limiters),
        "sm_read_bytes": candidate.count.read_bytes,
        "sm_write_bytes": candidate.count.write_bytes,
        "dram_bytes": None,
        "predicted_s": time and time.seconds, "predicted_limiter": time and time.limiter,
        "marks": [name for name, marked in marks.items() if marked == tiles],
    }


def _best(rows, candidates, minimize):
    """The best rows, best first, then those with marks."""
    def sm(row):
        return row["sm_read_bytes"] + row["sm_write_bytes"], -row["bc"]

    fitting = sorted((r for r in rows if r["fits"]), key=sm)
    if minimize == "time":
        fitting.sort(key=lambda r: r["predicted_s"] or float("inf"))
    best = fitting[:SHORT_LIST]
    if minimize == "dram":
        of_tiles = {(c.tiles.br, c.tiles.bc, c.tiles.stages): c for c in candidates}
        for row in best:
            row["dram_bytes"] = _dram(of_tiles[row["br"], row["bc"], row["stages"]])
        best.sort(key=lambda r: (r["dram_bytes"], sm(r)))
    there = {id(row) for row in best}
    return best + [row for row in rows if row["marks"] and id(row) not in there]


def _dram(candidate) -> int:
    """DRAM bytes, with what is still dirty in L2 at the end."""
    from ...simulator.engines import l2

    found = l2.simulate(candidate.program, candidate.gpu,
                        blocks_per_sm=max(candidate.occupancy.blocks_per_sm, 1),
                        order=candidate.order)
    return found.dram_read_bytes + found.dram_write_bytes + found.dirty_bytes_at_end


def _why(found):
    from ...simulator.blocks import why_faster

    of_tiles = {candidate.tiles: candidate for candidate in found.candidates}
    fast, lean = (of_tiles.get(found.marks.get(n)) for n in ("fastest", "least traffic"))
    different = fast and lean and fast is not lean and lean.prediction
    return why_faster(fast, lean) if different else None


def _show(rows):
    from ..output import seconds, si, table

    cells = [
        [f"{r['br']}×{r['bc']}", r["stages"], f"{r['smem_bytes']:,}",
         r["registers_per_thread_estimate"], r["blocks_per_sm"], si(r["sm_read_bytes"]),
         si(r["sm_write_bytes"]), si(r["dram_bytes"]), seconds(r["predicted_s"]),
         r["predicted_limiter"] or "–", r["why_not"] or "yes", ", ".join(r["marks"])]
        for r in rows
    ]
    header = ["Br×Bc", "stages", "smem B", "regs ~", "blocks/SM", "SM read", "SM write", "DRAM",
              "predicted", "limited by", "fits", "mark"]
    print(table(header, cells))


def _show_compiled(rows, kernel):
    from ..output import seconds, table

    cells = []
    for row in rows:
        found, place = row["compiled"], [f"{row['br']}×{row['bc']}", row["stages"]]
        if found["why_not"]:
            cells.append([*place, *["–"] * 5, found["why_not"].split("; ")[0][-60:]])
        else:
            cells.append([*place, found["registers"], found["spill_bytes"], found["smem_bytes"],
                          found["blocks_per_sm"], seconds(found["predicted_s"]),
                          found["predicted_limiter"]])
    print(f"\nkernel {kernel.name} compiled:")
    print(table(["Br×Bc", "stages", "registers", "spill B", "smem B", "blocks/SM", "predicted",
                 "limited by, or why not"], cells))
