"""A GPU profile's YAML file with measured facts put in; all else stays, comments too."""

import textwrap
from statistics import median

from ..hwprofiles import document, loader

WIDTH = 100  # columns
_ATOMICS = "atomics of one thread an SM to lines {} its side, all SMs at once, clocks left alone"
HOW = {
    "near": _ATOMICS.format("near"), "far": _ATOMICS.format("far from"),
    "background": "DRAM bytes written while all SMs wait for 100 ms and touch nothing",
}


def with_l2_facts(text: str, facts: dict, provenance: dict, source: str) -> str:
    """``text`` of a profile with what ``calibrate.derived`` found; ``source`` names it in errors.

    A fact that was not found leaves the profile's own. Raises ProfileError when the outcome is no
    profile.
    """
    origin = f"measured on {provenance['gpu']}, {provenance['date'][:10]}: hbmeter calibrate --l2"
    if facts["dirty_bytes_max"]:
        value = facts["dirty_bytes_max"]["median"]
        text = _set(text, ("l2", "dirty_bytes_max"),
                    [f"  dirty_bytes_max: {value:_}  # source: {origin} [R]"])
    if facts["sm_partitions"]:
        digits = facts["sm_partitions"]
        text = _set(text, ("l2", "sm_partitions"),
                    [f'  sm_partitions: "{digits}"  # source: {origin} [R]'])
    found = {f"l2_{name}_latency": (values, "cycles", HOW[name])
             for name, values in (facts["latency_cycles"] or {}).items()}
    if facts["background_write_bytes_per_s"]:
        found["dram_background_write"] = (facts["background_write_bytes_per_s"], "bytes_per_s",
                                          HOW["background"])
    for name, (values, unit, how) in found.items():
        text = _set(text, ("measured", name),
                    _measurement(name, values, unit, how, origin, provenance["date"][:10]))
    loader.parse(text.encode(), source)
    return text


def with_facts(text: str, facts: list, provenance: dict, source: str, kept: bool = False) -> str:
    """``text`` of a profile with ``kernels.probes.bench.Fact`` objects in its ``measured``
    section; ``source`` names it in errors, ``kept`` says that hbmeter keeps the raw values.
    Datasheet values stay.

    Raises ProfileError when the outcome is no profile.
    """
    date = provenance["date"][:10]
    origin = f"measured on an {provenance['gpu'].removeprefix('NVIDIA ')}, {date}"
    origin += ": hbmeter calibrate" + " (recorded)" * kept
    for fact in facts:
        text = _set(text, ("measured", fact.name), _fact(fact, origin, date))
    loader.parse(text.encode(), source)
    return text


def _fact(fact, origin: str, date: str) -> list[str]:
    """The lines of a fact's entry."""
    def number(key, value):
        return f"    {key}: {value:.4g}  # source: {origin} [R]"

    lines = [f"  {fact.name}:", number("value", fact.value), f"    unit: {fact.unit}"]
    if fact.spread:
        lines.append(number("spread", fact.spread))
    if fact.clock_hz:
        lines.append(number("clock_hz", median(fact.clock_hz)))
    if fact.curve:
        pairs = ", ".join(f"[{x:.10g}, {y:.4g}]" for x, y in fact.curve)
        lines += [f"    curve_of: {fact.curve_of}", f"    curve:  # source: {origin} [R]",
                  *textwrap.wrap(f"[{pairs}]", WIDTH, initial_indent=" " * 6,
                                 subsequent_indent=" " * 7, break_on_hyphens=False)]
    return [*lines, f"    date: {date}", f"    how: {fact.how}"]


def _measurement(name: str, found: dict, unit: str, how: str, origin: str,
                 date: str) -> list[str]:
    spread = [f"    spread: {found['spread']:g}  # source: {origin} [R]"] if found["spread"] else []
    return [f"  {name}:", f"    value: {found['median']:g}  # source: {origin} [R]",
            f"    unit: {unit}", *spread, f"    date: {date}", f"    how: {how}"]


def _set(text: str, path: tuple[str, str], new: list[str]) -> str:
    """Put the lines of a key of a section in place of its old ones, or at the section's end."""
    lines, where = text.splitlines(), document.read(text).lines
    section, _ = path
    if (section,) not in where:
        return "\n".join([*lines, f"{section}:", *new]) + "\n"
    start = where.get(path, None)
    if start is None:
        start = stop = _end(lines, where[(section,)] - 1)
    else:
        start, stop = start - 1, _end(lines, start - 1)
    return "\n".join([*lines[:start], *new, *lines[stop:]]) + "\n"


def _end(lines: list[str], first: int) -> int:
    """The index after the last line of the block mapping entry that begins at ``first``."""
    depth = _indent(lines[first])
    last = first
    for number in range(first + 1, len(lines)):
        if lines[number].strip() and _indent(lines[number]) <= depth:
            break
        if lines[number].strip():
            last = number
    return last + 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
