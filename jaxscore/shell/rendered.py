"""The forms of a report for people and programs."""

from collections.abc import Iterator
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_output import json_parts, to_json_value
from jaxscore.report import markdown
from jaxscore.report.document import Document


class Rendered:
    """Plain values, strict JSON, Markdown and a page of what `data` and `document` hold."""

    @property
    def system(self) -> str:
        """The command."""
        raise NotImplementedError

    @property
    def document(self) -> Document | None:
        """Numbers, charts, tables and items of the page, or None without one."""
        raise NotImplementedError

    def data(self) -> dict[str, Any]:
        """The JSON file, `Estimate`s still whole."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, as its JSON file has it."""
        values: dict[str, Any] = to_json_value(self.data())
        return values

    def json(self) -> str:
        """`to_dict` as strict JSON."""
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """`json` in parts."""
        return json_parts(self.data())

    def markdown(self) -> str:
        """The Markdown report.

        Raises:
            InputError: the system has none.
        """
        return markdown.render(self._known_document())

    def html(self) -> str:
        """The page for a browser: one file that loads nothing.

        Raises:
            InputError: the system has none.
        """
        from jaxscore.report.html.frame import render

        return render(self._known_document())

    def _known_document(self) -> Document:
        if self.document is None:
            raise InputError(f"{self.system} does not have a page; use to_dict or to_frame")
        return self.document

    def _repr_markdown_(self) -> str:
        return repr(self) if self.document is None else self.markdown()
