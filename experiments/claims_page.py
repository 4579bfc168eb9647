"""The claims as one page: a verdict each, pictures, and every number behind them."""

from . import claims, page, style
from .output import seconds, si
from .records import git_revision
from .report import CSS

SI_UNITS = ("B", "FLOP", "exp")


def value_words(number: claims.Number) -> str:
    """A number with its unit: three digits, SI prefixes where the unit takes them."""
    value, unit = number.value, number.unit
    if value is None:
        return "–"
    if isinstance(value, str):
        return value + unit
    if unit == "s":
        return seconds(value)
    if unit in SI_UNITS:
        return si(value, unit)
    space = "" if unit in ("", "×") else " "
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return f"{text}{space}{unit}"


def html(found: list[claims.Judged]) -> str:
    """The page, self-contained."""
    title = "Claims about attention, tested"
    overview = page.table("Verdicts", ["claim", "statement", "verdict"], [
        [str(claim.number), claim.statement, claim.verdict_words] for claim in found
    ], class_="facts")
    about = page.tag("p", "Verdicts are computed from counts of tile programs (counted), models "
                     "(predicted), recorded runs on an H200 (measured), papers (published) and "
                     f"simulated arithmetic (computed). Revision {git_revision() or 'unknown'}.")
    sections = [page.section(f"claim-{claim.number}", f"{claim.number}. {claim.statement}",
                             *_section(claim)) for claim in found]
    links = [page.tag("li", page.tag("a", str(claim.number), href=f"#claim-{claim.number}"))
             for claim in found]
    return page.document(
        title, CSS.read_text(encoding="utf-8"),
        page.tag("header", page.tag("h1", title), about, overview),
        page.tag("nav", page.tag("ul", *links), aria_label="Claims"), *sections)


def _section(claim: claims.Judged):
    yield page.tag("p", page.tag("strong", claim.verdict_words), ". ", claim.finding.because,
                   class_="answer")
    yield page.tag("p", claims.how(claim.name))
    module = claims.get(claim.name)
    if hasattr(module, "plot") and claim.finding.numbers:
        words = module.describe(claim.facts)
        drawing = style.svg(module.plot(claim.facts), claim.name, claim.statement, words)
        card = page.tag("div", page.Html(style.inline(drawing)), class_="card", tabindex="0",
                        role="region", aria_label=f"Figure: {claim.statement}")
        yield page.tag("figure", card, page.tag("figcaption", page.tag("p", words)))
    rows = [[n.label, n.what, value_words(n)] for n in claim.finding.numbers]
    numbers = page.table("The numbers behind it", ["kind", "what", "value"], rows, class_="facts")
    yield page.folded("The numbers behind it", numbers)
