"""What a sweep computes: a YAML file or a mapping of lists, judged whole before anything runs.

``grid`` is every combination of its lists; each entry of ``points`` is one point, or a small grid
where it has lists; ``common`` holds values for all of them. What is absent has the command line's
default. Names are those of the command line: a GPU is a name or a file, and files, those of masks
and orders too, are relative to the spec.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, create_model

from ...hwprofiles import ProfileError, load, mistakes
from ...hwprofiles.document import Document
from ...hwprofiles.schema import Profile, Section, Whole
from .. import schedules
from ..engines import NAMES as ENGINES
from ..errors import InputError, unknown_name
from ..grid_order import is_file
from ..grid_order import parse as parse_order
from ..mask_forms import file_of
from ..problem import Attention
from ..tiles import Tiles

MAX_BYTES = 1 << 20
MAX_POINTS = 1_000_000
MAX_VALUES = 10_000  # in one list
CHOOSE = "choose"
SHAPE_FIELDS = {"direction": "pass"}  # where the command line has another name than Attention
TILES = ("br", "bc", "stages", "splits", "page", "kv_order")
_SHARE = Annotated[float, Field(ge=0, lt=1)]  # a probability: dropout


def _shape_type(name: str, hint: type, default: object) -> Any:
    """The spec's type of a field of Attention: numbers, true or false, or text that it takes."""
    if default is None:
        return Whole | None
    if hint is not str:
        return {int: Whole, bool: bool, float: _SHARE}[hint]

    def check(value: str, info: ValidationInfo) -> str:
        file = file_of(value) if name == "mask" else None
        if file is None:  # what a file holds fits some shapes: each point says
            replace(Attention(), **{name: value})  # type: ignore[arg-type]
            return value
        return value.replace(file, _local(file, f"mask {value!r}", info))

    return Annotated[str, AfterValidator(check)]


def _context(info: ValidationInfo) -> dict[str, Any]:
    """What ``read`` gives to the checks."""
    return info.context or {}


def _local(file: str, whose: str, info: ValidationInfo) -> str:
    """The path from here of a file that the spec names."""
    local: Path = _context(info)["folder"] / file
    if not local.is_file():
        raise InputError(f"{whose}: there is no file {local}")
    return str(local)


def _kv_order(value: str) -> str:
    return Tiles(1, 1, kv_order=value).kv_order


def _order(value: str, info: ValidationInfo) -> str:
    if is_file(value):  # which grids it fits, each point says
        return _local(value, f"order {value!r}", info)
    parse_order(value)
    return value


def _one_of(kind: str, valid: Callable[[], Iterable[str]]) -> Any:
    """Text out of ``valid()``, with the nearest one suggested."""
    def check(value: str) -> str:
        if value not in valid():
            raise unknown_name(kind, value, valid())
        return value

    return Annotated[str, AfterValidator(check)]


def _gpu(value: str, info: ValidationInfo) -> str:
    """A GPU's name, or its file's path from here; its profile goes into the context."""
    context: Any = info.context
    local = context["folder"] / value
    place = str(local) if value.lower().endswith((".yaml", ".yml")) else value
    if place not in context["profiles"]:
        try:
            context["profiles"][place] = load(place)
        except ProfileError as error:
            raise ValueError(str(error).splitlines()[0]) from None
    return place


def _choice(value: object) -> object:
    if isinstance(value, str) and value != CHOOSE:
        raise ValueError(f"should be a whole number or {CHOOSE}")
    return None if value == CHOOSE else value


_TILE = Annotated[Whole | None, BeforeValidator(_choice)]
_hints = get_type_hints(Attention)

# Name of a key: its type and what it is when absent.
AXES: dict[str, tuple[Any, Any]] = {
    "gpu": (Annotated[str, AfterValidator(_gpu)], "h200"),
    "schedule": (_one_of("schedule", schedules.names), "flash2"),
    **{SHAPE_FIELDS.get(f.name, f.name): (_shape_type(f.name, _hints[f.name], f.default),
                                         f.default)
       for f in fields(Attention)},
    **{name: (_TILE, None) for name in TILES},
    "kv_order": (Annotated[str, AfterValidator(_kv_order)], "forward"),
    "order": (Annotated[str, AfterValidator(_order)], "row"),
    "blocks_per_sm": (Whole | None, None),
    "engine": (_one_of("engine", lambda: ENGINES), "l2"),
    "times": (bool, False),
}
AXES["pass"] = (AXES["pass"][0], None)  # the schedule's


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _values(kind: Any) -> Any:
    return Annotated[list[kind], BeforeValidator(_as_list),
                     Field(min_length=1, max_length=MAX_VALUES)]


Values = create_model("Values", __base__=Section, **{  # type: ignore[call-overload]
    name: (_values(kind) | None, Field(default=None, description="a value or a list of values"))
    for name, (kind, _) in AXES.items()
})


class _Document(Section):
    """The file."""

    title: Annotated[str, Field(max_length=200)] = Field(default="", description="text")
    common: Values = Field(default=Values(), description="values for every point")
    grid: Values = Field(  # absent is not the same as null
        default=None, description="mapping: lists to combine")  # type: ignore[assignment]
    points: list[Values] = Field(default=[], description="list of mappings: points one by one")


@dataclass(frozen=True)
class Spec:
    """Entries, each a mapping of all names to lists of values, and the profiles of their GPUs.

    ``text`` is the file's, for the record.
    """

    title: str
    entries: tuple[dict[str, list[Any]], ...]
    profiles: dict[str, Profile]
    text: str

    @property
    def count(self) -> int:
        """Points, repeated ones included."""
        return sum(prod(map(len, entry.values())) for entry in self.entries)

    def points(self) -> Iterator[dict[str, Any]]:
        """Each point as names and values: entry by entry, the GPU slowest, the engine fastest."""
        for entry in self.entries:
            for values in product(*entry.values()):
                yield dict(zip(entry, values, strict=True))


def read(source: str | Path | Mapping[str, Any]) -> Spec:
    """The Spec of a YAML file or of a mapping like one.

    Raises InputError: all mistakes of the file at once, with lines, values and remedies; or more
    than MAX_POINTS points.

    >>> read({"grid": {"seq": [1024, 2048], "br": [64, 128]}}).count
    4
    """
    context: dict[str, Any] = {"folder": Path(), "profiles": {}}
    if isinstance(source, Mapping):
        name, text = "sweep", repr(dict(source))
        found = mistakes.validated(_Document, Document(_plain(source)), name, InputError, context)
    else:
        name, data = str(source), _read_bytes(Path(source))
        context["folder"] = Path(source).parent
        found = mistakes.parsed(_Document, data, name, InputError, "sweep", context)
        text = data.decode("utf-8-sig")
    entries = tuple(_entries(found))
    named = {gpu for entry in entries for gpu in entry["gpu"]}
    profiles = {gpu: context["profiles"].get(gpu) or load(gpu) for gpu in sorted(named)}
    spec = Spec(found.title, entries, profiles, text)
    if spec.count > MAX_POINTS:
        raise InputError(f"{name}: {spec.count:,} points are too many: at most {MAX_POINTS:,}")
    if not spec.entries:
        raise InputError(f"{name}: no points: give a grid, points, or both")
    return spec


def _plain(value: Any) -> Any:
    """Tuples, ranges and arrays as lists, as YAML would have them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _entries(found: _Document) -> Iterator[dict[str, list[Any]]]:
    """What each part of the file combines, with common values and defaults filled in."""
    defaults = {name: [default] for name, (_, default) in AXES.items()}
    for part in [*([found.grid] if found.grid is not None else []), *found.points]:
        yield defaults | _given(found.common) | _given(part)


def _given(values: Values) -> dict[str, list[Any]]:
    return {name: value for name, value in values if value is not None}


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the YAML file of a sweep")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes; not the spec of a sweep")
    return data
