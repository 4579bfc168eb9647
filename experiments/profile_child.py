"""What ``hbmeter verify`` runs under Nsight Compute: each point of a JSON list once, in order.

  python -m hbmeter.experiments.profile_child POINTS.json REPEAT

Nothing else that it launches has a name with hbmeter_, so the profiled launches are exactly those
of the points. No warm-up: ncu replays each launch by itself, caches flushed. Each repeat has other
memory: which sets of an L2 fill first depends on it, and where all just fits DRAM bytes do too.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..kernels.probes.l2 import PAGE_BYTES

PROGRESS = "hbmeter-point "
PAGES_BETWEEN = 64  # fewer physical pages than that lie between two arrays


def main(path: str, repeat: str) -> None:
    """Run the points; a line ``hbmeter-point I`` before each."""
    from ..kernels import get, runner
    from .grid import Point

    cupy, apart = runner.require_gpu(), _Apart(int(repeat))
    for number, document in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
        print(f"{PROGRESS}{number}", flush=True)
        point = Point.of(document)
        with cupy.cuda.using_allocator(apart.allocate):
            inputs = _inputs(point.problem)
            q, k, v = (inputs.pop(name, None) for name in "QKV")
            prepared = runner.Prepared(get(point.kernel), point.problem, point.tiles, q, k, v,
                                       point.order, False, point.blocks_per_sm, inputs)
        apart.free()  # ncu saves what a launch may touch: no memory that is not in use
        prepared.launch()
        cupy.cuda.runtime.deviceSynchronize()
        del inputs, q, k, v, prepared
        apart.free()


class _Apart:
    """Memory for arrays, a random number of physical pages between them."""

    def __init__(self, seed: int):
        from ..kernels.runner import require_gpu

        self.pool, self.random = require_gpu().cuda.MemoryPool(), np.random.default_rng(seed)
        self.between = []

    def allocate(self, size: int):
        """Memory of so many bytes, as CuPy asks for it."""
        pages = int(self.random.integers(PAGES_BETWEEN))
        if size >= PAGE_BYTES and pages:
            self.between.append(self.pool.malloc(pages * PAGE_BYTES))
        return self.pool.malloc(size)

    def free(self) -> None:
        """Give what lies between back, and all that is not in use."""
        self.between.clear()
        self.pool.free_all_blocks()


def _inputs(problem) -> dict:
    """Random numbers for one head, the same for all: counters do not depend on them."""
    from ..kernels import runner, scores
    from ..kernels.base import tensor_shape

    cupy = runner.require_gpu()
    single = replace(problem, batch=1, heads=1, kv_heads=1)
    if problem.direction == "softmax":
        one = scores.random_scores(single)
    else:
        one = dict(zip("QKV", runner.random_inputs(single), strict=True))
    if problem.direction == "backward":
        one |= {"dO": one["V"][:, :, :1], "O": one["V"][:, :, :1],
                "LSE": cupy.zeros((1, 1, 1), cupy.float32)}
    return {name: cupy.ascontiguousarray(cupy.broadcast_to(array, tensor_shape(name, problem)))
            for name, array in one.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
