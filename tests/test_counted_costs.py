"""Do kernels execute the instructions that they declare? Counted on an H200 by Nsight Compute."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hbmeter import kernels
from hbmeter.experiments import records
from hbmeter.experiments.grid import Point
from hbmeter.hwprofiles import load
from hbmeter.kernels.standard import STALLS
from hbmeter.kernels.standard_mma import fullest
from hbmeter.simulator import schedules
from hbmeter.simulator.phase_time import Phase
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tape import Kind
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.units import BOUNDARY, ISSUE, SMEM

RECORD = records.FOLDER / "stalls" / "h200.json"
COUNTED = [(Point.of(data), number, launch) for data in json.loads(
    RECORD.read_text(encoding="utf-8"))["points"] for number, launch in enumerate(data["launches"])]
ISSUED = "sm__inst_executed.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
WAIT = "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"


def declared(point, number):
    """(Warp instructions, wavefronts of shared memory) of a launch."""
    kernel = kernels.get(point.kernel)
    program = schedules.build(kernel.schedule, point.problem, point.tiles)
    phase = Phase(program, number, load("h200"),
                  kernel.executions(point.problem, point.tiles)[number])
    cycles = (phase.counts @ phase.costs()[0]).mean(axis=0) * phase.blocks
    return cycles[ISSUE] * phase.rates.instructions / 32, cycles[SMEM] * phase.rates.wavefronts


def launches(kernel, *numbers):
    return [pytest.param(point, number, launch["metrics"], id=f"{point} {number}")
            for point, number, launch in COUNTED if point.kernel == kernel and number in numbers]


@pytest.mark.parametrize(("point", "number", "metrics"), launches("standard", 2))
def test_products_by_fma_read_shared_memory_in_so_many_wavefronts(point, number, metrics):
    """16-byte loads in four, those of which half a warp reads the same in two."""
    assert declared(point, number)[1] == pytest.approx(metrics[WAVEFRONTS], rel=0.12)


@pytest.mark.parametrize(("point", "number", "metrics"), launches("standard", 0, 2))
def test_stalls_of_products_by_fma_are_those_that_were_counted(point, number, metrics):
    assert 0.4 < metrics[WAIT] < 0.75
    assert pytest.approx(metrics[WAIT], abs=0.2) == STALLS


@pytest.mark.parametrize(("point", "number", "metrics"), launches("standard_mma", 0, 1))
def test_scores_and_softmax_on_tensor_cores_execute_what_they_declare(point, number, metrics):
    """A softmax declares the fullest subpartition's work for all of them."""
    more = fullest(point.problem.kv_seq, kernels.get("standard_mma").softmax_threads(
        point.problem)) if number == 1 else 1
    assert declared(point, number)[0] == pytest.approx(more * metrics[ISSUED], rel=0.12)


@pytest.mark.parametrize("columns", [512, 640, 768, 1000, 1024, 1536, 2048, 3072, 6144, 9000])
def test_the_fullest_subpartition_is_what_warps_one_after_the_other_make_it(columns):
    threads = kernels.get("standard_mma").softmax_threads(Attention(1, 1, 64, 64, kv_seq=columns))
    turns = Counter()
    for warp in range(4 * threads // 32):  # of four blocks
        lane = warp * 32 % threads
        turns[warp % 4] += len(range(8 * lane, columns, 8 * threads))
    assert fullest(columns, threads) == pytest.approx(4 * max(turns.values()) / turns.total())


def test_rows_that_all_warps_share_alike_have_no_fullest_subpartition():
    assert fullest(512, 32) == fullest(2048, 128) == fullest(3072, 192) == 1
    assert fullest(768, 64) == pytest.approx(4 / 3)


def test_all_warps_of_a_block_wait_for_a_tile_that_each_loads_a_part_of():
    """Two groups of warps by FMA: by themselves each would wait for its own half."""
    problem, tiles = Attention(1, 4, 2048, 64, dtype="fp32"), Tiles(64, 64)
    kernel = kernels.get("standard")
    program, how = (schedules.build("standard", problem, tiles),
                    kernel.executions(problem, tiles)[2])
    seen = {}
    for meet in (False, True):
        phase = Phase(program, 2, load("h200"), replace(how, loads_meet=meet))
        demands, _ = phase.costs()
        totals = phase.counts @ demands
        seen[meet] = (phase._waited(demands, totals) / phase.groups)[0, BOUNDARY]
        loads = phase.tape["kind"] == Kind.LOAD
        whole = (phase.counts[:, loads] @ demands[loads])[0, BOUNDARY]
    assert seen[True] - seen[False] == pytest.approx(whole / 2)
