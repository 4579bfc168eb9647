"""Moving picture of a schedule: tiles crossing between HBM and the chip, bytes counting.

  hbmeter animate --out flash.html                     standard beside flash2
  hbmeter animate --schedule flash1 --mask causal --out flash1.gif

The player (.html) has play, pause and step; a .gif plays anywhere. Drawn from the tile program
that is counted everywhere else, run on real numbers.
"""


def add_arguments(parser):
    """Schedules, a small shape, tiles, the file."""
    from .. import options

    parser.add_argument("--schedule", nargs="+", default=["standard", "flash2"], metavar="S",
                        help="one, or several side by side (standard flash2)")
    parser.add_argument("--out", default="attention.html", metavar="FILE.html|FILE.gif",
                        help="file to write (%(default)s)")
    parser.add_argument("--seq", type=options.whole, default=64, metavar="N",
                        help="queries and keys (%(default)s)")
    parser.add_argument("--head-dim", type=options.whole, default=16, metavar="N",
                        help="length of a query, key and value (%(default)s)")
    parser.add_argument("--mask", default="full", metavar="MASK",
                        help="full, causal or window:W (%(default)s)")
    parser.add_argument("--br", type=options.whole, default=16, metavar="N",
                        help="rows of a query block (%(default)s)")
    parser.add_argument("--bc", type=options.whole, default=16, metavar="N",
                        help="columns: keys of a K,V block (%(default)s)")


def run(args):
    """Run the programs step by step and write the file."""
    import sys

    from ...simulator import schedules
    from ...simulator.errors import InputError
    from ...simulator.problem import Attention
    from ...simulator.tiles import Tiles
    from ..animation.panel import panel
    from ..files import output_file, write_atomic
    from ..progress import Progress

    kind = args.out.rpartition(".")[2].lower()
    if kind not in ("html", "gif"):
        raise InputError(f"--out {args.out}: the file's name must end in .html or .gif")
    target = output_file(args.out)
    problem = Attention(batch=1, heads=1, seq=args.seq, head_dim=args.head_dim, mask=args.mask)
    tiles = Tiles(args.br, args.bc, bk=min(32, args.head_dim))
    panels = [panel(schedules.build(name, problem, tiles), name) for name in args.schedule]
    progress = Progress(sys.stderr)
    if kind == "html":
        from ..animation.html import html

        heading = f"Attention, tile by tile: {' and '.join(args.schedule)}"
        content = html(panels, heading)
    else:
        from ..animation.gif import FRAMES, gif

        progress.start("drawing", FRAMES)
        content = gif(panels, lambda done: progress.step(done - 1, "frames"))
        progress.end()
    write_atomic(target, content)
    total = ", ".join(f"{p.schedule} {sum(s.bytes for s in p.steps):,} B" for p in panels)
    print(f"{args.out}: {total} over {problem.seq} tokens, head_dim {problem.head_dim}")
