"""Measure the L2 of this machine's GPU, and hold the cache model against it.

  hbmeter calibrate --l2                     measure and compare, under a minute or so
  hbmeter calibrate --l2 --out my-gpu.yaml   also write a profile with the L2 facts measured here,
                                             and the raw values beside it as my-gpu.json
  hbmeter calibrate --l2 --out mine.json     the raw values only
  hbmeter calibrate --recorded               the same table from the measurements in the repository
  hbmeter calibrate --recorded mine.json --out my-gpu.yaml

Only --l2 exists so far: which SMs are on which side of the L2, how many cycles are near and far,
which addresses share a home, how much may be dirty, and DRAM bytes of scans that read and write
private and shared buffers (Nsight Compute, caches flushed before each, clocks left alone, medians
of 3 runs). The L2 model runs the same accesses. Its errors are (model − measured) / measured; not
judged: DRAM traffic under 5% of the buffers, and sizes within 4/60 of the L2 (4 MiB on an H200) of
the knee, the size where a curve crosses its middle. The summary says how many of the others are
within 5%; the exit code does not depend on it.
"""


def add_arguments(parser):
    """What to measure and where it goes."""
    from .. import options

    source = parser.add_mutually_exclusive_group()
    source.add_argument("--l2", action="store_true", help="measure the L2 (needs a GPU, CuPy, ncu)")
    source.add_argument("--recorded", nargs="*", metavar="FILE",
                        help="no GPU: kept measurements, or those of these files")
    parser.add_argument("--out", metavar="FILE",
                        help="X.yaml: the GPU's profile with what was measured; X.json: raw values")
    parser.add_argument("--gpu", metavar="NAME|FILE.yaml",
                        help="profile to copy and to run the model with (the measured GPU's)")
    options.add_json(parser)


def run(args):
    """Measure or read, write, print."""
    from ...hwprofiles import load
    from ...simulator.errors import InputError

    if not args.l2 and args.recorded is None:
        raise InputError("only the L2 can be calibrated so far: give --l2 (on a GPU machine) or "
                         "--recorded")
    out = _place(args.out, args.l2)
    if args.gpu is not None:
        load(args.gpu)  # a mistake in it is known now rather than after a minute
    records = [_measured(out)] if args.l2 else _recorded(args.recorded)
    if out is not None and out.suffix != ".json":
        _write_profile(out, records, args.gpu)
    _show(args, records)


def _place(out, measuring):
    """--out as a path, judged now rather than after a minute."""
    from pathlib import Path

    from ...simulator.errors import InputError

    if out is None:
        return None
    path = Path(out)
    valid = (".yaml", ".yml", ".json") if measuring else (".yaml", ".yml")
    if path.suffix.lower() not in valid:
        raise InputError(f"--out {out}: name a file that ends in {', '.join(valid)}")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--out {out}: {'is' if path.is_dir() else 'not in'} a folder")
    return path


def _measured(out):
    from .. import calibrate, l2_measure
    from ..files import write_atomic

    document = l2_measure.measure()
    if out is not None:
        write_atomic(out.with_suffix(".json"), calibrate.text(document))
    return calibrate.record(out.stem if out else "this machine", document)


def _recorded(paths):
    from ...kernels.errors import Unavailable
    from .. import calibrate

    found = [calibrate.load(path) for path in paths] or calibrate.load_all()
    if not found:
        raise Unavailable("no L2 measurements are kept in this installation: measure with "
                          "hbmeter calibrate --l2 --out FILE.json on a GPU")
    return found


def _write_profile(out, records, name):
    from ...hwprofiles import load, loader
    from ...simulator.errors import InputError
    from .. import calibrate, profile_copy
    from ..files import write_atomic

    if len(records) != 1:
        raise InputError(f"--out {out}: a profile is of one record; give --recorded FILE")
    record, = records
    base = name or record.gpu
    load(base)  # says what is wrong with it, or which names there are
    path = loader.find(base)
    write_atomic(out, profile_copy.with_l2_facts(
        path.read_text(encoding="utf-8-sig"), calibrate.derived(record), record.provenance,
        str(out)))


def _show(args, records):
    from .. import calibrate, l2_table
    from ..output import print_json
    from ..verify import gpu_profile

    found = []
    for record in records:
        gpu = gpu_profile(record, args.gpu)
        found.append((record, calibrate.derived(record),
                      calibrate.model_curves(gpu, record) if gpu else []))
    if args.json:
        print_json({"records": [
            {"provenance": record.provenance, "derived": derived, "curves": rows,
             "summary": calibrate.summary(rows)} for record, derived, rows in found]})
        return
    print("\n\n".join(l2_table.text(*parts) for parts in found))
