"""Plain-text tables and JSON on stdout."""

import json


def print_json(document):
    """One JSON document on stdout; nothing of one that holds what JSON cannot say."""
    print(json.dumps(document, indent=2, allow_nan=False))


def si(value: float | None, unit: str = "B") -> str:
    """A number with a decimal SI prefix and four digits, such as ``6.577 GB``; – for None."""
    if value is None:
        return "–"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.99995:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def binary(value: float | None) -> str:
    """Bytes with a binary prefix and two decimals, such as ``1,024.00 MiB``; – for None."""
    if value is None:
        return "–"
    for power, prefix in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if abs(value) >= 1 << power:
            return f"{value / (1 << power):,.2f} {prefix}B"
    return f"{value:,} B"


def seconds(value: float | None) -> str:
    """A time with four digits in s, ms or µs; – for None."""
    if value is None:
        return "–"
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e6:.4g} µs"


def table(header: list[str], rows: list[list], left: int = 1) -> str:
    """Text columns two spaces apart; the first ``left`` columns to the left, others right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
