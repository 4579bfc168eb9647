"""Claims about attention, tested: which hold, where, by count and by measurement.

  hbmeter claims                      all of them, a verdict each
  hbmeter claims 2 11                 some, with the numbers behind the verdict
  hbmeter claims --html claims.html   one page with pictures, nothing fetched from elsewhere

Verdicts are computed from counts of tile programs, predictions, the recorded measurements and
published tables: holds, holds where …, does not hold.
"""


def add_arguments(parser):
    """Which claims, and where to."""
    from .. import options

    parser.add_argument("numbers", nargs="*", type=options.whole, metavar="N",
                        help="numbers of claims, shown in detail (all, in short)")
    parser.add_argument("--html", metavar="FILE", help="write one page with every number")
    options.add_json(parser)


def run(args):
    """Judge, and print or write."""
    import sys

    from .. import claims, claims_page
    from ..files import output_file, write_atomic
    from ..output import print_json
    from ..progress import Progress

    names = claims.chosen(args.numbers)
    target = None if args.html is None else output_file(args.html)  # known before the work
    progress, found = Progress(sys.stderr), []
    progress.start("judging claims", len(names))
    for number, name in enumerate(names):
        progress.step(number, claims.statement(name))
        found.append(claims.judged(name))
    progress.end()
    if target:
        write_atomic(target, claims_page.html(found))
    if args.json:
        print_json([claim.document for claim in found])
    elif target:
        print(f"wrote {target}")
    elif args.numbers:
        for claim in found:
            _show(claim)
    else:
        _show_all(found)


def _show_all(found):
    for claim in found:
        _wrapped(f"{claim.number:>2}  {claim.statement}", "    ")
        _wrapped(f"    {claim.verdict_words}", "    ")
        _wrapped(f"    {claim.finding.because}", "    ")
        print()
    print("hbmeter claims N shows the numbers behind a verdict")


def _show(claim):
    from ..claims import how
    from ..claims_page import value_words
    from ..output import table

    for text in (f"{claim.number}. {claim.statement}", claim.verdict_words,
                 claim.finding.because, f"How: {how(claim.name)}"):
        _wrapped(text, "")
    rows = [[n.label, n.what, value_words(n)] for n in claim.finding.numbers]
    print(table(["", "", "value"], rows, left=2), end="\n\n")


def _wrapped(text: str, indent: str):
    import textwrap

    print(textwrap.fill(text, 100, subsequent_indent=indent))
