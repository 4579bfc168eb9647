"""Published times of attention kernels on A100 and H100 beside predictions, with their errors.

  hbmeter published
  hbmeter published --method flash3 --all

FlashAttention's appendix tables 18 to 20 (A100-40GB), FlashAttention-2 (A100-80GB) and -3 (H100):
predicted zero-shot from profiles and published tiles, nothing fitted. Errors are of lengths from
1,024 on; shorter runs take some microseconds, printed with two digits.
"""


def add_arguments(parser):
    """What to show."""
    from .. import options

    parser.add_argument("--method", metavar="M",
                        help="only flash1, flash2, flash3, standard or cudnn")
    parser.add_argument("--all", action="store_true", help="every number, not only the errors")
    options.add_json(parser)


def run(args):
    """Predict, compare and print."""
    from ...simulator.errors import unknown_name
    from .. import published
    from ..output import print_json

    rows = published.table()
    methods = tuple(dict.fromkeys(row["method"] for row in rows))
    if args.method is not None:
        if args.method not in methods:
            raise unknown_name("method", args.method, methods)
        rows = [row for row in rows if row["method"] == args.method]
    if args.json:
        print_json({"rows": rows, "errors": published.errors(rows)})
        return
    from ..figures import published_times
    from ..output import table

    errors, numbers = published_times.tables(rows)
    if args.all or not errors.rows:
        print(table(numbers.header, numbers.rows, left=4))
    if errors.rows:
        print(f"\n{errors.title}" if args.all else errors.title)
        print(table(errors.header, errors.rows, left=4))
