"""Do occupancy's rules give what one counts by hand, on a GPU whose numbers are all different?"""

import pytest
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.occupancy import estimate_registers, estimate_resources, occupancy
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

H200 = load("h200")
# 10 warps of 4 threads, two halves with 240 registers each, given out by fives; shared memory by
# 64 bytes, 100 of them the system's.
TINY = H200.model_copy(update={
    "warp_size": 4, "max_threads_per_block": 12, "max_threads_per_sm": 40, "max_blocks_per_sm": 9,
    "registers_per_sm": 480, "subpartitions_per_sm": 2, "register_allocation_unit": 5,
    "max_registers_per_thread": 50,
    "smem": H200.smem.model_copy(update={
        "bytes_per_sm": 2048, "reserved_bytes_per_block": 100, "bytes_per_block_max": 700,
        "allocation_unit_bytes": 64})})


@pytest.mark.parametrize(("asked", "limits", "least"), [
    # threads, registers, bytes: blocks by threads, blocks, registers, shared memory
    ((9, 0, 0), (3, 9, 32, 16), ["threads"]),  # 3 warps; 4 -> 5 registers a warp: 2 x 48 warps
    ((9, 1, 28), (3, 9, 32, 16), ["threads"]),  # 128 bytes exactly
    ((9, 1, 29), (3, 9, 32, 10), ["threads"]),  # 129 -> 192
    ((4, 6, 0), (10, 9, 18, 16), ["blocks"]),  # 24 -> 25: 9 warps in each half
    ((12, 13, 0), (3, 9, 2, 16), ["registers"]),  # 52 -> 55: 4 warps in each half, 8 // 3
    ((12, 50, 0), (3, 9, 0, 16), ["registers"]),  # one warp in each half: no block of 3
    ((4, 50, 0), (10, 9, 2, 16), ["registers"]),
    ((4, 51, 0), (10, 9, 0, 16), ["registers"]),  # more than a thread can have
    ((13, 1, 0), (0, 9, 24, 16), ["threads"]),  # more than a block can have
    ((4, 1, 700), (10, 9, 96, 2), ["shared memory"]),  # 800 -> 832
    ((4, 1, 701), (10, 9, 96, 0), ["shared memory"]),  # more than a block can have
    ((8, 1, 284), (5, 9, 48, 5), ["threads", "shared memory"]),  # 384 bytes: a tie
])
def test_blocks_by_each_resource(asked, limits, least):
    found = occupancy(TINY, *asked)
    assert tuple(found.limits.values()) == limits
    assert (found.blocks_per_sm, list(found.limiters)) == (min(limits), least)
    assert found.share_of_warps == min(limits) * -(-asked[0] // 4) / 10


def test_blocks_without_shared_memory_are_not_limited_by_it():
    none = TINY.model_copy(update={
        "smem": TINY.smem.model_copy(update={"reserved_bytes_per_block": 0})})
    assert occupancy(none, 4, 1, 0).limits["shared memory"] == 9


@pytest.mark.parametrize(("head_dim", "threads", "registers"), [
    (128, 128, 222),  # (128 x 128 of O + 128 x 64 of S + 6 statistics) / 128 threads + 24
    (256, 256, 187),  # 350 with 128 threads: above 255
    (1024, 512, 298),  # too many with any number: the most threads
])
def test_accumulators_are_spread_over_the_fewest_threads_that_hold_them(head_dim, threads,
                                                                        registers):
    program = schedules.build("flash2", Attention(1, 1, 256, head_dim), Tiles(128, 64))
    found = estimate_resources(program, H200)
    assert (found.threads, found.registers_per_thread) == (threads, registers)
    assert found.smem_bytes == program.smem_bytes_per_block > 0
    exact = H200.model_copy(update={"max_registers_per_thread": registers})
    assert estimate_resources(program, exact).threads == threads
    assert hash(found) == hash(estimate_resources(program, H200))  # a value, like its Occupancy


def test_registers_of_a_thread_are_rounded_up():
    (phase,) = schedules.build("flash2", Attention(1, 1, 256, 128), Tiles(128, 64)).phases
    assert estimate_registers(phase, 127) == 224  # 25,344 / 127 = 199.6
