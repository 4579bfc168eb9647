"""What a GPU profile holds. Units are in the names; every number is finite and positive.

"HBM" stands for the device memory, GDDR included, and "SM" for an AMD compute unit too; "warp"
is an AMD wavefront and "shared memory" its LDS. Checks that involve two keys are field validators
that look at the keys above them, so each is reported at its own key together with all others.
"""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

MAX_WHOLE = 2**53  # every whole number stays exact as a float and fits int64
MAX_CYCLES = 10**6  # of anything a thread block waits for; the L2 reader's clock adds them up
MIN_BYTES_PER_S = 1e6  # of any memory


def _whole(value: object) -> object:
    """Lets a whole number be written as 141e9."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=MAX_WHOLE)]
WholeOrZero = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_WHOLE)]
Positive = Annotated[float, Field(gt=0)]
Cycles = Annotated[float, Field(gt=0, le=MAX_CYCLES)]
WholeCycles = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=MAX_CYCLES)]
BytesPerClock = Annotated[float, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
_ELEVEN: Any = Field(strict=False, min_length=11, max_length=11)  # at 0, 10, … 100%
CycleTenths = Annotated[tuple[Annotated[float, Field(ge=0, le=MAX_CYCLES)], ...], _ELEVEN]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], _ELEVEN]
Offsets = Annotated[tuple[Annotated[float, Field(ge=-3, le=3)], ...],
                    Field(strict=False, min_length=1, max_length=64)]
Flops = Annotated[float, Field(ge=1e9)]
Text = Annotated[str, Field(min_length=1, max_length=300)]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


def _about(description: str, **constraints: Any) -> Any:
    return Field(description=description, **constraints)


def _optional(description: str) -> Any:
    return Field(default=None, description=description)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


class Section(BaseModel):
    """Base of all parts: unknown keys, wrong types, NaN and infinity are errors; read-only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class L2Cache(Section):
    """The L2 cache, all partitions together."""

    line_bytes: Whole = _about("bytes of a cache line, the unit of allocation")
    sector_bytes: Whole = _about("bytes of a sector, the unit of transfer; divides the line")
    partitions: Whole = _about("parts that each serve the SMs near them and may hold copies")
    size_bytes: Whole = _about("capacity in bytes of all partitions together")
    room_share: Annotated[float, Field(gt=0, le=1)] | None = _optional(
        "of size_bytes, what lines find room in; none: all")
    read_bytes_per_clock: BytesPerClock | None = _optional(
        "specified read bandwidth, bytes per clock")
    dirty_bytes_max: Whole | None = _optional("most bytes that are dirty at once before older "
                                              "ones are written back")
    home_bytes: Whole | None = _optional("bytes of consecutive addresses with one home partition")
    home_bits: Whole | None = _optional("bits of the number of such a piece in its 2 MiB page "
                                        "whose parity is the home")
    sm_partitions: Annotated[str, Field(pattern=r"^[0-9]+$", max_length=1024)] | None = _optional(
        "partition of each SM, a digit each, in the order that thread blocks first reach them")
    sm_gpcs: Annotated[str, Field(pattern=r"^[0-9]+$", max_length=1024)] | None = _optional(
        "GPC of each SM, a digit each, in the same order")
    merged_requests_max: Whole | None = _optional("requests of SMs of one GPC for the same line "
                                                  "that are sent to L2 as one")
    coalescer_cycles: WholeCycles | None = _optional("of a request's latency, the cycles in which "
                                                     "no other joins it")
    first_sms: Whole | None = _optional("SMs that blocks of the smallest grids reach first, all of "
                                        "them; the others by turns of their GPCs")
    first_starts_cycles: WholeCycles | None = _optional("over which the first blocks of a launch "
                                                        "start")
    pace_spread: Share | None = _optional("by how much of the mean pace blocks of equal work "
                                             "of a GPC are faster or slower")
    gpc_pace_spread: Share | None = _optional("and all blocks of a GPC together")
    pace_spread_alone: Share | None = _optional("the same of blocks that have an SM each")
    gpc_pace_spread_alone: Share | None = _optional("and of a GPC of these")
    gpc_clock_spread_mma_sync: Shares | None = _optional(
        "by how much of the mean the GPCs' own clocks are faster or slower while tensor cores work "
        "by mma.sync, at eleven shares of DRAM's rate")
    gpc_clock_spread_wgmma: Shares | None = _optional("and by wgmma")
    gpc_clock_offsets: Offsets | None = _optional(
        "where between these each GPC's clock is, from -1 to 1 or a little beyond; none: evenly")
    tile_cycles: Cycles | None = _optional("until a thread block has a small tile that it loads "
                                             "from L2")
    tile_bytes_per_clock: BytesPerClock | None = _optional("what a larger tile takes longer")
    dram_late_cycles: CycleTenths | None = _optional(
        "what tiles from DRAM take longer, at eleven shares of them, the fastest first")
    dram_ahead_cycles: Cycles | None = _optional("by which a tile from DRAM that was loaded a "
                                                 "trip ahead sets a thread block back")

    @field_validator("sector_bytes")
    @classmethod
    def _sectors_fill_a_line(cls, value: int, info: ValidationInfo) -> int:
        line = info.data.get("line_bytes", value)
        _require(line % value == 0, f"must divide line_bytes ({line})")
        return value

    @field_validator("size_bytes")
    @classmethod
    def _lines_fill_the_partitions(cls, value: int, info: ValidationInfo) -> int:
        unit = info.data.get("line_bytes", 1) * info.data.get("partitions", 1)
        _require(value % unit == 0, f"must be a multiple of line_bytes x partitions ({unit})")
        return value

    @field_validator("dirty_bytes_max")
    @classmethod
    def _fit_the_cache(cls, value: int | None, info: ValidationInfo) -> int | None:
        size = info.data.get("size_bytes", MAX_WHOLE)
        _require(value is None or value <= size, f"must be at most size_bytes ({size})")
        return value

    @field_validator("sm_partitions")
    @classmethod
    def _are_partitions(cls, value: str | None, info: ValidationInfo) -> str | None:
        count = info.data.get("partitions", 10)
        _require(value is None or all(int(digit) < count for digit in value),
                 f"must have digits below partitions ({count})")
        return value

    @field_validator("dram_late_cycles")
    @classmethod
    def _are_sorted(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        _require(value is None or all(a <= b for a, b in pairwise(value)),
                 "must not fall from one number to the next")
        return value


class SharedMemory(Section):
    """Shared memory of one SM (LDS of an AMD compute unit)."""

    bytes_per_sm: Whole = _about("bytes of an SM that blocks can share out", ge=1024)
    reserved_bytes_per_block: WholeOrZero = _about("bytes the system adds to every block")
    bytes_per_block_max: Whole = _about("most bytes one block may ask for, by opt-in")
    allocation_unit_bytes: Whole = _about("a block's bytes are rounded up to a multiple of this")
    bytes_per_clock_per_sm: BytesPerClock = _about("peak bandwidth, bytes per clock of one SM")

    @field_validator("bytes_per_block_max")
    @classmethod
    def _one_block_fits(cls, value: int, info: ValidationInfo) -> int:
        room = info.data.get("bytes_per_sm", MAX_WHOLE) - info.data.get(
            "reserved_bytes_per_block", 0
        )
        _require(value <= room, f"must be at most bytes_per_sm - reserved_bytes_per_block ({room})")
        return value


class PeakFlops(Section):
    """Dense peak FLOP/s per data type with FP32 accumulation (FP64: FP64), by the fastest unit
    that takes the type (tensor cores where they do); None where the GPU has none."""

    fp64: Flops | None = _optional("FLOP/s, not TFLOP/s")
    fp32: Flops = _about("FLOP/s, not TFLOP/s")
    tf32: Flops | None = _optional("FLOP/s, not TFLOP/s")
    fp16: Flops | None = _optional("FLOP/s, not TFLOP/s, without sparsity")
    bf16: Flops | None = _optional("FLOP/s, not TFLOP/s, without sparsity")
    fp8: Flops | None = _optional("FLOP/s, not TFLOP/s, without sparsity")


class LatencyCycles(Section):
    """Load-to-use latency in SM clock cycles when nothing else runs; None where unknown."""

    smem: Cycles | None = _optional("shared memory, cycles")
    l2: Cycles | None = _optional("L2 hit, cycles")
    hbm: Cycles | None = _optional("device memory, cycles")


Pair = Annotated[tuple[Positive, Positive], Field(strict=False)]


class Measurement(Section):
    """A number somebody measured, as against the datasheet; a curve where it depends on one
    other number, such as a footprint."""

    unit: Text = _about("unit in words, such as bytes_per_s")
    value: Positive = _about("the measured value, in `unit`")
    spread: Positive | None = _optional("half the range of repeats, in `unit`")
    clock_hz: Positive | None = _optional("the SM clock in Hz while it was measured")
    curve_of: Identifier | None = _optional("what the first numbers of `curve` are")
    curve: Annotated[tuple[Pair, ...], Field(strict=False)] | None = _optional(
        "pairs [of `curve_of`, in `unit`], the first numbers rising")
    date: Annotated[str, Field(pattern=r"^\d{4}(-\d\d){0,2}$")] | None = _optional(
        "YYYY, YYYY-MM or YYYY-MM-DD, where known"
    )
    how: Text = _about("what was run, under which conditions")

    @field_validator("value")
    @classmethod
    def _is_of_a_gpu(cls, value: float, info: ValidationInfo) -> float:
        unit = info.data.get("unit")
        _require(unit != "cycles" or value <= MAX_CYCLES, f"must be at most {MAX_CYCLES} cycles")
        _require(unit != "bytes_per_s" or value >= MIN_BYTES_PER_S,
                 f"must be at least {MIN_BYTES_PER_S:.0f} bytes/s")
        return value

    @field_validator("curve")
    @classmethod
    def _is_a_curve(
        cls, value: tuple[tuple[float, float], ...] | None, info: ValidationInfo
    ) -> tuple[tuple[float, float], ...] | None:
        if value is not None:
            at = [x for x, _ in value]
            _require(info.data.get("curve_of") is not None, "needs curve_of beside it")
            _require(len(at) >= 2, "must have two pairs or more")
            _require(all(a < b for a, b in pairwise(at)), "must have rising first numbers")
        return value


class Profile(Section):
    """One GPU. ``measured`` maps a name such as ``hbm_copy`` to a ``Measurement``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)] = _about(
        "short lower-case name, such as h200"
    )
    full_name: Text = _about("the vendor's name of the product")
    aliases: Annotated[tuple[Text, ...], Field(strict=False)] = _about(
        "other names users and drivers give it", default=()
    )
    vendor: Literal["nvidia", "amd"] = _about("nvidia or amd")
    compute_capability: Annotated[str, Field(pattern=r"^(\d+\.\d|gfx[0-9a-f]{3,5})$")] = _about(
        'in quotes: "9.0" (NVIDIA), or the LLVM target, gfx942 (AMD)'
    )
    sm_count: Whole = _about("SMs (AMD: compute units) that are enabled", le=10_000)
    boost_clock_hz: Positive = _about("highest SM clock in Hz, not MHz", ge=1e7)
    hbm_bytes: Whole = _about("device memory in bytes, not GB", ge=2**20)
    hbm_bytes_per_s: Positive = _about("device memory bandwidth in bytes/s, not GB/s", ge=1e9)
    l2: L2Cache = _about("mapping: the L2 cache")
    l3_bytes: Whole | None = _optional("bytes of a cache behind L2 (AMD Infinity Cache)")
    smem: SharedMemory = _about("mapping: shared memory of an SM")
    warp_size: Whole = _about("threads of a warp")
    max_threads_per_block: Whole = _about("most threads of a block")
    max_threads_per_sm: Whole = _about("most resident threads of an SM; a multiple of warp_size")
    max_blocks_per_sm: Whole = _about("most resident blocks of an SM")
    subpartitions_per_sm: Whole = _about("schedulers of an SM, each with its share of registers")
    register_allocation_unit: Whole = _about("a warp's registers are rounded up to this multiple")
    registers_per_sm: Whole = _about("32-bit registers of an SM")
    max_registers_per_thread: Whole = _about("most 32-bit registers of a thread")
    exp_per_clock_per_sm: Positive = _about("exponentials (exp2) per clock of one SM")
    flops: PeakFlops = _about("mapping: dense peak FLOP/s per data type")
    latency_cycles: LatencyCycles = _about("mapping: cycles", default=LatencyCycles())
    measured: dict[Identifier, Measurement] = _about("mapping: name to measurement", default={})

    @property
    def max_warps_per_sm(self) -> int:
        """Most resident warps of an SM."""
        return self.max_threads_per_sm // self.warp_size

    @field_validator("compute_capability")
    @classmethod
    def _is_the_vendors(cls, value: str, info: ValidationInfo) -> str:
        vendor = info.data.get("vendor")
        is_amd = value.startswith("gfx")
        _require(vendor is None or is_amd == (vendor == "amd"), f"is not one of vendor {vendor}")
        return value

    @field_validator("max_threads_per_block", "max_threads_per_sm")
    @classmethod
    def _are_whole_warps(cls, value: int, info: ValidationInfo) -> int:
        warp = info.data.get("warp_size", 1)
        _require(value % warp == 0, f"must be a multiple of warp_size ({warp})")
        return value

    @field_validator("max_blocks_per_sm")
    @classmethod
    def _each_block_has_a_warp(cls, value: int, info: ValidationInfo) -> int:
        warps = info.data.get("max_threads_per_sm", MAX_WHOLE) // info.data.get("warp_size", 1)
        _require(value <= warps, f"must be at most max_threads_per_sm / warp_size ({warps})")
        return value

    @field_validator("registers_per_sm")
    @classmethod
    def _units_fill_the_subpartitions(cls, value: int, info: ValidationInfo) -> int:
        data = info.data
        unit = data.get("register_allocation_unit", 1) * data.get("subpartitions_per_sm", 1)
        problem = f"must be a multiple of register_allocation_unit x subpartitions_per_sm ({unit})"
        _require(value % unit == 0, problem)
        return value
