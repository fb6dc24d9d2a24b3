"""Files behind addresses, over a store in memory that fails as real ones do."""

import datetime
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jaxscore.cli.shard_files import identity_of
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.run_files import manifest_path
from jaxscore.io.upload import Upload

SECRETS = "https://user:pass@host/a/b.jsonl?X-Amz-Signature=abc"


class Faulty(MemoryFileSystem):
    """A store whose next operations fail.

    Attributes:
        faults: what each of the next uploads and downloads raises; None for none.
        during: called in the middle of the next download.
    """

    protocol = "faulty"
    cachable = False
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    faults: ClassVar[list] = []
    during = None

    def _fail(self) -> None:
        if self.faults and (problem := self.faults.pop(0)) is not None:
            raise problem

    def put_file(self, lpath, rpath, **options):
        if self.faults and isinstance(self.faults[0], ConnectionError):
            self.pipe_file(rpath, Path(lpath).read_bytes()[:3])  # cut in the middle
        self._fail()
        super().put_file(lpath, rpath, **options)

    def get_file(self, rpath, lpath, **options):
        self._fail()
        super().get_file(rpath, lpath, **options)
        if Faulty.during is not None:
            Faulty.during()


@pytest.fixture
def store(monkeypatch, tmp_path):
    """An empty store under faulty://, and a cache folder of its own."""
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    monkeypatch.setitem(remote.SCHEMES, "faulty", "nothing to install")
    monkeypatch.setattr(remote, "PAUSE", 0)
    monkeypatch.setattr(Faulty, "store", {})
    monkeypatch.setattr(Faulty, "pseudo_dirs", [""])
    monkeypatch.setattr(Faulty, "faults", [])
    monkeypatch.setattr(Faulty, "during", None)
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path / "cache"))
    return Faulty()


def begun(address: str, **files: bytes) -> Upload:
    """An upload whose output and manifest have been written locally."""
    output = remote.stage(address)
    upload = Upload(output, manifest_path(output))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(files.get("output", b"records"))
    manifest_path(output).write_bytes(files.get("manifest", b"{}"))
    (output.parent / ".jaxscore").mkdir(exist_ok=True)
    (output.parent / ".jaxscore/journal").write_bytes(b"local")
    return upload


def content(store: Faulty) -> dict[str, bytes]:
    return {name: store.cat_file(name) for name in sorted(store.find("/"))}


def test_addresses_have_no_secrets_for_people():
    assert remote.mask("s3://key:secret@bucket/x") == "s3://bucket/x"
    assert remote.mask("at https://h/x?sig=1&y=2, 3") == "at https://h/x?... 3"
    assert remote.mask("no address: a?b") == "no address: a?b"
    assert remote.mask("https://host?sig=SECRET/x@y") == "https://host?..."
    assert remote.mask("https://host:8080/a@b?sig=1") == "https://host:8080/a@b?..."
    assert remote.mask("s3://key:sec/ret?@bucket/x") == "s3://bucket/x"
    for name in ("f(1).jsonl", "o'b.jsonl", 'f"q".jsonl', "x<y>", "a b.jsonl", "x#y?"):
        assert "SECRET" not in remote.mask(f"403 at 'https://h/{name}?sig=SECRET&b=(SECRET)'")
        assert "SECRET" not in remote.mask(f"https://h/{name}?to=https://SECRET/&sig=SECRET")
    assert remote.mask('["https://a/x","https://u:p)w@b/y"]') == '["https://a/x","https://b/y"]'
    path = remote.stage("https://user:secret@host/a/b.jsonl?X-Amz-Signature=abc")
    assert path.name == "b.jsonl"
    shown = remote.displayed(f"{path}:3: bad, {path.parent / 'c'}")
    assert shown == "https://host/a/b.jsonl:3: bad, https://host/a/c"
    journal = f"{path.parent}/.jaxscore/b.jsonl.journal"
    assert remote.displayed(journal) == journal


@pytest.mark.parametrize("address", ["s3://", "s3://bucket", "gs://b/..", "s3://bucket/"])
def test_address_without_a_name_is_refused(address):
    with pytest.raises(InputError, match="found no name"):
        remote.stage(address)


def test_upload_writes_all_but_the_journal_and_removes_the_local_files(store):
    begun("faulty://b/out.jsonl").finish()
    assert content(store) == {"/b/out.jsonl": b"records", "/b/out.jsonl.run.json": b"{}"}
    assert not remote.stage("faulty://b/out.jsonl").parent.exists()


def test_upload_is_tried_again_after_a_lost_connection(store):
    upload = begun("faulty://b/out.jsonl")
    Faulty.faults[:] = [ConnectionError("reset"), TimeoutError("slow")]
    upload.finish()
    assert content(store) == {"/b/out.jsonl": b"records", "/b/out.jsonl.run.json": b"{}"}


def test_store_that_never_answers_leaves_no_manifest_and_the_local_files(store):
    upload = begun("faulty://b/out.jsonl")
    Faulty.faults[:] = [ConnectionError("reset by key:secret@host")] * remote.TRIES
    with pytest.raises(InputError, match=r"faulty://b/out\.jsonl: reset") as problem:
        upload.finish()
    folder = remote.stage("faulty://b/out.jsonl").parent
    assert f"the results are in {folder} on this machine" in remote.displayed(problem.value)
    assert "/b/out.jsonl.run.json" not in content(store)
    assert remote.stage("faulty://b/out.jsonl").read_bytes() == b"records"


def test_refusal_of_the_store_is_not_tried_again_and_has_no_secrets(store):
    upload = begun("faulty://b/out.jsonl")
    Faulty.faults[:] = [PermissionError(f"403 at {SECRETS}"), None, None]
    with pytest.raises(InputError, match="403 at") as problem:
        upload.finish()
    assert "Signature" not in str(problem.value)
    assert "pass" not in str(problem.value)
    assert Faulty.faults == [None, None]


def test_of_two_uploads_that_began_together_the_second_is_refused(store):
    first = begun("faulty://b/out.jsonl", output=b"first")
    first.finish()
    second = begun("faulty://b/out.jsonl", output=b"second")
    second._before = dict.fromkeys(second._before)  # it began when nothing was there
    with pytest.raises(InputError, match="another worker wrote it"):
        second.finish()
    assert content(store)["/b/out.jsonl"] == b"first"


def test_output_that_changed_during_the_run_is_not_replaced(store):
    begun("faulty://b/out.jsonl").finish()
    upload = begun("faulty://b/out.jsonl")
    store.pipe_file("/b/out.jsonl", b"by others, longer")
    store.store["/b/out.jsonl"].created = datetime.datetime.now() + datetime.timedelta(hours=1)
    with pytest.raises(InputError, match="another worker wrote it"):
        upload.finish()
    assert content(store) == {
        "/b/out.jsonl": b"by others, longer",
        "/b/out.jsonl.run.json": b"{}",
    }


def test_input_is_copied_with_retries_and_removed(store, tmp_path):
    store.pipe_file("/b/in.jsonl", b"12345")
    Faulty.faults[:] = [TimeoutError()]
    with remote.fetched(remote.stage("faulty://b/in.jsonl")) as copy:
        assert copy.read_bytes() == b"12345"
        assert remote.displayed(f"{copy}:1") == "faulty://b/in.jsonl:1"
    assert not copy.exists()
    assert not list((tmp_path / "cache/remote").iterdir())


def test_input_that_changes_while_it_is_copied_is_copied_again(store, monkeypatch):
    store.pipe_file("/b/in.jsonl", b"old")
    changes = [lambda: store.pipe_file("/b/in.jsonl", b"newer"), lambda: None]
    monkeypatch.setattr(Faulty, "during", lambda: changes.pop(0)())
    with remote.fetched(remote.stage("faulty://b/in.jsonl")) as copy:
        assert copy.read_bytes() == b"newer"


def test_missing_input_is_named(store):
    with (
        pytest.raises(InputError, match=r"faulty://b/in\.jsonl: no such file"),
        remote.fetched(remote.stage("faulty://b/in.jsonl")),
    ):
        pass


def test_folder_of_a_store_is_no_file(store):
    store.pipe_file("/b/data/x.jsonl", b"{}")
    assert remote.identity(remote.stage("faulty://b/data/x.jsonl"))["size"] == 2
    assert remote.identity(remote.stage("faulty://b/data")) is None
    with pytest.raises(InputError, match="a folder of a store ends in a slash"):
        identity_of(remote.stage("faulty://b/data"))


def test_folder_and_pattern_are_listed_by_name_with_sizes(store):
    for name in ("d/b.jsonl", "d/a.jsonl", "d/sub/c.jsonl"):
        store.pipe_file(f"/x/{name}", name.encode())
    found = remote.find("faulty://x/d/")
    names = ["faulty://x/d/a.jsonl", "faulty://x/d/b.jsonl", "faulty://x/d/sub/c.jsonl"]
    assert [file.address for file in found] == names
    assert found[2].identity["size"] == 13
    assert [file.address for file in remote.find("faulty://x/d/*.jsonl")] == names[:2]
    assert remote.identity(remote.stage(names[0]))["size"] == found[0].identity["size"]
    assert remote.identity(remote.stage("faulty://x/none")) is None


def test_standard_input_is_copied(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"lines")))
    with remote.fetched(Path("-")) as copy:
        assert copy.read_bytes() == b"lines"
        assert remote.displayed(f"{copy}:2: bad") == "-:2: bad"


def test_web_pages_are_only_read():
    output = remote.stage("https://host/out.jsonl")
    with pytest.raises(InputError, match="only read"):
        Upload(output, manifest_path(output))


def test_missing_package_is_named(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "filesystem", fail)
    with pytest.raises(InputError, match=r"gs://b/x: Install gcsfs.*extra gcs"):
        remote.identity(remote.stage("gs://b/x"))


@pytest.mark.parametrize("before", [None, b"before"])
def test_file_that_another_worker_wrote_between_two_tries_is_not_replaced(
    store, monkeypatch, before
):
    if before is not None:
        store.pipe_file("/b/out.jsonl", before)
    upload = begun("faulty://b/out.jsonl")
    Faulty.faults[:] = [TimeoutError("slow")]
    monkeypatch.setattr(
        remote.time, "sleep", lambda _: store.pipe_file("/b/out.jsonl", b"by others, longer")
    )
    with pytest.raises(InputError, match="another worker wrote it"):
        upload.finish()
    assert content(store) == {"/b/out.jsonl": b"by others, longer"}


def test_old_manifest_is_gone_before_its_output_is_replaced(store):
    begun("faulty://b/out.jsonl", output=b"old").finish()
    upload = begun("faulty://b/out.jsonl", output=b"new", manifest=b"[]")
    Faulty.faults[:] = [None, *[TimeoutError("slow")] * remote.TRIES]
    with pytest.raises(InputError, match="slow"):
        upload.finish()
    assert content(store) == {"/b/out.jsonl": b"new"}


def test_files_of_a_failed_upload_do_not_go_up_with_the_next(store):
    folder = remote.stage("faulty://b/out.jsonl").parent
    folder.mkdir(parents=True)
    (folder / "out.jsonl.report.html").write_bytes(b"stale")
    (folder / "out.jsonl.report.md").write_bytes(b"stale")
    upload = begun("faulty://b/out.jsonl")
    (folder / "new").write_bytes(b"of this run")
    (folder / "new").replace(folder / "out.jsonl.report.md")
    upload.finish()
    assert content(store) == {
        "/b/out.jsonl": b"records",
        "/b/out.jsonl.report.md": b"of this run",
        "/b/out.jsonl.run.json": b"{}",
    }


@pytest.fixture
def without_cache(store, monkeypatch, tmp_path):
    """The temporary folder of a machine without a cache folder, where everybody can write."""
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    monkeypatch.setenv("JAXSCORE_CACHE", "off")
    monkeypatch.setattr(tempfile, "tempdir", str(common))
    before = os.umask(0)
    yield common
    os.umask(before)


def test_work_without_a_cache_is_in_a_private_folder(without_cache, store):
    store.pipe_file("/b/in.jsonl", b"12345")
    upload = begun("faulty://b/out.jsonl")
    with remote.fetched(remote.stage("faulty://b/in.jsonl")):
        [work] = without_cache.iterdir()
        folders = [work, *(path for path in work.iterdir())]
        assert len(folders) == 3
        assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    upload.finish()
    assert content(store)["/b/out.jsonl"] == b"records"


@pytest.mark.parametrize("depth", [0, 1])
def test_link_in_place_of_a_folder_of_work_is_refused_and_its_target_stays(
    without_cache, store, tmp_path, depth
):
    store.pipe_file("/b/in.jsonl", b"12345")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/out.jsonl").write_bytes(b"precious")
    output = remote.stage("faulty://b/out.jsonl")
    link = (output.parent.parent, output.parent)[depth]
    if depth:
        link.parent.mkdir(0o700)
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=r"found a link, expected a folder"):
        Upload(output, manifest_path(output))
    if not depth:
        with (
            pytest.raises(InputError, match=r"found a link, expected a folder"),
            remote.fetched(remote.stage("faulty://b/in.jsonl")),
        ):
            pass
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["out.jsonl"]
    assert (tmp_path / "precious/out.jsonl").read_bytes() == b"precious"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to other users"
)
def test_folder_of_work_that_another_user_made_is_refused(without_cache, store):
    output = remote.stage("faulty://b/out.jsonl")
    output.parent.parent.mkdir(0o700)
    os.chown(output.parent.parent, 65534, 65534)
    with pytest.raises(InputError, match=r"found a folder of \w+, expected .* alone can write"):
        Upload(output, manifest_path(output))
