"""Measure this machine's GPU into a profile: rates, latencies, and how its L2 behaves.

  hbmeter calibrate                          measure rates and latencies, about half a minute
  hbmeter calibrate --out my-gpu.yaml        also write a profile with them in its measured
                                             section, and the raw values beside it as my-gpu.json
  hbmeter calibrate --out mine.json          the raw values only
  hbmeter calibrate --l2                     which SMs are on which side of the L2, what stays in
                                             it, and the cache model beside that (needs ncu)
  hbmeter calibrate --l2 merging --out merging.json
                                             one probe of how the L2 serves requests and replaces
                                             lines: arrivals, clocks, merging, pace,
                                             phases or sets
  hbmeter calibrate --recorded               both tables from the measurements in the repository
  hbmeter calibrate --recorded mine.json --out my-gpu.yaml

Rates and latencies: DRAM, L2 (against footprint), shared memory (against the distance of lanes),
pointer chases, FMA, exp2, mma.sync and wgmma by type, launches, clocks under load; medians of 7
repeats, clocks left alone. Datasheet values stay as they are, and a rate above what the GPU can do
is refused as mis-measured (exit code 1). --gpu names the profile to write a copy of and to compare
with, where the measured GPU has none under its own name.

--l2: which SMs are on which side, how many cycles are near and far, which addresses share a home,
how much may be dirty, and DRAM bytes of scans that read and write private and shared buffers
(Nsight Compute, caches flushed before each, clocks left alone, medians of 3 runs). The L2 model
runs the same accesses. Its errors are (model − measured) / measured; not judged: DRAM traffic under
5% of the buffers, and sizes within 4/60 of the L2 (4 MiB on an H200) of the knee, the size where a
curve crosses its middle. The summary says how many of the others are within 5%; the exit code does
not depend on it.

--l2 PROBE: SMs that read the same lines, close in time (merging, needs ncu); how unequal blocks of
equal work are (pace); blocks that walk one buffer by the clock, in step or spread (phases, needs
ncu); which lines share a set, and what is there when SMs touch them (sets); how long tiles take
from L2 and from DRAM (arrivals); how far apart the GPCs' own clocks get under load (clocks, needs
wgmma). Its record is raw values; a run that was stopped goes on where it was.
"""


SCANS = "scans"  # what --l2 alone measures


def add_arguments(parser):
    """What to measure and where it goes."""
    from .. import options

    source = parser.add_mutually_exclusive_group()
    source.add_argument("--l2", nargs="?", const=SCANS, metavar="PROBE",
                        help="measure the L2, or by one probe of its own (needs a GPU, CuPy, ncu)")
    source.add_argument("--recorded", nargs="*", metavar="FILE",
                        help="no GPU: kept measurements, or those of these files")
    parser.add_argument("--out", metavar="FILE",
                        help="X.yaml: the GPU's profile with what was measured; X.json: raw values")
    parser.add_argument("--gpu", metavar="NAME|FILE.yaml",
                        help="profile to copy, to compare with and to run the L2 model with (the "
                             "measured GPU's)")
    options.add_json(parser)


def run(args):
    """Measure or read, write, print."""
    from ...hwprofiles import load
    from ..files import reading

    probe = args.l2 not in (None, SCANS)
    out = _place(args.out, args.recorded is None, probe)
    if args.gpu is not None:
        load(args.gpu)  # a mistake in it is known now rather than after a minute
    if args.recorded is None:
        return _report(args, out, [_measured(out, args.l2)], False)
    with reading(args.recorded, "a record of hbmeter calibrate"):
        return _report(args, out, _recorded(args.recorded), _are_kept(args.recorded))


def _report(args, out, records, kept):
    """Write and print what records say; 1 when a rate is refused."""
    found = [_Shown.of(record, args.gpu, kept) for record in records]
    if out is not None and out.suffix != ".json":
        _write_profile(out, found, args.gpu)
    if args.json:
        from ..output import print_json

        print_json({"records": [shown.document for shown in found]})
    else:
        print("\n\n".join(shown.text for shown in found))
    return 1 if any(shown.refused for shown in found) else 0


def _place(out, measuring, probe):
    """--out as a path, judged now rather than after a minute."""
    from pathlib import Path

    from ...simulator.errors import InputError

    if out is None:
        return None
    path = Path(out)
    valid = (".json",) if probe else (".yaml", ".yml", ".json") if measuring else (".yaml", ".yml")
    if path.suffix.lower() not in valid:
        raise InputError(f"--out {out}: name a file that ends in {', '.join(valid)}")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--out {out}: {'is' if path.is_dir() else 'not in'} a folder")
    return path


def _measured(out, l2):
    from .. import calibrate, counted, l2_measure, rates_measure, rates_record
    from ..files import write_atomic

    if l2 not in (None, SCANS):
        document = counted.measure(l2, out)
        if out is not None:
            write_atomic(out, counted.text_of(document))
        return counted.record(document)
    kind, measuring = (calibrate, l2_measure) if l2 else (rates_record, rates_measure)
    document = measuring.measure()
    if out is not None:
        write_atomic(out.with_suffix(".json"), kind.text(document))
    return kind.record(out.stem if out else "this machine", document)


def _recorded(paths):
    from ...kernels.errors import Unavailable
    from .. import calibrate, counted, rates_record

    kinds = (rates_record, counted)
    found = [next((kind for kind in kinds if kind.recognises(path)), calibrate).load(path)
             for path in paths] or [*rates_record.load_all(), *calibrate.load_all()]
    if not found:
        raise Unavailable("no measurements are kept in this installation: measure with hbmeter "
                          "calibrate --out FILE.json on a GPU")
    return found


def _are_kept(paths):
    """Whether hbmeter itself keeps all these files (none: its own)."""
    from pathlib import Path

    from .. import records

    return all(Path(path).resolve().parent == records.FOLDER.resolve() for path in paths)


class _Shown:
    """A record as it is printed and as it goes into a profile."""

    refused = False

    def __init__(self, record, text, document, into):
        self.record, self.text, self.document, self.into = record, text, document, into

    @classmethod
    def of(cls, record, name, kept):
        from .. import counted, rates_record

        if isinstance(record, rates_record.Record):
            return cls._rates(record, name, kept)
        if isinstance(record, counted.Record):
            return cls(record, counted.text(record),
                       {"provenance": record.provenance, **record.parts}, _nothing)
        return cls._l2(record, name)

    @classmethod
    def _l2(cls, record, name):
        from .. import calibrate, l2_table, profile_copy
        from ..verify import gpu_profile

        gpu, derived = gpu_profile(record, name), calibrate.derived(record)
        rows = calibrate.model_curves(gpu, record) if gpu else []
        document = {"provenance": record.provenance, "derived": derived, "curves": rows,
                    "summary": calibrate.summary(rows)}
        return cls(record, l2_table.text(record, derived, rows), document,
                   lambda text, source: profile_copy.with_l2_facts(
                       text, derived, record.provenance, source))

    @classmethod
    def _rates(cls, record, name, kept):
        from .. import profile_copy, rates_record, rates_table
        from ..verify import gpu_profile

        gpu = gpu_profile(record, name)
        judged = rates_record.judge(record.facts, gpu)
        misses = rates_record.occupancy_misses(record, gpu) if gpu else (0, 0)
        document = {"provenance": record.provenance,
                    "measured": [rates_table.document(item) for item in judged],
                    "occupancy": {"launches": misses[1], "unlike_the_runtime": misses[0]}}
        standing = [item.fact for item in judged if not item.refusal]
        shown = cls(record, rates_table.text(record, judged, misses), document,
                    lambda text, source: profile_copy.with_facts(
                        text, standing, record.provenance, source, kept))
        shown.refused = len(standing) < len(judged)
        return shown


def _nothing(text, source):
    """A profile with what a counted probe says of it: people read that."""
    from ...simulator.errors import InputError

    raise InputError(f"--out {source}: records of hbmeter calibrate --l2 PROBE have raw values, "
                     "which go into no profile by themselves")


def _write_profile(out, found, name):
    """The profile with what all records say; they must be of one GPU."""
    from ...hwprofiles import load, loader
    from ...simulator.errors import InputError
    from ..files import write_atomic

    gpus = sorted({shown.record.gpu for shown in found})
    if len(gpus) != 1:
        raise InputError(f"--out {out}: a profile is of one GPU, the records are of "
                         f"{', '.join(gpus)}; give --recorded FILE")
    base = name or gpus[0]
    load(base)  # says what is wrong with it, or which names there are
    text = loader.find(base).read_text(encoding="utf-8-sig")
    for shown in found:
        text = shown.into(text, str(out))
    write_atomic(out, text)
