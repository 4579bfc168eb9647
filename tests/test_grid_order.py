"""Does every order of the grid issue every thread block once, and as its name says?"""

import pytest
from hbmeter import kernels
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, InputError, Tiles, schedules
from hbmeter.simulator.engines import l2
from hbmeter.simulator.engines.dispatch import place_of
from hbmeter.simulator.grid_order import ORDERS, issue, order_number

PROBLEM = Attention(1, 7, 64, 32)
H200 = load("h200")


def issued(order, heads=7, blocks=5, problem=PROBLEM):
    how = issue(order, problem, heads, blocks)
    return [tuple(map(int, place_of(index, heads, blocks, how)))
            for index in range(heads * blocks)]


@pytest.mark.parametrize("order", [*ORDERS, "head:1", "head:3", "longest:2", "longest:99"])
def test_every_block_is_issued_once(order):
    assert sorted(issued(order)) == [(head, block) for head in range(7) for block in range(5)]


def test_sections_lie_between_row_and_head():
    assert issued("head:1") == issued("row")
    assert issued("head:7") == issued("head:1000") == issued("head")
    assert issued("longest:7") == issued("longest")
    assert issued("longest:1")[:6] == [(0, 4), (0, 3), (0, 2), (0, 1), (0, 0), (1, 4)]
    assert issued("head:2")[:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert issued("head:2")[10] == (2, 0)


@pytest.mark.parametrize("kernel", kernels.names())
def test_kernels_issue_their_tiles_in_an_order_that_the_simulator_knows(kernel):
    for order in ORDERS:
        order_number(kernels.get(kernel).issue_order(order), PROBLEM)


def test_flash2_wgmma_begins_each_head_with_its_last_row_block():
    wgmma = kernels.get("flash2_wgmma")
    assert issued(wgmma.issue_order("row"))[:2] == [(0, 4), (0, 3)]
    assert issued(wgmma.issue_order("head"))[:2] == [(0, 4), (1, 4)]


def test_the_last_section_may_be_smaller():
    assert issued("head:3")[-5:] == [(6, block) for block in range(5)]


def test_in_a_backward_pass_the_first_blocks_are_the_longest():
    backward = Attention(1, 7, 64, 32, direction="backward")
    assert issued("longest:2", problem=backward) == issued("head:2")


@pytest.mark.parametrize("order", ["head:0", "head:", "longest:x", "head:-1", f"head:{2**31}"])
def test_sections_of_no_heads_are_refused(order):
    with pytest.raises(InputError, match="is the heads that share the L2, a whole number"):
        order_number(order, PROBLEM)


@pytest.mark.parametrize("order", ["rows", "row:2", "", "col:1"])
def test_unknown_orders_list_the_known(order):
    with pytest.raises(InputError, match="head:N"):
        order_number(order, PROBLEM)


def test_fewer_heads_at_a_time_read_less_of_dram_when_all_do_not_fit():
    """32 heads whose K and V are 8 MiB each, an L2 of two partitions of 30."""
    program = schedules.build("flash2", Attention(1, 32, 16384, 128, mask="causal"),
                              Tiles(128, 128))
    reads = [l2.simulate(program, H200, blocks_per_sm=1, order=order).dram_read_bytes
             for order in ("head:2", "head:8", "head")]
    assert reads == sorted(reads) and reads[0] < reads[2] / 4
