"""Does the L2 reader move units that a program's tiles fill, and count what single lines count?"""

from random import Random

import pytest
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.at_scale import shortened
from hbmeter.simulator.engines import l2
from hbmeter.simulator.engines.l2_cache import UNIT_BYTES
from hbmeter.simulator.engines.l2_units import unit_of
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

H200 = load("h200")
LINE = H200.l2.line_bytes
BOUND = 0.05  # of DRAM reads, and of what is written: units against lines, where all just fits
# All SMs as fast, all tiles as late: a tile that comes a cycle later would change who meets whom.
IN_STEP = dict.fromkeys(("pace_spread", "gpc_pace_spread", "pace_spread_alone", "tile_cycles",
                         "tile_bytes_per_clock", "dram_late_cycles", "dram_ahead_cycles"))
DECODE = ("split_kv", "paged", "mla_decode")


def gpu_with(**l2_changes):
    return H200.model_copy(update={"l2": H200.l2.model_copy(update=l2_changes)})


def small_gpu(mebibytes, partitions):
    gpu = gpu_with(size_bytes=mebibytes << 20, partitions=partitions, sm_partitions=None,
                   sm_gpcs=None, room_share=None, dirty_bytes_max=None, **IN_STEP)
    return gpu.model_copy(update={"sm_count": 20})


FP32 = {"dtype": "fp32"}


@pytest.mark.parametrize(("schedule", "problem", "tiles", "unit"), [
    ("flash2", Attention(1, 8, 1008, 64), Tiles(64, 64), 2048),  # whole rows; LSE: 0.8% of all
    ("flash2", Attention(1, 8, 1001, 64), Tiles(64, 64), 512),  # tiles of Q and O begin anywhere
    ("flash2", Attention(1, 8, 1001, 128), Tiles(128, 64), 2048),  # and are 16 units or 17
    ("flash1", Attention(2, 8, 777, 80, kv_heads=2), Tiles(32, 48), 2048),  # walked through
    ("softmax_safe", Attention(1, 1, 512, kv_seq=1024, direction="softmax"), Tiles(1, 96), 2048),
    ("softmax_safe", Attention(1, 1, 512, kv_seq=1000, direction="softmax"), Tiles(1, 96), 128),
    ("standard", Attention(1, 8, 1024, 64), Tiles(128, 128), 128),  # P: 32 columns at a time
    ("standard", Attention(1, 8, 1024, 64, **FP32), Tiles(64, 128, bk=512), 512),  # S: 128 columns
    ("standard", Attention(1, 8, 1000, 64, **FP32), Tiles(64, 128, bk=500), 128),  # at any place
    ("standard_backward", Attention(1, 8, 1024, 64, direction="backward"), Tiles(64, 64), 128),
    ("chunked", Attention(1, 8, 1024, 64), Tiles(128, 256), 256),  # parts of O: 64 columns, fp32
    ("chunked", Attention(1, 8, 1024, 128), Tiles(128, 256), 512),
    ("chunked", Attention(1, 8, 1024, 128), Tiles(128, 1024), 2048),  # one part
    ("split_kv", Attention(1, 32, 1, 128, 8, 8192), Tiles(16, 64, splits=8), 2048),  # small parts
    ("split_kv", Attention(1, 32, 1, 128, 1, 512), Tiles(32, 64, splits=8), 512),  # a third of all
    ("paged", Attention(1, 32, 1, 128, 8, 8192), Tiles(16, 64, page=16), 2048),
    ("paged", Attention(1, 32, 1, 80, 8, 8192), Tiles(16, 64, page=16), 512),
    ("paged", Attention(1, 32, 1, 128, 8, 8192), Tiles(16, 64, page=1), 256),
    ("mla_decode", Attention(1, 32, 1, 576, 1, 8192, value_dim=512), Tiles(32, 64), 2048),
])
def test_units_are_as_large_as_tiles_fill(schedule, problem, tiles, unit):
    assert unit_of(schedules.build(schedule, problem, tiles), H200) == unit


def test_units_are_lines_at_least():
    program = schedules.build("standard", Attention(1, 8, 1024, 64), Tiles(128, 128))
    assert unit_of(program, gpu_with(line_bytes=256)) == 256
    assert unit_of(program, gpu_with(line_bytes=4096)) == UNIT_BYTES


def test_a_program_at_a_scale_has_the_units_of_the_whole():
    """Its tiles of 2 rows stand for 128."""
    whole = schedules.build("flash2", Attention(1, 8, 65536, 64), Tiles(128, 64))
    shorter = shortened(whole, 64)
    assert unit_of(shorter, H200) < unit_of(shorter, H200, 64) == unit_of(whole, H200)


def test_tiles_that_fill_units_in_part_have_smaller_ones():
    """S of heads side by side, which just does not fit: a unit of 2,048 bytes holds 32 columns of
    P until later steps fill it."""
    program = schedules.build("standard", Attention(1, 8, 1024, 64), Tiles(64, 64))
    coarse, chosen, lines = (
        l2.simulate(program, small_gpu(4, 2), blocks_per_sm=2, order="head", unit_bytes=unit)
        for unit in (UNIT_BYTES, None, LINE))
    assert coarse.dram_read_bytes > 1.2 * lines.dram_read_bytes
    assert (chosen.sectors == lines.sectors).all()


def drawn(schedule, random):
    """A problem and tiles of a schedule."""
    direction = next((d for d in ("backward", "softmax") if d in schedule), "forward")
    heads, seq = random.choice([(4, 1024), (8, 777), (16, 512)])
    if "minimal" in schedule or "separate" in schedule:
        heads = 2
    options = {"direction": direction, "kv_seq": seq, "dtype": random.choice(["fp16", "fp32"])}
    if direction != "softmax":
        mask, kv_heads = random.choice(["full", "causal"]), random.choice([1, heads])
        options |= {"mask": mask, "kv_heads": kv_heads}
    if schedule in DECODE:
        seq, options["kv_seq"], options["kv_heads"] = 1, random.choice([2000, 4096]), heads // 4
    width = 576 if schedule == "mla_decode" else random.choice([32, 64, 80, 128])
    if schedule == "mla_decode":
        options |= {"kv_heads": 1, "value_dim": 512}
    tiles = Tiles(random.choice([32, 64]), random.choice([32, 64, 128]), random.choice([1, 2]),
                  splits=random.choice([1, 4, 16]), page=random.choice([1, 4, 16]))
    return Attention(random.choice([1, 2]), heads, seq, width, **options), tiles


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("schedule", schedules.names())
def test_units_count_what_lines_count(schedule, number):
    random = Random(f"{schedule} {number}")
    program = schedules.build(schedule, *drawn(schedule, random))
    options = {"blocks_per_sm": random.choice([1, 2]), "order": random.choice(["row", "head"]),
               "skip_repeats": False}
    gpu = small_gpu(random.choice([4, 8]), random.choice([1, 2]))
    units, lines = (l2.simulate(program, gpu, unit_bytes=unit, **options) for unit in (None, LINE))
    assert units.sectors_asked == lines.sectors_asked
    assert units.sectors_written == lines.sectors_written
    assert units.dram_read_bytes == pytest.approx(lines.dram_read_bytes, rel=BOUND)
    written = lines.dram_write_bytes + lines.dirty_bytes_at_end
    assert abs(units.dram_write_bytes - lines.dram_write_bytes) <= BOUND * written
