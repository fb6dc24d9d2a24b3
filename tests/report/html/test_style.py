"""Contrast of the style sheet's colours, by WCAG 2.2: 4.5 to 1 for text, 3 to 1 for marks."""

import re

import pytest

from jaxscore.report.html.frame import read_file

COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", read_file("style.css")
    )
}


def luminance(colour):
    """Relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_measure():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["ground", "sheet", "chosen"])
def test_text_is_readable(mode, ground):
    for name in ("text", "muted", "accent", "error"):
        assert contrast(COLOURS[name][mode], COLOURS[ground][mode]) >= 4.5, name
    for name in ("more", "less", "green", "violet", "pink"):
        assert contrast(COLOURS[name][mode], COLOURS[ground][mode]) >= 3, name


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("name", "most"), [("amount", 1.0), ("more", 0.45)])
def test_tokens_are_readable_at_every_shade(mode, name, most):
    """`more`, of numbers below 0, is mixed in up to 45%."""
    assert f"var(--{name}) calc(var(--a, 0) * {100 * most:g}%)" in read_file("style.css")
    text, sheet, amount = (COLOURS[one][mode] for one in ("text", "sheet", name))
    for share in range(11):
        parts = [(int(sheet[k : k + 2], 16), int(amount[k : k + 2], 16)) for k in (1, 3, 5)]
        mixed = "#" + "".join(f"{round(a + (b - a) * most * share / 10):02x}" for a, b in parts)
        assert contrast(text, mixed) >= 4.5, share


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_points_are_visible(mode):
    assert ".dot { fill: var(--point); fill-opacity: .8; }" in read_file("style.css")
    point, sheet = (COLOURS[name][mode] for name in ("point", "sheet"))
    pairs = [(int(sheet[k : k + 2], 16), int(point[k : k + 2], 16)) for k in (1, 3, 5)]
    mixed = "#" + "".join(f"{round(0.2 * a + 0.8 * b):02x}" for a, b in pairs)
    assert contrast(mixed, sheet) >= 4.5


def test_every_colour_that_is_used_has_both_modes():
    used = set(re.findall(r"var\(--(\w+)", read_file("style.css"))) - {
        "a",
        "s",
        "n",
        "least",
        "long",
    }
    assert used == set(COLOURS)
