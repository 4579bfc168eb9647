"""One point of a sweep: the key that names it for good, and its row of inputs and results."""

import hashlib
import json
import os
from dataclasses import fields
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import blocks, jit, schedules
from ..errors import InputError
from ..grid_order import is_file
from ..mask_forms import file_of
from ..point import describe, traffic
from ..problem import Attention
from ..tiles import Tiles
from .spec import SHAPE_FIELDS, TILES

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

_SHAPE = tuple((f.name, SHAPE_FIELDS.get(f.name, f.name)) for f in fields(Attention))
_LAUNCH = (*TILES, "order", "blocks_per_sm", "engine", "times")
INPUTS = ("gpu", "schedule", *(name for _, name in _SHAPE), *_LAUNCH, "code", "profile")
_shape_of, _launch_of = itemgetter(*(name for _, name in _SHAPE)), itemgetter(*_LAUNCH)
_LEFT_TO_US = ("br", "bc", "blocks_per_sm")  # chosen by the tool when absent
_UNPREFIXED = ("problem", "tiles", "time")  # parts of a point whose names say enough
_PARTS = ("l2", "dram")  # None, and then without a cell, where not computed
_profiles: dict[str, Any] = {}  # profile hash -> Profile, for the cache of chosen tiles


def profile_hash(profile: "Profile") -> str:
    """16 hexadecimal digits that change with any value of a GPU's Profile."""
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()[:16]


def key(values: dict[str, Any], profile: str) -> str:
    """The point's name: 32 hexadecimal digits of its values (defaults filled in; what the file of
    a mask or an order holds, not where it lies), the hash of its GPU's profile, and the version of
    the code that computes it. Raises InputError when the file cannot be read."""
    shape = list(_shape(values["schedule"], _shape_of(values)))
    file = file_of(values["mask"])
    if file is not None:
        shape = [_digest(file) if part == values["mask"] else part for part in shape]
        shape.append(values["mask"].replace(file, ""))
    if is_file(values["order"]):
        values = values | {"order": _digest(values["order"])}
    point = [jit.CODE_VERSION, profile, values["schedule"], *shape, *_launch_of(values)]
    return hashlib.blake2b(json.dumps(point).encode(), digest_size=16).hexdigest()


def _files(values: dict[str, Any]) -> list[str]:
    """The files that a point reads: its mask's, its order's."""
    order = values["order"] if is_file(values["order"]) else None
    return [file for file in (file_of(values["mask"]), order) if file is not None]


def _digest(file: str) -> str:
    """A hash of what a file holds."""
    try:
        state = os.stat(file)
        return _digest_of(file, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise InputError(f"file {file}: {error.strerror}") from None


@lru_cache(maxsize=1000)
def _digest_of(file: str, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


@lru_cache(maxsize=10_000)
def _shape(schedule: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape with its defaults filled in, or as it is where no attention has it."""
    try:
        problem = _problem(schedule, given)
    except InputError:
        return given
    return tuple(getattr(problem, field) for field, _ in _SHAPE)


def _problem(schedule: str, given: tuple[Any, ...]) -> Attention:
    shape = {field: value for (field, _), value in zip(_SHAPE, given, strict=True)}
    shape["direction"] = shape["direction"] or schedules.direction(schedule)
    return Attention(**shape)


def compute(tasks: list[tuple[str, dict[str, Any]]],
            profiles: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The rows of (key, values) pairs and the version of the code that computed them.

    ``profiles`` maps what values call their GPU to (hash, Profile). Raises InputError when the file
    of a mask or an order is not what it was when the keys were made.
    """
    rows = []
    for name, values in tasks:
        profile, gpu = profiles[values["gpu"]]
        rows.append({"key": name, "code": jit.CODE_VERSION, **row(values, profile, gpu)})
        files = _files(values)
        if files and key(values, profile) != name:
            raise InputError(f"{' or '.join(files)} changed during the sweep, or is another on a "
                             "worker; rows so far are kept")
    return jit.CODE_VERSION, rows


def row(values: dict[str, Any], profile_name: str, gpu: "Profile") -> dict[str, Any]:
    """The point's row: flat, a column for each input and result; None where not computed.

    ``why_not`` says why a point has no results: tiles that do not fit, heads that do not divide.
    ``chosen`` names the inputs that the tool chose.
    """
    inputs = {"profile": profile_name, "gpu": gpu.name, "schedule": values["schedule"],
              **{name: values[name] for _, name in _SHAPE},
              **{name: values[name] for name in _LAUNCH},
              "chosen": " ".join(name for name in _LEFT_TO_US if values[name] is None),
              "why_not": None}
    try:
        problem = _problem(values["schedule"], _shape_of(values))
        inputs |= describe(problem)
        found = traffic(
            values["schedule"], problem, gpu, _tiles(values, problem, profile_name, gpu),
            order=values["order"], blocks_per_sm=values["blocks_per_sm"], engine=values["engine"],
            times=values["times"],
        )
    except InputError as error:
        return inputs | {"why_not": str(error)}
    except MemoryError as error:
        raise MemoryError(f"{error} (at the point {json.dumps(values)})") from error
    except Exception as error:
        error.add_note(f"at the point {json.dumps(values)}")
        raise
    return inputs | flat(found)


def _tiles(values: dict[str, Any], problem: Attention, profile_name: str, gpu: "Profile") -> Tiles:
    sizes = tuple(values[name] for name in TILES)
    br, bc, stages, *options = sizes
    if None in (br, bc) or options != [None, None, "forward"] or (
            "splits" in schedules.options(values["schedule"])):
        _profiles[profile_name] = gpu
        choose = _chosen if file_of(problem.mask) is None else _chosen.__wrapped__
        return choose(profile_name, values["schedule"], problem, sizes)
    return Tiles(br, bc, 1 if stages is None else stages)


@lru_cache(maxsize=10_000)
def _chosen(profile_name: str, schedule: str, problem: Attention, sizes: tuple[Any, ...]) -> Tiles:
    """Points that differ in order or engine only share their choice."""
    br, bc, stages, splits, page, kv_order = sizes
    return blocks.choose_tiles(schedule, problem, _profiles[profile_name], br, bc, stages,
                               splits=splits, page=page, kv_order=kv_order)


def flat(found: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """What ``traffic`` gives as one level of names, such as ``sm_read_bytes``; bytes by tensor
    as JSON text.

    >>> flat({"tiles": {"br": 64}, "sm": {"read_bytes": 5}, "dram": None})
    {'br': 64, 'sm_read_bytes': 5}
    """
    cells: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict) and name != "by_tensor":
            cells |= flat(value, prefix if name in _UNPREFIXED else f"{prefix}{name}_")
        elif isinstance(value, dict | list | tuple):
            cells[prefix + name] = json.dumps(value)
        elif value is not None or name not in _PARTS:
            cells[prefix + name] = value.item() if hasattr(value, "item") else value
    return cells
