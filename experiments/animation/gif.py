"""The panels as an animated GIF, for places that play no scripts."""

import io
from bisect import bisect_right

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from .. import style
from .panel import HEIGHT, WIDTH, Panel, times_moved

FRAMES, FRAME_MS, LAST_MS = 140, 140, 3000
DPI, INCHES = 100, 6.2
READ, WRITTEN, HELD = style.BLUE, style.VERMILION, "#9BC9A8"
KEY = ((READ, "copied from HBM"), (WRITTEN, "copied to HBM"), (HELD, "held on the chip"))


def gif(panels: list[Panel], progress=lambda done: None) -> bytes:
    """GIF of all panels side by side on one clock; ``progress`` gets the frames done."""
    end = max(panel.ends[-1] for panel in panels)
    most = max(panel.bytes for panel in panels)
    frames = []
    for number in range(FRAMES):
        frames.append(_frame(panels, end * (number + 1) / FRAMES, most))
        progress(number + 1)
    palette = frames[len(frames) // 2].quantize(64, dither=Image.Dither.NONE)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    out = io.BytesIO()
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0,
                   optimize=True)
    return out.getvalue()


def _frame(panels: list[Panel], time: float, most: int) -> Image.Image:
    with rc_context(style.RC):
        size = (INCHES * len(panels), INCHES * HEIGHT / WIDTH)
        figure = Figure(size, dpi=DPI)
        for number, panel in enumerate(panels):
            axes = figure.add_axes((number / len(panels), 0, 1 / len(panels), 1))
            axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
            axes.axis("off")
            _draw(axes, panel, time, most)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return Image.frombytes("RGBA", canvas.get_width_height(),
                               bytes(canvas.buffer_rgba())).convert("RGB")


def _draw(axes, panel: Panel, time: float, most: int):
    last = min(bisect_right(panel.ends, time), len(panel.steps) - 1)
    now, done = panel.steps[last], panel.steps[:last + 1]
    axes.text(16, 26, panel.title, fontsize=12, fontweight="bold")
    axes.text(WIDTH - 16, 26, panel.where(now), fontsize=8.5, color=style.GREY, ha="right")
    for y, h, fill, name in ((36, 214, "#F4F1EA", "HBM"),
                             (270, 142, "#EEF4F8", "on the chip (one thread block)")):
        axes.add_patch(Rectangle((6, y), WIDTH - 12, h, facecolor=fill, edgecolor="none"))
        axes.text(16, y + 16, name, fontsize=8.5, fontweight="bold")
    axes.text(16, 326, "shared memory", fontsize=8, color=style.GREY)
    axes.text(16, 388, "registers", fontsize=8, color=style.GREY)
    _draw_tensors(axes, panel, done)
    _draw_tiles(axes, panel, done)
    read = sum(step.bytes for step in done if step.kind == "load")
    written = sum(step.bytes for step in done if step.kind == "store")
    scale = (WIDTH - 32) / most
    axes.add_patch(Rectangle((16, 424), panel.bytes * scale, 12, facecolor="none",
                             edgecolor="#BDBDBD", linewidth=0.8))
    axes.add_patch(Rectangle((16, 424), read * scale, 12, facecolor=READ))
    axes.add_patch(Rectangle((16 + read * scale, 424), written * scale, 12, facecolor=WRITTEN))
    least = 16 + panel.compulsory_bytes * scale
    axes.plot([least, least], [418, 441], color=style.BLACK, linestyle=":", linewidth=1.4)
    finished = " – done" if time >= panel.ends[-1] else ""
    axes.text(16, 454, f"crossed so far: {read:,} B read, {written:,} B written{finished}",
              fontsize=9.5, fontweight="bold")
    axes.text(16, 474, panel.words[last], fontsize=9.5)
    _draw_key(axes)


def _draw_key(axes):
    for number, (colour, text) in enumerate(KEY):
        x = 16 + 112 * number
        axes.add_patch(Rectangle((x, 484), 8, 8, facecolor=colour))
        axes.text(x + 12, 492, text, fontsize=7.5, color=style.GREY)
    axes.plot([356, 356], [482, 494], color=style.BLACK, linestyle=":", linewidth=1.4)
    axes.text(362, 492, "the least that any way must copy", fontsize=7.5, color=style.GREY)


def _draw_tensors(axes, panel: Panel, done):
    boxes = {box.number: box for box in panel.tensors}
    for box in panel.tensors:
        _rectangle(axes, box, facecolor="white", edgecolor="#BDBDBD")
        axes.text(box.x, box.y - 5, box.name, fontsize=8)
        whole = panel.tensor_bytes[box.number]
        moved = {verb: sum(step.bytes for step in done
                           if step.kind == kind and step.region[0] == box.number)
                 for verb, kind in (("read", "load"), ("written", "store"))}
        often = [f"{verb} {times_moved(count, whole)}" for verb, count in moved.items() if count]
        axes.text(box.x, box.y + box.h + 5, "\n".join(often), fontsize=6, color=style.GREY,
                  va="top", linespacing=1.1)
    marks = {step.region: step.kind for step in done if step.kind in ("load", "store")}
    for region, kind in marks.items():
        _mark(axes, boxes[region[0]], region, kind, 0.3)
    if done[-1].kind in ("load", "store"):
        _mark(axes, boxes[done[-1].region[0]], done[-1].region, done[-1].kind, 1.0)


def _mark(axes, box, region, kind, opacity):
    _, row, rows, col, cols = region
    sx, sy = box.w / box.cols, box.h / box.rows
    axes.add_patch(Rectangle((box.x + col * sx, box.y + row * sy), cols * sx, rows * sy,
                             facecolor=READ if kind == "load" else WRITTEN, alpha=opacity,
                             edgecolor="none"))


def _draw_tiles(axes, panel: Panel, done):
    now = done[-1]
    held = set()
    for step in reversed(done):
        if (step.phase, step.block) != (now.phase, now.block):
            break
        if step.kind != "store":
            held.add(step.tile)
    for box in panel.tiles:
        if box.phase != now.phase:
            continue
        made = box.number == now.tile and now.kind != "store"
        used = box.number in now.operands or (box.number == now.tile and not made)
        edge = WRITTEN if made else READ if used else "#BDBDBD"
        _rectangle(axes, box, facecolor=HELD if box.number in held else "none", edgecolor=edge,
                   linewidth=2 if made or used else 0.8)
        axes.text(box.x, box.y - 4, box.name, fontsize=7.5)


def _rectangle(axes, box, **look):
    axes.add_patch(Rectangle((box.x, box.y), box.w, box.h, **look))
