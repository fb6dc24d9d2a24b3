"""The device check must pass where the numbers are right, and must not where they are wrong."""

import sys

import pytest

from jaxscore.device import unembed
from tools import check_device


@pytest.fixture
def only_one_model(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_device.py", "--no-speed"])
    monkeypatch.setattr(check_device, "NAMES", ("tiny-qwen2",))


def test_passes_where_the_numbers_are_right(only_one_model, capsys):
    assert check_device.main() == 0
    assert "ok    tiny-qwen2" in capsys.readouterr().out


def test_fails_where_a_number_is_wrong(only_one_model, monkeypatch, capsys):
    right = unembed.vocabulary_terms

    def wrong(hidden, target, head):
        scores = right(hidden, target, head)
        return scores._replace(entropy=scores.entropy + 2e-4)

    monkeypatch.setattr(unembed, "vocabulary_terms", wrong)
    assert check_device.main() == 1
    assert "WRONG tiny-qwen2" in capsys.readouterr().out
