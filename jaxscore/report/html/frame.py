"""A page as one HTML file: style, script and data are in it, and nothing else runs or loads."""

import base64
import dataclasses
import functools
import hashlib
import importlib.resources
from typing import Any

import jinja2
from markupsafe import Markup

from jaxscore.report.document import Document
from jaxscore.report.html import plain_items
from jaxscore.report.html.held import cut, held
from jaxscore.report.html.markdown_html import blocks
from jaxscore.report.html.packed import packed
from jaxscore.report.html.visible import visible
from jaxscore.version import VERSION


def render(page: Document) -> str:
    """The file; the same for the same page.

    Only the script whose hash the policy names may run, so that no text of an item can.
    """
    if page.items is not None:
        page = dataclasses.replace(page, items=held(page.items))
    script = _file("script.js")
    return _template().render(
        page=page,
        style=Markup(_file("style.css")),
        script=Markup(script),
        script_hash=Markup(script_hash(script)),
        blocks=blocks,
        plain=[] if page.items is None else plain_items.worst(page.items),
        cut=functools.partial(cut, longest=plain_items.LONGEST),
        data="" if page.items is None else packed(page.items),
        version=VERSION,
    )


def script_hash(script: str) -> str:
    """SHA-256 of a script in base64, as a Content-Security-Policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@functools.cache
def _file(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        keep_trailing_newline=True,
    )
    return environment.from_string(_file("template.html"))


def _shown(value: Any) -> Any:
    """What the template writes, before it is escaped: a text without what does not print."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
