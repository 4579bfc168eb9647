"""The record of predicted times: errors, choices, limiters and bounds, as JSON and as text."""

from statistics import mean

from . import time_table


def record() -> dict:
    """Everything that ``hbmeter predict --recorded`` says, computed now from the records."""
    table = time_table.rows(time_table.timed())
    chosen, limits = time_table.choices(table), time_table.limiters()
    held = [x for x in limits if x["held_out"]]
    return {
        "points": len(table), "beaten": len(time_table.beaten(table)),
        "closest_to_bound": max((r["bound_s"] / r["fastest_s"] for r in table), default=None),
        "summary": time_table.summary(table), "choices": chosen,
        "limiters": {
            "points": len(limits), "agree": sum(x["predicted"] == x["measured"] for x in limits),
            "held_out": len(held),
            "held_out_agree": sum(x["predicted"] == x["measured"] for x in held),
        },
    }


def record_text(found: dict) -> str:
    """As text."""
    from .output import table

    def per_cent(x):
        return "–" if x is None else f"{x:.1%}"

    errors = [
        [line["mode"], line["points"], line["kernel"], line["count"], per_cent(line["mean"]),
         f"{line['bias']:+.1%}", per_cent(line["worst"])] for line in found["summary"]
    ]
    lines = [
        "predicted against measured times",
        table(["mode", "points", "kernel", "number", "mean |error|", "bias", "worst"], errors, 3),
        "", "the predicted best tiles, slower than the measured best by",
        table(["kernel", "shape", "order", "tiles", "rank corr.", "zero-shot", "calibrated"],
              [[c["kernel"], c["shape"], c["order"], c["tiles"], f"{c['rank_correlation']:.2f}",
                per_cent(c["zero-shot"]), per_cent(c["calibrated"])] for c in found["choices"]],
              3),
    ]
    for mode in time_table.MODES:
        known = [c[mode] for c in found["choices"] if c[mode] is not None]
        if known:
            lines.append(f"{mode}: {mean(known):.1%} on average over {len(known)} shapes, "
                         f"{max(known):.1%} at worst")
    limits = found["limiters"]
    lines += [
        f"rank correlation over tiles: "
        f"{mean(c['rank_correlation'] for c in found['choices']):.2f} on average",
        f"the busiest unit as predicted at {limits['agree']} of {limits['points']} points "
        f"({limits['held_out_agree']} of {limits['held_out']} held out)",
        f"faster than the bound by more than 2%: {found['beaten']} of {found['points']} points; "
        f"the fastest reached {found['closest_to_bound']:.0%} of it",
    ]
    return "\n".join(lines)
