"""Do reported launches fit or fail as their users saw? Values from public bug reports."""

import pytest
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.blocks import Candidate
from hbmeter.simulator.occupancy import occupancy
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles


def needed_bytes(tiles, head_dim, dtype="bf16", value_dim=None):
    problem = Attention(1, 1, 512, head_dim, value_dim=value_dim, dtype=dtype)
    return schedules.build("flash2", problem, tiles).smem_bytes_per_block


def fits(gpu, tiles, head_dim, **shape):
    return needed_bytes(tiles, head_dim, **shape) <= load(gpu).smem.bytes_per_block_max


def test_head_dim_256_does_not_fit_an_rtx_4090_but_an_a100():
    assert needed_bytes(Tiles(128, 64), 256) == 131_072
    assert not fits("rtx4090", Tiles(128, 64), 256) and fits("a100-40gb", Tiles(128, 64), 256)
    assert all(fits("rtx4090", Tiles(128, 64), d) for d in (64, 128, 192))


@pytest.mark.parametrize(("tiles", "kib", "launches"), [
    (Tiles(64, 64, 3), 144, False), (Tiles(128, 32, 2), 88, True),
    (Tiles(128, 16, 3), 78, True), (Tiles(32, 64, 2), 92, True),
])
def test_keys_wider_than_values_on_an_a10g(tiles, kib, launches):
    """The estimate; the compiler's own figure for the first was 139,776 B. sm_86 limits."""
    assert needed_bytes(tiles, 192, value_dim=128) == kib * 1024
    assert fits("a10", tiles, 192, value_dim=128) is launches


def test_head_dim_512_on_turing():
    assert needed_bytes(Tiles(32, 32), 512, "fp16") == 98_304
    assert not fits("t4", Tiles(32, 32), 512, dtype="fp16")
    assert needed_bytes(Tiles(16, 16), 512, "fp16") == 49_152
    assert fits("t4", Tiles(16, 16), 512, dtype="fp16")


def test_what_does_not_fit_says_both_numbers():
    problem = Attention(1, 1, 512, 256, dtype="bf16")
    program = schedules.build("flash2", problem, Tiles(128, 64))
    why = Candidate(program, load("rtx4090")).why_not
    assert why == "131,072 B of shared memory, 101,376 allowed"


@pytest.mark.parametrize(("threads", "registers", "smem", "limiters", "share"), [
    (256, 144, 70_656, {"registers", "shared memory"}, 1 / 6),
    (128, 232, 68_608, {"shared memory"}, 1 / 12),
])
def test_one_block_on_an_sm_of_an_rtx_5090(threads, registers, smem, limiters, share):
    found = occupancy(load("rtx5090"), threads, registers, smem)
    assert found.blocks_per_sm == 1 and set(found.limiters) == limiters
    assert found.share_of_warps == pytest.approx(share)
