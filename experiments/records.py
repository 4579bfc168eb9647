"""Recorded measurements: one JSON file each, with where its numbers come from.

A record is {"provenance": {…}, "points": [{"kernel", "problem", "tiles", "order", "attributes",
"error", "times_ms", "counted", "counters"}, …]}. It holds what was measured and counted on the
GPU, raw; predictions are made anew by whoever reads it. While measuring, results stream to
FILE.partial, a JSON line each, so that a run that was stopped goes on where it was.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..kernels.errors import Unavailable
from ..simulator.errors import InputError
from .files import read_json, write_atomic
from .grid import Point

FOLDER = Path(__file__).parent / "recorded"
FORMAT = 1
L2_SUFFIX = "-l2.json"  # of files in the same folder that hbmeter calibrate --l2 wrote
RATES_SUFFIX = "-calibration.json"  # and hbmeter calibrate
KEYS = ("kernel", "problem", "tiles", "order", "attributes", "error", "times_ms", "counted",
        "counters")


@dataclass(frozen=True)
class Record:
    """One file: its name, where it comes from and its points (dicts with ``KEYS``)."""

    name: str
    provenance: dict
    points: list[dict]

    @property
    def gpu(self) -> str:
        """The GPU's name as its driver gives it."""
        return self.provenance["gpu"]


def load(path) -> Record:
    """A record file. Raises InputError for a file that is none, OSError when it cannot be read."""
    document = read_json(path, "a record of hbmeter verify")
    try:
        provenance, points = document["provenance"], document["points"]
        if provenance["format"] != FORMAT:
            raise ValueError(f"format {provenance['format']!r}, this hbmeter reads {FORMAT}")
        _ = provenance["gpu"]
        for point in points:
            outputs = Point.of(point).results
            if missing := [key for key in KEYS if key not in point]:
                raise ValueError(f"a point lacks {', '.join(missing)}")
            _ = point["attributes"].values()  # read by verify, as is the error of each result
            _ = [point["error"][name]["relative"] for name in outputs]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a record of hbmeter verify: {error!r}") from error
    return Record(Path(path).stem, provenance, points)


def load_all() -> list[Record]:
    """Every record in ``recorded/``, by name; none is an empty list."""
    paths = sorted(path for path in FOLDER.glob("*.json")
                   if not path.name.endswith((L2_SUFFIX, RATES_SUFFIX)))
    return [load(path) for path in paths]


def documents(folder: Path) -> list[dict]:
    """Every record of a folder as its file has it, and its name: of measurements that are not
    points of verify."""
    return [{"name": path.stem} | json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(folder.glob("*.json"))]


def document(provenance: dict, points: list[dict]) -> dict:
    """A record as its file has it."""
    return {"provenance": provenance, "points": points}


def save(path, content: dict) -> None:
    """Write a record whole or not at all: no reader sees half a file."""
    write_atomic(path, _text(content))


def _text(content: dict) -> str:
    """JSON with one line a point, so that versions can be compared."""
    points = ",\n  ".join(json.dumps(point, allow_nan=False) for point in content["points"])
    provenance = json.dumps(content["provenance"], indent=1, ensure_ascii=False)
    return f'{{"provenance": {provenance},\n "points": [\n  {points}\n ]\n}}\n'


# ---- A run in progress ------------------------------------------------------------------------


@dataclass
class Partial:
    """FILE.partial: a header line (of which machine and kernels), then a line a result.

    A file of another machine, GPU or kernel source is started anew; without a path results are
    kept in memory only.
    """

    path: str | None
    header: dict
    results: dict = field(default_factory=dict)
    resumed: int = 0

    def __post_init__(self):
        if self.path is None:
            return
        lines = self._lines()
        if lines and lines[0] == self.header:
            self.results = {line["key"]: line["value"] for line in lines[1:]}
            self.resumed = len(self.results)
        with open(self.path, "w", encoding="utf-8") as file:  # without a line cut short
            file.write(json.dumps(self.header) + "\n")
            for key, value in self.results.items():
                file.write(json.dumps({"key": key, "value": value}) + "\n")

    def _lines(self) -> list[dict]:
        found = []
        if os.path.exists(self.path):
            for line in Path(self.path).read_text(encoding="utf-8").splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    break  # the line being written when the run was stopped
        return found

    def __contains__(self, key: str) -> bool:
        return key in self.results

    def __getitem__(self, key: str):
        return self.results[key]

    def put(self, key: str, value) -> None:
        """Keep a result, on disk too."""
        self.results[key] = value
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "value": value}) + "\n")

    def finish(self) -> None:
        """The record is written: the partial file is no longer needed."""
        if self.path is not None:
            os.remove(self.path)


# ---- Provenance -------------------------------------------------------------------------------


def run(main: Callable[[], object]) -> int:
    """The exit code of a script that measures and records: 3, and one line, where there is nothing
    to measure on."""
    try:
        main()
    except Unavailable as error:
        print(f"hbmeter: {error}", file=sys.stderr)
        return 3
    return 0


def provenance(cupy, ncu_version: str | None, kernel_hash: str, notes: dict) -> dict:
    """Where measurements come from; ``cupy`` as kernels.runner.require_gpu() returns it."""
    import numpy

    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return {
        "format": FORMAT,
        "gpu": name.decode() if isinstance(name, bytes) else name,
        "driver": _driver(cupy.cuda.Device().id),
        "cuda_driver_api": runtime.driverGetVersion(),
        "cuda_runtime": runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "ncu": ncu_version,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["hbmeter", *sys.argv[1:]]),
        "git_revision": git_revision(),
        "hbmeter": _own_version(),
        "kernel_sources": kernel_hash,
        **notes,
    }


def _own_version() -> str | None:
    try:
        return version("hbmeter")
    except PackageNotFoundError:
        return None


def _driver(device: int) -> str | None:
    """The driver's version as nvidia-smi prints it; None when it cannot say."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", f"--id={device}"]
    return _output(query)


def git_revision() -> str | None:
    """$HBMETER_REVISION, else the checkout's commit ("-dirty" when files differ), else None."""
    named = os.environ.get("HBMETER_REVISION")
    if named:
        return named
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = _output([*git, "rev-parse", "HEAD"])
    if commit is None:
        return None
    return commit + "-dirty" * bool(_output([*git, "status", "--porcelain"]))


def _output(command: list[str]) -> str | None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
