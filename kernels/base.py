"""What a kernel is, as data: its source, what it accepts, its -D options and its launches.

Nothing here needs a GPU, CuPy or CUDA wheels: the compiler and the runner read the same data.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from ..simulator import schedules
from ..simulator.errors import InputError, unknown_name
from ..simulator.grid_order import ORDERS, order_number
from ..simulator.problem import Attention
from ..simulator.tiles import Tiles

FOLDER = Path(__file__).parent
THREADS = 256
MAX_SHARED_BYTES = 232_448  # the most that one thread block gets on any GPU so far
MAX_REGISTERS = 255  # of one thread
MAX_LENGTH = 1 << 29  # row + shift stays inside int32
MAX_GRID = 2**31 - 1
SHAPE = ("heads", "group", "n_q", "n_kv", "lo_shift", "hi_shift", "scale")


@dataclass(frozen=True)
class Launch:
    """One launch of an entry point: ``grid`` thread blocks in a line, in the order of issue.

    A persistent one takes no more blocks than the GPU holds at once: they share out the work.
    Tensors in ``boxes`` go by value, as TMA tensor maps, read in boxes of (rows, columns).
    """

    entry: str
    grid: int
    threads: int
    shared_bytes: int
    arguments: tuple[str, ...]
    persistent: bool = False
    boxes: tuple[tuple[str, int, int], ...] = ()


@cache
def headers_version() -> str:
    """Changes with any header of this folder. CuPy keeps binaries on disk by source and options
    alone, so without it an edited header would leave an old binary in use."""
    headers = (path.read_bytes() for path in sorted(FOLDER.glob("*.cuh")))
    return hashlib.sha256(b"".join(headers)).hexdigest()[:12]


def ceil_div(a: int, b: int) -> int:
    """The whole number of steps of ``b`` that cover ``a``."""
    return -(-a // b)


def tensor_shape(name: str, problem: Attention) -> tuple[int, ...]:
    """Shape of a tensor by its name; row statistics are [batch, heads, seq]."""
    p = problem
    name = name.removesuffix("_acc").removeprefix("d")  # a gradient is shaped as what it is of
    rows, keys = (p.batch, p.heads, p.seq), (p.batch, p.kv_heads, p.kv_seq)
    widths = {"Q": p.head_dim, "O": p.value_dim, "S": p.kv_seq, "P": p.kv_seq}
    if name in ("K", "V"):
        return (*keys, p.head_dim if name == "K" else p.value_dim)
    return (*rows, widths[name]) if name in widths else rows


def is_statistic(name: str) -> bool:
    """Whether a tensor holds fp32 numbers whatever the dtype: statistics of rows, partial sums."""
    return name in ("m", "l", "LSE", "D") or name.endswith(("_part", "_acc"))


def scalar_arguments(problem: Attention) -> dict:
    """The scalars that entry points take, by name (see ``SHAPE``)."""
    mask = problem.mask_bounds
    values = {
        "heads": problem.head_count,
        "group": problem.group,
        "n_q": problem.seq,
        "n_kv": problem.kv_seq,
        "lo_shift": min(max(mask.lo_shift, -MAX_LENGTH), MAX_LENGTH),
        "hi_shift": min(max(mask.hi_shift, -MAX_LENGTH), MAX_LENGTH),
    }
    scalars = {name: np.int32(value) for name, value in values.items()}
    return scalars | {"scale": np.float32(problem.softmax_scale)}


class Kernel:
    """One ``.cu`` file and how to build and launch it. Subclasses set the fields and give
    ``shared_bytes``, ``live_registers`` and ``launches``."""

    name: str  # of the .cu file
    schedule: str  # that it implements
    direction = "forward"  # the pass that it computes
    inputs: tuple[str, ...] = ("Q", "K", "V")
    tensors: tuple[str, ...]  # in the order of the counters
    outputs: tuple[str, ...]  # tensors that it writes
    scratch: tuple[str, ...] = ()  # that it writes in one launch and reads in the next
    dtypes = ("fp32", "fp16", "bf16")
    widths = ("head_dim", "value_dim")  # that matter to it
    matmul_dtype: str | None = "fp32"  # whose peak FLOP/s its products run at; None: the inputs'
    threads = THREADS
    least_arch = 70  # sm_NN that its instructions need
    only_arch: str | None = None  # "sm_90a" when they exist there alone
    most_stages = 1  # buffers for streamed tiles
    rows = (64, 128, 32, 16)  # Br and Bc worth trying, the best first
    columns = (64, 128, 32, 16)
    most_scores = 128 * 128  # Br · Bc worth trying

    @property
    def source(self) -> str:
        """The CUDA source text."""
        return (FOLDER / f"{self.name}.cu").read_text(encoding="utf-8")

    def shared_bytes(self, problem: Attention, tiles: Tiles) -> int:
        """Shared memory of one thread block (of the largest entry point), padding included."""
        raise NotImplementedError

    def live_registers(self, problem: Attention, tiles: Tiles) -> int:
        """Registers of one thread that hold tiles while the products run."""
        raise NotImplementedError

    def launches(self, problem: Attention, tiles: Tiles, order: str = "row") -> tuple[Launch, ...]:
        """What to launch, in turn."""
        raise NotImplementedError

    def executions(self, problem: Attention, tiles: Tiles) -> tuple | None:
        """How its launches run the schedule's phases (simulator/execution.py), for predicted
        times; None: it does not say."""
        return None

    @property
    def turns(self) -> bool:
        """Whether it walks in the orders that ``Tiles.kv_order`` names."""
        return "kv_order" in schedules.options(self.schedule)

    def runs_on(self, arch: str) -> bool:
        """Whether ``arch`` ("sm_90a") has its instructions."""
        if self.only_arch:
            return arch == self.only_arch
        return int(arch.removeprefix("sm_").rstrip("af")) >= self.least_arch

    def used(self, problem: Attention, tiles: Tiles) -> tuple[str, ...]:
        """Those of its tensors that a problem needs."""
        return self.tensors

    def tensor_shape(self, name: str, problem: Attention, tiles: Tiles) -> tuple[int, ...]:
        """Shape of one of its outputs or scratch tensors."""
        return tensor_shape(name, problem)

    def scalars(self, problem: Attention, tiles: Tiles) -> dict:
        """The scalars that its entry points take, by name."""
        return scalar_arguments(problem)

    def arrange(self, xp, inputs: dict, problem: Attention, tiles: Tiles) -> dict:
        """The inputs as the kernel reads them, by name; ``xp`` is NumPy or CuPy."""
        return inputs

    def steps(self, tiles: Tiles) -> dict[str, int]:
        """The tile sizes that must be multiples of 16."""
        return {"br": tiles.br, "bc": tiles.bc}

    def check(self, problem: Attention, tiles: Tiles) -> None:
        """Raises InputError, with what is right, for what this kernel cannot run."""
        if problem.direction != self.direction:
            raise InputError(f"kernel {self.name} computes the {self.direction} pass, the problem "
                             f"asks for the {problem.direction} pass")
        if problem.visibility.listed:
            raise self._refusal("mask", problem.mask, "full, causal or window:W")
        if problem.dropout:
            raise self._refusal("dropout", problem.dropout, "0")
        if problem.dtype not in self.dtypes:
            raise unknown_name(f"dtype of kernel {self.name}", problem.dtype, self.dtypes)
        for name in self.widths:
            if getattr(problem, name) % 16 or getattr(problem, name) > 256:
                raise self._refusal(name, getattr(problem, name), "a multiple of 16 up to 256")
        for name in ("seq", "kv_seq"):
            if getattr(problem, name) > MAX_LENGTH:
                raise self._refusal(name, getattr(problem, name), f"at most {MAX_LENGTH}")
        for name, value in self.steps(tiles).items():
            if value % 16 or value > 256:
                raise self._refusal(name, value, "a multiple of 16 up to 256")
        if tiles.stages > self.most_stages:
            right = "1" if self.most_stages == 1 else f"1 to {self.most_stages}"
            raise self._refusal("stages", tiles.stages, right)
        if tiles.kv_order != "forward" and not self.turns:
            raise self._refusal("kv_order", tiles.kv_order, "forward")
        self._check_capacity(problem, tiles)

    def _refusal(self, what: str, value: float | str, right: str) -> InputError:
        return InputError(f"{what} {value}: kernel {self.name} needs {right}")

    def _check_capacity(self, problem: Attention, tiles: Tiles) -> None:
        where = f"kernel {self.name} with {tiles}, head_dim {problem.head_dim}, {problem.dtype}"
        shared = self.shared_bytes(problem, tiles)
        if shared > MAX_SHARED_BYTES:
            raise InputError(
                f"{where} needs {shared:,} bytes of shared memory; a thread block gets at most "
                f"{MAX_SHARED_BYTES:,}; use smaller tiles"
            )
        registers = self.live_registers(problem, tiles)
        if registers > MAX_REGISTERS:
            raise InputError(
                f"{where} needs about {registers} registers a thread; there are "
                f"{MAX_REGISTERS}; use smaller tiles"
            )
        for launch in self.launches(problem, tiles):
            if launch.grid > MAX_GRID:
                raise InputError(
                    f"{where}: {launch.entry} would need {launch.grid:,} thread blocks; a grid "
                    f"holds {MAX_GRID:,}; use larger tiles or fewer heads"
                )

    def accepts(self, problem: Attention, tiles: Tiles) -> bool:
        """Whether ``check`` has nothing to say."""
        try:
            self.check(problem, tiles)
        except InputError:
            return False
        return True

    def tile_choices(self, problem: Attention) -> tuple[Tiles, ...]:
        """The tiles worth trying, the one to use by default first."""
        pairs = product(self.rows, self.columns)
        choices = (Tiles(br, bc) for br, bc in pairs if br * bc <= self.most_scores)
        return tuple(tiles for tiles in choices if self.accepts(problem, tiles))

    def defines(self, problem: Attention, tiles: Tiles) -> dict[str, str]:
        """The -D options of a build, by name."""
        return {
            problem.dtype.upper(): "1",
            "BR": str(tiles.br),
            "BC": str(tiles.bc),
            "BK": str(tiles.bk),
            "HEAD_DIM": str(problem.head_dim),
            "VALUE_DIM": str(problem.value_dim),
            "KV_TURN": str(tiles.kv_turn),
            "SHARED_BYTES": str(self.shared_bytes(problem, tiles)),
            "TENSORS": ",".join(f"TENSOR_{name}" for name in self.tensors),
            "HEADERS_VERSION": f"0x{headers_version()}",
        }

    def filled_bytes(self, problem: Attention, tiles: Tiles) -> int:
        """Zeros that enter the SMs in place of what lies beyond a tensor's end, in bytes: in the
        hardware's counter of reads, in no byte of L2 or DRAM."""
        return 0

    def roundings(self, problem: Attention, tiles: Tiles) -> int:
        """How often an element of an output is rounded to the problem's dtype on its way."""
        return 1

    def issue_order(self, order: str) -> str:
        """What the simulator calls the order in which a launch with ``order`` issues its tiles."""
        return order

    def options(self, problem: Attention, tiles: Tiles, count: bool = False,
                order: str = "row") -> tuple[str, ...]:
        """The options of a build that do not depend on who compiles."""
        defines = self.defines(problem, tiles)
        if order not in ORDERS:
            raise unknown_name("order", order, ORDERS)
        defines["ORDER"] = ORDERS[order_number(order, problem)].upper()
        if count:
            defines["COUNT"] = "1"
        return (
            "--std=c++17",
            f"-I{FOLDER}",
            *(f"-D{name}={value}" for name, value in defines.items()),
        )


def padded(width: int, dtype_bytes: int) -> int:
    """Bytes of a padded tile row in shared memory (one 16-byte vector wider, as in common.cuh)."""
    return width * dtype_bytes + 16
