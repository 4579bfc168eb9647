"""Tables for notebooks: sweeps, points and block sizes as pandas DataFrames.

Types are pandas' nullable ones: bytes stay whole numbers, and what was not computed is <NA>, never
0. pandas comes with ``pip install 'hbmeter[tables]'``.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .blocks import Candidate, Exploration

if TYPE_CHECKING:
    from pandas import DataFrame


def sweep(spec: str | Path | Mapping[str, Any], folder: str | Path | None = None, *, jobs: int = 1,
          on_progress: Callable[[int, int], None] = lambda done, total: None) -> "DataFrame":
    """Every point of ``spec``, a row each in the spec's order: inputs, bytes, bounds.

    ``spec`` is a YAML file of ``hbmeter sweep`` or a mapping like one: "common", "grid" and
    "points", in which each name has a value or a list of values. ``folder`` keeps the rows
    (``sweep.sqlite``): a later call computes only what is missing. ``jobs`` processes share the
    work; a script that asks for several must guard its start with ``if __name__ == "__main__":``.
    ``on_progress`` gets the number of points done and the number to do.
    Raises InputError with all mistakes of the spec; ImportError when pandas is not installed.

    >>> from hbmeter.simulator import sweep
    >>> grid = {"seq": [1024, 2048], "schedule": ["flash1", "flash2"], "br": 128, "bc": 64}
    >>> table = sweep({"common": {"engine": "scratchpad"}, "grid": grid})
    >>> table.pivot(index="seq", columns="schedule", values="sm_read_bytes") // 10**6
    schedule  flash1  flash2
    seq
    1024         561     285
    2048        2213    1107
    """
    from .sweeps import runner, table
    from .sweeps.spec import read

    found = read(spec)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(folder or scratch)
        place.mkdir(parents=True, exist_ok=True)
        runner.run(found, place, jobs=jobs, on_progress=on_progress)
        return _frame(table.rows(place))


def sweep_table(folder: str | Path, where: str | None = None,
                everything: bool = False) -> "DataFrame":
    """The rows that ``hbmeter sweep --out`` has kept in ``folder``, in the order of its spec.

    ``where`` filters them, such as ``"schedule = flash2 and seq >= 4096"``; ``everything`` gives
    rows of earlier specs and of earlier code too. Raises InputError for a folder without a sweep
    and for a filter that cannot be read; ImportError when pandas is not installed.

    >>> import tempfile
    >>> from hbmeter.simulator import sweep, sweep_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sweep({"grid": {"seq": [512, 1024], "engine": "scratchpad"}}, folder)
    ...     sweep_table(folder, "seq > 512")[["seq", "schedule", "compulsory_read_bytes"]]
        seq schedule  compulsory_read_bytes
    0  1024   flash2               50331648
    """
    from .sweeps import table

    return _frame(table.rows(folder, where, everything))


def frame(found: dict[str, Any] | Iterable[dict[str, Any]] | Exploration) -> "DataFrame":
    """Points of ``traffic`` or ``compare``, or the candidates of ``blocks.explore``, a row each.

    Raises ImportError when pandas is not installed.

    >>> from hbmeter.hwprofiles import load
    >>> from hbmeter.simulator import Attention, compare, frame
    >>> table = frame(compare(Attention(seq=1024), load("h200"), engine="scratchpad"))
    >>> table.set_index("schedule").compulsory_read_bytes["flash2"]
    np.int64(50331648)
    """
    from .sweeps.points import flat

    if isinstance(found, Exploration):
        return _frame([_candidate(found, candidate) for candidate in found.candidates])
    return _frame([flat(point) for point in ([found] if isinstance(found, dict) else found)])


def _candidate(found: Exploration, candidate: Candidate) -> dict[str, Any]:
    tiles, need = candidate.tiles, candidate.resources
    return {
        "br": tiles.br, "bc": tiles.bc, "stages": tiles.stages, "why_not": candidate.why_not,
        "smem_bytes": need.smem_bytes, "registers_per_thread": need.registers_per_thread,
        "blocks_per_sm": candidate.occupancy.blocks_per_sm, "sm_bytes": candidate.sm_bytes,
        "predicted_s": candidate.prediction and candidate.prediction.seconds,
        "marks": ", ".join(name for name, marked in found.marks.items() if marked == tiles),
    }


def _frame(rows: list[dict[str, Any]]) -> "DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'hbmeter[tables]'") from error
    return pandas.DataFrame(rows).convert_dtypes()
