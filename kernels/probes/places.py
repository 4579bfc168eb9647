"""Launcher of places.cuh, for probes that include it: where SMs are. Importing this needs no CuPy.
"""

import numpy as np

from . import l2

SIDE_PROBE = {"count": 64, "stride_bytes": 8192}
CLUSTER, CLUSTERS, LAUNCHES, WAIT_CYCLES = 8, 128, 4, 3000


def sides() -> dict[int, int]:
    """The side of each SM, that of the first SM that a launch reaches 0: what SMs of a side find
    near, those of the other find far."""
    order, cycles = l2.latency(**SIDE_PROBE)
    about = cycles - cycles.mean(axis=0, dtype=float)
    return dict(zip(order.tolist(), (about @ about[0] < 0).astype(int).tolist(), strict=True))


def launch_order(bench, function) -> list[int]:
    """SMs in the order in which a launch reaches them."""
    blocks = bench.cupy.zeros(bench.sms, np.int32)
    function("places")((bench.sms,), (1024,), (blocks, np.uint32(10 * WAIT_CYCLES)))
    return blocks.get().tolist()


def gpcs(bench, function) -> list[list[int]]:
    """SMs that are of a GPC, as clusters tell; a few may be in no cluster, and so in no GPC here:
    on GPUs without clusters all."""
    found = []
    if bench.capability >= 90:
        for launch in range(LAUNCHES):  # many more than there is room for at once
            blocks = bench.cupy.zeros(CLUSTER * CLUSTERS, np.int32)
            function("clusters")((len(blocks),), (1024,),
                                 (blocks, np.uint32(WAIT_CYCLES + 997 * launch)))
            found += blocks.get().reshape(-1, CLUSTER).tolist()
    return grouped(found, bench.sms)


def grouped(clusters: list[list[int]], sms: int) -> list[list[int]]:
    """SMs (of ``sms``) in groups that clusters have in common, those of two SMs or more.

    >>> grouped([[0, 2], [2, 5], [1, 3]], 6)
    [[0, 2, 5], [1, 3]]
    """
    group = np.arange(sms)
    for cluster in clusters:
        group[np.isin(group, group[cluster])] = group[cluster].min()
    found = [np.flatnonzero(group == number).tolist() for number in np.unique(group)]
    return [several for several in found if len(several) > 1]
