"""Sizes as people write and read them."""

import pytest

from jaxscore.errors import InputError, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("16GB", 16_000_000_000),
        ("16 GB", 16_000_000_000),
        ("80GiB", 85_899_345_920),
        ("1.5kB", 1500),
        ("1.5KiB", 1536),
        ("0.5TB", 500_000_000_000),
        ("24MB", 24_000_000),
        ("2MiB", 2_097_152),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "16", "GB", "16gb", "16Gb", "-1GB", "1e9B", "0GB", "0.1B", "16GBs", "nanGB", "٣GB"]
)
def test_no_sizes(text):
    with pytest.raises(InputError, match="is not a size in bytes; give a number above 0"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "size"), [("100000", 100_000), ("1", 1), ("2MiB", 2_097_152)])
def test_a_number_without_a_unit_is_bytes_where_that_is_allowed(text, size):
    assert parse_bytes(text, unit_required=False) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e9", "9" * 19, "٣", "16gb"])
def test_no_sizes_where_a_unit_may_be_left_out(text):
    with pytest.raises(InputError, match="give a whole number above 0, or a number and one of B"):
        parse_bytes(text, unit_required=False)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (123_456, "123 kB"),
        (16_061_186_052, "16.1 GB"),
        (2_000_000_000_000, "2.00 TB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_texts(size, text):
    assert format_bytes(size) == text
