"""The report: every experiment's figure and table as files, and one page that holds them all."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..simulator.bounds import pass_bound
from ..simulator.sweeps.pool import open_pool
from . import figures, page, style
from .figures._points import shape_columns, shape_words
from .files import csv_text, write_atomic
from .output import seconds, si

CSS = Path(__file__).with_suffix(".css")
PAGE = "index.html"
WORKERS = 2


@dataclass(frozen=True)
class Result:
    """One experiment that has been run; ``svg`` is None when there was nothing to draw."""

    name: str
    table: list[dict]
    svg: str | None
    files: tuple[str, ...]

    @property
    def module(self):
        """The experiment."""
        return figures.get(self.name)


def run_all(problem, gpu, folder: Path, progress=lambda text: None) -> list[Result]:
    """Run every experiment and write its CSV, SVG and PNG into ``folder``.

    Experiments run side by side in processes: Matplotlib draws in Python, and its settings are a
    process's own.
    """
    names = figures.names()
    pool = open_pool(WORKERS)
    try:
        running = {name: pool.submit(_run, name, problem, gpu, folder) for name in _turns(names)}
        results = []
        for number, name in enumerate(names, 1):
            progress(f"{number}/{len(names)} {figures.title(name)}")
            results.append(running[name].result())
        return results
    finally:
        pool.shutdown(cancel_futures=True)


def _turns(names: Iterable[str]) -> list[str]:
    """In which order they begin: one of those that run the L2 reader compiles it, for 15 s in which
    the other process makes what does without; the rest finds it compiled."""
    reading = [name for name in names if getattr(figures.get(name), "RUNS_L2_READER", False)]
    return [*reading[:1], *(name for name in names if name not in reading), *reading[1:]]


def _run(name: str, problem, gpu, folder: Path) -> Result:
    module = figures.get(name)
    table = module.run(problem, gpu)
    if not table:
        return Result(name, table, None, ())
    drawing = module.plot(table)
    svg = style.svg(drawing, name, figures.title(name), told(name, "describe", table))
    contents = {"svg": svg, "png": style.png(drawing), "csv": csv_text(table)}
    for suffix, content in contents.items():
        write_atomic(folder / f"{name}.{suffix}", content)
    return Result(name, table, svg, tuple(f"{name}.{suffix}" for suffix in contents))


def told(name: str, what: str, table):
    """What an experiment's ``describe``, ``notes`` or ``tables`` says of its table: without the
    function its title, or nothing."""
    function = getattr(figures.get(name), what, None)
    if function is None:
        return figures.title(name) if what == "describe" else []
    return function(table)


def answers(results: list[Result]) -> list[str]:
    """What the experiments answer, one line each."""
    answering = [r for r in results if hasattr(r.module, "answer")]
    return [line for r in answering for line in r.module.answer(r.table)]


def html(results: list[Result], problem, gpu, provenance: dict[str, str]) -> str:
    """The page, self-contained."""
    title = f"Attention on {gpu.full_name}: bytes at each boundary"
    sections = [("hardware", "Hardware profile", [_hardware(problem, gpu)])]
    sections += [(r.name, figures.title(r.name), _experiment(r)) for r in results]
    sections.append(("provenance", "Provenance", [_provenance(results, provenance)]))
    links = [page.tag("li", page.tag("a", text, href=f"#{name}")) for name, text, _ in sections]
    return page.document(
        title, CSS.read_text(encoding="utf-8"),
        page.tag("header", page.tag("h1", title), *_question(results, problem, gpu)),
        page.tag("nav", page.tag("ul", *links), aria_label="Sections"),
        *(page.section(name, text, *content) for name, text, content in sections),
    )


def _question(results, problem, gpu):
    shape = f"n {problem.seq}"
    if problem.kv_seq != problem.seq:
        shape += f" (keys {problem.kv_seq})"
    shape += f", {shape_words(shape_columns(problem, gpu))}"
    yield page.tag("p", f"How many bytes does a forward pass of attention ({shape}) move on "
                   f"{gpu.name}, and what does tiling save?", class_="question")
    yield page.tag("ul", *(page.tag("li", line) for line in answers(results)), class_="answer")


def _experiment(result: Result):
    yield page.tag("p", figures.question(result.name))
    if result.svg is None:
        yield page.tag("p", getattr(result.module, "MISSING", "Nothing is recorded."))
        return
    notes = [page.tag("p", note) for note in told(result.name, "notes", result.table)]
    card = page.tag("div", page.Html(style.inline(result.svg)), class_="card", tabindex="0",
                    role="region", aria_label=f"Figure: {figures.title(result.name)}")
    yield page.tag("figure", card, page.tag("figcaption", *notes))
    for table in told(result.name, "tables", result.table):
        content = page.table(table.title, table.header, table.rows)
        yield page.folded(table.title, content) if table.folded else content


def _hardware(problem, gpu):
    peak = getattr(gpu.flops, problem.dtype)
    bound = pass_bound(problem, gpu)
    roofs = ", ".join(f"{name} {seconds(value)}" for name, value in bound.seconds.items())
    rows = [
        ["GPU", f"{gpu.full_name} ({gpu.name}, {gpu.compute_capability})"],
        ["SMs", f"{gpu.sm_count} at up to {gpu.boost_clock_hz / 1e9:.3g} GHz"],
        ["memory", f"{si(gpu.hbm_bytes)} at {si(gpu.hbm_bytes_per_s, 'B/s')}"],
        ["L2", f"{gpu.l2.size_bytes / 2**20:g} MiB, {gpu.l2.partitions} partition(s), "
               f"{gpu.l2.line_bytes}-byte lines"],
        ["shared memory a block", f"{gpu.smem.bytes_per_block_max:,} B"],
        ["registers of an SM", f"{gpu.registers_per_sm:,}"],
        [f"dense peak, {problem.dtype}", f"{si(peak, 'FLOP/s')}" if peak else "none"],
        ["ridge", f"{peak / gpu.hbm_bytes_per_s:.0f} FLOP/B" if peak else "–"],
        ["roofs for this shape", f"{roofs}; bound {seconds(bound.bound_s)} ({bound.limiter})"],
    ]
    return page.table("Profile (datasheet; sources stand in the profile's file)",
                      ["property", "value"], rows, class_="facts")


def _provenance(results, provenance):
    rows = [[name, value] for name, value in provenance.items()]
    rows += [[figures.title(r.name), ", ".join(r.files) or "nothing to draw"] for r in results]
    return page.table("How this page was made", ["item", "value"], rows, class_="facts")
