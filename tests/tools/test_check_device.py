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
    out = capsys.readouterr().out
    assert "ok    tiny-qwen2" in out
    assert "ok    random decoder, experts: " in out
    assert "WRONG" not in out


def test_fails_where_a_random_decoder_is_wrong(monkeypatch, capsys):
    right = check_device.random_decoders()
    wrong = {name: numbers + (2e-4 if name == "caps" else 0) for name, numbers in right.items()}
    monkeypatch.setattr(check_device, "random_decoders", lambda: wrong)
    assert not check_device.decoders_agree()
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert [line.split(":")[0] for line in found] == ["WRONG random decoder, caps"]


def test_fails_where_a_number_is_wrong(only_one_model, monkeypatch, capsys):
    right = unembed.vocabulary_terms

    def wrong(hidden, target, head):
        scores = right(hidden, target, head)
        return scores._replace(entropy=scores.entropy + 2e-4)

    monkeypatch.setattr(unembed, "vocabulary_terms", wrong)
    monkeypatch.setattr(check_device, "decoders_agree", lambda: True)  # tested above
    assert check_device.main() == 1
    assert "WRONG tiny-qwen2" in capsys.readouterr().out
