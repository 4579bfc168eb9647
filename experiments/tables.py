"""Tables of a sweep as files: CSV, Parquet, JSON."""

import io
import json

from ..kernels.errors import Unavailable
from .files import csv_text, output_file, write_atomic


def write_csv(path: str, rows: list[dict]):
    """The rows as a CSV file; what was not computed is an empty cell."""
    _write(path, csv_text(rows).encode())


def write_parquet(path: str, rows: list[dict]):
    """The rows as a Parquet file. Raises Unavailable when pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Unavailable("Parquet files need pyarrow: pip install 'hbmeter[tables]'") from None
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    _write(path, buffer.getvalue())


def as_json(rows: list[dict]) -> list[dict]:
    """The rows with bytes by tensor as objects rather than text."""
    return [{name: json.loads(value) if name.endswith("by_tensor") and value else value
             for name, value in row.items()} for row in rows]


def _write(path: str, data: bytes):
    write_atomic(output_file(path), data)
