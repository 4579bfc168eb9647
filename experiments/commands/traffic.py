"""Traffic of one schedule: bytes at each boundary of the memory hierarchy, by tensor.

  hbmeter traffic --schedule flash2 --gpu h200 --seq 8192 --head-dim 128 --mask causal
  hbmeter traffic --schedule standard --seq 2048 --engine scratchpad --json
  hbmeter traffic --schedule flash2 --seq 8192 --br 128 --bc 64 --order swizzle.npy

counted: bytes over the SM boundary (L2 to SMs), exact for the schedule.
predicted: L2 and DRAM, by the L2 model named in the output; with --l2-curve, DRAM reads for every
L2 size too, by a simpler one.
"""


def add_arguments(parser):
    """Schedule, shape, GPU, tiles, launch."""
    from .. import options

    parser.add_argument("--schedule", required=True, metavar="S",
                        help="hbmeter schedules lists them")
    options.add_engine(parser)
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_tiles(parser)
    options.add_launch(parser)
    parser.add_argument("--seed", type=options.whole, default=0, metavar="S",
                        help="which launch: other physical pages, other first SMs (%(default)s)")
    parser.add_argument("--seeds", type=options.whole, default=1, metavar="N",
                        help="DRAM reads over N launches too: wide where all just fits the L2")
    parser.add_argument("--l2-start", choices=("cold", "warm"), default="cold",
                        help="L2 at the start: empty, or as the same call left it (%(default)s)")
    parser.add_argument("--l2-curve", action="store_true",
                        help="DRAM reads against L2 size: fully associative LRU of tiles")
    options.add_json(parser)


def run(args):
    """Count, and print a table or the JSON document."""
    import sys

    from ...simulator.point import traffic
    from ...simulator.schedules import get
    from .. import options
    from ..l2_curve import miss_curve
    from ..output import print_json
    from ..progress import Progress

    problem, gpu = options.problem_and_gpu(args)
    get(args.schedule)
    progress = Progress(sys.stderr)
    tiles = options.tiles(args, args.schedule, problem, gpu)
    progress.start("simulating thread blocks", 100)
    point = traffic(
        args.schedule, problem, gpu, tiles, order=args.order, blocks_per_sm=args.blocks_per_sm,
        engine=args.engine, times=True, seed=args.seed, seeds=args.seeds,
        warm=args.l2_start == "warm", on_progress=progress.share,
    )
    point["l2_curve"] = None
    if args.l2_curve:
        progress.start("simulating every L2 size", 100)
        point["l2_curve"] = miss_curve(args.schedule, problem, gpu, tiles, order=args.order,
                                       blocks_per_sm=args.blocks_per_sm,
                                       on_progress=progress.share)
    progress.end()
    if args.json:
        print_json(point)
    else:
        _show(point)
        if args.l2_curve:
            _show_curve(point["l2_curve"])


def _show(point):
    from ..options import order_text
    from ..output import seconds, si, table

    shape, tiles, time = point["problem"], point["tiles"], point["time"]
    print(f"{point['schedule']} on {point['gpu']}: batch {shape['batch']}, "
          f"heads {shape['heads']}/{shape['kv_heads']}, seq {shape['seq']}×{shape['kv_seq']}, "
          f"d {shape['head_dim']}, {shape['dtype']}, {shape['mask']}")
    decode = "".join(f", {what} {tiles[name]}" for name, what in
                     (("splits", "splits"), ("page", "pages of"), ("kv_order", "K,V"))
                     if name in tiles)
    print(f"tiles Br {tiles['br']}, Bc {tiles['bc']}, stages {tiles['stages']}{decode}: "
          f"{point['smem_bytes_per_block']:,} B of shared memory a block, "
          f"{point['blocks_per_sm']} block(s) per SM, {order_text(point['order'])}")
    dram = point["dram"]
    rows = [
        [name, si(moved["read_bytes"]), si(moved["write_bytes"]),
         *(_dram_cells(dram["by_tensor"][name]) if dram else ["–", "–"])]
        for name, moved in point["sm"]["by_tensor"].items()
    ]
    sm = point["sm"]
    rows.append(["total", si(sm["read_bytes"]), si(sm["write_bytes"]),
                 *(_dram_cells(dram) if dram else ["–", "–"])])
    rows.append(["compulsory", *_dram_cells(point["compulsory"]),
                 *_dram_cells(point["compulsory"])])
    print(table(["", "SM read", "SM write", "DRAM read", "DRAM write"], rows))
    if shape["pass"] == "softmax":
        elements = point["compulsory"]["write_bytes"]
        print(f"{(sm['read_bytes'] + sm['write_bytes']) / elements:g} accesses an element")
    if dram:
        l2 = point["l2"]
        start = "; the L2 starts as the same call left it" * (l2["start"] == "warm")
        print(f"SM counted; DRAM predicted by the L2 model: {l2['model']}{start}")
        if l2["blocks_simulated"] < l2["blocks"]:
            print(f"simulated {l2['blocks_simulated']:,} of {l2['blocks']:,} thread blocks; the "
                  "rest repeats them")
        if l2["scale"] > 1:
            print(f"walks simulated at 1/{l2['scale']} of their length, past as small a part of L2")
        print(f"still dirty in L2 at the end: {si(dram['dirty_bytes_at_end'])}; "
              f"L2 hit rate {point['l2']['hit_rate']:.2%}")
        if spread := dram["read_bytes_over_seeds"]:
            print(f"DRAM reads over {spread['seeds']} launches on other pages: "
                  f"{si(spread['least'])} to {si(spread['most'])}")
    print(f"FLOPs {si(point['flops'], 'FLOP')} (matmul, unmasked pairs), memory "
          f"{si(point['footprint_bytes'])}, bound {seconds(time['bound_s'])} by {time['limiter']}")
    if time["predicted_s"]:
        print(f"predicted {seconds(time['predicted_s'])}, limited by {time['predicted_limiter']}: "
              "by a kernel of the usual kind; hbmeter predict --kernel K knows those that are here")


def _dram_cells(moved):
    from ..output import si

    return [si(moved["read_bytes"]), si(moved["write_bytes"])]


def _show_curve(curve):
    """The sizes of GPUs, powers of two, and nothing more once all is held."""
    from ..output import si, table

    least = curve[-1]["dram_read_bytes"]
    held = next(row["l2_bytes"] for row in curve if row["dram_read_bytes"] == least)
    rows = [[f"{row['l2_bytes'] / 2**20:g} MiB", si(row["dram_read_bytes"]),
             ", ".join(row["gpus"])]
            for row in curve if row["l2_bytes"] <= 2 * held or row["gpus"]
            if row["gpus"] or row["l2_bytes"] & (row["l2_bytes"] - 1) == 0]
    print("\nDRAM reads predicted for every L2 size: fully associative LRU of tiles, thread blocks "
          "in step")
    print(table(["L2", "DRAM read", "GPUs"], rows))
