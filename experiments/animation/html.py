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


def html(panels: list[Panel], heading: str) -> str:
    """The page of panels that play side by side on one clock."""
    most = max(sum(step.bytes for step in panel.steps) for panel in panels)
    data = {"width": WIDTH, "height": HEIGHT, "most": most,
            "panels": [panel.document() for panel in panels]}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    script = f"const DATA = {text};\n{(FOLDER / 'player.js').read_text(encoding='utf-8')}"
    return page.document(
        heading, (FOLDER / "player.css").read_text(encoding="utf-8"),
        page.tag("h1", heading), page.tag("p", INTRO), _key(), _controls(),
        page.tag("div", id="panels"), page.tag("script", page.Html(script)),
    )


def _key():
    parts = (("read", "copied from HBM"), ("written", "copied to HBM"),
             ("held", "held on the chip"))
    return page.tag("p", *(page.join(page.tag("span", style=f"background:var(--{name})"), text)
                           for name, text in parts), class_="key")


def _controls():
    slider = page.Html('<input id="time" type="range" min="0" step="any" value="0" '
                       'aria-label="Moment">')
    speed = page.Html('<input id="speed" type="range" min="1" max="60" value="6">')
    return page.tag(
        "div", page.tag("button", "Play", id="play", type="button"),
        page.tag("button", "Step back", id="back", type="button"),
        page.tag("button", "Step", id="forward", type="button"), slider,
        page.tag("label", "speed ", speed), class_="controls")
