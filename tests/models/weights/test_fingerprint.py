"""The fingerprint covers every byte of the weights, and reads no file a second time."""

import os
import shutil
import threading
import time

import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.models.weights import fingerprint, tensor_files
from jaxscore.models.weights.lora import CONFIG, WEIGHTS
from tests.conftest import CASES

SETTLED = fingerprint.SETTLED
SIZE = 2 * fingerprint.CHUNK + 12345


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache's folder, empty; files count as being at rest at once."""
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint, "SETTLED", -1 << 62)
    return tmp_path / "cache/weights"


@pytest.fixture
def model(tmp_path):
    """A folder with a config and a file of weights, of more than two chunks."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()
    (folder / "model.safetensors").write_bytes(content)
    return folder


@pytest.fixture
def read(monkeypatch):
    """Paths of the files that are read, in a list that grows."""
    names, real = [], fingerprint._chunk_digest

    def counted(path, *args):
        names.append(path.name)
        return real(path, *args)

    monkeypatch.setattr(fingerprint, "_chunk_digest", counted)
    return names


def change(path, at):
    """One byte, and neither size nor times."""
    times = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns


# The second place lay between the slices of 4 KiB that were sampled before.
@pytest.mark.parametrize("at", [0, SIZE // 256 * 3 + 5000, fingerprint.CHUNK, SIZE - 1])
def test_one_byte_makes_another_fingerprint(model, tmp_path, at):
    other = tmp_path / "other"
    shutil.copytree(model, other)  # times and all
    first = fingerprint.fingerprint(model)
    assert fingerprint.fingerprint(other) == first
    change(other / "model.safetensors", at)
    assert fingerprint.fingerprint(other) != first
    assert fingerprint.fingerprint(model) == first


def test_a_scorer_tells_two_models_that_differ_in_one_byte(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        shutil.copytree(CASES / "models/tiny-gpt2", folder)
    change(folders[1] / "model.safetensors", (folders[1] / "model.safetensors").stat().st_size - 1)
    abouts = [Scorer.from_pretrained(str(folder), dtype="float32").about for folder in folders]
    assert abouts[0]["model"] != abouts[1]["model"]
    assert abouts[0]["model"] == fingerprint.fingerprint(folders[0])


def test_a_copy_with_other_times_has_the_same_fingerprint(model, tmp_path):
    shutil.copytree(model, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(tmp_path / "copy/model.safetensors", ns=(0, 0))
    assert fingerprint.fingerprint(tmp_path / "copy") == fingerprint.fingerprint(model)


def test_files_that_decide_no_number_are_no_part_of_it(model):
    first = fingerprint.fingerprint(model)
    (model / "checkpoint-1").mkdir()
    (model / "checkpoint-1/model.safetensors").write_bytes(b"x")
    (model / "consolidated.safetensors").write_bytes(b"x")
    (model / "tokenizer.json").write_text("{}")
    assert fingerprint.fingerprint(model) == first
    (model / "config.json").write_text('{"a": 1}')
    assert fingerprint.fingerprint(model) != first


def test_an_adapter_is_part_of_it(model, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / CONFIG).write_text("{}")
    (adapter / WEIGHTS).write_bytes(b"weights")
    found = {fingerprint.fingerprint(model), fingerprint.fingerprint(model, adapter)}
    change(adapter / WEIGHTS, 3)
    assert len(found | {fingerprint.fingerprint(model, adapter)}) == 3


def test_shards_and_converted_folders(model):
    names = ["model-1.safetensors", "model-2.safetensors"]
    for k, name in enumerate(names):
        (model / name).write_bytes(b"%d" % k)
    index = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    (model / tensor_files.INDEX).write_text(index)
    whole = fingerprint.fingerprint(model)
    (model / "model.safetensors").unlink()
    found = [whole, fingerprint.fingerprint(model)]
    change(model / names[1], 0)
    found.append(fingerprint.fingerprint(model))
    (model / "jaxscore.json").write_text("{}")
    (model / "params/d").mkdir(parents=True)
    (model / "params/d/0").write_bytes(b"weights")
    found.append(fingerprint.fingerprint(model))
    change(model / "params/d/0", 1)
    found.append(fingerprint.fingerprint(model))
    assert len(set(found)) == 5


def test_a_known_file_is_not_read(model, read):
    first = fingerprint.fingerprint(model)
    assert read.count("model.safetensors") == 3
    read.clear()
    assert fingerprint.fingerprint(model) == first
    assert read == ["config.json"]  # small, so it is read as fast


def test_a_changed_ctime_reads_again(model, read):
    first = fingerprint.fingerprint(model)
    weights = model / "model.safetensors"
    before = weights.stat().st_ctime_ns
    while weights.stat().st_ctime_ns == before:  # the clock of the file system ticks
        change(weights, 7)
        change(weights, 7)
    read.clear()
    assert fingerprint.fingerprint(model) == first
    assert "model.safetensors" in read
    change(weights, 7)
    assert fingerprint.fingerprint(model) != first


def test_a_file_that_just_changed_is_not_remembered(model, monkeypatch, cache):
    monkeypatch.setattr(fingerprint, "SETTLED", SETTLED)
    assert SETTLED >= 1e9
    fingerprint.fingerprint(model)
    assert not cache.exists()


def test_without_a_cache(model, read, monkeypatch, cache):
    monkeypatch.setenv("JAXSCORE_CACHE", "off")
    first = fingerprint.fingerprint(model)
    assert not cache.exists()
    read.clear()
    assert fingerprint.fingerprint(model) == first
    assert "model.safetensors" in read


@pytest.mark.parametrize("damage", ["digit", "cut", "empty", "bytes", "another file's", "folder"])
def test_a_damaged_entry_costs_only_time(model, read, cache, damage):
    first = fingerprint.fingerprint(model)
    [entry] = cache.iterdir()
    content = entry.read_bytes()
    if damage == "digit":
        entry.write_bytes((b"1" if content[:1] == b"0" else b"0") + content[1:])
    elif damage == "another file's":
        version = fingerprint._version_of(model / "model.safetensors")
        other = version._replace(size=version.size + 1)
        fingerprint._cache_digest(other, "0" * 64, time.time_ns())
        assert entry.read_bytes() != content
    elif damage == "folder":
        entry.unlink()
        entry.mkdir()
    else:
        entry.write_bytes({"cut": content[:-9], "empty": b"", "bytes": b"\xff\0" * 99}[damage])
    read.clear()
    assert fingerprint.fingerprint(model) == first
    assert read.count("model.safetensors") == 3
    if damage != "folder":
        assert entry.read_bytes() == content
    assert len(list(cache.iterdir())) == 1  # and no temporary file


def test_a_cache_that_cannot_be_written(model, cache):
    want = fingerprint.fingerprint(model)
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert fingerprint.fingerprint(model) == want


def test_digests_that_others_could_change_are_not_read(model, cache):
    digest = fingerprint.fingerprint(model)
    for entry in cache.iterdir():  # a digest of other bytes, for the same version of the file
        version = fingerprint._version_of(model / "model.safetensors")
        entry.write_text("".join(f"{line}\n" for line in fingerprint._lines(version, "0" * 64)))
    assert fingerprint.fingerprint(model) != digest
    cache.chmod(0o777)
    assert fingerprint.fingerprint(model) == digest


def test_runs_at_once_share_the_cache(model, cache):
    want = fingerprint.fingerprint(model)
    found, start = [], threading.Barrier(4)

    def run():
        start.wait()
        for _ in range(5):
            found.append(fingerprint.fingerprint(model))
            for entry in cache.iterdir():
                entry.unlink(missing_ok=True)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [want] * 20


def test_a_file_that_changes_while_it_is_read_is_refused(model, monkeypatch, cache):
    real = fingerprint._chunk_digest

    def changed(path, start, size, stop):
        digest = real(path, start, size, stop)
        with open(path, "ab") as file:
            file.write(b"x")
        return digest

    monkeypatch.setattr(fingerprint, "_chunk_digest", changed)
    with pytest.raises(InputError, match="changed while it was read"):
        fingerprint.fingerprint(model)
    assert not cache.exists()


def test_loading_that_fails_ends_it(model, monkeypatch):
    """It is stopped before the block's end waits for it."""
    begun, real = threading.Event(), fingerprint._chunk_digest

    def waiting(path, start, size, stop):
        begun.set()
        assert stop.wait(60)
        return real(path, start, size, stop)

    monkeypatch.setattr(fingerprint, "_chunk_digest", waiting)
    found = []

    def failing():
        with fingerprint.computed_beside(model) as digest:
            found.append(digest)
            assert begun.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    with pytest.raises(fingerprint._Stopped):
        found[0]()


def test_beside_loading(model):
    with fingerprint.computed_beside(model) as digest:
        pass
    assert digest().digest == fingerprint.fingerprint(model)


@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_changes_while_it_is_loaded_is_refused(model, known):
    """Also where its digest was cached, so that it is not read."""
    if known:
        fingerprint.fingerprint(model)

    def loading():
        with fingerprint.computed_beside(model) as digest:
            digest()
            with open(model / "model.safetensors", "ab") as file:
                file.write(b"x")

    with pytest.raises(InputError, match="changed while it was read"):
        loading()


def digests_of_process(monkeypatch, model, index):
    monkeypatch.setattr(processes._Run, "index", index)
    monkeypatch.setattr(processes._Run, "count", 2)
    with fingerprint.computed_beside(model) as digests:
        pass
    return digests()


def test_only_the_first_of_several_processes_reads_all_bytes(model, read, monkeypatch):
    monkeypatch.setattr(fingerprint, "HEAD", 1 << 16)
    monkeypatch.setattr(fingerprint, "SAMPLE", 1 << 12)
    whole = fingerprint.fingerprint(model)
    n_chunks = len(read)
    first = digests_of_process(monkeypatch, model, 0)
    read.clear()
    monkeypatch.setattr(fingerprint, "_hash_files", None)  # of all bytes
    second = digests_of_process(monkeypatch, model, 1)
    assert (first.digest, second.digest) == (whole, "")
    assert first.outline == second.outline
    assert len(read) <= 2 * (2 + fingerprint.SAMPLES)
    assert n_chunks > 2


@pytest.mark.parametrize("change_file", ["config", "header", "sample", "size"])
def test_processes_with_other_files_have_other_outlines(model, monkeypatch, change_file):
    before = digests_of_process(monkeypatch, model, 1).outline
    weights = model / "model.safetensors"
    match change_file:
        case "config":
            (model / "config.json").write_text("[]")
        case "header":
            change(weights, 100)
        case "sample":
            change(weights, fingerprint.HEAD + 7)
        case "size":
            weights.write_bytes(weights.read_bytes() + b"0")
    assert digests_of_process(monkeypatch, model, 1).outline != before
