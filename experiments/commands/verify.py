"""Kernels on a GPU against predictions: results, counted bytes, times and hardware counters.

  hbmeter verify --out h200.json     measure on this machine's GPU, minutes; resumes when stopped
  hbmeter verify --quick             a few small points
  hbmeter verify --only softmax,split_kv     those of the grid whose line has one of these words
  hbmeter verify --recorded          the same table from the measurements in the repository
  hbmeter verify --random --out errors.json
                                     errors of every kernel over random problems, a minute
  hbmeter verify --ncu mine.csv --schedule flash2 --seq 8192 --br 128 --bc 64
                                     your own kernel's export, one attention call, against it
  hbmeter verify --times mine.csv    your own times (columns seq, …, ms) against predictions
  hbmeter verify --torch trace.json --seq 8192
                                     the same from a torch profiler trace of one attention call

counted: bytes that kernels built with counting report; measured: hardware counters (medians of
repeats); predicted: the simulator, made anew each time. An export comes from
  ncu --csv --page raw --print-units base --metrics … python mine.py > mine.csv
Exits with 1 when a bar fails: results within the dtype's error limit; counted bytes equal to the
schedule's, tensor by tensor; SM reads within 0.1% of the counter where a kernel does not spill
(--ncu: SM bytes within 2%, DRAM reads within 15%). In the table * marks a kernel that spills.
"""

import argparse
import os
import re
import sys


def add_arguments(parser):
    """Where measurements come from, and the shape for --ncu."""
    from .. import options

    source = parser.add_mutually_exclusive_group()
    source.add_argument("--out", metavar="FILE", help="keep the measurements (JSON)")
    source.add_argument("--recorded", nargs="*", metavar="FILE",
                        help="no GPU: kept measurements, or those of these files")
    source.add_argument("--ncu", metavar="FILE.csv", help="no GPU: your Nsight Compute export")
    source.add_argument("--times", metavar="FILE.csv", help="no GPU: your own times by shape")
    source.add_argument("--torch", metavar="FILE.json", help="no GPU: your torch profiler trace")
    parser.add_argument("--quick", action="store_true", help="a few small points")
    parser.add_argument("--only", metavar="TEXT,…",
                        help="measure the points whose line in the table has one of these texts; "
                             "fresh: those drawn for the latest L2 model")
    parser.add_argument("--random", type=_repeats, nargs="?", const=200, metavar="N",
                        help="errors over N random problems instead (%(const)s): ragged, grouped, "
                             "masked, hard on a softmax; with --recorded those that are kept")
    parser.add_argument("--seed", type=int, default=0, metavar="S",
                        help="with --random: what they are drawn by (%(default)s)")
    parser.add_argument("--no-counters", action="store_true",
                        help="without Nsight Compute: results, times and counted bytes")
    parser.add_argument("--repeats", type=_repeats, default=3, metavar="N",
                        help="times that the counters are read (%(default)s)")
    group = parser.add_argument_group("with --ncu, --times or --torch")
    group.add_argument("--schedule", default="flash2", metavar="S",
                       help="of the exported kernel (%(default)s)")
    group.add_argument("--kernel", metavar="REGEX", help="only kernels with such a name")
    group.add_argument("--calls", type=_repeats, default=1, metavar="N",
                       help="attention calls in the export (%(default)s); sums are divided by it")
    options.add_shape(parser)
    parser.add_argument("--gpu", metavar="NAME|FILE.yaml",
                        help="profile to predict with (the measured GPU's; --ncu: h200)")
    options.add_tiles(parser)
    options.add_launch(parser)
    options.add_json(parser)


def _repeats(text):
    if not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1")
    return int(text)


def run(args):
    """Measure or read, compare, print."""
    if args.ncu is not None:
        return _own_export(args)
    if args.times is not None or args.torch is not None:
        return _own_times(args)
    _refuse_what_does_nothing(args)
    if args.random is not None:
        return _random(args)
    if args.recorded is not None:
        return _recorded(args)
    return _measure(args)


def _refuse_what_does_nothing(args):
    """Points of the grid, of records and at random have their own shapes, tiles and launches."""
    from ...simulator.errors import InputError
    from .. import options

    given = options.present(args, options.OF_POINT)
    if args.recorded is not None:
        given += [name for name in ("quick", "only", "no_counters") if getattr(args, name)]
    if given:
        raise InputError(f"{options.option(given[0])} does nothing here: the points of hbmeter "
                         "verify are its own; hbmeter traffic and predict take yours, and so do "
                         "--ncu, --times and --torch")


def _recorded(args):
    from ...kernels.errors import Unavailable
    from .. import records
    from ..files import reading

    found = [records.load(path) for path in args.recorded] or records.load_all()
    if not found:
        raise Unavailable("no measurements are kept in this installation: measure with "
                          "hbmeter verify --out FILE on a GPU, and read it with --recorded FILE")
    with reading(args.recorded, "a record of hbmeter verify"):
        return _report(args, found)


def _measure(args):
    from ...kernels import runner
    from ...simulator.errors import InputError
    from .. import grid, measure, records

    if args.out and os.path.isdir(args.out):  # known now rather than after minutes
        raise InputError(f"--out {args.out} is a folder; name a file")
    if args.only is None:
        runner.require_gpu()  # before the grid, whose making takes seconds
    points = grid.points(args.quick)
    if args.only is not None:  # a word that no point has is wrong on any machine
        points = grid.having(points, args.only.split(","))
        runner.require_gpu()
    document, why = measure.measure(points, args.out, counters=not args.no_counters,
                                    repeats=args.repeats)
    record = records.Record(args.out or "this machine", document["provenance"],
                            document["points"])
    failed = _report(args, [record])
    if why is not None:
        print(f"hbmeter: no hardware counters: {why}", file=sys.stderr)
    return failed or (3 if why is not None else 0)


def _random(args):
    """Errors over random problems, measured or kept; 1 when a kernel does not pass its bar."""
    from ..files import reading

    if args.recorded is None:
        return _report_errors(args, [_measure_errors(args)])
    with reading(args.recorded, "a record of hbmeter verify --random"):
        return _report_errors(args, _kept_errors(args))


def _report_errors(args, found):
    from .. import random_errors
    from ..output import print_json, table

    failed = [line for document in found for line in random_errors.failures(document["points"])]
    if args.json:
        print_json([{**document, "summary": random_errors.summary(document["points"])}
                    for document in found])
        return 1 if failed else 0
    for document in found:
        origin, points = document["provenance"], document["points"]
        print(f"{origin['gpu']}, driver {origin['driver']}, {origin['date']}: {len(points)} random "
              f"problems, seed {origin['seed']}")
        print(table(["kernel", "dtype", "problems", "worst error", "bar", "at"], [
            [row["kernel"], row["dtype"], row["problems"],
             "not finite" if row["worst"] is None else f"{row['worst']:.1e}", f"{row['bar']:g}",
             row["at"]] for row in random_errors.summary(points)], left=2))
    for line in failed:
        print(f"FAILED: {line}")
    if not failed:
        print("every bar passed")
    return 1 if failed else 0


def _kept_errors(args) -> list[dict]:
    from pathlib import Path

    from ...kernels.errors import Unavailable
    from .. import random_errors
    from ..files import read_json

    found = [{"name": Path(path).stem} | read_json(path, "a record of hbmeter verify --random")
             for path in args.recorded] or random_errors.recorded()
    if not found:
        raise Unavailable("no errors are kept in this installation: measure with "
                          "hbmeter verify --random --out FILE on a GPU")
    return found


def _measure_errors(args) -> dict:
    from ...kernels import runner
    from .. import measure, random_errors, records
    from ..files import output_file
    from ..progress import Progress

    cupy = runner.require_gpu()
    target = args.out and output_file(args.out)  # known now rather than after a minute
    cases = random_errors.cases(args.random, args.seed)
    about = records.provenance(cupy, None, measure.source_hash(), {"seed": args.seed})
    header = {key: about[key] for key in ("format", "gpu", "driver", "kernel_sources", "seed")}
    partial = records.Partial(target and f"{target}.partial", header)
    points = random_errors.measure(cases, partial, Progress(sys.stderr))
    document = records.document(about, points)
    if target:
        records.save(target, document)
        partial.finish()
    return document


def _report(args, found):
    """Print the comparison of records; 1 when a bar fails."""
    from itertools import count

    from .. import verify
    from ..output import print_json
    from ..progress import Progress

    progress = Progress(sys.stderr)
    progress.start("predicting", sum(len(record.points) for record in found))
    done = count(1)
    rows = [row for record in found
            for row in verify.comparison(record, verify.gpu_profile(record, args.gpu),
                                         lambda: progress.done(next(done)))]
    progress.end()
    failed = verify.failures(rows)
    if args.json:
        print_json({"provenance": [record.provenance for record in found], "points": rows,
                    "summary": verify.summary(rows), "failures": failed})
    else:
        _show(found, rows, failed)
    return 1 if failed else 0


def _show(found, rows, failed):
    from .. import verify

    for record in found:
        origin = record.provenance
        print(f"{record.name}: {record.gpu}, driver {origin.get('driver')}, ncu "
              f"{origin.get('ncu')}, {origin.get('date')}, revision {origin.get('git_revision')}")
    print(verify.table_text(rows))
    print()
    print(verify.summary_text(rows))
    models = sorted({row["l2_model"] for row in rows if row["l2_model"]})
    print(f"L2 and DRAM predicted by: {'; '.join(models) or 'no profile of this GPU (--gpu)'}")
    measured = sum(row["sm_read_measured"] is not None for row in rows)
    print(f"{len(rows)} points, {measured} with hardware counters; errors are (predicted − "
          "measured) / measured, spilling points left out of the summary")
    if unsteady := verify.unsteady_text(rows):
        print(unsteady)
    for line in failed:
        print(f"FAILED: {line}")
    if not failed:
        print("every bar passed")


def _own_export(args):
    from ...hwprofiles import load
    from .. import options, own_export
    from ..output import print_json

    launches = own_export.launches_of(args.ncu, args.kernel)
    problem, gpu = options.problem(args), load(args.gpu or "h200")
    point = own_export.predict(args.schedule, problem, gpu,
                               options.tiles(args, args.schedule, problem, gpu), args.order,
                               args.blocks_per_sm)
    rows = own_export.compare(launches, point, args.calls)
    failed = [row for row in rows if row["agrees"] is False]
    if args.json:
        print_json({"launches": [x.function for x in launches], "calls": args.calls,
                    "prediction": point, "boundaries": rows})
    else:
        _show_export(args, launches, point, rows, failed)
    return 1 if failed else 0


def _show_export(args, launches, point, rows, failed):
    from .. import options
    from ..output import si, table
    from ..verify import percent

    names = ", ".join(dict.fromkeys(x.function for x in launches))
    tiles = point["tiles"]
    print(f"{args.ncu}: {len(launches)} launch(es) of {names}, taken as {args.calls} call(s)")
    print(f"prediction: {point['schedule']} on {point['gpu']}, Br {tiles['br']}, Bc {tiles['bc']},"
          f" {point['blocks_per_sm']} block(s) per SM, "
          f"{options.order_text(point['order'])}; L2 model: {point['l2']['model']}")
    verdict = {True: "agrees", False: "DIFFERS", None: "–"}
    print(table(["boundary", "predicted", "measured", "error", ""], [
        [row["boundary"], *(si(row[x], "" if "sectors" in row["boundary"] else "B")
                            for x in ("predicted", "measured")),
         percent(row["error"], 2), verdict[row["agrees"]]]
        for row in rows
    ]))
    for row in rows:
        if row["note"]:
            print(f"{row['boundary']}: {row['note']}")
    if failed and len(launches) > args.calls:
        print("several launches are summed; if they are separate calls, give --calls N")


def _own_times(args):
    """Measured times beside bound and prediction; 1 when one beats its bound."""
    from ...hwprofiles import load
    from .. import options, own_times
    from ..output import print_json

    gpu = load(args.gpu or "h200")
    if args.torch is not None:
        problem = options.problem(args)
        seconds, by_name = own_times.read_torch_trace(args.torch, args.kernel)
        tiles = options.tiles(args, args.schedule, problem, gpu)
        times = [own_times.OwnTime(args.torch, problem, args.schedule, tiles,
                                   seconds / args.calls)]
    else:
        times, by_name = own_times.read_csv(args.times, args.schedule, options.given(args)), {}
    rows = [own_times.compare(own, gpu) for own in times]
    if args.json:
        print_json({"gpu": gpu.name, "kernels_s": by_name, "times": rows})
    else:
        _show_times(rows, gpu, by_name)
    return 1 if any(row["verdict"] == "impossible" for row in rows) else 0


def _show_times(rows, gpu, by_name):
    from ..output import seconds, table

    for name, value in by_name.items():
        print(f"{seconds(value)}  {name[:100]}")
    print(table(["schedule", "shape", "measured", "bound", "by", "predicted", "TFLOP/s", ""], [
        [row["schedule"], _shape_text(row["problem"]), seconds(row["measured_s"]),
         seconds(row["bound_s"]), row["limiter"], seconds(row["predicted_s"]),
         f"{row['tflops']:.1f}", row["verdict"] or "–"]
        for row in rows
    ], left=2))
    print(f"bound and prediction for {gpu.name}")
    for row in rows:
        if row["note"]:
            print(f"{row['where']}: {row['verdict']}: {row['note']}")


def _shape_text(p) -> str:
    return (f"{p['batch']}×{p['heads']}/{p['kv_heads']} {p['seq']}×{p['kv_seq']} "
            f"d{p['head_dim']} {p['dtype']} {p['mask']}")
