"""`GET /`: one static page to try texts at, which calls `/jaxscore/score` of its origin.

The page is the same for every server, so it needs no key. Its policy allows its script, its style
sheet and requests to its origin alone.
"""

import functools
import importlib.resources

from jaxscore.report.html.frame import make_script, policy_hash, read_file
from jaxscore.server.endpoint import Answer, Call

HTML = "text/html; charset=utf-8"


async def get_page(call: Call) -> Answer:
    """Return the page."""
    return make_page()


@functools.cache
def make_page() -> Answer:
    """Return the page, one file with the style of reports, and its headers."""
    parts = {
        "script": make_script(_read("page.js")),
        "style": f"{read_file('style.css')}\n{_read('page.css')}",
    }
    page = _read("page.html")
    for name, text in parts.items():
        page = page.replace(f"{{{{ {name} }}}}", text)
    policy = {
        "default-src": "'none'",
        "script-src": f"'{policy_hash(parts['script'])}'",
        "style-src": f"'{policy_hash(parts['style'])}'",
        "connect-src": "'self'",
        "img-src": "data:",  # its icon
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Answer(page.encode(), HTML, headers)


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
