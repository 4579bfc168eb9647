"""Is the predicted occupancy exactly what the CUDA runtime and Nsight Compute say?

Every recorded launch of our kernels, and hundreds of random launches that the runtime was asked
about (``hbmeter calibrate`` records them).
"""

import pytest
from hbmeter import kernels
from hbmeter.experiments import rates_record, records
from hbmeter.experiments.grid import Point
from hbmeter.hwprofiles import load
from hbmeter.simulator.occupancy import occupancy

RECORDS = records.load_all()
REGISTERS, SHARED = "launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem"


def launches(record):
    """(point, launch, recorded attributes, ncu's metrics of each repeat) of each launch."""
    for document in record.points:
        point = Point.of(document)
        all_launches = kernels.get(point.kernel).launches(point.problem, point.tiles, point.order)
        for number, launch in enumerate(all_launches):
            repeats = [repeat[number]["metrics"] for repeat in document["counters"] or []]
            yield point, launch, document["attributes"][launch.entry], repeats


def predicted(gpu, launch, attributes):
    shared = attributes["static_shared_bytes"] + attributes["dynamic_shared_bytes"]
    return occupancy(gpu, launch.threads, attributes["registers"], shared)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_blocks_per_sm_of_every_recorded_launch_are_the_runtimes(record):
    gpu = load(record.gpu)
    found = [(str(point), predicted(gpu, launch, attributes).blocks_per_sm,
              attributes["blocks_per_sm"])
             for point, launch, attributes, _ in launches(record)]
    assert len(found) >= len(record.points) > 0
    assert [row for row in found if row[1] != row[2]] == []


@pytest.mark.parametrize("record", [r for r in RECORDS if any(p["counters"] for p in r.points)],
                         ids=lambda record: record.name)
def test_what_registers_allow_and_the_least_of_all_limits_are_ncus(record):
    """ncu's limit by shared memory holds for the carve-out that the driver chose for the launch,
    which is no larger than the other limits need: it is compared through the least of all."""
    gpu, found = load(record.gpu), []
    for point, launch, attributes, repeats in launches(record):
        ours = predicted(gpu, launch, attributes)
        least = min(ours.limits["threads"], ours.limits["blocks"])
        found += [(str(point), ours.limits["registers"], ours.blocks_per_sm,
                   metrics[REGISTERS], min(least, metrics[REGISTERS], metrics[SHARED]))
                  for metrics in repeats if REGISTERS in metrics]
    assert len(found) >= len(record.points) > 20
    assert [row for row in found if row[1:3] != row[3:]] == []


def test_random_launches_have_the_runtimes_blocks_per_sm():
    for record in rates_record.load_all():
        misses, launches_ = rates_record.occupancy_misses(record, load(record.gpu))
        assert misses == 0 and launches_ >= 300
        answers = {point["samples"][0]["blocks_per_sm"] for point in record.probes["occupancy"]}
        assert {0, 1, 2, 3, 4, 8, 32} <= answers, "launches too much alike to say anything"
