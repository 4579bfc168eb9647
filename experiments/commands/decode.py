"""Decode beside PyTorch's backends and a read-only sweep of DRAM on this GPU, or as recorded.

  hbmeter decode --out decode.json   fp16, one query against 2k to 131k keys; under a minute;
                                     goes on where it was when stopped
  hbmeter decode --recorded          the runs kept in the repository

measured: medians of interleaved rounds of CUDA graphs, same inputs, clocks left alone. The share is
compulsory bytes over time against the best read-only kernel in the same run; the ratio is to
PyTorch's FlashAttention backend. Splits are those that hbmeter splits predicts to be fastest.
"""


def add_arguments(parser):
    """Where the times come from and go to."""
    from .. import options

    source = parser.add_mutually_exclusive_group()
    source.add_argument("--out", metavar="FILE", help="keep the times (JSON)")
    source.add_argument("--recorded", action="store_true", help="no GPU: the kept times")
    options.add_json(parser)


def run(args):
    """Measure or read, and print a row a shape and contender."""
    from .. import bench_decode
    from ..output import print_json

    documents = bench_decode.recorded() if args.recorded else [_measure(args)]
    if not documents:
        from ...kernels.errors import Unavailable

        raise Unavailable("no times are kept in this installation: measure with "
                          "hbmeter decode --out FILE on a GPU")
    if args.json:
        print_json(documents)
        return
    for document in documents:
        _show(document, bench_decode.rows(document))


def _measure(args):
    import sys

    from ...kernels import runner
    from .. import bench, bench_decode, measure, records
    from ..files import output_file
    from ..progress import Progress

    cupy = runner.require_gpu()
    target = args.out and output_file(args.out)  # known now rather than after a minute
    report = Progress(sys.stderr)
    about = records.provenance(cupy, None, measure.source_hash(), {
        "clocks": "left alone", "rounds": bench_decode.ROUNDS, **bench.torch_versions()})
    header = {key: about.get(key) for key in ("format", "gpu", "driver", "kernel_sources", "torch")}
    partial = records.Partial(target and f"{target}.partial", header)
    if partial.resumed:
        report.note(f"going on from {target}.partial, which has {partial.resumed} results")
    read, points = bench_decode.measure(bench_decode.shapes(), partial, report)
    document = records.document(about | {"hbm_read_bytes_per_s": read}, points)
    if target:
        records.save(target, document)
        partial.finish()
    return document


def _show(document, rows):
    from ..output import seconds, si, table

    about = document["provenance"]
    print(f"{about['gpu']}, driver {about['driver']}, PyTorch {about.get('torch')}, "
          f"cuDNN {about.get('cudnn')}, {about['date']}; read-only kernel "
          f"{si(about['hbm_read_bytes_per_s'], 'B/s')}")
    cells = [
        [f"{row['batch']}×{row['heads']}/{row['kv_heads']} {row['kv_seq']} d{row['head_dim']}",
         row["contender"], row["splits"] or "–", seconds(row["median_ms"] / 1e3),
         si(row["bytes_per_s"], "B/s"), f"{row['share_of_read']:.1%}",
         f"{row['ratio_to_torch_flash']:.2f}" if row["ratio_to_torch_flash"] else "–"]
        for row in rows
    ]
    print(table(["fp16, 1 query", "", "splits", "time", "rate", "of reading", "ratio"], cells,
                left=2))
