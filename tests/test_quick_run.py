"""Which cases of a slow test stay in the quick run."""

from types import SimpleNamespace

import pytest

from tests.quick_run import slow_cases


def cases(mark, kinds):
    return [
        SimpleNamespace(
            nodeid=f"tests/test_file.py::test_name[{kind}-{i}]",
            callspec=SimpleNamespace(params={"kind": kind}),
            iter_markers=lambda name: [mark] if name == mark.name else [],
        )
        for i, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("decorator", "slow"),
    [
        (pytest.mark.slow_after(0), [0, 1, 2, 3]),
        (pytest.mark.slow_after(2), [2, 3]),
        (pytest.mark.slow_after(5), []),
        (pytest.mark.slow_after(1, of_each="kind"), [1, 3]),
        (pytest.mark.slow, []),
    ],
)
def test_first_cases_stay_quick(decorator, slow):
    items = cases(decorator.mark, ["gpt2", "gpt2", "llama", "llama"])
    assert list(slow_cases(items)) == [items[i] for i in slow]


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="each"):
        list(slow_cases(cases(pytest.mark.slow_after(1, each="kind").mark, ["gpt2"])))
