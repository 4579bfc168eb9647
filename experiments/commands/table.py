"""What a sweep has kept: filter it, pivot it, export it as CSV or Parquet.

  hbmeter table sweep --where 'schedule = flash2 and seq >= 4096'
  hbmeter table sweep --rows seq --columns schedule --values sm_read_bytes
  hbmeter table sweep --rows br --columns bc --values dram_read_bytes --aggregate min
  hbmeter table sweep --csv sweep.csv --parquet sweep.parquet

Filters compare columns with = != < <= > >= ~ (contains), in (…) and is null, joined by and, or,
not and ().
An unknown name lists the columns. A cell that was not computed is empty, never 0. While a sweep
is running, the rows that it has put on disk are shown. From Python, a pandas DataFrame:

  from hbmeter.simulator import sweep_table
  sweep_table("sweep", "schedule = flash2 and seq >= 4096")
"""

SHOWN, WIDEST = 40, 60  # rows, and characters of a cell
RESULTS = ("sm_read_bytes", "sm_write_bytes", "dram_read_bytes", "dram_write_bytes", "bound_s",
           "predicted_s")


def add_arguments(parser):
    """Folder, filter, pivot, export."""
    from .. import options

    parser.add_argument("dir", metavar="DIR", help="folder of hbmeter sweep --out")
    parser.add_argument("--where", metavar="FILTER", help="only these rows")
    parser.add_argument("--select", metavar="A,B,…", help="only these columns")
    parser.add_argument("--sort", metavar="A", help="smallest of this column first")
    parser.add_argument("--largest", action="store_true", help="with --sort: largest first")
    parser.add_argument("--everything", action="store_true",
                        help="rows of earlier specs, code and profiles too")
    group = parser.add_argument_group("pivot")
    group.add_argument("--rows", metavar="A,B,…", help="columns whose values name the rows")
    group.add_argument("--columns", metavar="A,B,…", help="columns whose values name the columns")
    group.add_argument("--values", metavar="A", help="the column in the cells")
    group.add_argument("--aggregate", metavar="HOW",
                       help="where rows share a cell: min, max, mean, median or sum")
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    parser.add_argument("--parquet", metavar="FILE", help="write the table as Parquet (pyarrow)")
    options.add_json(parser)


def run(args):
    """Read, filter, sort, pivot; then files, JSON or text."""
    from ...simulator.sweeps import table
    from .. import tables
    from ..output import print_json

    rows = _sorted(table.rows(args.dir, args.where, args.everything), args.sort, args.largest)
    rows, constant = _arranged(args, rows)
    for path, export in ((args.csv, tables.write_csv), (args.parquet, tables.write_parquet)):
        if path is not None:
            export(path, rows)
    if args.json:
        print_json({"dir": args.dir, "rows": tables.as_json(rows)})
    elif args.csv or args.parquet:
        print(f"{len(rows):,} rows in {', '.join(filter(None, (args.csv, args.parquet)))}")
    else:
        _show(rows, constant, args.values)


def _sorted(rows, name, largest):
    from ...simulator.sweeps.table import require_columns

    if name is None:
        return rows
    require_columns(rows, [name])
    empty = [row for row in rows if row[name] is None]  # last, whatever the direction
    return sorted((row for row in rows if row[name] is not None), key=lambda row: row[name],
                  reverse=largest) + empty


def _arranged(args, rows):
    """(rows, what is the same in all): a pivot, the columns selected, or all; in text, what
    tells rows apart."""
    from ...simulator.errors import InputError
    from ...simulator.sweeps import table

    if args.rows or args.columns or args.values or args.aggregate:
        if not args.values or not (args.rows or args.columns):
            raise InputError("a pivot needs --values A and --rows or --columns, such as --rows "
                             "seq --columns schedule --values sm_read_bytes")
        return table.pivot(rows, _names(args.rows), _names(args.columns), args.values,
                           args.aggregate), {}
    if args.select is not None:
        names = _names(args.select)
        table.require_columns(rows, names)
        return [{name: row[name] for name in names} for row in rows], {}
    if args.json or args.csv or args.parquet:
        return rows, {}
    return _told_apart(rows)


def _names(text):
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def _told_apart(rows):
    """(inputs that vary and results, inputs that are the same in all rows)."""
    from ...simulator.sweeps.points import INPUTS

    varying = [name for name in INPUTS if len({row.get(name) for row in rows}) > 1]
    told = [name for name in varying if not _follows(name, rows)]
    shown = [*told, *(name for name in (*RESULTS, "why_not")
                         if any(row.get(name) is not None for row in rows))]
    constant = {name: rows[0].get(name) for name in INPUTS if rows and name not in varying}
    return [{name: row[name] for name in shown} for row in rows], constant


def _follows(name, rows):
    """Whether a column only repeats another: kv_seq that is seq, the one profile of each GPU."""
    if name == "profile":
        return len({(row["gpu"], row[name]) for row in rows}) == len({row["gpu"] for row in rows})
    leader = {"kv_heads": "heads", "kv_seq": "seq", "value_dim": "head_dim"}.get(name)
    return leader is not None and all(row[name] in (None, row[leader]) for row in rows)


def _show(rows, constant, values):
    """Text; ``values`` is the column whose values a pivot has in its cells."""
    from ...simulator.sweeps.points import INPUTS
    from ..output import table

    if constant:
        print("the same in all rows: " + ", ".join(
            f"{name} {value}" for name, value in constant.items() if value is not None))
    if not rows:
        print("no rows")
        return
    names = list(rows[0])
    cells = [[_text(name if name in INPUTS else values or name, row[name])
              for name in names] for row in rows[:SHOWN]]
    print(table(names, cells))
    if len(rows) > SHOWN:
        print(f"… and {len(rows) - SHOWN:,} more rows: --where, --csv FILE")


def _text(name, value):
    from ..output import seconds, si

    if value is None:
        return "–"
    if name.endswith("bytes"):
        return si(value)
    if name.endswith("_s"):
        return seconds(value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST else f"{text[:WIDEST - 1]}…"
