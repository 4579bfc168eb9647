"""How busy each unit of the GPU was: Nsight Compute's counters beside the predicted limiter.

  python -m hbmeter.experiments.busy_units --out FILE.json

Runs under ncu on a GPU, in about a minute on an H200. Recorded in ``recorded/units/``.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from . import grid, measure, ncu, records, tile_sweep
from .progress import Progress

FOLDER = records.FOLDER / "units"
_BUSY = ".avg.pct_of_peak_sustained_elapsed"
# Unit, as bounds name it: the counters that say how busy it was, of which the largest counts.
BUSY = {
    "tensor": ("sm__pipe_tensor_cycles_active" + _BUSY,
               "sm__pipe_tensor_op_hmma_cycles_active" + _BUSY),
    "fma": ("sm__pipe_fma_cycles_active" + _BUSY, "sm__pipe_fmaheavy_cycles_active" + _BUSY),
    "alu": ("sm__pipe_alu_cycles_active" + _BUSY,),
    "exp": ("sm__pipe_xu_cycles_active" + _BUSY,),
    "issue": ("sm__inst_issued" + _BUSY, "sm__issue_active" + _BUSY),
    "shared memory": ("l1tex__data_pipe_lsu_wavefronts" + _BUSY,
                      "l1tex__data_pipe_lsu_wavefronts_mem_shared" + _BUSY),
    "SM boundary": ("l1tex__m_xbar2l1tex_read_sectors" + _BUSY,
                    "l1tex__m_xbar2l1tex_read_bytes" + _BUSY),
    "L2": ("lts__t_sectors" + _BUSY, "lts__throughput" + _BUSY),
    "DRAM": ("dram__throughput" + _BUSY,),
}
# What each pipe executed, in warp instructions, against the instructions that kernels declare.
EXECUTED = tuple(
    f"sm__inst_executed{pipe}.sum"
    for pipe in ("", "_pipe_tensor", "_pipe_tensor_op_hmma", "_pipe_fma", "_pipe_alu", "_pipe_xu",
                 "_pipe_fp16", "_pipe_lsu")
)
OTHERS = ("sm__cycles_elapsed.max", ncu.DURATION,
          "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
          "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")
METRICS = (*(name for names in BUSY.values() for name in names), *EXECUTED, *OTHERS)
LONGEST = 8192  # keys of the points of the verify grid that are taken


def points() -> list[grid.Point]:
    """A third of the small points of ``hbmeter verify`` and some of the calibrating tiles."""
    small = [p for p in grid.points() if p.problem.kv_seq <= LONGEST and p.blocks_per_sm is None]
    tiles = [p for p in tile_sweep.points() if p in tile_sweep.calibrators()]
    return list(dict.fromkeys([*small[::2], *tiles[::6]]))


def busiest(launches: list[dict]) -> tuple[str, dict[str, float]]:
    """(unit, per cent of its peak by unit) of a call: its launches weighted by duration."""
    total = sum(launch["metrics"][ncu.DURATION] for launch in launches)
    shares = {}
    for unit, names in BUSY.items():
        parts = [
            max((launch["metrics"].get(name) or 0.0) for name in names)
            * launch["metrics"][ncu.DURATION] / total
            for launch in launches
        ]
        shares[unit] = sum(parts)
    return max(shares, key=shares.get), shares


def collect(wanted: list[grid.Point], report) -> list[dict]:
    """One dict a point: the point and the counters of its launches."""
    report.start("counters", len(wanted))
    with tempfile.TemporaryDirectory(prefix="hbmeter-") as folder:
        spec = Path(folder) / "points.json"
        spec.write_text(json.dumps([point.document for point in wanted]), encoding="utf-8")
        answer = ncu.profile(ncu.find(), measure.CHILD, [str(spec)], METRICS)
    report.end()
    if answer.dropped:
        report.note(f"this GPU does not have {', '.join(answer.dropped)}")
    return [
        point.document | {"launches": [
            {"kernel": x.function, "metrics": {m: x.metrics.get(m) for m in METRICS
                                               if m in x.metrics}} for x in launches]}
        for point, launches in zip(wanted, measure.by_point(wanted, answer.launches), strict=True)
    ]


def recorded() -> list[dict]:
    """Every record, by file name: {"name", "provenance", "points"}."""
    return records.documents(FOLDER)


def main(arguments: list[str] | None = None) -> None:
    """Count and write the record."""
    from ..kernels import runner

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="record to write")
    out = parser.parse_args(arguments).out
    found = collect(points(), Progress(sys.stderr))
    notes = {"cache_control": measure.NOTES["cache_control"]}
    origin = records.provenance(runner.require_gpu(), ncu.version(ncu.find()),
                                measure.source_hash(), notes)
    origin["command"] = "python -m hbmeter.experiments.busy_units"
    records.save(out, records.document(origin, found))


if __name__ == "__main__":
    sys.exit(records.run(main))
