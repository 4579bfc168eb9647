"""One look for all figures: colours by schedule, lines by boundary, marks by kind of evidence.

Colours are Okabe and Ito's, safe for colour-blind readers; a schedule keeps its colour and marker
in every figure. Figures are made without pyplot, so no display and no global state is involved.
"""

import io
import re
from functools import wraps
from html import escape

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FixedLocator, NullFormatter, NullLocator

from .. import kernels
from ..simulator import schedules

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, LIGHT = "#595959", "#E4E4E4"
DARK_GREEN, BROWN = "#00503A", "#7A3500"  # darker GREEN and VERMILION
DARK_BLUE, DARK_PURPLE = "#003B5C", "#8A3E68"

_SCHEDULES = {
    "standard": (VERMILION, "s"),
    "standard_minimal": (ORANGE, "D"),
    "flash1": (GREEN, "^"),
    "flash2": (BLUE, "o"),
    "flash2_mma": (PURPLE, "v"),
    "flash2_wgmma": (SKY, "P"),
    "flash1_mma": (DARK_GREEN, "<"),
    "standard_mma": (BROWN, "X"),
    "standard_separate": (ORANGE, "s"),
    "chunked": (GREY, "h"),
    "split_kv": (BLACK, ">"),
    "paged": (GREY, "d"),
    "mla_decode": (BLACK, "D"),
    "softmax_safe": (VERMILION, "H"),
    "softmax_online": (GREEN, "H"),
    "softmax_fused": (BLUE, "H"),
    "standard_backward": (VERMILION, "p"),
    "standard_backward_minimal": (ORANGE, "p"),
    "standard_separate_backward": (BROWN, "p"),
    "flash1_backward": (GREEN, "p"),
    "flash2_backward": (DARK_BLUE, "p"),
    "flash2_backward_fma": (DARK_PURPLE, "p"),
}
# Of those that are not listed: pairs of both, then stars of ever more points.
_OTHER_COLOURS = (SKY, GREY, BLACK, VERMILION, BLUE, ORANGE, GREEN, PURPLE)
_OTHER_MARKERS = ("8", (4, 1, 0), (3, 1, 0), (6, 1, 0), (8, 1, 0))
LINES = {"sm": "-", "dram": "--", "compulsory": ":"}

WIDTH_INCHES = 8.6
TIP = "tip: "  # before a text in an artist's gid: an SVG shows it where the pointer rests
PNG_DPI = 186  # 1,600 px: sharp at 800 px on a dense screen
RC = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E2E2E2",
    "grid.linewidth": 0.7,
    "legend.frameon": True,
    "legend.framealpha": 0.92,
    "legend.edgecolor": "none",
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "hbmeter",
}


def styled(plot):
    """Decorates a plot function: it draws with this style whatever the caller's settings."""
    @wraps(plot)
    def inside(*args, **kwargs):
        with rc_context(RC):
            return plot(*args, **kwargs)
    return inside


def colour(schedule: str) -> str:
    """The colour of a schedule."""
    return _look(schedule)[0]


def marker(schedule: str) -> str | tuple[int, int, int]:
    """The marker of a schedule."""
    return _look(schedule)[1]


def _look(name: str) -> tuple:
    """Colour and marker of a schedule or kernel: no two have both in common."""
    if name in _SCHEDULES:
        return _SCHEDULES[name]
    others = sorted({*schedules.names(), *kernels.names(), name} - {*_SCHEDULES})
    at, colours = others.index(name), len(_OTHER_COLOURS)
    pairs = colours * len(_OTHER_MARKERS)  # all different: the lengths have no common divisor
    shape = (_OTHER_MARKERS[at % len(_OTHER_MARKERS)] if at < pairs
             else (9 + (at - pairs) // colours, 1, 0))
    return _OTHER_COLOURS[at % colours], shape


def counted(schedule: str) -> dict:
    """Marks of what a reader counted exactly: filled."""
    return {"marker": marker(schedule), "color": colour(schedule), "linestyle": "none"}


def predicted(schedule: str, boundary: str = "dram") -> dict:
    """Marks of what a model predicts: open, on the boundary's line."""
    return {"marker": marker(schedule), "color": colour(schedule), "mfc": "white", "mew": 1.4,
            "linestyle": LINES[boundary]}


def compared(schedule: str) -> dict:
    """Marks of a prediction against what was measured: open."""
    return {"marker": marker(schedule), "color": colour(schedule), "mfc": "none", "mew": 1.2,
            "linestyle": "none"}


def measured(schedule: str) -> dict:
    """Marks of what hardware counters say: crosses."""
    return {"marker": "x", "color": colour(schedule), "mew": 1.6, "linestyle": "none"}


PUBLISHED = {"marker": "*", "color": BLACK, "mfc": YELLOW, "markersize": 12, "mew": 0.8,
             "linestyle": "none"}


def key(label: str, **look) -> Line2D:
    """A legend entry."""
    return Line2D([], [], label=label, **look)


def figure(rows: int = 1, cols: int = 1, height: float = 4.1, **grid):
    """A Figure of README width and its axes (one, or an array of them)."""
    fig = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    return fig, fig.subplots(rows, cols, **grid)


def byte_axis(axis, unit: str = "B"):
    """Decimal SI ticks: 1 GB is 10⁹ bytes."""
    axis.set_major_formatter(EngFormatter(unit=unit))


def size_axis(axis, values, label: str):
    """A log axis with a tick at each of ``values`` (block sizes, lengths)."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(lambda value, _: short(int(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text(label)


def short(count: int) -> str:
    """512, 1k (1,024), 32k."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def png(fig: Figure) -> bytes:
    """The figure as PNG."""
    with rc_context(RC):
        return _saved(fig, format="png", dpi=PNG_DPI, metadata={"Software": None})


def svg(fig: Figure, stem: str, title: str, description: str) -> str:
    """The figure as SVG text with a title and description; ids begin with ``stem``. Artists whose
    gid begins with TIP show the rest of it on hover.

    Repeated runs give the same text, and several can stand in one page.
    """
    with rc_context(RC):
        text = _saved(fig, format="svg", metadata=dict.fromkeys(
            ("Date", "Creator", "Format", "Type"))).decode()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(f'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", text)
    text = re.sub(r'\bid="', f'id="{stem}-', text)
    text = re.sub(r'href="#', f'href="#{stem}-', text)
    text = text.replace("url(#", f"url(#{stem}-")
    head = (f' role="img" aria-labelledby="{stem}-title {stem}-desc">\n'
            f'<title id="{stem}-title">{escape(title)}</title>\n'
            f'<desc id="{stem}-desc">{escape(description)}</desc>')
    return re.sub(r"(<svg[^>]*)>", lambda found: found.group(1) + head, text, count=1)


def inline(svg_text: str) -> str:
    """An SVG document as an element of an HTML page: no prolog, no namespaces, no fixed size."""
    text = svg_text[svg_text.index("<svg"):]
    tag, rest = text.split(">", 1)
    tag = re.sub(r'\s(xmlns(:xlink)?|width|height)="[^"]*"', "", tag)
    return f"{tag}>{rest}".strip()


def _saved(fig: Figure, **options) -> bytes:
    buffer = io.BytesIO()
    fig.savefig(buffer, **options)
    return buffer.getvalue()
