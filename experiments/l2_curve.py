"""Miss curves: predicted DRAM reads of a schedule against L2 size, with GPUs' sizes marked."""

from ..hwprofiles.loader import load_all
from ..simulator import blocks, schedules

SMALLEST_BYTES = 1 << 16
PER_OCTAVE = 8


def gpus_by_l2() -> dict[int, list[str]]:
    """Names of hbmeter's GPUs by the bytes of their L2."""
    found: dict[int, list[str]] = {}
    for name, profile in load_all()[0].items():
        found.setdefault(profile.l2.size_bytes, []).append(name)
    return dict(sorted(found.items()))


def sizes(footprint_bytes: int) -> list[int]:
    """L2 sizes to look at: 0, from SMALLEST_BYTES to the first power of two that holds everything,
    and those of all GPUs."""
    octaves = max((footprint_bytes - 1).bit_length() - SMALLEST_BYTES.bit_length() + 1, 1)
    steps = range(octaves * PER_OCTAVE + 1)
    spread = {round(SMALLEST_BYTES * 2 ** (step / PER_OCTAVE)) for step in steps}
    return sorted({0} | spread | set(gpus_by_l2()))


def miss_curve(schedule: str, problem, gpu, tiles, *, order: str = "row",
               blocks_per_sm: int | None = None, on_progress=lambda share: None) -> list[dict]:
    """One dict an L2 size: ``l2_bytes``, ``dram_read_bytes`` and the ``gpus`` that have it.

    Thread blocks in flight are those of ``gpu``, whatever the size; ``blocks_per_sm`` is its
    occupancy when None.
    """
    from ..simulator.engines import stack_distance

    program = schedules.build(schedule, problem, tiles)
    if blocks_per_sm is None:
        blocks_per_sm = max(blocks.Candidate(program, gpu).occupancy.blocks_per_sm, 1)
    curve = stack_distance.miss_curve(
        program, gpu, sizes(program.footprint_bytes), blocks_per_sm=blocks_per_sm, order=order,
        on_progress=on_progress)
    known = gpus_by_l2()
    return [{"l2_bytes": int(size), "dram_read_bytes": int(read), "gpus": known.get(int(size), [])}
            for size, read in zip(curve.l2_bytes, curve.read_bytes, strict=True)]
