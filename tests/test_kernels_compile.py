"""Do the kernels compile, without a GPU, for every architecture, and without spilling?"""

import re
import subprocess
import sys

import pytest
from hbmeter import kernels
from hbmeter.kernels import compiler
from hbmeter.kernels.base import FOLDER, MAX_REGISTERS, scalar_arguments, tensor_shape
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator import schedules
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.program import Role
from hbmeter.simulator.tiles import Tiles

ARCHES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
# Takes every path of our sources that the other takes: counting is not built for both.
ALIKE = {"sm_89": "sm_80"}
REGISTERS_PER_SM = 65_536
SMALL = Tiles(16, 16)
OF_ATTENTION = [n for n in kernels.names() if kernels.get(n).direction != "softmax"]


def problem(**changes) -> Attention:
    return Attention(**{"batch": 1, "heads": 2, "seq": 100, **changes})


def posed(kernel, **changes) -> Attention:
    """The problem in the pass that the kernel computes."""
    return problem(direction=kernel.direction, **changes)


@pytest.mark.parametrize("name", kernels.names())
def test_a_kernel_bears_the_name_of_its_files(name):
    """Else its launcher would run another file's code."""
    assert kernels.get(name).name == name


@pytest.fixture(scope="module")
def nvrtc():
    try:
        compiler.include_folders()
        compiler.build(kernels.get("flash2"), problem(), SMALL)
    except Unavailable as error:
        pytest.skip(str(error))


def misfits(kernel, dtype, head_dim, arch, count, tiles) -> list[str]:
    """A line for each entry point of a build that spills or cannot be launched, or of which ptxas
    warns: wgmma that is serialised."""
    shape = posed(kernel, dtype=dtype, head_dim=head_dim)
    built = compiler.build(kernel, shape, tiles, arch, count)
    assert built.cubin[:4] == b"\x7fELF"
    entries = {launch.entry for launch in kernel.launches(posed(kernel), tiles)}
    assert entries <= set(built.resources)  # a launch may be left out: one split, no combine
    return [
        f"{arch} {dtype} d {head_dim} {tiles} count {count}: {entry} {taken} {built.warnings}"
        for entry, taken in built.resources.items()
        if taken.spill_store_bytes + taken.spill_load_bytes + taken.stack_bytes
        or taken.registers > MAX_REGISTERS
        or taken.registers * kernel.threads > REGISTERS_PER_SM
        or built.warnings
    ]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", kernels.names())
def test_no_spills_at_any_default_tile(nvrtc, name, dtype, head_dim):
    kernel = kernels.get(name)
    if dtype not in kernel.dtypes:
        pytest.skip(f"{name} does not take {dtype}")
    if head_dim != 64 and "head_dim" not in kernel.widths:
        pytest.skip(f"{name} is the same code at every head_dim")
    choices = kernel.tile_choices(posed(kernel, dtype=dtype, head_dim=head_dim))
    assert choices
    bad = [m for t in choices for m in misfits(kernel, dtype, head_dim, "sm_90a", False, t)]
    assert not bad, "\n".join(bad)


def misfits_of_default(name, arch, count) -> list[str]:
    """Those at the default tiles of d 128, of both dtypes."""
    kernel = kernels.get(name)
    if not kernel.runs_on(arch):
        pytest.skip(f"{name} has no code for {arch}")
    return [m for dtype in sorted({"fp32", "fp16"} & {*kernel.dtypes})
            for tiles in kernel.tile_choices(posed(kernel, dtype=dtype))[:1]
            for m in misfits(kernel, dtype, 128, arch, count, tiles)]


@pytest.mark.parametrize("arch", [arch for arch in ARCHES if arch != "sm_90a"])  # all tiles, above
@pytest.mark.parametrize("name", kernels.names())
def test_no_spills_on_any_architecture(nvrtc, name, arch):
    bad = misfits_of_default(name, arch, count=False)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("arch", [arch for arch in ARCHES if arch not in ALIKE])
@pytest.mark.parametrize("name", kernels.names())
def test_no_spills_when_counting_on_any_architecture(nvrtc, name, arch):
    bad = misfits_of_default(name, arch, count=True)  # counters take six times as long to compile
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(("arch", "other"), ALIKE.items())
def test_no_source_tells_architectures_apart_of_which_one_stands_for_both(arch, other):
    texts = [path.read_text() for path in sorted(FOLDER.glob("*.cu*"))]
    found = [line for text in texts for line in re.findall(r"#(?:el)?if (.*__CUDA_ARCH__.*)", text)]
    assert len(found) >= 3
    for line in found:
        condition = line.split("//")[0].replace("&&", " and ").replace("||", " or ")
        assert len({bool(eval(condition, {"__CUDA_ARCH__": 10 * int(name.strip("sm_af"))}))
                    for name in (arch, other)}) == 1, line


@pytest.mark.parametrize("name", kernels.names())
def test_unequal_and_odd_head_dims_compile(nvrtc, name):
    kernel = kernels.get(name)
    for head_dim, value_dim in ((192, 128), (48, 80), (256, 256))[:3 if kernel.widths else 1]:
        shape = posed(kernel, dtype="bf16", head_dim=head_dim, value_dim=value_dim)
        assert compiler.compile_cubin(kernel, shape, kernel.tile_choices(shape)[0])


def test_counting_leaves_no_trace_in_a_plain_build(nvrtc):
    for name in kernels.names():
        kernel = kernels.get(name)
        shape = posed(kernel)
        tiles = SMALL if kernel.accepts(shape, SMALL) else kernel.tile_choices(shape)[0]
        plain, counting = (
            compiler.compile_cubin(kernel, shape, tiles, count=c) for c in (False, True)
        )
        assert b"counters" not in plain and len(plain) < len(counting)


def test_sources_that_do_not_compile_show_the_compilers_log(nvrtc):
    class Broken(type(kernels.get("flash2"))):
        source = "#error no such kernel"

    with pytest.raises(RuntimeError, match="no such kernel"):
        compiler.build(Broken(), problem(), SMALL)


def test_missing_headers_are_reported_with_a_remedy(monkeypatch):
    pytest.importorskip("nvidia")
    monkeypatch.setattr(compiler, "HEADERS", ("no_such_header.h",))
    compiler.include_folders.cache_clear()
    try:
        with pytest.raises(Unavailable, match=r"no_such_header.*hbmeter\[compile\]"):
            compiler.include_folders()
    finally:
        compiler.include_folders.cache_clear()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_a_kernel_of_one_architecture_is_refused_on_others(nvrtc, arch):
    kernel = kernels.get("flash2_wgmma")
    with pytest.raises(InputError, match=f"flash2_wgmma needs sm_90a, not {arch}"):
        compiler.build(kernel, problem(), kernel.tile_choices(problem())[0], arch)
    with pytest.raises(InputError, match="needs sm_80 or later, not sm_75"):
        compiler.check_arch(kernels.get("flash2_mma"), "sm_75")


def test_short_causal_heads_get_fewer_rows_a_block():
    kernel = kernels.get("flash2_wgmma")
    rows = {(mask, seq): kernel.tile_choices(problem(seq=seq, head_dim=64, mask=mask))[0].br
            for mask in ("full", "causal") for seq in (100, 1024, 8192)}
    assert rows == {("full", 100): 128, ("full", 1024): 192, ("full", 8192): 192,
                    ("causal", 100): 128, ("causal", 1024): 128, ("causal", 8192): 192}


def test_wgmma_is_not_serialised_at_d_256(nvrtc):
    """Nor at 64 and 128: misfits, above."""
    kernel = kernels.get("flash2_wgmma")
    shape = problem(head_dim=256)
    for tiles in kernel.tile_choices(shape):
        assert not compiler.build(kernel, shape, tiles, "sm_90a").warnings, f"{tiles}"


def test_ptxas_log_is_read_entry_by_entry():
    log = """ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas         .     8 bytes stack frame, 24 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 32 bytes smem
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""
    assert compiler.parse_log(log) == {
        "a": compiler.Resources(40, 24, 16, 8, 32),
        "b": compiler.Resources(255, 0, 0, 0, 0),
    }


def test_importing_the_kernels_needs_neither_cupy_nor_cuda():
    code = (
        "import sys; sys.modules.update({'cupy': None, 'cuda': None, 'nvidia': None});"
        "from hbmeter import kernels; [kernels.get(n) for n in kernels.names()];"
        "import hbmeter.kernels.compiler, hbmeter.kernels.runner as r\n"
        "try: r.require_gpu()\n"
        "except RuntimeError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hbmeter[cuda13]" in done.stdout


# ---- What a kernel says of itself ---------------------------------------------------------------


@pytest.mark.parametrize("name", kernels.names())
def test_every_kernel_implements_a_schedule_and_its_tensors(name):
    kernel = kernels.get(name)
    for kv_heads in (2, 1):
        shape = posed(kernel, kv_heads=kv_heads)
        program = schedules.build(kernel.schedule, shape, SMALL)
        used, launches = set(kernel.used(shape, SMALL)), kernel.launches(shape, SMALL)
        assert used == {tensor.name for tensor in program.tensors} <= set(kernel.tensors)
        arguments = {argument for launch in launches for argument in launch.arguments}
        assert arguments - set(kernel.scalars(shape, SMALL)) == used
        given = (Role.INPUT, Role.TABLE)
        written = {t.name for t in program.tensors if t.role not in given}
        assert written == used & {*kernel.outputs, *kernel.scratch}
        assert all(launch.entry.startswith("hbmeter_") for launch in launches)


@pytest.mark.parametrize("name", OF_ATTENTION)
@pytest.mark.parametrize(
    ("changes", "tiles", "message"),
    [
        ({}, Tiles(24, 64), "br 24: .* multiple of 16"),
        ({}, Tiles(64, 40), "bc 40: .* multiple of 16"),
        ({}, Tiles(64, 512), "bc 512: .* up to 256"),
        ({}, Tiles(64, 64, stages=9), "stages 9: .* 1"),
        ({"head_dim": 40}, SMALL, "head_dim 40: .* multiple of 16"),
        ({"value_dim": 272}, SMALL, "value_dim 272: .* up to 256"),
        ({"dtype": "fp8"}, SMALL, "fp8"),
        ({"dtype": "fp64"}, SMALL, "fp64.*valid: bf16, fp16"),
        ({}, Tiles(256, 256), "registers|shared memory"),
    ],
)
def test_what_a_kernel_cannot_run_is_refused_with_a_reason(name, changes, tiles, message):
    with pytest.raises(InputError, match=message):
        kernels.get(name).check(posed(kernels.get(name), **changes), tiles)


def test_a_kernel_computes_its_own_pass_only():
    with pytest.raises(InputError, match="flash2_mma computes the forward pass"):
        kernels.get("flash2_mma").check(problem(direction="backward"), Tiles(64, 64))
    with pytest.raises(InputError, match="flash2_backward computes the backward pass"):
        kernels.get("flash2_backward").check(problem(), Tiles(64, 64))


def test_refusals_that_only_some_kernels_have():
    with pytest.raises(InputError, match="bk 8"):
        kernels.get("standard").check(problem(), Tiles(64, 64, bk=8))
    with pytest.raises(InputError, match=r"needs .* bytes of shared memory"):
        kernels.get("flash2").check(problem(dtype="fp32", head_dim=256), Tiles(64, 128))
    with pytest.raises(InputError, match="thread blocks"):
        kernels.get("flash2").check(problem(batch=1 << 16, heads=1 << 15, seq=17), SMALL)
    with pytest.raises(InputError, match=r"br 96: .* 64, 128 or 192"):
        kernels.get("flash2_wgmma").check(problem(), Tiles(96, 64))
    with pytest.raises(InputError, match="about 190 registers a thread; 3 warpgroups get 160"):
        kernels.get("flash2_wgmma").check(problem(), Tiles(192, 128))
    with pytest.raises(InputError, match="'flash2'"):
        kernels.get("flash3")
    with pytest.raises(InputError, match="order"):
        kernels.get("flash2").options(problem(), SMALL, order="column")


@pytest.mark.parametrize("name", kernels.names())
def test_default_tiles_are_accepted_for_usual_head_dims(name):
    kernel = kernels.get(name)
    for dtype in kernel.dtypes:
        for head_dim in (32, 64, 128, 256):
            shape = posed(kernel, dtype=dtype, head_dim=head_dim)
            choices = kernel.tile_choices(shape)
            assert choices and all(kernel.accepts(shape, tiles) for tiles in choices)


def test_shapes_and_shifts_of_the_arguments():
    shape = problem(seq=5, kv_seq=9, kv_heads=1, value_dim=64, mask="window:3")
    assert tensor_shape("K", shape) == (1, 1, 9, 128)
    assert tensor_shape("P", shape) == (1, 2, 5, 9)
    assert tensor_shape("O", shape) == (1, 2, 5, 64)
    assert tensor_shape("LSE", shape) == (1, 2, 5)
    scalars = scalar_arguments(shape)
    assert (scalars["lo_shift"], scalars["hi_shift"]) == (2, 5)
    full = scalar_arguments(problem())
    assert full["lo_shift"] == -full["hi_shift"] == -(2**29)
