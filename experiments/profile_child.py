"""What ``hbmeter verify`` runs under Nsight Compute: each point of a JSON list once, in order.

  python -m hbmeter.experiments.profile_child POINTS.json

Nothing else that it launches has a name with hbmeter_, so the profiled launches are exactly those
of the points. No warm-up: ncu replays each launch by itself, caches flushed.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

PROGRESS = "hbmeter-point "


def main(path: str) -> None:
    """Run the points; a line ``hbmeter-point I`` before each."""
    from ..kernels import get, runner
    from .grid import Point

    for number, document in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
        print(f"{PROGRESS}{number}", flush=True)
        point = Point.of(document)
        # ncu saves what a launch may touch: leave it no memory that is not in use.
        runner.require_gpu().get_default_memory_pool().free_all_blocks()
        inputs = _inputs(point.problem)
        q, k, v = (inputs.pop(name, None) for name in "QKV")
        runner.run(get(point.kernel), point.problem, point.tiles, q, k, v, point.order,
                   most_blocks_per_sm=point.blocks_per_sm, more=inputs)


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
    main(sys.argv[1])
