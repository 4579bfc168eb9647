"""What a sweep has kept: rows, filtered and pivoted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..errors import InputError, unknown_name
from . import where as filters
from .points import INPUTS
from .store import read_only

AGGREGATES: dict[str, Callable[[Any], Any]] = {
    "min": min, "max": max, "mean": mean, "median": median, "sum": sum}


def rows(folder: str | Path, where: str | None = None,
         everything: bool = False) -> list[dict[str, Any]]:
    """The rows of the sweep that ran last in ``folder``, in the order of its spec.

    ``where`` filters them (see where.py); ``everything``: those of earlier specs and code too.
    What was not computed is None. Raises InputError for a folder or a filter that is not right.
    """
    connection = read_only(Path(folder))
    try:
        source = "results" if everything else "points"
        columns = [column[1] for column in connection.execute(f"PRAGMA table_info({source})")]
        condition, values = filters.sql(where, columns) if where else ("1", [])
        query = f"SELECT * FROM {source} WHERE {condition}" + " ORDER BY key" * everything
        return [dict(zip(columns, row, strict=True))
                for row in connection.execute(query, values)]
    finally:
        connection.close()


def pivot(found: list[dict[str, Any]], down: Sequence[str], across: Sequence[str], value: str,
          aggregate: str | None = None) -> list[dict[str, Any]]:
    """A row for each combination of the columns ``down``, with a cell of ``value`` for each of
    those ``across``: numbers in their order, texts as they come, None where there is no row.

    Raises InputError for an unknown column, and when two rows fall into one cell and no
    ``aggregate`` (AGGREGATES) says what to do with them.

    >>> table = [{"seq": 1, "mask": "full", "b": 5}, {"seq": 1, "mask": "causal", "b": 3}]
    >>> pivot(table, ["seq"], ["mask"], "b")
    [{'seq': 1, 'full': 5, 'causal': 3}]
    """
    require_columns(found, [*down, *across, value])
    if aggregate is not None and aggregate not in AGGREGATES:
        raise unknown_name("aggregate", aggregate, AGGREGATES)
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    lines, columns = _places(found, down), _places(found, across)
    for row in found:
        cells.setdefault((_place(row, down), _place(row, across)), []).append(row)
    return [
        dict(zip(down, line, strict=True))
        | {", ".join(map(str, column)) or value:
           _cell(cells.get((line, column), []), [*down, *across], value, aggregate)
           for column in columns}
        for line in lines
    ]


def _place(row: dict[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _places(found: list[dict[str, Any]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The combinations of these columns: numbers in their order, texts as they come."""
    ranks = []
    for name in names:
        values = list(dict.fromkeys(row[name] for row in found))
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        ranks.append({value: rank for rank, value in enumerate(values)})
    places = dict.fromkeys(_place(row, names) for row in found)
    return sorted(places, key=lambda place: [
        rank[value] for rank, value in zip(ranks, place, strict=True)])


def _cell(found: list[dict[str, Any]], fixed: list[str], value: str, aggregate: str | None) -> Any:
    if aggregate is None and len(found) > 1:
        raise InputError(_ambiguous(found, fixed))
    values = [row[value] for row in found if row[value] is not None]
    if not values:
        return None
    try:
        return AGGREGATES[aggregate](values) if aggregate else values[0]
    except TypeError:
        raise InputError(f"{value} holds text: it has no {aggregate}") from None


def _ambiguous(found: list[dict[str, Any]], fixed: list[str]) -> str:
    place = ", ".join(f"{name} {found[0][name]}" for name in fixed)
    differ = [name for name in (*INPUTS, "chosen")
              if name in found[0] and len({row[name] for row in found}) > 1]
    return (f"{len(found)} rows for {place}: they differ in {', '.join(differ) or 'nothing'}; "
            "filter them, give them rows or columns, or aggregate them")


def require_columns(found: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Raise InputError for the first name that is no column, with the nearest one."""
    columns = found[0] if found else ()
    for name in names:
        if found and name not in columns:
            raise unknown_name("column", name, columns)
