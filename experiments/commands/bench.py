"""Forward attention beside PyTorch's backends on this machine's GPU, or as recorded.

  hbmeter bench --out bench.json     fp16, n 512 to 32k, d 64/128/256, full and causal; a minute
  hbmeter bench --quick
  hbmeter bench --recorded           the runs kept in the repository

measured: medians of interleaved rounds, same inputs, clocks left alone. TFLOP/s count the unmasked
(query, key) pairs; the ratio is to PyTorch's FlashAttention backend in the same round.
"""


def add_arguments(parser):
    """Where the times come from and go to."""
    from .. import options

    source = parser.add_mutually_exclusive_group()
    source.add_argument("--out", metavar="FILE", help="keep the times (JSON)")
    source.add_argument("--recorded", action="store_true", help="no GPU: the kept times")
    parser.add_argument("--quick", action="store_true", help="d 128, n 1k and 4k only")
    options.add_json(parser)


def run(args):
    """Measure or read, and print a row a shape."""
    from .. import bench
    from ..output import print_json

    documents = bench.recorded() if args.recorded else [_measure(args)]
    if not documents:
        from ...kernels.errors import Unavailable

        raise Unavailable("no times are kept in this installation: measure with "
                          "hbmeter bench --out FILE on a GPU")
    if args.json:
        print_json(documents)
        return
    for document in documents:
        about = document["provenance"]
        print(f"{about['gpu']}, driver {about['driver']}, PyTorch {about.get('torch')}, "
              f"cuDNN {about.get('cudnn')}, {about['date']}")
        _show(bench.rows(document["points"]))


def _measure(args):
    import sys

    from ...kernels import runner
    from .. import bench, measure, records
    from ..progress import Progress

    cupy = runner.require_gpu()
    problems = bench.shapes((1024, 4096), (128,)) if args.quick else bench.shapes()
    points = bench.measure(problems, Progress(sys.stderr))
    about = records.provenance(cupy, None, measure.source_hash(), {
        "clocks": "left alone", "rounds": bench.ROUNDS, **bench.torch_versions()})
    document = {"provenance": about, "points": points}
    if args.out:
        bench.save(args.out, document)
    return document


def _show(rows):
    from ..output import table

    names = list(dict.fromkeys(row["contender"] for row in rows))
    shapes = dict.fromkeys((r["head_dim"], r["mask"], r["batch"], r["heads"], r["seq"])
                           for r in rows)
    found = {(r["head_dim"], r["mask"], r["batch"], r["heads"], r["seq"], r["contender"]): r
             for r in rows}
    cells = [
        [f"{batch}×{heads} {seq} d{d} {mask}"] + [_cell(found.get((*shape, n))) for n in names]
        for shape in shapes for d, mask, batch, heads, seq in [shape]
    ]
    print(table(["fp16 forward, TFLOP/s (ratio)", *names], cells))


def _cell(row):
    if row is None:
        return "–"
    ratio = row["ratio_to_torch_flash"]
    return f"{row['tflop_per_s']:.0f}" + (f" ({ratio:.2f})" if ratio else "")
