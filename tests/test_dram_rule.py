"""Does the rule for DRAM bytes keep to what a cache can do, and to the recorded counters?"""

from statistics import mean

import pytest
from hbmeter import kernels
from hbmeter.experiments import records, time_table
from hbmeter.experiments.grid import Point
from hbmeter.hwprofiles import load
from hbmeter.simulator import dram_rule, schedules
from hbmeter.simulator.execution import generic
from hbmeter.simulator.phase_time import Phase
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

GPU = load("h200")
MIB = 1 << 20


def phases(schedule, problem, tiles=None):
    program = schedules.build(schedule, problem, tiles or Tiles(128, 64))
    return [Phase(program, number, GPU, how) for number, how in enumerate(generic(program, GPU))]


def by_name(phase, order="row", resident=2):
    found = dram_rule.from_dram(phase, resident, order)
    return {phase.program.tensors[index].name: size for index, size in found.items()}


def test_all_stays_up_to_what_is_kept_and_none_from_twice_as_much_on():
    assert [dram_rule.lost(x, 100) for x in (0, 100, 150, 200, 1e9)] == [0, 0, 0.5, 1, 1]


def test_a_small_problem_reads_its_inputs_once_and_writes_nothing():
    problem = Attention(1, 16, 1024, 64)  # 2 MiB each of Q, K, V and O
    found = by_name(phases("flash2", problem)[0], "head")
    assert found == {"Q": 2 * MIB, "K": 2 * MIB, "V": 2 * MIB, "O": 0, "LSE": 0}


def test_scores_that_the_l2_cannot_hold_go_to_dram_and_come_back_twice():
    problem = Attention(1, 16, 2048, 64)  # S and P: 128 MiB each
    scores, softmax, output = (by_name(phase) for phase in phases("standard", problem))
    assert scores["S"] == 128 * MIB and softmax == {"S": 128 * MIB, "P": 128 * MIB}
    assert output["P"] == 128 * MIB
    small = [by_name(phase) for phase in phases("standard", Attention(1, 4, 1024, 64))]
    assert small[0]["S"] == small[1]["S"] == small[1]["P"] == small[2]["P"] == 0


@pytest.mark.parametrize(("schedule", "tensor"), [("flash2", "K"), ("standard", "K")])
def test_heads_side_by_side_lose_keys_that_heads_one_by_one_keep(schedule, tensor):
    problem = Attention(1, 256, 2048, 128)  # 128 MiB of K
    row, head = (by_name(phases(schedule, problem)[0], order) for order in ("row", "head"))
    assert row[tensor] == pytest.approx(128 * MIB) and head[tensor] > 2 * row[tensor]
    assert head["Q"] == pytest.approx(128 * MIB)  # of a row block: read again at once, or once


def test_what_is_only_written_is_the_written_share():
    softmax = phases("standard", Attention(1, 16, 2048, 64))[1]
    found = dram_rule.from_dram(softmax, 2, "row")
    assert dram_rule.written_share(softmax, found) == pytest.approx(0.5)
    assert dram_rule.written_share(softmax, {}) == 0


def counted():
    """(order, whether K and V of a head fit the L2, DRAM seconds by the rule less those counted,
    over the run's) of recorded launches of FlashAttention-2 forward."""
    timed = {(x.point, x.source): x for x in time_table.timed()}
    for record in records.load_all():
        for data in record.points:
            x = timed.get((Point.of(data), f"verify {record.name}"))
            if x is None or kernels.get(x.point.kernel).schedule != "flash2":
                continue
            for launch in (data.get("counters") or [[]])[0]:
                metrics = launch["metrics"]
                if "dram__bytes_read.sum" not in metrics:
                    continue
                how, = time_table.executions(x.point)
                found = dram_rule.from_dram(Phase(x.program, 0, x.gpu, how), x.blocks_per_sm[0],
                                            time_table.issue_order(x.point))
                more = sum(found.values()) - sum(
                    metrics[f"dram__bytes_{way}.sum"] for way in ("read", "write"))
                seconds = metrics["gpu__time_duration.sum"] * 1e-9
                problem = x.point.problem
                keys = 2 * problem.kv_seq * problem.head_dim * problem.dtype_bytes
                rate = x.gpu.measured["hbm_read"].value
                yield x.point.order, keys < x.gpu.l2.size_bytes, more / rate / seconds


def test_recorded_counters_agree_where_heads_follow_each_other_and_about_where_they_do_not():
    found = list(counted())
    row = [abs(share) for order, fits, share in found if order == "row" and fits]
    long = [abs(share) for order, fits, share in found if order == "row" and not fits]
    head = [abs(share) for order, _, share in found if order == "head"]
    assert len(row) > 100 and mean(row) < 0.01 and max(row) < 0.05
    assert len(long) > 5 and mean(long) < 0.02 and max(long) < 0.11  # causal rows drift apart
    assert len(head) > 50 and mean(head) < 0.1  # the L2 reader is for these
