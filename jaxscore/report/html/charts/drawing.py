"""Parts of a picture. Lengths are in the units of its view box."""

from markupsafe import Markup

from jaxscore.report.html.markdown_html import visible

LONGEST = 26  # characters of a user's text in a picture


def picture(title: str, finding: str, width: int, height: int, *parts: Markup) -> Markup:
    """The whole; `finding` says in words what is to be seen."""
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(width, height, visible(title), visible(finding), Markup("").join(parts))


def short(text: str) -> str:
    """A user's text that fits beside a picture."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def size(value: float) -> str:
    """A length with one digit, the same on every machine."""
    shown = f"{value:.1f}"
    return "0" if shown == "-0.0" else shown.removesuffix(".0")


def words(
    x: float, y: float, value: str, kind: str = "axis", anchor: str = "middle", turn: bool = False
) -> Markup:
    """A line of text; `turn` lets it run upwards."""
    turned = Markup(' transform="rotate(-90 {} {})"').format(size(x), size(y)) if turn else ""
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}"{}>{}</text>').format(
        size(x), size(y), kind, anchor, turned, value
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line."""
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        *map(size, (x1, y1, x2, y2)), kind
    )


def _told(tip: str) -> Markup:
    return Markup("<title>{}</title>").format(visible(tip)) if tip else Markup("")


def box(
    x: float, y: float, width: float, height: float, kind: str, tip: str = "", amount: float = 1.0
) -> Markup:
    """A bar, with its numbers as a tip; `amount` 0 to 1 is how dark it is."""
    faint = Markup("") if amount >= 1 else Markup(' fill-opacity="{:.2f}"').format(amount)
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"{}>{}</rect>').format(
        *map(size, (x, y, max(0.0, width), max(0.0, height))), kind, faint, _told(tip)
    )


def dot(x: float, y: float, radius: float, kind: str, tip: str = "") -> Markup:
    """A point, with its numbers as a tip."""
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}">{}</circle>').format(
        *map(size, (x, y, radius)), kind, _told(tip)
    )
