"""Schedules: list them, or print one as a tile program for a shape.

  hbmeter schedules
  hbmeter schedules flash2 --seq 4096 --mask causal --br 128 --bc 64
"""


def add_arguments(parser):
    """An optional schedule name, with shape and tiles."""
    from ..options import add_gpu, add_json, add_shape, add_tiles

    parser.add_argument("name", nargs="?", help="schedule to print")
    add_shape(parser)
    add_gpu(parser)
    add_tiles(parser)
    add_json(parser)


def run(args):
    """Print the list, or a program's text."""
    from ...simulator import schedules
    from .. import options
    from ..output import print_json, table

    if args.name is None:
        titles = {name: schedules.title(name) for name in schedules.names()}
        if args.json:
            print_json(titles)
        else:
            print(table(["schedule", "what it is"], list(titles.items()), left=2))
        return
    from ...simulator.printer import to_text

    problem = options.problem(args)
    schedules.get(args.name)
    tiles = options.tiles(args, args.name, problem, options.profile(args))
    text = to_text(schedules.build(args.name, problem, tiles))
    if args.json:
        print_json({"schedule": args.name, "text": text})
    else:
        print(text)
