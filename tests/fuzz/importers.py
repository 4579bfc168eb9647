"""One function for every file and text that hbmeter reads from others: whatever the bytes, it
answers or raises an error of ours whose text is short.

The first byte of a fuzz input chooses the importer, the rest is the file. What was read is used a
little too, since a value that is refused nowhere must not fail later.
"""

import json
import math
import os
import sqlite3
import tempfile
from itertools import islice
from pathlib import Path

from hbmeter.experiments import ncu_csv, own_export, own_times, records
from hbmeter.hwprofiles import ProfileError, load
from hbmeter.hwprofiles.loader import parse
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator import Attention, Tiles, model_config, traffic
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.grid_order import Swizzle, read
from hbmeter.simulator.sweeps import spec, where

OURS = (ProfileError, InputError, Unavailable)
MOST_CHARS = 20_000  # 50 mistakes of a profile, each with its remedy
SMALL = 1 << 20  # (query, key) pairs that are counted here


def profile(data, path):
    """A GPU's YAML, and a count on that GPU."""
    gpu = parse(data, "gpu.yaml")
    point = traffic("flash2", Attention(1, 2, 256, 64), gpu, Tiles(64, 64), engine="scratchpad")
    assert math.isfinite(point["time"]["bound_s"]) and point["time"]["bound_s"] > 0


def sweep_spec(data, path):
    """A sweep's YAML, and its first points."""
    path.write_bytes(data)
    assert len(list(islice(spec.read(path).points(), 3))) > 0


def model(data, path):
    """A model's config.json, and its cache."""
    path.write_bytes(data)
    found = model_config.read(str(path))
    assert found.cache_bytes(4096, 2) >= 0 and sum(map(len, found.kinds.values())) > 0
    json.dumps(found.name)


def ncu_export(data, path):
    """An Nsight Compute CSV, against the counters of one call."""
    path.write_bytes(data)
    launches = own_export.launches_of(path, None)
    point = traffic("flash2", Attention(1, 1, 64, 16), load("h200"), Tiles(64, 64),
                    engine="scratchpad")
    own_export.compare(launches, point)
    ncu_csv.missing_metrics(data.decode("utf-8", errors="replace"))


def times(data, path):
    """A CSV of times, and the verdict on small shapes."""
    path.write_bytes(data)
    for row in own_times.read_csv(str(path), "flash2", {})[:2]:
        if row.problem.head_count * row.problem.seq * row.problem.kv_seq <= SMALL:
            own_times.compare(row, load("h200"))


def torch_trace(data, path):
    """A torch profiler trace."""
    path.write_bytes(data)
    seconds, by_name = own_times.read_torch_trace(str(path), None)
    assert seconds > 0 and by_name


def record(data, path):
    """A record of hbmeter verify."""
    path.write_bytes(data)
    records.load(path)


def mask(data, path):
    """A mask's text, and what it lets see."""
    problem = Attention(1, 1, 96, 16, kv_seq=160, mask=data.decode("utf-8", errors="replace"))
    assert 0 <= problem.pairs <= 96 * 160 and 0 <= problem.keys_seen <= 160


def order(data, path):
    """A grid order, as a .npy file and as text."""
    for suffix in (".npy", ".csv"):
        named = path.with_suffix(suffix)
        try:
            named.write_bytes(data)
            found = read(str(named))
            assert isinstance(found, Swizzle)
            assert sorted(found.blocks.tolist()) == list(range(len(found.blocks)))
        except InputError as error:
            assert 0 < len(str(error)) <= MOST_CHARS
        finally:
            named.unlink(missing_ok=True)


def filter_words(data, path):
    """A filter of hbmeter table, which SQLite must take."""
    condition, values = where.sql(data.decode("utf-8", errors="replace"), ["seq", "schedule"])
    table = sqlite3.connect(":memory:")
    table.execute("create table points (seq, schedule)")
    table.execute(f"select * from points where {condition}", values).fetchall()


IMPORTERS = {"p": profile, "s": sweep_spec, "m": model, "n": ncu_export, "t": times,
             "j": torch_trace, "r": record, "k": mask, "o": order, "w": filter_words}


def take(data: bytes):
    """Run one fuzz input. Raises AssertionError, or what an importer lets out."""
    if not data:
        return
    names = list(IMPORTERS)
    name = chr(data[0]) if chr(data[0]) in IMPORTERS else names[data[0] % len(names)]
    folder = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())
    path = folder / f"hbmeter-fuzz-{os.getpid()}"
    try:
        IMPORTERS[name](data[1:], path)
    except OURS as error:
        text = str(error)
        assert 0 < len(text) <= MOST_CHARS, f"{len(text)} characters: {text[:200]}"
    finally:
        path.unlink(missing_ok=True)
