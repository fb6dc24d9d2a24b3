"""Compressed inputs and outputs, by the ending of their names."""

import bz2
import gzip
import json
import lzma
import sys

import pytest
import zstandard

from jaxscore.errors import InputError
from jaxscore.io.atomic import atomic
from jaxscore.io.items import read_items, read_rows
from jaxscore.io.json_input import read_text
from jaxscore.io.records import record_writer
from jaxscore.io.streams import ENDINGS, form_of, open_binary

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
DECOMPRESS = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
LINES = [{"id": k, "text": f"é{'x' * k}"} for k in range(300)]


def test_every_ending_is_tried():
    assert set(COMPRESS) == set(DECOMPRESS) == set(ENDINGS)


@pytest.mark.parametrize("ending", ENDINGS)
def test_compressed_items_equal_the_plain_ones(ending, tmp_path):
    jsonl = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    csv = "id,text\n" + "".join(f"{line['id']},{line['text']}\n" for line in LINES)
    files = {
        "a.jsonl": jsonl,
        "a.JSONL": jsonl,
        "a.json": json.dumps(LINES).encode(),
        "a.csv": csv.encode(),
    }
    for name, data in files.items():
        path = tmp_path / (name + ending)
        path.write_bytes(COMPRESS[ending](data))
        texts = [row.item["text"] for row in read_rows(path)]
        assert texts == [line["text"] for line in LINES]
    assert len(read_items(tmp_path / f"a.json{ending}")) == len(LINES)


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_streams_in_one_file_are_read_to_the_end(ending, tmp_path):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESS[ending](b"one\n") + COMPRESS[ending](b"two\n"))
    assert read_text(path) == "one\ntwo\n"


@pytest.mark.parametrize("ending", ENDINGS)
def test_cut_file_is_refused_by_name(ending, tmp_path):
    path = tmp_path / f"a.jsonl{ending}"
    data = COMPRESS[ending]("".join(json.dumps(line) + "\n" for line in LINES).encode())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=f"a.jsonl{ending}: damaged {ending} file"):
        list(read_rows(path))


@pytest.mark.parametrize("ending", ENDINGS)
def test_file_that_is_not_compressed_is_refused(ending, tmp_path):
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(b'{"text": "plain"}\n' * 10)
    with pytest.raises(InputError, match=f"a.jsonl{ending}: "):
        list(read_rows(path))


@pytest.mark.parametrize("ending", ENDINGS)
def test_output_is_compressed_and_equal_texts_give_equal_bytes(ending, tmp_path):
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl{ending}"
        with atomic(path) as file, record_writer(path, file, {}) as write:
            for line in LINES:
                write(line)
    data = (tmp_path / f"a.jsonl{ending}").read_bytes()
    assert data == (tmp_path / f"b.jsonl{ending}").read_bytes()
    lines = DECOMPRESS[ending](data).decode().splitlines()
    assert [json.loads(line) for line in lines] == LINES
    assert {path.name for path in tmp_path.iterdir()} == {f"{x}.jsonl{ending}" for x in "ab"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_failed_compressed_output_does_not_appear(ending, tmp_path):
    def fail() -> None:
        with atomic(tmp_path / f"a.jsonl{ending}") as file:
            file.write("begun")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not list(tmp_path.iterdir())


def test_compressed_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(InputError, match="compressed internally"):
        list(read_rows(path))


def test_zst_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(COMPRESS[".zst"](b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match="pip install zstandard"), open_binary(path):
        pass


def test_form_is_the_ending_before_the_compression(tmp_path):
    names = ("x.jsonl.gz", "x.CSV.ZST", "x.gz", "x.tar.bz2.xz", "x.json")
    assert [form_of(tmp_path / name) for name in names] == [".jsonl", ".csv", "", ".bz2", ".json"]
