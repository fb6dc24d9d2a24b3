"""Files behind addresses, over a store in memory that fails as real ones do."""

import contextlib
import datetime
import http.server
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar
from unittest import mock
from urllib.parse import quote

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jaxscore.cli.shard_files import identity_of
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.manifest import manifest_path, publish_manifest
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


SECRET = "5eC-r3t!"
FORMS = [
    "{scheme}://user:{secret}@{place}",
    "{scheme}://{secret}@{place}",
    "{scheme}://key:/{secret}?@{place}",
    "{scheme}://{place}?sig={secret}",
    "{scheme}://{place}?X-Amz-Signature={secret}&versionId=1",
    "{scheme}://{place}?X-Amz-Security-Token={secret}#part",
    "{scheme}://{place}#{secret}",
    "{scheme}://{place}#access_token={secret}",
    "{scheme}://{place}#to=https://{secret}/x",
    "{scheme}://{place};sig={secret}",
    "{scheme}://{place};sv=1;sig={secret}?x=y",
    "{scheme}://user:{secret}@{place}?token={secret}#{secret}",
]
QUOTES = [
    "{}",
    "error at {}: try again",
    "'{}'",
    '{{"url": "{}"}}',
    "<a href={}>",
    "({}), next line",
    "{} and https://other/y?sig=" + SECRET,
]


@pytest.mark.parametrize("scheme", ["s3", "gs", "hf", "https", "HTTP", "abfss"])
@pytest.mark.parametrize("place", ["datasets/o/name", "h.org:80/a;b/x y.jsonl", "bucket/a@b/c=d"])
def test_credentials_of_every_form_of_address_are_masked(scheme, place):
    for form in FORMS:
        address = form.format(scheme=scheme, place=place, secret=SECRET)
        for quoting in QUOTES:
            text = quoting.format(address)
            shown = remote.mask(text, address)
            assert "5eC" not in shown
            assert remote.mask(shown) == shown
            if " " not in address:
                assert "5eC" not in remote.mask(text)
        problems = [f"{address} refused", f"403 at {remote._store_path(address)}", repr(address)]
        if "{secret}?@" not in form and "to=" not in form:  # of which it is a part
            problems += [f"bad user 'user:{SECRET}'", f"no such parameter {quote(SECRET)}"]
        for problem in problems:
            refusal = str(remote._refusal(address, OSError(problem)))
            assert "5eC" not in refusal
            assert place.split("/")[-1] in refusal


@pytest.mark.parametrize(
    "text",
    [
        "https://host/a/b;c/d.jsonl: fine",
        "s3://bucket/year=2024/x.jsonl",
        "hf://datasets/org/name@main/x.jsonl",
        "a;b=c?d #e",
        "key=value; see #12",
    ],
)
def test_texts_without_credentials_stay(text):
    assert remote.mask(text) == text


@pytest.mark.parametrize("form", FORMS)
def test_credentials_of_an_input_are_in_no_message_and_no_manifest(store, form, tmp_path):
    address = form.format(scheme="faulty", place="b/in.jsonl", secret=SECRET)
    path = remote.stage(address)
    with pytest.raises(InputError) as refusal, remote.fetched(path):
        pass
    shown = [str(refusal.value), remote.displayed(f"{path}:3: bad"), remote.displayed(address)]
    flags = {"command": "score", "input": [path], "api_base": address, "system": "a?b=c#d"}
    written = publish_manifest(tmp_path / "out.jsonl", flags, {}).read_text()
    assert "5eC" not in " ".join([*shown, written])
    assert json.loads(written)["flags"]["system"] == "a?b=c#d"


def test_name_of_a_web_page_s_copy_has_no_parameters(store):
    for tail in ("?sig=SECRET", "#SECRET/x", ";sig=SECRET"):
        assert remote.stage(f"https://host/a/b.jsonl{tail}").name == "b.jsonl"
    assert remote.stage("s3://bucket/a#1.jsonl").name == "a#1.jsonl"


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


class Clock:
    """A clock that only sleep and the store's slowness move."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(remote, "time", clock)
    monkeypatch.setattr(remote, "PAUSE", 0.5)
    return clock


def test_output_is_sent_as_often_as_one_layer_says(store, clock):
    upload = begun("faulty://b/out.jsonl")
    Faulty.faults[:] = [ConnectionError("reset")] * 1000
    with pytest.raises(InputError, match="reset"):
        upload.finish()
    assert 1000 - len(Faulty.faults) == remote.TRIES
    assert clock.now == 0.5 + 1 + 2


def test_what_a_retry_looks_up_is_not_retried_by_itself(store, clock, monkeypatch):
    """An upload that is tried again first reads what the try before has left."""
    upload = begun("faulty://b/out.jsonl")
    reads = []

    def fail(self, *args, **options):
        reads.append(args)
        raise TimeoutError("slow")

    Faulty.faults[:] = [ConnectionError("reset")] * 1000
    monkeypatch.setattr(Faulty, "cat_file", fail)
    with pytest.raises(InputError, match="slow"):
        upload.finish()
    assert len(reads) == remote.TRIES - 1
    assert 1000 - len(Faulty.faults) == 1


def test_retries_end_a_minute_after_the_first_failure(store, clock, monkeypatch):
    def fail(self, *args, **options):
        clock.now += 40
        raise TimeoutError("slow")

    monkeypatch.setattr(Faulty, "info", fail)
    with pytest.raises(InputError, match="slow"):
        remote.identity(remote.stage("faulty://b/in.jsonl"))
    assert clock.now == 40 + 0.5 + 40 + 1 + 40


@pytest.mark.parametrize("scheme", ["gs", "hf"])
def test_store_whose_client_retries_is_asked_once(monkeypatch, clock, scheme):
    requests = []

    class Client(Faulty):
        def info(self, *args, **options):
            requests.append(args)
            raise TimeoutError("slow")

    monkeypatch.setattr(fsspec, "filesystem", lambda *_, **__: Client())
    with pytest.raises(InputError, match="slow"):
        remote.identity(remote.stage(f"{scheme}://b/in.jsonl"))
    assert len(requests) == 1
    assert clock.now == 0


def test_retries_of_the_s3_client_are_off(monkeypatch):
    made = []

    def filesystem(scheme, **options):
        made.append((scheme, options, store := Faulty()))
        store.s3 = mock.MagicMock()
        return store

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    remote.identity(remote.stage("s3://b/in.jsonl"))
    [(scheme, options, store)] = made
    assert scheme == "s3"
    assert options["config_kwargs"]["retries"] == {"total_max_attempts": 1}
    assert store.retries == 1


@contextlib.contextmanager
def web_server(
    answer: Callable[[http.server.BaseHTTPRequestHandler], None],
) -> Iterator[tuple[str, list[str]]]:
    """A web server whose answers are all the same: its address, and the requests so far."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.command)
            answer(self)

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_web_server_that_always_fails_is_asked_as_often_as_one_layer_says(clock):
    pytest.importorskip("aiohttp")
    with web_server(lambda handler: handler.send_error(503)) as (server, requests):
        address = f"{server}/in.jsonl?sig={SECRET}"
        for action in (remote.identity, remote.read_bytes, fetch):
            requests.clear()
            with pytest.raises(InputError, match=r"in\.jsonl\?\.\.\.: 503") as refusal:
                action(remote.stage(address))
            assert "5eC" not in str(refusal.value)
            # One each, or HEAD, and GET where that fails
            assert len(requests) in (remote.TRIES, 2 * remote.TRIES)


def fetch(path: Path) -> None:
    with remote.fetched(path):
        pass


def test_page_that_is_not_there_is_not_tried_again():
    pytest.importorskip("aiohttp")
    with web_server(lambda handler: handler.send_error(404)) as (server, requests):
        assert remote.identity(remote.stage(f"{server}/in.jsonl")) is None
    assert requests == ["HEAD", "GET"]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "s3", "gs"])
def test_server_that_never_answers_is_given_up(monkeypatch, scheme):
    """The limits of the clients' own are five minutes a request, or none."""
    pytest.importorskip({"http": "aiohttp", "s3": "s3fs", "gs": "gcsfs"}[scheme])
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    monkeypatch.setattr(remote, "PAUSE", 0)
    has_ended = threading.Event()

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        has_ended.wait(60)
        handler.send_error(503)

    with web_server(answer) as (server, requests):
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
        address = f"{server}/in.jsonl" if scheme == "http" else f"{scheme}://b/in.jsonl"
        try:
            with pytest.raises(InputError, match=r"(?i)time"):
                remote.identity(remote.stage(address))
        finally:
            has_ended.set()
    assert len(requests) >= remote.TRIES


@pytest.mark.slow
def test_upload_to_a_store_that_never_asks_for_its_body_is_given_up(monkeypatch, tmp_path):
    """`Expect: 100-continue` of botocore would wait for it without a limit."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    monkeypatch.setattr(remote, "PAUSE", 0)
    file = tmp_path / "out.jsonl"
    file.write_bytes(b"records")
    has_ended = threading.Event()

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        expected.append(handler.headers.get("Expect"))
        has_ended.wait(60)
        handler.send_error(503)

    expected: list[str | None] = []
    with web_server(answer) as (server, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        try:
            with pytest.raises(InputError, match=r"(?i)time|connect"):
                remote.send(file, remote.stage("s3://b/out.jsonl"))
        finally:
            has_ended.set()
    assert {*expected} == {None}


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
