"""Long walks at a scale: the same thread blocks, shorter walks, a smaller L2.

A block that walks over n keys past an L2 of C bytes finds there what one finds that walks over
n / s keys past C / s: how much of the walk stays, how far apart blocks drift, and what a new head
brings are the same parts of it. So rows of Q, K and V are divided by s, and of the tile that stays
on chip too, so that as many thread blocks walk; what streams keeps its tiles, each of which takes
as long and stands for s of them. A prediction for a million keys then costs what one for thousands
does.

No schedule is named: a program at a scale is one whose grids are the same and that moves as many
times fewer bytes. What it adds to a prediction is measured in tests/test_at_scale.py.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from . import schedules
from .engines import scratchpad
from .grid_order import Order, grids, parse
from .program import Program

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

TRAFFIC_MAX = 10 ** 11  # bytes that SMs ask for: seconds of simulation; more is scaled
SCALE_MAX = 64
# What is left at least: of a block's walk so many times the tiles on its SM, of the L2 so many
# times the tiles of all walks, and so many bytes.
WALK_TILES, L2_TILES, L2_MIN = 64, 2, 1 << 19
TOLERANCE = 0.02  # of bytes and FLOPs: edges are other parts of tiles


def at_scale(program: Program, gpu: "Profile", blocks_per_sm: int, order: Order,
             traffic_max: float | None = None) -> tuple[Program, int]:
    """A program to simulate for this one on ``gpu`` (a Profile), and its scale: itself and 1 unless
    SMs ask for more than ``traffic_max`` bytes (TRAFFIC_MAX), over long walks."""
    found, scale, most = program, 1, traffic_max or TRAFFIC_MAX
    while scale < SCALE_MAX and scratchpad.count(found).read_bytes > most:
        shorter = shortened(program, 2 * scale)
        if shorter is None or not _fine(shorter, 2 * scale, gpu, blocks_per_sm, order):
            break
        found, scale = shorter, 2 * scale
    return found, scale


def shortened(program: Program, scale: int) -> Program | None:
    """The program at a scale, None where there is none: tiles that it does not divide, masks that
    name lengths, tensors of rows × columns of scores."""
    problem, tiles = program.problem, program.tiles
    if problem.mask not in ("full", "causal"):
        return None
    shorter = replace(problem, seq=-(-problem.seq // scale), kv_seq=-(-problem.kv_seq // scale))
    for br, bc in ((tiles.br / scale, tiles.bc), (tiles.br, tiles.bc / scale)):
        if br == int(br) and bc == int(bc):
            found = schedules.build(program.schedule, shorter,
                                    replace(tiles, br=int(br), bc=int(bc)))
            if _similar(found, program, scale):
                return found
    return None


def _similar(shorter: Program, program: Program, scale: int) -> bool:
    """Whether the same blocks move bytes ``scale`` times fewer, in as much work for each tile."""
    one, other = scratchpad.count(shorter), scratchpad.count(program)
    pairs = [(one.read_bytes * scale, other.read_bytes),
             (one.write_bytes * scale, other.write_bytes),
             (sum(one.flops.values()) * scale ** 2, sum(other.flops.values()))]
    return grids(shorter) == grids(program) and all(
        abs(found - wanted) <= TOLERANCE * wanted for found, wanted in pairs)


def _fine(shorter: Program, scale: int, gpu: "Profile", blocks_per_sm: int, order: Order) -> bool:
    """Whether tiles are still small beside a block's walk, and those of all walks beside the L2."""
    tiles_bytes = shorter.smem_bytes_per_block
    slots, sharing = gpu.sm_count * blocks_per_sm, shorter.problem.head_count
    blocks = sum(heads * blocks for heads, blocks in grids(shorter))
    if isinstance(order, str):
        name, together = parse(order)
        sharing = together or (1 if name == "row" else sharing)
    walks = min(sharing + slots * shorter.problem.head_count // blocks, slots)
    return (scratchpad.count(shorter).read_bytes >= WALK_TILES * tiles_bytes * blocks
            and gpu.l2.size_bytes // scale >= max(L2_TILES * walks * tiles_bytes, L2_MIN))
