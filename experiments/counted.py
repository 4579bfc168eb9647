"""Counted probes of an L2: measured on this machine's GPU, read back, shown.

A record is {"provenance": {…}, PART: [launches]}: of each launch what was asked, as the probe's
``parts()`` has it, and what a profiler counted or the launch timed. A file is told by its parts.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..kernels import probes
from ..kernels.errors import Unavailable
from ..kernels.probes.counted import Part
from ..simulator.errors import InputError, unknown_name
from . import ncu, records
from .counted_child import PROGRESS
from .files import read_json
from .output import table
from .progress import Progress

CHILD = f"{__package__}.counted_child"
WHAT = "a record of hbmeter calibrate --l2"


@dataclass(frozen=True)
class Record:
    """One file: the probe that made it, where it comes from, its launches by part."""

    probe: str
    provenance: dict
    parts: dict[str, list[dict]]

    @property
    def gpu(self) -> str:
        """The GPU's name as its driver gives it."""
        return self.provenance["gpu"]


def probe_of(document) -> str | None:
    """The probe whose parts a document has; None for another document."""
    if isinstance(document, dict):
        for name in probes.profiled():
            if {*document} - {"provenance"} == {*probes.get(name).parts()}:
                return name
    return None


def recognises(path) -> bool:
    """Whether a file is a record of a counted probe, whole or not."""
    try:
        return probe_of(read_json(path, WHAT)) is not None
    except (OSError, ValueError):
        return False


def load(path) -> Record:
    """A record file. Raises InputError for a file that is none, OSError when it cannot be read."""
    document = read_json(path, WHAT)
    try:
        return record(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not {WHAT}: {error!r}") from error


def record(document: dict) -> Record:
    """A document as measured or read; raises ValueError, KeyError or TypeError for another."""
    name = probe_of(document)
    if name is None:
        raise ValueError("no probe has its parts")
    found = Record(name, document["provenance"], {part: document[part] for part in
                                                  probes.get(name).parts()})
    text(found)  # all that is shown of it is there
    return found


def text_of(document: dict) -> str:
    """A record as JSON, one line a launch, so that versions can be compared."""
    lines = [f'"provenance": {json.dumps(document["provenance"], indent=1, ensure_ascii=False)}']
    lines += [f'"{part}": [\n  ' + ",\n  ".join(json.dumps(x, allow_nan=False) for x in launches)
              + "\n ]" for part, launches in document.items() if part != "provenance"]
    return "{" + ",\n ".join(lines) + "}\n"


# ---- Measuring --------------------------------------------------------------------------------


def measure(name: str, out: str | None) -> dict:
    """The record document of a probe on this GPU; parts and repeats that are done are kept in
    ``out``.partial, from where a run that was stopped goes on.

    Raises InputError for a probe that is none, Unavailable without a GPU, CuPy, ncu or counters.
    """
    from ..kernels import runner
    from ..kernels.probes import bench

    if name not in probes.profiled():
        raise unknown_name("L2 probe", name, probes.profiled())
    cupy, probe, path = runner.require_gpu(), probes.get(name), ncu.find_for("the L2 probes")
    notes = {"format": f"counted {name} 1", "how": probe.HOW}
    provenance = records.provenance(cupy, ncu.version(path), bench.source_hash(), notes)
    header = {key: provenance[key] for key in ("format", "gpu", "driver", "kernel_sources")}
    partial, progress = records.Partial(out and f"{out}.partial", header), Progress(sys.stderr)
    if partial.resumed:
        progress.note(f"going on from {out}.partial, which has {partial.resumed} results")
    try:
        found = {key: _part(path, name, key, part, partial, progress)
                 for key, part in probe.parts().items()}
    finally:
        progress.end()
    partial.finish()
    return {"provenance": provenance, **found}


def _part(path: str, name: str, key: str, part: Part, partial: records.Partial,
          progress: Progress) -> list[dict]:
    """The launches of a part with what was counted, or timed, of each."""
    for repeat in range(part.repeats):
        if f"{key} {repeat}" not in partial:
            progress.start(f"{name}, {key}, run {repeat + 1} of {part.repeats}",
                           len(part.launches))
            run = _count if part.counters else _time
            partial.put(f"{key} {repeat}", run(path, name, key, part, progress))
    runs = [partial[f"{key} {repeat}"] for repeat in range(part.repeats)]
    if part.repeats == 1:
        return [launch | found for launch, found in zip(part.launches, runs[0], strict=True)]
    return [launch | {what: [found[what] for found in several] for what in several[0]}
            for launch, *several in zip(part.launches, *runs, strict=True)]


def _time(path: str, name: str, key: str, part: Part, progress: Progress) -> list[dict]:
    """What the launches themselves say."""
    from ..kernels.probes.bench import Bench

    launch, found = probes.get(name).launcher(Bench(), key), []
    for number, entry in enumerate(part.launches):
        progress.step(number, part.words(entry))
        found.append(launch(entry))
    return found


def _count(path: str, name: str, key: str, part: Part, progress: Progress) -> list[dict]:
    """Counters of each launch, from one run of all of them."""
    def on_line(line: str) -> None:
        if line.startswith(PROGRESS):
            number = int(line.removeprefix(PROGRESS))
            progress.step(number, part.words(part.launches[number]))

    with tempfile.TemporaryDirectory(prefix="hbmeter-") as folder:
        spec = Path(folder) / "launches.json"
        spec.write_text(json.dumps(part.launches), encoding="utf-8")
        try:
            answer = ncu.profile(path, CHILD, [str(spec), name, key],
                                 tuple(part.counters.values()), on_line)
        except InputError as error:  # a table that cannot be read is no mistake of the user
            raise Unavailable(f"ncu gave no counters: {error}") from error
    if [launch.function for launch in answer.launches] != [part.entry] * len(part.launches):
        raise Unavailable(f"ncu profiled {len(answer.launches)} launches, {len(part.launches)} "
                          "were run")
    if answer.dropped:
        raise Unavailable(f"this GPU has no counter {', '.join(sorted(answer.dropped))}")
    return [{what: ncu.value(launch, counter) for what, counter in part.counters.items()}
            for launch in answer.launches]


# ---- Showing ----------------------------------------------------------------------------------


def text(found: Record) -> str:
    """The record for people: a line a launch, medians of its repeats."""
    origin = found.provenance
    lines = [f"{found.probe} on {found.gpu}, {origin['date'][:10]}: {origin['how']}"]
    for name, part in probes.get(found.probe).parts().items():
        rows = [(part.words(launch), part.row(launch)) for launch in found.parts[name]]
        lines += ["", table([name, *rows[0][1]],
                            [[words, *map(_cell, row.values())] for words, row in rows])]
    return "\n".join(lines)


def _cell(value) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.4g}"
