"""Figures and one self-contained page: traffic, block sizes and evidence for a shape on a GPU.

  hbmeter report --out report
  hbmeter report --out report --gpu a100-80gb --seq 2048 --head-dim 64 --mask causal

Writes DIR/index.html (nothing is fetched from elsewhere) and for each figure an SVG, a PNG and the
table behind it as CSV. With --json the answers, files and tables go to stdout.
"""


def add_arguments(parser):
    """Folder, shape, GPU."""
    from .. import options

    parser.add_argument("--out", required=True, metavar="DIR",
                        help="folder for the page and the figures; created when absent")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_json(parser)


def run(args):
    """Run every experiment, then write the page."""
    from .. import options
    from ..files import output_folder, write_atomic
    from ..output import print_json

    problem, gpu = options.problem_and_gpu(args)
    folder = output_folder(args.out)
    from .. import report

    results = report.run_all(problem, gpu, folder, _progress)
    document = report.html(results, problem, gpu, _provenance(gpu))
    write_atomic(folder / report.PAGE, document)
    if args.json:
        print_json({
            "out": str(folder), "page": report.PAGE, "gpu": gpu.name,
            "answers": report.answers(results),
            "experiments": {r.name: {"files": r.files, "table": r.table} for r in results},
        })
        return
    for line in report.answers(results):
        print(line)
    print(f"{folder / report.PAGE}")


def _progress(text: str):
    """One line on stderr for people who watch."""
    import sys

    if sys.stderr.isatty():
        print(f"hbmeter report: {text}", file=sys.stderr)


def _provenance(gpu) -> dict[str, str]:
    import platform
    import shlex
    import sys
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "matplotlib"))
    return {
        "made by": f"hbmeter {version('hbmeter')} (Python {platform.python_version()}, {packages})",
        "command": shlex.join(["hbmeter", *sys.argv[1:]]),
        "profile": f"{gpu.name}: {gpu.full_name}",
    }
