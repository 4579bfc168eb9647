"""The words and tables of ``hbmeter calibrate``: measured rates and latencies beside the
datasheet."""

from statistics import median

from .output import si, table

UNITS = {  # shown with a decimal prefix
    "bytes_per_s": "B/s", "flop_per_s": "FLOP/s", "hz": "Hz", "seconds": "s",
    "blocks_per_s": "blocks/s",
}
SHORT = {"bytes_per_clock_per_sm": "B/clock/SM",
         "operations_per_clock_per_sm": "/clock/SM", "flop_per_clock_per_sm": "FLOP/clock/SM",
         "cycles": "cycles"}


def text(record, judged: list, misses: tuple[int, int] = (0, 0)) -> str:
    """Everything about one record; ``misses`` as ``rates_record.occupancy_misses`` has it."""
    origin = record.provenance
    head = (f"{record.name}: {record.gpu}, driver {origin.get('driver')}, {origin.get('date')}, "
            f"revision {origin.get('git_revision')}, {origin.get('gpu_s')} s, clocks left alone")
    rows = [_row(item) for item in judged]
    lines = [head, table(["measured", "median", "± half range", "SM clock", "datasheet", "of it",
                          "of the most at that clock"], rows)]
    curves = [item.fact for item in judged if item.fact.curve]
    lines += ["", *(_curve(fact) for fact in curves)]
    if misses[1]:
        lines.append(f"occupancy: {misses[1] - misses[0]} of {misses[1]} random launches have the "
                     "blocks per SM that the profile's rules give")
    refused = [item for item in judged if item.refusal]
    lines += [f"REFUSED {item.fact.name}: {item.refusal}" for item in refused]
    return "\n".join(lines)


def document(item) -> dict:
    """A judged fact as JSON."""
    fact = item.fact
    return {
        "name": fact.name, "unit": fact.unit, "median": fact.value, "spread": fact.spread,
        "repeats": len(fact.values), "clock_hz": median(fact.clock_hz) if fact.clock_hz else None,
        "datasheet": item.datasheet, "most": item.most, "refusal": item.refusal, "how": fact.how,
        "curve_of": fact.curve_of, "curve": [list(pair) for pair in fact.curve],
    }


def amount(value: float, unit: str) -> str:
    """A value in its unit, for people."""
    if unit in UNITS:
        return si(value, UNITS[unit]) if unit != "seconds" else f"{value * 1e6:.4g} µs"
    return f"{value:.4g} {SHORT.get(unit, unit)}"


def _row(item) -> list[str]:
    fact = item.fact
    clock = f"{median(fact.clock_hz) / 1e6:.0f} MHz" if fact.clock_hz else "–"
    share, most = (f"{fact.value / x:.1%}" if x else "–" for x in (item.datasheet, item.most))
    spread = f"{fact.spread / fact.value:.1%}" if fact.value else "–"
    return [fact.name, amount(fact.value, fact.unit), spread, clock,
            amount(item.datasheet, fact.unit) if item.datasheet else "–", share, most]


def _curve(fact) -> str:
    scale, unit = 1, SHORT.get(fact.unit, fact.unit)
    if fact.unit == "bytes_per_s":
        scale, unit = 1e12, "TB/s"
    points = ", ".join(f"{_short(x)}: {y / scale:.4g}" for x, y in fact.curve)
    return f"{fact.name}, {unit} against {fact.curve_of}: {points}"


def _short(x: float) -> str:
    """A number of bytes or other things, briefly."""
    for factor, name in ((1 << 20, "Mi"), (1 << 10, "ki")):
        if x >= factor:
            return f"{x / factor:.4g} {name}"
    return f"{x:g}"
