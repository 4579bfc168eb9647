"""Attention beside PyTorch's backends on this machine's GPU, or as recorded.

  hbmeter bench --out bench.json     fp16, n 512 to 32k, d 64/128/256, full and causal; a minute
  hbmeter bench --pass backward --out backward.json
  hbmeter bench --quick
  hbmeter bench --recorded           the runs kept in the repository
  hbmeter bench --ladder [FILE.png]  of those, what each kernel's step is worth at n 4,096: a
                                     Markdown table, and a bar chart
  hbmeter bench --peers              no GPU: the line cache beside other cache simulators

measured: medians of interleaved rounds, same inputs, clocks left alone. TFLOP/s count the unmasked
(query, key) pairs; the ratio is to PyTorch's FlashAttention backend in the same round.
"""


def add_arguments(parser):
    """Where the times come from and go to."""
    from .. import options

    source = parser.add_mutually_exclusive_group()
    source.add_argument("--out", metavar="FILE", help="keep the times (JSON)")
    source.add_argument("--recorded", action="store_true", help="no GPU: the kept times")
    source.add_argument("--ladder", nargs="?", const="", metavar="FILE.png",
                        help="no GPU: the kept times, kernel by kernel, in Markdown, and a bar "
                             "chart of them")
    source.add_argument("--peers", action="store_true",
                        help="no GPU: lines a second beside pycachesim and libCacheSim")
    parser.add_argument("--pass", dest="direction", choices=("forward", "backward"),
                        default="forward", help="what to time (%(default)s); --recorded has both")
    parser.add_argument("--quick", action="store_true", help="d 128, n 1k and 4k only")
    options.add_json(parser)


def run(args):
    """Measure or read, and print a row a shape."""
    from .. import bench
    from ..output import print_json

    if args.peers:
        return _peers(args)
    kept = args.recorded or args.ladder is not None
    documents = bench.recorded() if kept else [_measure(args)]
    if not documents:
        from ...kernels.errors import Unavailable

        raise Unavailable("no times are kept in this installation: measure with "
                          "hbmeter bench --out FILE on a GPU")
    if args.ladder is not None:
        return _ladder(args)
    if args.json:
        print_json(documents)
        return None
    for document in documents:
        about = document["provenance"]
        print(f"{about['gpu']}, driver {about['driver']}, PyTorch {about.get('torch')}, "
              f"cuDNN {about.get('cudnn')}, {about['date']}")
        _show(bench.rows(document["points"]))
    return None


def _ladder(args):
    from ...simulator.errors import InputError
    from .. import style
    from ..figures import ladder
    from ..files import output_file, write_atomic
    from ..output import print_json

    if args.ladder and not args.ladder.lower().endswith(".png"):
        raise InputError(f"--ladder {args.ladder}: the picture's name must end in .png")
    target = output_file(args.ladder) if args.ladder else None
    rows = ladder.run(None, None)
    if target:
        write_atomic(target, style.png(ladder.plot(rows)))
    if args.json:
        print_json(rows)
    else:
        print(ladder.markdown(rows), *ladder.notes(rows), sep="\n\n")


def _peers(args):
    """The race of cache simulators; 1 when hits are wrong."""
    import sys

    from .. import bench_peers
    from ..output import print_json, table
    from ..progress import Progress

    rows = bench_peers.measure(Progress(sys.stderr))
    wrong, bars = bench_peers.wrong(rows), bench_peers.bars(rows)
    if args.json:
        print_json({"rows": rows, "bars": {name: {"measured": value, "bar": bar}
                                           for name, (value, bar) in bars.items()},
                    "wrong": wrong})
        return int(bool(wrong))
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    cells = {(row["contender"], row["trace"]): row for row in rows}
    print(table(["million lines a second", *traces, "hits on tiles"], [
        [name, *(_rate(cells[name, trace]) for trace in traces),
         cells[name, "tiles"]["why_not"] or f"{cells[name, 'tiles']['hits']:,}"]
        for name in bench_peers.CONTENDERS]))
    for name, (value, bar) in bars.items():
        print(f"{name}: {'not measured' if value is None else f'{value:.3g}'} (bar {bar:g})")
    for text in wrong:
        print(f"wrong: {text}")
    return int(bool(wrong))


def _rate(row) -> str:
    from ..bench_peers import rate

    found = rate(row)
    return "–" if found is None else f"{found / 1e6:,.1f}"


def _measure(args):
    import sys

    from ...kernels import runner
    from .. import bench, measure, records
    from ..files import output_file
    from ..progress import Progress

    cupy = runner.require_gpu()
    target = args.out and output_file(args.out)  # known now rather than after a minute
    small = {"lengths": (1024, 4096), "head_dims": (128,)} if args.quick else {}
    problems = bench.shapes(**small, direction=args.direction)
    report = Progress(sys.stderr)
    about = records.provenance(cupy, None, measure.source_hash(), {
        "clocks": "left alone", "rounds": bench.ROUNDS, **bench.torch_versions()})
    header = {key: about.get(key) for key in ("format", "gpu", "driver", "kernel_sources", "torch")}
    partial = records.Partial(target and f"{target}.partial", header)
    if partial.resumed:
        report.note(f"going on from {target}.partial, which has {partial.resumed} shapes")
    document = records.document(about, bench.measure(problems, partial, report))
    if target:
        records.save(target, document)
        partial.finish()
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
    print(table([f"fp16 {rows[0]['pass']}, TFLOP/s (ratio)", *names], cells))


def _cell(row):
    if row is None:
        return "–"
    ratio = row["ratio_to_torch_flash"]
    return f"{row['tflop_per_s']:.0f}" + (f" ({ratio:.2f})" if ratio else "")
