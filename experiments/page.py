"""HTML by small functions: everything that is not Html already is escaped."""

from html import escape


class Html(str):
    """Text that is markup already."""


def tag(name: str, *children, **attributes) -> Html:
    """``<name attributes>children</name>``; ``class_`` is class, None leaves an attribute out."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items() if value is not None
    )
    return Html(f"<{name}{pairs}>{join(*children)}</{name}>")


def join(*children) -> Html:
    """Children one after the other, text escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children))


def table(title: str, header: list[str], rows: list[list[str]], class_: str | None = None) -> Html:
    """A table that scrolls sideways on narrow screens; first column and header are headings."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    inside = tag("table", tag("caption", title), tag("thead", head), tag("tbody", *body),
                 class_=class_)
    return tag("div", inside, class_="wide", tabindex="0", role="region", aria_label=title)


def folded(title: str, content: Html) -> Html:
    """Content behind a summary line."""
    return tag("details", tag("summary", title), content)


def section(anchor: str, title: str, *children) -> Html:
    """A section with its heading."""
    return tag("section", tag("h2", title, id=anchor), *children, aria_labelledby=anchor)


def document(title: str, css: str, *children) -> str:
    """A whole page, with nothing fetched from elsewhere."""
    head = join(
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        tag("title", title), tag("style", Html(css)),
    )
    page = tag("html", tag("head", head), tag("body", tag("main", *children)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"
