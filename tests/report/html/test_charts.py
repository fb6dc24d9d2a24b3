"""Pictures: numbers at their places, and words that say what is to be seen."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from jaxscore.analysis.forecasts import expected_calibration_error
from jaxscore.analysis.forecasts import reliability as table
from jaxscore.report.html.chart_parts import reliability
from jaxscore.report.html.drawing import Axis, short, step, width
from jaxscore.report.html.frame import read_file
from jaxscore.report.html.histogram import (
    CELLS,
    POINTS,
    Labels,
    Logs,
    counts,
    histogram,
    merged,
    scatter,
    two_sided,
)
from jaxscore.report.html.intervals import COLOURS, MOST, Curve, Group, Point, curves, intervals
from jaxscore.report.sections import three
from tests.hostile.inputs import HOSTILE, TEXTS

LABELS = Labels("x", "y", "things")


def read(svg):
    """The picture, which is XML, has a role, a title and a description."""
    found = etree.fromstring(str(svg))
    assert found.get("role") == "img"
    assert found[0].tag == "title"
    assert found[0].text
    assert found[1].tag == "desc"
    assert found[1].text
    assert "nan" not in str(svg)
    return found


def parts(found, tag, kind):
    return [one for one in found.iter(tag) if one.get("class") == kind]


@given(st.floats(1e-9, 1e9), st.integers(1, 40))
def test_a_step_is_round_and_no_larger_than_it_has_to_be(span, most):
    found = step(span, most)
    assert span / found <= most * (1 + 1e-6)
    assert float(f"{found:.0e}"[0]) in (1, 2, 5)
    assert found < 2.5 * span / most * (1 + 1e-6)


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(0, 1, 0, 100), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (Axis(1e-8, 1, 0, 1, True), ["10⁻⁸", "10⁻⁶", "10⁻⁴", "0.01", "1"]),
        (Axis(8, 60, 0, 1, True), ["10", "20", "50"]),
        (Axis(90, 110, 0, 1, True), ["90", "95", "100", "105", "110"]),
        (Axis(-0.3, 0.3, 0, 1), ["-0.2", "0", "0.2"]),
    ],
)
def test_ticks(axis, ticks):
    assert [text for _, text in axis.ticks()] == ticks


def test_places():
    axis = Axis(0.01, 100, 10, 50, True)
    assert [axis.at(v) for v in (0.01, 1, 100, 1e9)] == pytest.approx([10, 30, 50, 50])
    assert Axis(-1, 1, 200, 100).at(0.5) == pytest.approx(125)


@HOSTILE
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_every_value_is_in_one_bin(values):
    found = counts(values)
    assert sum(found.n) == len(values)
    assert len(found.n) <= 40
    assert np.allclose(np.diff(found.edges), found.edges[1] - found.edges[0], rtol=1e-6)
    for k, n in enumerate(found.n):
        low, high = found.edges[k], found.edges[k + 1]
        last = k == len(found.n) - 1
        assert n == sum(low <= v < high or (last and v == high) for v in values)
    read(histogram(found, title="t", units="w", label="l", mean=0.0, signed=True))


def test_what_is_not_finite_has_no_bin():
    assert counts([1.0, math.nan, math.inf]) is None
    assert sum(counts([1.0, 2.0, -math.inf]).n) == 2
    assert counts([]) is None


@HOSTILE
@given(st.lists(st.integers(0, 5), min_size=1, max_size=400))
def test_bins_are_merged_and_none_is_lost(n):
    found = merged(np.array(n), 0.02)
    if sum(n) < 2:
        assert found is None
        return
    assert sum(found.n) == sum(n)
    assert len(found.n) <= 40
    fine = np.repeat(np.arange(len(n)) * 0.02 + 0.01, n)
    assert found.n == np.histogram(fine, np.array(found.edges))[0].tolist()


def test_a_histogram():
    found = counts([0.0, 0.1, 0.1, 0.9], edges=[0, 0.5, 1])
    svg = read(histogram(found, title="t", units="w", label="l", mean=0.25, last_open=True))
    bars = parts(svg, "rect", "bar")
    assert [one[0].text for one in bars] == ["0 to 0.5: 3 w", "0.5 and more: 1 w"]
    tall, short = (float(one.get("height")) for one in bars)
    assert tall == pytest.approx(3 * short, abs=0.2)
    assert "mean 0.25" in [one.text for one in svg.iter("text")]
    signed = histogram(counts([-1.0, -1.0, 1.0]), title="t", units="w", label="l", signed=True)
    assert len(parts(read(signed), "rect", "bar less")) == 1


def test_two_groups():
    right, wrong = (counts(v, edges=[0, 1, 2]) for v in ([0.5, 0.5, 1.5], [0.5, 1.5]))
    svg = read(
        two_sided(right, wrong, title="t", units="outputs", label="l", names=("right", "wrong"))
    )
    tips = [one[0].text for one in svg.iter("rect")]
    assert tips == [
        "0 to 1: 2 right outputs", "1 to 2: 1 right outputs",
        "0 to 1: 1 wrong outputs", "1 to 2: 1 wrong outputs",
    ]  # fmt: skip
    middle = [float(one.get("y")) for one in parts(svg, "rect", "bar less")]
    assert middle == [113, 113]
    assert svg[1].text == "3 right and 2 wrong outputs."


def test_a_reliability_diagram():
    p = [0.05, 0.15, 0.15, 0.95]
    bins = table(p, [0, 1, 0, 1])
    rows = [vars(one) for one in bins]
    svg = read(reliability(rows, expected_calibration_error(bins), title="t", events="answers"))
    points = parts(svg, "circle", "point")
    places = [(float(one.get("cx")), float(one.get("cy"))) for one in points]
    across = lambda v: 60 + 350 * v  # noqa: E731
    up = lambda v: 226 - 214 * v  # noqa: E731
    wanted = [(across(0.05), up(0)), (across(0.15), up(0.5)), (across(0.95), up(1))]
    assert [x for x, _ in places] == pytest.approx([x for x, _ in wanted], abs=0.06)
    assert [y for _, y in places] == pytest.approx([y for _, y in wanted], abs=0.06)
    assert points[1][0].text == (
        "0.1 to 0.2: 2 answers, mean probability 0.1500, share correct 0.5000"
    )
    assert "error 0.20000." in svg[1].text
    assert "with 1 of the answers lie below" in svg[1].text
    one = [vars(b) for b in table([0.5], [1])]
    assert reliability(one, 0.5, title="t", events="a") is None


def test_intervals():
    groups = [
        Group("all", 0.5, 0.25, 0.75, "0.500", 8, 0.6),
        *(Group(word, 0.1 * k, None, None, "x", 1) for k, word in enumerate(TEXTS)),
    ]
    svg = read(intervals(groups, title="t", label="l", units="w", reference="chance"))
    assert len(parts(svg, "circle", "point")) == min(MOST, len(groups))
    [whisker] = parts(svg, "line", "whisker")
    point = float(parts(svg, "circle", "point")[0].get("cx"))
    low, high = float(whisker.get("x1")), float(whisker.get("x2"))
    assert point - low == pytest.approx(high - point, abs=0.2)
    [mark] = parts(svg, "line", "mark")
    assert float(mark.get("x1")) > point
    assert parts(svg, "circle", "point")[0][0].text == (
        "all: 0.500, 95% interval 0.25 to 0.75, 8 w"
    )
    assert intervals([], title="t", label="l", units="w") is None
    read(intervals([Group("a", 0.0, None, None, "0", 1)], title="t", label="l", units="w"))


def test_points():
    pairs = {(0.1, 0.5): 1, (0.2, 0.1): 2, (0.0, 0.5): 1, (math.inf, 1.0): 1}
    svg = read(scatter(pairs, title="t", labels=LABELS, logs=Logs(True, True), diagonal=True))
    dots = parts(svg, "circle", "dot")
    assert [one[0].text for one in dots] == ["0.1, 0.5", "0.2, 0.1: 2"]
    assert svg[1].text == "3 things: y against x; 1 lie above the diagonal."
    assert scatter({(1.0, 1.0): 1}, title="t", labels=LABELS, logs=Logs(False, False)) is None
    same = scatter({(1.0, 1.0): 2}, title="t", labels=LABELS, logs=Logs(True, False))
    assert len(parts(read(same), "circle", "dot")) == 1


def test_many_points_are_counted_in_cells():
    rng = np.random.default_rng(0)
    pairs = {tuple(map(float, one)): 1 for one in rng.uniform(1, 2, (POINTS + 1, 2))}
    svg = read(scatter(pairs, title="t", labels=LABELS, logs=Logs(False, False)))
    cells = parts(svg, "rect", "cell")
    assert sum(int(one[0].text.split()[0]) for one in cells) == POINTS + 1
    assert len(cells) <= CELLS**2
    assert parts(svg, "circle", "dot") == []


def test_curves():
    first = Curve("one", [Point(1, 0.25, 0.0, 0.5), Point(2, 0.5), Point(16, 1.0, 0.5, 1.0)])
    second = Curve("two", [Point(1, 0.25), Point(16, 1.0)])
    svg = read(curves([first, Curve("none", []), second], title="t", x="N", y="share", log=True))
    dots = [*parts(svg, "circle", "point s0"), *parts(svg, "circle", "point s1")]
    assert [one[0].text for one in dots] == [
        "one, 1: 0.25, 95% interval 0 to 0.5",
        "one, 2: 0.5",
        "one, 16: 1, 95% interval 0.5 to 1",
        "two, 1: 0.25",
        "two, 16: 1",
    ]
    xs = [float(one.get("cx")) for one in dots]
    assert xs[1] - xs[0] == pytest.approx((xs[2] - xs[0]) / 4, abs=0.2)  # powers of two
    ys = [float(one.get("cy")) for one in dots]
    assert ys[0] - ys[1] == pytest.approx((ys[0] - ys[2]) / 3, abs=0.2)
    span = parts(svg, "line", "span")[0]
    assert [float(span.get(name)) for name in ("y1", "y2")] == pytest.approx(
        [ys[0] + (ys[0] - ys[1]), ys[1]], abs=0.2
    )
    assert len(parts(svg, "line", "curve s0")) == 3  # two parts, and the colour at the name
    assert len(parts(svg, "line", "curve s1")) == 2
    reported = [one.text for one in parts(svg, "text", "strong")]
    assert sorted(reported) == ["a", "a", "a  one", "b", "b", "b  two"]
    assert svg[1].text == "share against N. At 16: one 1; two 1."


def test_letters_of_curves_stand_apart():
    given_curves = [Curve(f"way {k}", [Point(1, 0.0)]) for k in range(12)]
    svg = read(curves(given_curves, title="t", x="N", y="share"))
    reported = [one for one in parts(svg, "text", "strong") if len(one.text) == 1]
    assert [one.text for one in reported] == 2 * ["h", "g", "f", "e", "d", "c", "b", "a"]
    ys = [float(one.get("y")) for one in reported[:8]]
    assert np.diff(ys).max() <= -10
    keys = [one for one in parts(svg, "text", "strong") if len(one.text) > 1]
    height = float(svg.get("viewBox").split()[3])
    assert max(float(one.get("y")) for one in keys) <= height
    assert curves([], title="t", x="N", y="share") is None


@pytest.mark.parametrize("word", TEXTS)
def test_any_name_of_a_curve(word):
    read(curves([Curve(word, [Point(1, 0.5)])], title="t", x="N", y="share"))


def test_more_than_four_curves_have_colours_and_no_lines_of_intervals():
    def drawn(n):
        given_curves = [
            Curve(f"way {k}", [Point(1, 0.5, 0.4, 0.6), Point(2, 0.6, 0.5, 0.7)]) for k in range(n)
        ]
        return read(curves(given_curves, title="t", x="N", y="share"))

    assert len(parts(drawn(4), "line", "span")) == 8
    svg = drawn(7)
    assert parts(svg, "line", "span") == []
    assert "95% interval 0.4 to 0.6" in parts(svg, "circle", "point s1")[2][0].text
    style = read_file("style.css")
    assert len(parts(svg, "line", "curve s1")) == len(parts(svg, "line", "curve s1 dashed")) == 2
    for k in range(1, COLOURS):
        assert f".s{k} {{ --s: var(--" in style


def test_an_axis_of_whole_numbers_has_no_ticks_between_them():
    assert [text for _, text in Axis(0, 2, 0, 100, is_integer=True).ticks()] == ["0", "1", "2"]
    assert [text for _, text in Axis(0, 2, 0, 100).ticks()] == ["0", "0.5", "1", "1.5", "2"]
    found = histogram(counts([1.0, 2.0]), title="t", units="items", label="x")
    ends = [
        one.text for one in parts(read(found), "text", "axis") if one.get("text-anchor") == "end"
    ]
    assert ends == ["0", "1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.8125, "0.812"), (0.5, "0.500"), (12.6302, "12.6"), (9.999, "10.0"),
        (1234567.0, "1,234,567"),
        (-0.04567, "-0.0457"), (2.5e-7, "2.50e-07"), (0.0, "0"), (None, "-"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_three_significant_digits(value, text):
    assert three(value) == text


@pytest.mark.parametrize("log", [False, True])
def test_a_scatter_of_counts_has_ticks_at_whole_numbers(log):
    logs = Logs(log, False)
    near = read(scatter({(4, 0.1): 1, (5, 0.2): 1}, title="t", labels=LABELS, logs=logs))
    assert {"4", "5"} <= {*near.itertext()}
    assert "4.5" not in [*near.itertext()]
    parts = read(scatter({(4.1, 0.1): 1, (5, 0.2): 1}, title="t", labels=LABELS, logs=logs))
    assert {"4.5", "4.4"} & {*parts.itertext()}
    wide = Axis(0.4, 300.0, 0, 100, log=True, is_integer=True)
    assert "0.5" not in [text for _, text in wide.ticks()]


def test_an_n_of_thousands_is_written_whole():
    points = [Point(n, 0.5) for n in (1.0, 1024.0)]
    svg = read(curves([Curve("a", points)], title="t", x="N", y="y", log=True))
    assert "1024" in [*svg.itertext()]


def test_curves_that_coincide_take_turns():
    """Each of three equal curves is seen: dashes alternate, and points are rings."""
    same = [Point(1, 0.5), Point(2, 0.5)]
    svg = read(curves([Curve(name, same) for name in "abc"], title="t", x="x", y="y"))
    lines = [one for one in svg.iter("line") if (one.get("class") or "").startswith("curve")][:3]
    assert [one.get("style") for one in lines] == [
        f"stroke-dasharray:6 12;stroke-dashoffset:{-6 * k}" for k in range(3)
    ]
    radii = [float(one.get("r")) for one in svg.iter("circle")]
    assert radii[::2] == [4.5, 3.5, 2.5]
    apart = read(curves([Curve("a", same), Curve("b", [Point(1, 0.1), Point(2, 0.2)])],
                        title="t", x="x", y="y"))  # fmt: skip
    assert all(one.get("style") is None for one in apart.iter("line"))


TICK_TEXTS = [
    ([1e-5, 4.7e-4], False), ([-12345678.0, 3.0], False), ([1.0, 1e9], True), ([0.1, 0.25], False),
]  # fmt: skip


@pytest.mark.parametrize(("values", "log"), TICK_TEXTS)
def test_labels_are_in_the_picture_and_apart(values, log):
    pairs = {(v, v): 1 for v in values}
    svg = read(scatter(pairs, title="t", labels=LABELS, logs=Logs(log, log)))
    groups = [Group("東京" * 9, v, None, None, f"{v:.4g}", 2) for v in values]
    bars = read(intervals(groups, title="t", label="l", units="w"))
    points = [Curve("a", [Point(k / 7, 0.5) for k in range(8)])]
    for found in (svg, bars, read(curves(points, title="t", x="x", y="y"))):
        wide = float(found.get("viewBox").split()[2])
        for one in found.iter("text"):
            if one.get("transform") is None:
                left, right = ends(one)
                assert left >= (0 if found is bars else 17), one.text
                assert right <= wide, one.text
    below = sorted(ends(one) for one in svg.iter("text") if one.get("y") == "273")
    assert all(right < left for (_, right), (left, _) in itertools.pairwise(below))


def ends(one):
    """Where a text begins and ends."""
    x, size = float(one.get("x")), width(one.text)
    return {"start": (x, x + size), "end": (x - size, x)}.get(
        one.get("text-anchor"), (x - size / 2, x + size / 2)
    )


def test_a_long_name_is_shortened_by_its_width():
    assert short("a b") == "a b"
    for name in ("i" * 99, "東" * 99, "M" * 99):
        assert short(name).endswith("…")
        assert width(short(name)) <= 170


def test_the_mean_of_a_histogram_is_above_its_bars():
    svg = read(histogram(counts([1.0, 2.0]), title="t", units="w", label="l", mean=1.5))
    [mean] = [one for one in svg.iter("text") if one.text.startswith("mean")]
    assert float(mean.get("y")) < min(float(one.get("y")) for one in svg.iter("rect"))


def test_letters_of_curves_at_the_top_are_in_the_picture():
    at_top = [Curve(name, [Point(1, 1.0), Point(2, 1.0)]) for name in "abcde"]
    svg = read(curves(at_top, title="t", x="x", y="y"))
    places = {}
    for one in svg.iter("text"):
        if one.text in "abcde":
            places.setdefault(one.get("x"), []).append(float(one.get("y")))
    assert len(places) == 2
    for heights in places.values():
        assert min(heights) >= 10
        assert all(b - a >= 10 for a, b in itertools.pairwise(sorted(heights)))
