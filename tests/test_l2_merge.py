"""Are requests merged as an H200 merged them? Recorded with kernels/probes/merging.cu."""

import json

import numpy as np
import pytest
from compiled import from_python
from hbmeter.experiments import records
from hbmeter.hwprofiles import load
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import l2, l2_counts, l2_machine, l2_merge
from hbmeter.simulator.engines.l2_blocks import SLOT
from hbmeter.simulator.engines.l2_cache import UNIT_BYTES
from hbmeter.simulator.engines.l2_moves import MOVE
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

PATH = records.FOLDER / "merging" / "h200.json"
WALKS = json.loads(PATH.read_text(encoding="utf-8"))["walks"]
H200 = load("h200")
merged = from_python(l2_merge.merged)
MIB = 1 << 20


def gpc_of(sm):
    """Of the SM that the driver calls ``sm``: SMs come in pairs, a pair of each GPC in turn."""
    if sm >= 124:
        return 0
    return sm // 2 % 8 if sm < 64 else (sm - 64) // 2 % 7 + 1 if sm < 120 else sm // 2 - 54


def requests_of(walk):
    """Requests for a line of a walk whose lines are in L2 (or all new)."""
    machine = l2_machine.machine_of(H200, 1, UNIT_BYTES, 1)
    row, slots = np.zeros(1, MOVE), np.zeros(len(walk["sms"]), SLOT)
    requests, left = l2_merge.remembered_requests(8), 0
    asked, first = 4, True
    for number, (late, sm) in enumerate(sorted(zip(walk["late_cycles"], walk["sms"],
                                                   strict=True))):
        slots[number]["due"] = late
        missed = asked if walk["new_lines"] and first else 0
        left += asked - merged(requests[gpc_of(sm)], row[0], 0, slots[number], asked,
                                        missed, False, machine)
        first = False
    return left / asked


IN_STEP = [w for w in WALKS if not any(w["late_cycles"]) and not w["new_lines"]]
PAIRS = [w for w in WALKS if len(w["sms"]) == 2 and any(w["late_cycles"])]


@pytest.mark.parametrize("walk", IN_STEP, ids=lambda w: f"{len(w['sms'])} SMs")
def test_sms_in_step_share_requests_four_by_four_in_each_gpc(walk):
    measured = walk["l2_read_requests"] / walk["lines"]
    assert requests_of(walk) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("walk", PAIRS, ids=lambda w: f"SMs {w['sms']}, {w['late_cycles'][1]} "
                         f"cycles late{', new lines' * w['new_lines']}")
def test_a_second_sm_joins_as_long_as_the_first_waits(walk):
    """Within a quarter of the requests, but where the answer comes at about that time."""
    measured = walk["l2_read_requests"] / walk["lines"]
    late = walk["late_cycles"][1]
    if 300 < late < 650 if walk["new_lines"] else 60 <= late <= 110:
        assert 0.99 < measured < 2.01
    else:
        assert requests_of(walk) == pytest.approx(measured, abs=0.25)


def test_a_gpu_whose_profile_says_nothing_merges_nothing():
    program = schedules.build("flash2", Attention(1, 8, 1024, 64), Tiles(64, 64))
    silent = H200.model_copy(update={"l2": H200.l2.model_copy(
        update={"merged_requests_max": None})})
    alone, merged = (l2.simulate(program, gpu, blocks_per_sm=1) for gpu in (silent, H200))
    assert alone.sectors_read == alone.sectors_asked == merged.sectors_asked
    assert merged.sectors_asked / 4 <= merged.sectors_read < merged.sectors_asked
    assert merged.dram_read_bytes == alone.dram_read_bytes


def test_what_a_block_fetches_itself_it_asked_for_itself():
    """An L2 that does not hold the tiles in flight: who joins a request finds nothing later."""
    tiny = H200.model_copy(update={"l2": H200.l2.model_copy(
        update={"size_bytes": 1 << 17, "dirty_bytes_max": None})})
    program = schedules.build("flash2", Attention(1, 8, 1024, 64), Tiles(64, 256))
    count = l2.simulate(program, tiny, blocks_per_sm=1)
    own = count.sectors[:, l2_counts.READ] - count.sectors[:, l2_counts.MERGED]
    assert count.dram_read_bytes > 3 * program.problem.compulsory_read_bytes
    assert (count.sectors[:, l2_counts.FETCHED] <= own).all()
