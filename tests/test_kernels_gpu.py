"""Do the kernels compute attention, and move exactly the bytes that their schedules count?"""

import random
from dataclasses import replace

import numpy as np
import pytest
from hbmeter import kernels
from hbmeter.kernels import compiler, gradients, runner, scores
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator import schedules
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.grid_order import ORDERS
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles

pytestmark = pytest.mark.gpu

LENGTHS = (1, 17, 63, 64, 65, 129, 200)
MASKS = ("full", "causal", "window:1", "window:40")
TOLERANCE = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3}  # of the error's norm, relative
SHAPES_PER_TILE = 4
MANY_TILES = 8
PARTS = 4


@pytest.fixture(scope="module", autouse=True)
def cupy():
    try:
        return runner.require_gpu()
    except Unavailable as error:
        pytest.skip(str(error))


def shapes(direction: str, dtype: str, head_dim: int, seed: int, how_many: int):
    """Random ragged problems: n_q ≠ n_kv, grouped heads, every mask."""
    draw = random.Random(seed)
    for _ in range(how_many):
        kv_heads = draw.choice((1, 2))
        yield Attention(
            batch=draw.choice((1, 2)), heads=kv_heads * draw.choice((1, 3)), kv_heads=kv_heads,
            seq=draw.choice(LENGTHS), kv_seq=draw.choice(LENGTHS), head_dim=head_dim,
            dtype=dtype, mask=draw.choice(MASKS), direction=direction,
        )


def granted(kernel, problem, tiles, order="row") -> bool:
    """Whether this GPU has the shared memory; what it has not must be refused in words."""
    try:
        runner.attributes(kernel, problem, tiles, order)
    except InputError as error:
        assert "this GPU allows" in str(error)
        return False
    return True


def assert_exact(cupy, problem, outputs, wanted, sizes=None):
    """Every element written, and near the float64 attention; ``sizes``: what a tensor is a
    difference of, by name, where that is what rounding goes by."""
    for name, output in outputs.items():
        found = runner.to_float(output).astype(cupy.float64)
        if name not in wanted:  # S and P
            assert bool(cupy.isfinite(found).all()), f"{name}: not every element is finite"
            continue
        right = wanted[name]
        finite = cupy.isfinite(right)  # m and LSE are −∞ where nothing is seen
        assert bool((found[~finite] == right[~finite]).all()), f"{name}: wholly masked rows"
        assert bool(cupy.isfinite(found[finite]).all()), f"{name}: not every element is finite"
        error = float(cupy.linalg.norm((found - right)[finite]))
        norm = float(cupy.linalg.norm((sizes or wanted)[name][finite]))
        if name in ("m", "LSE"):  # these may be near 0 themselves; a score is of size 1
            norm = max(norm, int(finite.sum()) ** 0.5)
        assert error <= TOLERANCE[problem.dtype] * norm, f"{name}: {error} of {norm}"


def more_inputs(problem, q, k, v) -> dict:
    """What the pass reads beside Q, K and V, or in their place."""
    if problem.direction == "forward":
        return {}
    if problem.direction == "softmax":
        return scores.random_scores(problem)
    return gradients.backward_inputs(problem, q, k, v)


def check(cupy, kernel, problem, tiles, order="row"):
    """One run without counting and one with: both exact, and the bytes those of the schedule."""
    scratchpad = pytest.importorskip("hbmeter.simulator.engines.scratchpad")
    q, k, v = runner.random_inputs(problem, seed=problem.seq)
    more = more_inputs(problem, q, k, v)
    sizes = None
    if problem.direction == "backward":
        wanted, sizes = (gradients.reference_gradients(problem, q, k, v, more["dO"], sizes=flag)
                         for flag in (False, True))
    elif problem.direction == "softmax":
        wanted = scores.reference_weights(problem, more["S"])
    else:
        wanted = runner.reference(problem, q, k, v)
    plain = runner.run(kernel, problem, tiles, q, k, v, order, more=more)
    assert plain.bytes is None
    assert_exact(cupy, problem, plain.outputs, wanted, sizes)
    counting = runner.run(kernel, problem, tiles, q, k, v, order, count=True, more=more)
    assert_exact(cupy, problem, counting.outputs, wanted, sizes)
    program = schedules.build(kernel.schedule, problem, tiles)
    assert counting.bytes == scratchpad.count(program).by_tensor


# Compilers take most of the time here: a tile is built in one grid order, and of kernels with many
# tiles in one of two dtypes at each head_dim. The kernel changes fastest from test to test, so that
# workers, who get neighbours, have equal shares.
@pytest.mark.parametrize("name", kernels.names())
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("part", range(PARTS))
def test_exact_attention_and_exact_bytes_at_every_tile(cupy, name, dtype, head_dim, part):
    kernel = kernels.get(name)
    choices = kernel.tile_choices(
        Attention(head_dim=head_dim, dtype=dtype, direction=kernel.direction))
    choices = choices[:2] if dtype == "bf16" else choices
    for seed, tiles in list(enumerate(choices))[part::PARTS]:
        if len(choices) > MANY_TILES and (dtype == "fp16") == (seed + head_dim // 64) % 2:
            continue
        order = ORDERS[seed % len(ORDERS)]
        for problem in shapes(kernel.direction, dtype, head_dim, seed, SHAPES_PER_TILE):
            if granted(kernel, problem, tiles, order):
                try:
                    check(cupy, kernel, problem, tiles, order)
                except AssertionError as error:
                    raise AssertionError(f"{kernel.name} {problem} {tiles}: {error}") from error


@pytest.mark.parametrize("name", kernels.names())
@pytest.mark.parametrize(("head_dim", "value_dim"), [(32, 32), (256, 256), (192, 128), (48, 80)])
def test_other_head_dims(cupy, name, head_dim, value_dim):
    kernel = kernels.get(name)
    problem = Attention(
        batch=2, heads=2, seq=150, kv_seq=203, head_dim=head_dim, value_dim=value_dim,
        mask="causal", direction=kernel.direction,
    )
    tiles = next(t for t in kernel.tile_choices(problem) if granted(kernel, problem, t))
    check(cupy, kernel, problem, tiles)


TURNING = [name for name in kernels.names() if kernels.get(name).turns]


@pytest.mark.parametrize("name", TURNING)
@pytest.mark.parametrize("kv_order", ["reversed", "sawtooth:2"])
def test_in_whatever_order_it_walks(cupy, name, kv_order):
    kernel = kernels.get(name)
    for seed, problem in enumerate(shapes(kernel.direction, "fp16", 64, 7, SHAPES_PER_TILE)):
        tiles = replace(kernel.tile_choices(problem)[0], kv_order=kv_order)
        if "splits" in schedules.options(kernel.schedule):
            tiles = replace(tiles, splits=1 + seed % 3)
        check(cupy, kernel, problem, tiles)


@pytest.mark.parametrize("name", ["standard", "standard_mma"])
@pytest.mark.parametrize("kv_seq", [24_576, 24_577, 24_584])
def test_rows_longer_than_shared_memory_are_read_twice(cupy, kv_seq, name):
    problem = Attention(
        batch=1, heads=1, seq=3, kv_seq=kv_seq, head_dim=64, dtype="fp16", mask="window:20000"
    )
    check(cupy, kernels.get(name), problem, Tiles(16, 128))


@pytest.mark.parametrize("name", ["standard", "standard_mma"])
@pytest.mark.parametrize("bk", [16, 48, 128])
def test_any_depth_of_the_inner_step(cupy, bk, name):
    problem = Attention(batch=1, heads=2, seq=70, kv_seq=90, head_dim=64, dtype="fp16")
    for stages in range(1, kernels.get(name).most_stages + 1):
        check(cupy, kernels.get(name), problem, Tiles(64, 48, stages, bk=bk))


@pytest.mark.parametrize("name", kernels.names())
def test_more_than_48_kib_of_shared_memory_is_granted(cupy, name):
    kernel = kernels.get(name)
    problem = Attention(batch=1, heads=1, seq=130, head_dim=128, dtype=kernel.dtypes[0],
                        direction=kernel.direction)
    tiles = Tiles(64, 128, min(kernel.most_stages, 2), bk=96)
    if kernel.accepts(problem, tiles) and granted(kernel, problem, tiles):
        assert kernel.shared_bytes(problem, tiles) > 48 * 1024
        check(cupy, kernel, problem, tiles)


def test_a_persistent_kernel_shares_out_all_tiles_at_every_launch(cupy):
    kernel = kernels.get("flash2_wgmma")
    problem = Attention(batch=2, heads=80, seq=300, kv_seq=260, head_dim=64, mask="causal")
    tiles = kernel.tile_choices(problem)[0]
    if not granted(kernel, problem, tiles):
        pytest.skip("this GPU has no wgmma")
    inputs = runner.random_inputs(problem)
    wanted = runner.reference(problem, *inputs)
    prepared = runner.Prepared(kernel, problem, tiles, *inputs, "head", False, None)
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    blocks = prepared.functions[0][1].grid
    assert blocks < kernel.launches(problem, tiles)[0].grid and blocks % multiprocessors == 0
    for _ in range(3):
        outputs = {name: prepared.tensors[name] for name in kernel.outputs}
        for output in outputs.values():
            output.fill(np.nan)
        prepared.launch()
        assert_exact(cupy, problem, outputs, wanted)


def squares(kernel, problem) -> Tiles:
    """64 × 64, or what a kernel that takes none uses by default."""
    tiles = Tiles(64, 64)
    return tiles if kernel.accepts(problem, tiles) else kernel.tile_choices(problem)[0]


@pytest.mark.parametrize("name", kernels.names())
def test_the_driver_agrees_with_the_compiler(cupy, name):
    kernel = kernels.get(name)
    problem = Attention(head_dim=64, direction=kernel.direction)
    tiles = squares(kernel, problem)
    for entry, found in runner.attributes(kernel, problem, tiles).items():
        assert found.local_bytes == 0 and found.registers <= 255, entry
        assert 1 <= found.blocks_per_sm <= 8, entry
    if cupy.cuda.Device().compute_capability == "90":
        try:
            built = compiler.resources(kernel, problem, tiles, kernel.only_arch or "sm_90")
        except Unavailable:
            return
        assert built.keys() == runner.attributes(kernel, problem, tiles).keys()


@pytest.mark.parametrize("name", kernels.names())
def test_times_are_samples_with_their_median(cupy, name):
    kernel = kernels.get(name)
    problem = Attention(batch=1, heads=2, seq=256, head_dim=64, direction=kernel.direction)
    inputs = runner.random_inputs(problem)
    timing = runner.time_ms(kernel, problem, squares(kernel, problem), *inputs, warmup=1,
                            repeats=5, more=more_inputs(problem, *inputs))
    assert len(timing.samples_ms) == 5 and all(sample > 0 for sample in timing.samples_ms)
    assert timing.median_ms == sorted(timing.samples_ms)[2]


def test_inputs_that_are_not_the_problems_are_refused(cupy):
    problem = Attention(batch=1, heads=2, seq=32, head_dim=64)
    q, k, v = runner.random_inputs(problem)
    with pytest.raises(InputError, match="K is float32"):
        runner.run(kernels.get("flash2"), problem, Tiles(16, 16), q, k.astype("float32"), v)
    backward = Attention(batch=1, heads=2, seq=32, head_dim=64, direction="backward")
    with pytest.raises(InputError, match="flash2_backward needs dO, O, LSE too"):
        runner.run(kernels.get("flash2_backward"), backward, Tiles(64, 128), q, k, v)


def test_the_reference_is_attention(cupy):
    problem = Attention(
        batch=1, heads=2, kv_heads=1, seq=7, kv_seq=5, head_dim=16, dtype="fp32", mask="causal"
    )
    q, k, v = runner.random_inputs(problem)
    found = cupy.asnumpy(runner.reference(problem, q, k, v)["O"])
    q, k, v = (cupy.asnumpy(x).astype(np.float64) for x in (q, k, v))
    for head in range(2):
        for row in range(7):
            seen = max(0, row + 5 - 7 + 1)
            weights = np.exp(k[0, 0, :seen] @ q[0, head, row] / 4)
            wanted = weights @ v[0, 0, :seen] / weights.sum() if seen else 0 * v[0, 0, 0]
            np.testing.assert_allclose(found[0, head, row], wanted, rtol=1e-12, atol=1e-14)
