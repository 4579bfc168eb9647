"""The player: one HTML file that needs nothing else."""

import json
from pathlib import Path

from .. import page
from .panel import HEIGHT, WIDTH, Panel

FOLDER = Path(__file__).parent
INTRO = (
    "The same attention, one head, computed on a GPU. Large matrices lie in HBM, the big and slow "
    "memory; one thread block works in the small, fast memory below it. Every tile that crosses "
    "between them is counted. Watch what is copied again and again, and what never leaves the chip."
)
STATISTICS = (
    "Under a matrix: how many times its bytes have been copied so far. m is the largest score of "
    "each row so far, l the sum of its weights so far (m_block, l_block: of this block alone); "
    "alpha corrects what was summed before m grew. LSE is m + log l, kept for the backward pass. "
    "The arrow keys step, the space bar plays."
)


def html(panels: list[Panel], heading: str) -> str:
    """The page of panels that play side by side on one clock."""
    most = max(panel.bytes for panel in panels)
    data = {"width": WIDTH, "height": HEIGHT, "most": most,
            "panels": [panel.document() for panel in panels]}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    script = f"const DATA = {text};\n{(FOLDER / 'player.js').read_text(encoding='utf-8')}"
    return page.document(
        heading, (FOLDER / "player.css").read_text(encoding="utf-8"),
        page.tag("h1", heading), page.tag("p", INTRO), _key(), _controls(),
        page.tag("div", id="panels"), page.tag("p", _totals(panels)), page.tag("p", STATISTICS),
        page.tag("script", page.Html(script)),
    )


def _key():
    parts = (
        ("background:var(--read)", None, "copied from HBM"),
        ("background:var(--written)", None, "copied to HBM"),
        ("background:var(--held)", None, "held on the chip"),
        ("border-color:var(--read)", "edge", "used by this step"),
        ("border-color:var(--written)", "edge", "made by this step"),
        (None, "line", "the least that any way must copy"),
    )
    return page.tag("p", *(page.join(page.tag("span", style=style, class_=class_), text)
                           for style, class_, text in parts), class_="key")


def _totals(panels: list[Panel]) -> str:
    """Who copies how much in all, against the first and against the least."""
    first, text = panels[0], "In all: "
    text += ", ".join(f"{panel.title} {panel.bytes:,} B" for panel in panels)
    if len(panels) == 2 and panels[1].bytes < first.bytes:
        text += f", {first.bytes / panels[1].bytes:.1f} times less"
    return text + f". Q, K and V read once and O written once: {first.compulsory_bytes:,} B."


def _controls():
    slider = page.Html('<input id="time" type="range" min="0" step="any" value="0" '
                       'aria-label="Moment">')
    speed = page.Html('<input id="speed" type="range" min="1" max="60" value="6">')
    return page.tag(
        "div", page.tag("button", "Play", id="play", type="button"),
        page.tag("button", "Step back", id="back", type="button"),
        page.tag("button", "Step", id="forward", type="button"), slider,
        page.tag("label", "speed ", speed), class_="controls")
