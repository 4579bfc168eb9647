"""What several experiments share: points of a schedule, remembered, and words for a problem."""

from ...simulator import schedules
from ...simulator.blocks import choose_tiles
from ...simulator.errors import InputError
from ...simulator.point import traffic
from ...simulator.problem import Attention
from ...simulator.tiles import Tiles

_seen: dict = {}


def fitting_tiles(names, problem: Attention, gpu) -> dict[str, Tiles]:
    """The least-traffic tiles of each schedule that has some on this GPU.

    Raises InputError when none has.
    """
    chosen = {}
    for schedule in names:
        try:
            chosen[schedule] = choose_tiles(schedule, problem, gpu)
        except InputError as error:
            reason = error
    if not chosen:
        raise reason
    return chosen


def point(schedule: str, problem: Attention, gpu, tiles: Tiles, *, line_limit: int = 0) -> dict:
    """``traffic``, with DRAM only for kernels (not the papers' idealised counts) whose SM-boundary
    bytes are at most ``line_limit`` L2 lines: the L2 reader moves some ten million a second."""
    counted = _traffic("scratchpad", schedule, problem, gpu, tiles)
    if is_idealised(schedule, problem, tiles) or line_count(counted, gpu) > line_limit:
        return counted
    return _traffic("l2", schedule, problem, gpu, tiles)


def is_idealised(schedule: str, problem: Attention, tiles: Tiles) -> bool:
    """Whether the schedule states a paper's count and is no kernel."""
    return schedules.build(schedule, problem, tiles).idealised


def line_count(counted: dict, gpu) -> int:
    """L2 lines that the bytes at the SM boundary are."""
    return (counted["sm"]["read_bytes"] + counted["sm"]["write_bytes"]) // gpu.l2.line_bytes


def _traffic(engine, schedule, problem, gpu, tiles) -> dict:
    key = (engine, schedule, problem, tiles, gpu.model_dump_json())
    if key not in _seen:
        _seen[key] = traffic(schedule, problem, gpu, tiles, engine=engine)
    return _seen[key]


def total(moved: dict | None) -> int | None:
    """Bytes read and written, or None when not computed."""
    return moved and moved["read_bytes"] + moved["write_bytes"]


def dram_total(found: dict) -> int | None:
    """DRAM bytes read and written, with what is still dirty in L2 at the end (written later)."""
    dram = found["dram"]
    return dram and total(dram) + dram["dirty_bytes_at_end"]


def shape_columns(problem: Attention, gpu) -> dict:
    """The columns that make a row stand alone."""
    return {"gpu": gpu.name, "batch": problem.batch, "heads": problem.heads,
            "kv_heads": problem.kv_heads, "head_dim": problem.head_dim,
            "value_dim": problem.value_dim, "dtype": problem.dtype, "mask": problem.mask}


def shape_words(row: dict) -> str:
    """A row's shape in words, such as "batch 4, 16 heads, d 128, fp16"."""
    heads = f"{row['heads']} heads"
    if row["kv_heads"] != row["heads"]:
        heads += f" ({row['kv_heads']} KV)"
    words = [f"batch {row['batch']}", heads, f"d {row['head_dim']}"]
    if row["value_dim"] != row["head_dim"]:
        words.append(f"value d {row['value_dim']}")
    words.append(row["dtype"])
    return ", ".join(words + [f"{row['mask']} mask"] * (row["mask"] != "full"))
