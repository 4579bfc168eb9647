"""The words and tables of ``hbmeter calibrate``: facts, measured against model, summary."""

from . import calibrate
from .output import table

BOUNDARIES = {calibrate.READ: "DRAM reads", calibrate.WRITE: "written back"}


def text(record, facts: dict, rows: list[dict]) -> str:
    """Everything about one record."""
    origin = record.provenance
    head = (f"{record.name}: {record.gpu}, driver {origin.get('driver')}, ncu {origin.get('ncu')}, "
            f"{origin.get('date')}, revision {origin.get('git_revision')}")
    parts = [head, facts_text(facts)]
    if not rows:
        return "\n".join([*parts, "no profile of this GPU to run the model with (--gpu)"])
    return "\n".join([*parts, "", curves_text(rows), "", summary_text(rows)])


def mib(value: float | None, digits: int = 2) -> str:
    """Bytes in MiB; – for None."""
    return "–" if value is None else f"{value / calibrate.MIB:.{digits}f}"


def percent(value: float | None) -> str:
    """An error; – for None."""
    return "–" if value is None else f"{value:+.1%}"


def facts_text(facts: dict) -> str:
    """What the record says of the L2, a line each."""
    by_side, latency, dirty = (facts[x] for x in ("sms_by_side", "latency_cycles",
                                                  "dirty_bytes_max"))
    lines = []
    if by_side:
        lines.append(f"sides: {by_side[0]} and {by_side[1]} SMs; all repeats agree on "
                     f"{facts['sms_that_repeats_agree_on']}")
    else:
        lines.append("sides: latencies do not fall into two patterns; one side, or too noisy")
    if latency:
        lines += [f"{name}: {found['median']:.0f} ± {found['spread']:.1f} cycles (atomics)"
                  for name, found in latency.items()]
    if facts["home_bytes"]:
        lines.append(f"home: changes every {facts['home_bytes']:,} B of address at the soonest")
    if dirty:
        lines.append(f"dirty at most: {dirty['median']:,} ± {dirty['spread']:,} B "
                     f"({mib(dirty['median'])} MiB)")
    lines.append(f"dirty before each scan, left by the profiler: "
                 f"{mib(facts['dirty_before_bytes'])} MiB (the model begins with that too)")
    if background := facts["background_write_bytes_per_s"]:
        lines.append(f"DRAM writes while SMs wait: {background['median'] / 1e6:.1f} ± "
                     f"{background['spread'] / 1e6:.1f} MB/s")
    return "\n".join(lines)


def curves_text(rows: list[dict]) -> str:
    """Measured and modelled DRAM traffic, a table a curve."""
    groups = {}
    for row in rows:
        groups.setdefault((row["curve"], row["boundary"]), []).append(row)
    parts = []
    for (curve, boundary), group in groups.items():
        at = group[0]["knee_bytes"]
        title = f"{curve}: {BOUNDARIES[boundary]}" + (f", knee {mib(at, 1)} MiB" if at else "")
        parts.append(title + "\n" + table(
            ["size MiB", "measured MiB", "range", "model MiB", "error", ""],
            [[mib(row["size_bytes"], 0), mib(row["measured_bytes"]), mib(row["spread_bytes"]),
              mib(row["model_bytes"]), percent(row["error"]), _remark(row)] for row in group], 0))
    return "\n\n".join(parts)


def _remark(row: dict) -> str:
    if row["error"] is None:
        return "small"
    if row["near_knee"]:
        return "knee"
    return "" if abs(row["error"]) <= calibrate.BAR else "OFF"


def summary_text(rows: list[dict]) -> str:
    """How many points are within the bar, away from the knees."""
    found = calibrate.summary(rows)
    lines = table(
        ["curve", "boundary", "knee MiB", "points", "judged", "within 5%", "largest", "at MiB"],
        [[row["curve"], BOUNDARIES[row["boundary"]], mib(row["knee_bytes"], 1), row["points"],
          row["judged"], row["within"], percent(row["worst"]), mib(row["worst_size_bytes"], 0)]
         for row in found], 2)
    judged, within = (sum(row[x] for row in found) for x in ("judged", "within"))
    return (f"{lines}\n{within} of {judged} judged points within {calibrate.BAR:.0%} of the "
            "measured; small traffic and sizes near a knee are not judged")
