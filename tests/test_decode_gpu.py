"""Do the decode kernels compute attention at every way to cut keys and rows, and in pages?"""

from dataclasses import replace

import pytest
from hbmeter import kernels
from hbmeter.kernels import runner
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator import schedules
from hbmeter.simulator.engines import scratchpad
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

pytestmark = pytest.mark.gpu
LIMIT = {"fp16": 1e-3, "bf16": 8e-3}  # of the error's norm, relative
CASES = {  # name: (shape, tiles)
    "one key": (dict(heads=4, kv_seq=1, head_dim=64), Tiles(16, 64, 3, splits=4)),
    "one warp": (dict(heads=4, kv_seq=17, head_dim=64), Tiles(16, 16)),
    "ragged splits": (dict(batch=2, heads=8, kv_heads=2, kv_seq=1000), Tiles(16, 64, 2, splits=7)),
    "many splits": (dict(heads=1, kv_seq=30_000, head_dim=64), Tiles(16, 64, 3, splits=150)),
    "rows of several queries": (
        dict(batch=3, heads=12, kv_heads=2, seq=3, kv_seq=333, head_dim=64, mask="causal"),
        Tiles(16, 32, 3, splits=5)),
    "two strips of rows": (
        dict(heads=12, kv_heads=2, seq=5, kv_seq=700, head_dim=80, value_dim=48, mask="causal"),
        Tiles(32, 64, 2, splits=4)),
    "a window": (dict(heads=8, kv_heads=2, seq=7, kv_seq=2000, mask="window:300"),
                 Tiles(16, 128, 2, splits=2)),
    "wide warps": (dict(heads=8, kv_heads=2, seq=3, kv_seq=5000), Tiles(16, 256, splits=9)),
    "rows that see nothing": (dict(heads=2, seq=20, kv_seq=13, head_dim=64, mask="window:5"),
                              Tiles(16, 16, 2)),
    "wide heads": (dict(heads=8, kv_heads=1, kv_seq=2000, head_dim=256),
                   Tiles(16, 64, 2, splits=6)),
    "bf16": (dict(heads=8, kv_heads=2, kv_seq=3000, dtype="bf16"), Tiles(16, 64, 4, splits=2)),
}


@pytest.fixture(scope="module", autouse=True)
def cupy():
    try:
        return runner.require_gpu()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "page"), [("split_kv", 16), ("paged", 16), ("paged", 128)])
def test_exact_attention_and_exact_bytes(cupy, case, name, page):
    shape, tiles = CASES[case]
    problem = Attention(**{"batch": 1, "seq": 1, "head_dim": 128} | shape)
    kernel, tiles = kernels.get(name), replace(tiles, page=page)
    inputs = runner.random_inputs(problem)
    wanted = runner.reference(problem, *inputs)["O"]
    count = scratchpad.count(schedules.build(name, problem, tiles)).by_tensor
    order = ("row", "head")[list(CASES).index(case) % 2]
    plain = runner.run(kernel, problem, tiles, *inputs, order=order)
    counted = runner.run(kernel, problem, tiles, *inputs, order=order, count=True)
    found = runner.to_float(plain.outputs["O"]).astype(cupy.float64)
    error = cupy.linalg.norm(found - wanted) / cupy.linalg.norm(wanted)
    assert float(error) <= LIMIT[problem.dtype]
    assert bool((counted.outputs["O"] == plain.outputs["O"]).all())
    assert counted.bytes == count
