"""`demo`: runs on the embedded model, and its paths help."""

import itertools
import re


def test_the_demo(run):
    code, out, err = run("demo")
    assert code == 0, err
    head, _, *rows = out.splitlines()
    assert head.startswith("paths: the probability of the answer")
    assert rows[0].split() == ["question", "answer", "without", "with", "gain"]
    numbers = re.compile(r"(0\.\d{4})\s+(0\.\d{4}|1\.0000)\s+([+-]\d\.\d{4})\s*$")
    table = itertools.takewhile(lambda row: row and "more questions" not in row, rows[1:])
    found = [numbers.search(row) for row in table]
    assert found
    for match in found:
        assert match is not None
        without, with_path, gain = map(float, match.groups())
        # Each is rounded by itself.
        assert abs(with_path - without - gain) < 2e-4
    average = re.search(r"Average absolute improvement: (\S+)", out)
    assert average is not None
    assert float(average[1]) > 0
    assert "tokens given" in err
