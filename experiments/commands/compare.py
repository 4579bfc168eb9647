"""Standard against tiled attention: bytes at each boundary, FLOPs, intensity, memory, bound.

  hbmeter compare --gpu h200 --seq 4096 --head-dim 128
  hbmeter compare --seq 8192 --mask causal --engine scratchpad --json
"""


def add_arguments(parser):
    """Shape, GPU, tiles, launch."""
    from .. import options

    options.add_engine(parser)
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_launch(parser)
    options.add_json(parser)


def run(args):
    """Count each schedule with its least-traffic tiles."""
    import sys
    from itertools import count

    from ...simulator.point import compare, compared
    from .. import options
    from ..output import print_json
    from ..progress import Progress

    problem, gpu = options.problem_and_gpu(args)
    progress = Progress(sys.stderr)
    progress.start("counting", len(compared(problem)))
    done = count(1)
    points = compare(problem, gpu, order=args.order, blocks_per_sm=args.blocks_per_sm,
                     engine=args.engine, times=True,
                     on_done=lambda name: progress.step(next(done), f"{name} is done"))
    progress.end()
    if args.json:
        print_json(points)
    else:
        _show(points)


def _show(points):
    from ..output import seconds, si, table

    rows = []
    for point in points:
        sm, dram, tiles = point["sm"], point["dram"], point["tiles"]
        sm_bytes = sm["read_bytes"] + sm["write_bytes"]
        rows.append([
            point["schedule"], f"{tiles['br']}×{tiles['bc']}", si(sm["read_bytes"]),
            si(sm["write_bytes"]), si(dram and dram["read_bytes"]),
            si(dram and dram["write_bytes"]), f"{point['flops'] / sm_bytes:.1f}",
            si(point["flops_executed"]["matmul"], "FLOP"), si(point["footprint_bytes"]),
            seconds(point["time"]["bound_s"]), point["time"]["limiter"],
            seconds(point["time"]["predicted_s"]),
        ])
    header = ["schedule", "Br×Bc", "SM read", "SM write", "DRAM read", "DRAM write", "FLOP/SM B",
              "matmul", "memory", "bound", "by", "predicted"]
    print(table(header, rows))
    print("SM counted, DRAM predicted"
          + (f" ({points[0]['l2']['model']})" if points[0]["l2"]
             else " only with --engine l2"))
