"""Reads what Nsight Compute exports as CSV: the raw page (a column a metric) and the details page
(a row a metric), with whatever the profiled program and ncu itself printed around the table.

Values come back in base units: bytes, nanoseconds, hz, counts; a metric that a chip does not have
(n/a) is None, never 0. ncu writes numbers as the user's locale has them, and an export has one
locale: which mark is the decimal one is decided from all its numbers together (``_decimal_mark``).
"""

import codecs
import csv
import re
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from ..kernels.errors import Unavailable
from ..simulator.errors import InputError

PERMISSION = (
    "the driver does not let this user read GPU performance counters (ERR_NVGPUCTRPERM): load it "
    "with NVreg_RestrictProfilingToAdminUsers=0, or run as root; in a container also give "
    "--cap-add SYS_ADMIN (root alone does not suffice there)"
)
HOW_TO_EXPORT = "ncu --csv --page raw --print-units base … > FILE.csv"

# The details page has labels where the raw page has metric names.
LABELS = {
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "sm__cycles_elapsed.max",
    "Registers Per Thread": "launch__registers_per_thread",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}

_HEADER = re.compile(r'"?ID"?([,;\t])"?Process ID')
_NOISE = re.compile(r"==[A-Z]+== ")
MOST_DIGITS = 30  # before or behind the point
_NUMBER = re.compile(r"([+-]?)([0-9.,]*[0-9])([eE][+-]?[0-9]+)?")
_SPACES = str.maketrans("", "", " \u00a0\u202f\u2009'’")  # group digits in some locales
_MISSING = re.compile(r"(\(!\)\s*)?(n/?a|-?nan|-?inf|-)?", re.IGNORECASE)

_PREFIX = {"": 1, "K": 10**3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
           "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIME_NS = {f"{prefix}{name}": Fraction(scale) for name in ("second", "s")
            for prefix, scale in (("n", 1), ("u", 10**3), ("µ", 10**3), ("m", 10**6), ("", 10**9))}
_COUNTS = ("byte", "sector", "inst", "cycle", "request", "warp", "block", "thread", "register",
           "hz", "Hz", "flop")
_WHOLE = ("", "byte", "sector", "inst", "cycle", "request", "warp", "block", "nsecond", "ns")


@dataclass(frozen=True)
class Profiled:
    """One kernel launch of an export: metric values in base units, None where it says n/a, and
    by how much each may be off because it was printed rounded (0 for whole base units)."""

    kernel: str
    metrics: dict[str, int | float | None]
    rounding: dict[str, float] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """The kernel's name without arguments: "hbmeter_flash2(const …)" -> "hbmeter_flash2"."""
        words = re.split("[(<]", self.kernel)[0].split()
        return words[-1] if words else self.kernel


def read(path) -> list[Profiled]:
    """The launches of an export file; UTF-8, or UTF-16 as PowerShell redirects it."""
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return parse(data.decode("utf-16", errors="replace"))
    if b"\0" in data[:4096]:
        raise InputError(f"{path} is not text; export a report first: ncu --import REPORT.ncu-rep "
                         "--csv --page raw --print-units base > FILE.csv")
    return parse(data.decode("utf-8-sig", errors="replace"))


def parse(text: str) -> list[Profiled]:
    """The launches of an export, in order.

    Raises Unavailable when ncu was not permitted to read counters, InputError when there is no
    table or no kernel in it, and for numbers that cannot be told apart ("1.234" alone).
    """
    if "ERR_NVGPUCTRPERM" in text:
        raise Unavailable(PERMISSION)
    sections = _sections(text)
    cells = [cell for section in sections for cell in section]
    if not cells:
        raise InputError(_why_nothing(text, bool(sections)))
    mark = _decimal_mark(cells)
    return [launch for section in sections for launch in _launches(section, mark)]


def missing_metrics(text: str) -> list[str]:
    """Names after "Failed to find metric" in what ncu printed."""
    return [name.removeprefix("regex:").strip("^$,'\"")
            for name in re.findall(r"Failed to find metric\s+(\S+)", text)]


def _why_nothing(text: str, table: bool) -> str:
    if "No kernels were profiled" in text:
        return "no kernels were profiled: the kernel filter matches none, or the program failed"
    absent = missing_metrics(text)
    if absent:
        return f"ncu does not know the metric {', '.join(absent)} on this GPU: leave it out"
    what = "its table has no kernel" if table else "there is no Nsight Compute CSV table"
    return f"{what}; export with: {HOW_TO_EXPORT}"


# ---- Tables -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """One metric of one launch as printed."""

    launch: tuple
    kernel: str
    metric: str
    unit: str
    text: str

    @property
    def whole(self) -> bool:
        """Whether it counts whole things, unscaled: then it has no decimals."""
        return self.metric.endswith((".sum", ".max", ".min")) and self.unit in _WHOLE


def _sections(text: str) -> list[list[_Cell]]:
    """The cells of each table; more than one header means exports joined in one file."""
    sections, lines = [], iter(text.splitlines())
    read_row = None
    for line in lines:
        start = _HEADER.search(line)
        if start:
            header = line[start.start():]
            columns = next(csv.reader([header], delimiter=start.group(1)))
            read_row = _row_reader(columns, start.group(1), header.startswith('"'))
            sections.append([])
        elif read_row and not _NOISE.match(line):
            sections[-1].extend(read_row(line))
    return sections


def _row_reader(columns: list[str], delimiter: str, quoted: bool):
    """A function from a line to its cells; lines that are no rows of this table give none."""
    columns = [name.strip() for name in columns]
    place = {name: number for number, name in enumerate(columns)}
    details = "Metric Name" in place
    needed = ("Process ID", "Kernel Name", *(("Metric Unit", "Metric Value") if details else ()))
    for name in needed:
        if name not in place:
            raise InputError(f"the table has no column {name!r}; export with: {HOW_TO_EXPORT}")
    metric_columns = [n for n, name in enumerate(columns) if "__" in name]
    units = [""] * len(columns)

    def row(line: str) -> list[_Cell]:
        if quoted and not line.startswith('"'):
            return []  # the program's own output
        try:
            values = next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error:  # a cell too long to be one of ncu's
            return []
        if len(values) <= place["Kernel Name"]:
            return []
        if not values[0].strip():
            units[: len(values)] = [unit.strip() for unit in values]
            return []
        if not values[0].strip().isdigit():
            return []
        values += [""] * (len(columns) - len(values))
        kernel = values[place["Kernel Name"]]
        launch = (values[0], values[place["Process ID"]], kernel)
        if details:
            name, unit, value = (values[place[f"Metric {x}"]] for x in ("Name", "Unit", "Value"))
            found = [(LABELS.get(name, name), unit, value)] if name else []
        else:
            found = [(columns[n], units[n], values[n]) for n in metric_columns]
        return [_Cell(launch, kernel, *(x.strip() for x in cell)) for cell in found]

    return row


def _launches(cells: list[_Cell], mark: str) -> list[Profiled]:
    found: dict[tuple, Profiled] = {}
    for cell in cells:
        launch = found.setdefault(cell.launch, Profiled(cell.kernel, {}, {}))
        if _MISSING.fullmatch(cell.text):
            launch.metrics.setdefault(cell.metric, None)
            continue
        value = _number(cell.text, mark)
        if value is None:
            continue  # text: a GPU's name, a cache setting
        scale = unit_scale(cell.unit)
        launch.metrics[cell.metric] = _plain(Fraction(value) * scale)
        exact = value == value.to_integral_value() and scale == 1
        step = Decimal(1).scaleb(value.as_tuple().exponent)
        launch.rounding[cell.metric] = 0.0 if exact else float(Fraction(step) * scale / 2)
    return list(found.values())


# ---- Numbers ----------------------------------------------------------------------------------


def unit_scale(unit: str) -> Fraction:
    """What one of ``unit`` is in base units: "Mbyte" 10^6, "usecond" 10^3 (ns), "Ghz" 10^9,
    "byte/nsecond" 10^9 (a second); 1 for units that are not known.

    >>> unit_scale("Kbyte/block")
    Fraction(1000, 1)
    """
    top, _, bottom = unit.partition("/")
    if bottom in _TIME_NS:  # rates are a second
        return unit_scale(top) * 10**9 / _TIME_NS[bottom]
    if top in _TIME_NS:
        return _TIME_NS[top]
    for name in _COUNTS:
        if top.endswith(name) and top.removesuffix(name) in _PREFIX:
            return Fraction(_PREFIX[top.removesuffix(name)])
    return Fraction(1)


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _bare(text: str) -> re.Match | None:
    return _NUMBER.fullmatch(text.translate(_SPACES).removesuffix("%"))


def _number(text: str, mark: str) -> Decimal | None:
    """The number in a cell whose decimal mark is known; None for text.

    Raises InputError for a number that does not fit that mark.
    """
    found = _bare(text)
    if not found:
        return None
    sign, digits, exponent = found.groups()
    whole, dot, part = digits.replace("," if mark == "." else ".", "").partition(mark)
    if mark in part:
        raise InputError(f"{text!r} is not a number with the decimal mark {mark!r}")
    value = Decimal(f"{sign}{whole or 0}{'.' if dot else ''}{part}{exponent or ''}")
    if value and abs(value.adjusted()) > MOST_DIGITS:
        raise InputError(f"{text[:40]!r} is not a number that a counter has")
    return value


def _decimal_mark(cells: list[_Cell]) -> str:
    """The decimal mark of an export, "." or ",", from every number in it.

    "1,234.5" and "1.234,5" show it, as do "1,234,567" and "16.78"; "1,234" alone does not, unless
    it counts whole things. Raises InputError when numbers disagree or none of them tells.
    """
    votes, unclear = {}, None
    for cell in cells:
        found = _bare(cell.text)
        if not found or not re.search("[.,]", found.group(2)):
            continue
        mark = _mark_of(found.group(2), cell.whole and not found.group(3), bool(found.group(3)))
        if mark is None:
            unclear = unclear or cell
        else:
            votes.setdefault(mark, cell)
    if len(votes) == 2:
        point, comma = votes["."], votes[","]
        raise InputError(f"numbers disagree about the decimal mark: {point.metric} is "
                         f"{point.text!r}, {comma.metric} is {comma.text!r}; export them together")
    if not votes and unclear:
        raise InputError(f"{unclear.metric} {unclear.text!r} {unclear.unit} may mean two numbers, "
                         "1000 apart, and no other cell tells: export with LC_ALL=C and "
                         "--print-units base")
    return next(iter(votes), ".")


def _mark_of(digits: str, whole: bool, exponent: bool) -> str | None:
    """The decimal mark that one number shows; None when it may be read both ways."""
    other = {".": ",", ",": "."}
    last = max(digits.rfind("."), digits.rfind(","))
    mark = digits[last]
    if other[mark] in digits:
        return mark
    if digits.count(mark) > 1:
        return other[mark]
    head, tail = digits[:last], digits[last + 1:]
    if exponent or len(tail) != 3 or not 1 <= len(head) <= 3 or head.startswith("0"):
        return mark
    return other[mark] if whole else None
