"""Traffic of one schedule: bytes at each boundary of the memory hierarchy, by tensor.

  hbmeter traffic --schedule flash2 --gpu h200 --seq 8192 --head-dim 128 --mask causal
  hbmeter traffic --schedule standard --seq 2048 --engine scratchpad --json

counted: bytes over the SM boundary (L2 to SMs), exact for the schedule.
predicted: L2 and DRAM, by the L2 model named in the output.
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
    options.add_json(parser)


def run(args):
    """Count, and print a table or the JSON document."""
    import sys

    from ...simulator.point import traffic
    from ...simulator.schedules import get
    from .. import options
    from ..output import print_json
    from ..progress import Progress

    problem, gpu = options.problem(args), options.profile(args)
    get(args.schedule)
    progress = Progress(sys.stderr)
    progress.start("simulating thread blocks", 100)
    point = traffic(
        args.schedule, problem, gpu, options.tiles(args, args.schedule, problem, gpu),
        order=args.order, blocks_per_sm=args.blocks_per_sm, engine=args.engine,
        on_progress=progress.share,
    )
    progress.end()
    if args.json:
        print_json(point)
    else:
        _show(point)


def _show(point):
    from ..output import seconds, si, table

    shape, tiles, time = point["problem"], point["tiles"], point["time"]
    print(f"{point['schedule']} on {point['gpu']}: batch {shape['batch']}, "
          f"heads {shape['heads']}/{shape['kv_heads']}, seq {shape['seq']}×{shape['kv_seq']}, "
          f"d {shape['head_dim']}, {shape['dtype']}, {shape['mask']}")
    decode = "".join(f", {what} {tiles[name]}" for name, what in
                     (("splits", "splits"), ("page", "pages of")) if name in tiles)
    print(f"tiles Br {tiles['br']}, Bc {tiles['bc']}, stages {tiles['stages']}{decode}: "
          f"{point['smem_bytes_per_block']:,} B of shared memory a block, "
          f"{point['blocks_per_sm']} block(s) per SM, {point['order']} fastest")
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
    if dram:
        l2 = point["l2"]
        print(f"SM counted; DRAM predicted by the L2 model: {l2['model']}")
        if l2["blocks_simulated"] < l2["blocks"]:
            print(f"simulated {l2['blocks_simulated']:,} of {l2['blocks']:,} thread blocks; the "
                  "rest repeats them")
        print(f"still dirty in L2 at the end: {si(dram['dirty_bytes_at_end'])}; "
              f"L2 hit rate {point['l2']['hit_rate']:.2%}")
    print(f"FLOPs {si(point['flops'], 'FLOP')} (matmul, unmasked pairs), memory "
          f"{si(point['footprint_bytes'])}, bound {seconds(time['bound_s'])} by {time['limiter']}")


def _dram_cells(moved):
    from ..output import si

    return [si(moved["read_bytes"]), si(moved["write_bytes"])]
