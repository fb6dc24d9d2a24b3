"""The benchmark's own workloads run at tiny sizes, and those that can be wrong say so."""

from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.conftest import ROOT
from tools import bench
from tools.benchmarks import devices, host, random_llama, replace, shards, stream, top


@pytest.mark.slow
def test_devices(capsys):
    assert bench.main(["--small", "devices", "--devices", "1", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "data=" in line]
    assert [(line[0], line[-2:]) for line in lines] == [
        ("data=1", ["the", "same"]),
        ("data=2", ["the", "same"]),
    ]
    assert all(float(line[1]) > float(line[2]) > 0 for line in lines)  # requests share text


def test_devices_fail_where_a_bit_differs(monkeypatch, capsys):
    facts = {"seconds": 1.0, "given": 10, "unique": 5}

    def scored(folder, n, names):
        logprob = np.array([-1.0, -2.0, -3.0], np.float32)
        if n == 4:
            logprob[1] = np.nextafter(logprob[1], np.float32(0))
        return facts, {"logprob": logprob, "greedy": np.array([True, False, True])}

    monkeypatch.setattr(devices, "scored", scored)
    assert bench.main(["--small", "devices", "--devices", "1", "2"]) == 0
    assert bench.main(["--small", "devices"]) == 1
    assert capsys.readouterr().out.count("DIFFERENT in 1 of 6 numbers") == 1


@pytest.mark.parametrize(
    ("want", "found", "n"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0),
        ([0.0, 1.0], [-0.0, 1.0], 1),
        ([1.0, 2.0], [1.0], 2),
    ],
)
def test_bits_are_compared(want, found, n):
    columns = [{"entropy": np.array(one, np.float32)} for one in (want, found)]
    assert devices.different(*columns) == n


def test_another_number_of_devices_than_asked_for_is_an_error(monkeypatch, tmp_path):
    random_llama.write(tmp_path, random_llama.TINY)
    monkeypatch.setattr(devices.subprocess, "run", _with_flags("", devices.subprocess.run))
    with pytest.raises(devices.subprocess.CalledProcessError):
        devices.scored(tmp_path, 2, ["paths"])


def _with_flags(flags, run):
    return lambda *args, env, **options: run(*args, env=env | {"XLA_FLAGS": flags}, **options)


@pytest.mark.slow
def test_journal(capsys):
    assert bench.main(["--small", "--turns", "1", "journal"]) == 0
    out = capsys.readouterr().out
    assert "journal, tiny model: 0.1 million parameters, 64 sequences" in out
    assert "inside the journal 0.00 %" not in out
    assert "microseconds a sequence" in out


@pytest.mark.slow
def test_html(capsys):
    assert bench.main(["--small", "--turns", "1", "html"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    n, size, taking, writing, *seen = line.split()
    assert n == "100"
    assert 50_000 < int(size) < 200_000
    assert 0 <= float(taking) <= float(writing) < 60
    assert seen == ["no", "browser"] or int(seen[1]) < 5_000


@pytest.mark.slow
def test_top(monkeypatch, capsys):
    assert bench.main(["--small", "--turns", "1", "top"]) == 0
    out = capsys.readouterr().out
    assert out.count("0 of 320 ids are not those of full logits") == 2
    monkeypatch.setattr(top, "n_wrong", lambda got, want: 1)
    assert bench.main(["--small", "--turns", "1", "top"]) == 1


def test_ids_that_are_wrong_are_counted():
    def ranked(id, logprob):
        return SimpleNamespace(top_id=np.array([id]), top_logprob=np.array([logprob]))

    want = ranked([5, 9, 2, 7], [-1.0, -2.0, -2.00001, -3.0])
    for got, n in (
        (ranked([5, 9, 2], [-1.0, -2.0, -2.0]), 0),
        (ranked([5, 2, 9], [-1.0, -2.0, -2.0]), 0),  # nearer than what may change places
        (ranked([9, 5, 2], [-1.0, -2.0, -2.0]), 1),
        (ranked([5, 9, 2], [-1.0, -2.0, -2.1]), 1),
    ):
        assert top.n_wrong(got, want) == n


@pytest.mark.slow
def test_replace(monkeypatch, capsys):
    monkeypatch.setattr(replace, "N_TEXTS", 64)
    monkeypatch.setattr(replace, "LONGEST", 64)
    assert bench.main(["--small", "--turns", "1", "replace"]) == 0
    out = capsys.readouterr().out
    assert out.count("64 texts of") == out.count(", 64 of them the same both ways") == 2
    for line in out.splitlines():
        if "rows in use" in line:
            groups, replaced = (float(part.split()[-1]) for part in line.split(","))
            assert 0 < groups <= replaced <= 1
        elif "steps" in line and "turns" not in line:
            assert 0 < float(line.split()[-1]) <= 1
    assert out.count("rows in use") == 2


@pytest.mark.slow
def test_serve(capsys):
    assert bench.main(["--small", "serve", "--turns", "1"]) == 0
    one, many = (
        line.split() for line in capsys.readouterr().out.splitlines() if "clients:" in line
    )
    assert (one[0], many[0]) == ("1", "32")
    assert float(many[6]) > float(one[6]) >= 1  # what came together was shared


@pytest.mark.slow
def test_stream(capsys):
    assert bench.main(["--small", "--requests", "30", "stream"]) == 0
    out = capsys.readouterr().out
    assert "stream: 30 requests, 200 tokens each, 199 of them scored" in out
    assert "allowed 1500 MB: ok" in out


def test_stream_fails_above_the_memory_it_may_take(monkeypatch, capsys):
    monkeypatch.setattr(stream, "measured", lambda n: stream.Taken(1.0, 1_600_000_000, n, n, n))
    assert bench.main(["stream"]) == 1
    assert "100000 requests" in (out := capsys.readouterr().out)
    assert "TOO MUCH" in out


def test_a_text_of_the_stream_has_as_many_tokens_as_it_says(tmp_path):
    stream.write_requests(tmp_path / "requests.jsonl", 3)
    lines = (tmp_path / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    tokenizer = Tokenizer.from_file(str(random_llama.DEMO / "tokenizer.json"))
    assert [len(stream.json.loads(line)["continuation"]) > 200 for line in lines] == [True] * 3
    texts = {stream.json.loads(line)["continuation"] for line in lines}
    assert {len(tokenizer.encode(text).ids) for text in texts} == {stream.TOKENS}
    assert len(texts) == 3


def test_a_workload_that_is_none(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["journals"])
    assert (
        "there are answers, prompt, paths, plain, write, prefix, devices, divergence, host, html, "
        "journal, lm-eval, measures, real, recurrent, replace, serve, shards, startup, stream, "
        "token-scores, top, update" in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")  # it computes for longer than it compiles
def test_two_models_at_once(capsys):
    assert bench.main(["--small", "--turns", "1", "divergence"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pairs = [line.split(":")[0] for line in lines if line.startswith("divergence")]
    assert pairs == [f"divergence, float32 against {name}" for name in ("bfloat16", "int8")]
    reported = [line.split() for line in lines if line.startswith(("  wall", "  CPU"))]
    assert len(reported) == 4
    assert all(float(line[1]) > 0 for line in reported)


@pytest.mark.slow
def test_the_host_against_a_device_that_computes_nothing(monkeypatch, capsys):
    """Run each kind of work once, in a process for each, and one of them against a version."""
    once = {kind.work: kind for kind in reversed(host.KINDS)}.values()
    for kinds, flags, versions in (
        (once, (), ["here"]),
        (host.KINDS[:1], ("--against", str(ROOT)), ["here", "against"]),
    ):
        monkeypatch.setattr(host, "KINDS", tuple(kinds))
        assert bench.main(["--small", "--turns", "1", "host", *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        reported = [line.split() for line in lines if line.startswith(("  here", "  against"))]
        assert [line[0] for line in reported] == versions * len(kinds)
        assert all(float(line[1]) > 0 for line in reported)
        n_limited = sum(kind.rate < host.ENDLESS for kind in kinds)
        assert sum("device busy" in line for line in lines) == n_limited * len(versions) > 0
        n_ratios = sum(line.startswith("  ratio") for line in lines)
        assert n_ratios == (len(kinds) if flags else 0)


@pytest.mark.slow
def test_real(capsys):
    model = ROOT / "jaxscore" / "demo/model"
    assert bench.main(["--small", "--turns", "1", "real", "--models", str(model)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [words for words in lines if words and words[0] in ("plain", "answers", "labels")]
    assert [row[0] for row in rows] == ["plain", "answers", "labels"] * 2
    theirs = [words for words in lines if words[:1] == ["torch"]]
    # The model is bfloat16: only float32 sides round so little.
    assert [float(row[-1]) < 1e-5 for row in theirs] == [True] * 3 + [False] * 3
    assert ["llama.cpp", "is", "left", "out:"] in [words[:4] for words in lines]


@pytest.mark.slow
def test_recurrent(capsys):
    assert bench.main(["--small", "--turns", "1", "recurrent"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [words for words in lines if words and words[0] in ("jaxscore", "torch")]
    assert len(rows) == 9  # three contenders of three workloads
    assert all(float(row[-1]) < 1e-4 for row in rows)


def test_real_asks_for_models(capsys):
    with pytest.raises(SystemExit):
        bench.main(["real"])
    assert "--models" in capsys.readouterr().err


def test_token_scores(capsys):
    assert bench.main(["--small", "token-scores", "--turns", "1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "temporary memory" in line]
    assert ["1 terms" in line for line in lines] == [True, False]
    assert all(float(line.split()[-1]) > 0 for line in lines)


def test_update_compiles_nothing(capsys):
    assert bench.main(["--small", "update", "--turns", "1"]) == 0
    assert "programs compiled since: 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("last_rss", "listing", "code"), [(105.0, 0.05, 0), (120.0, 0.05, 1), (105.0, 0.2, 1)]
)
def test_shards_fail_if_memory_grows_or_listing_takes_long(
    monkeypatch, capsys, last_rss, listing, code
):
    facts = {"seconds": 10.0, "cpu": 2.0, "tokens": 100}
    facts |= {"rss": [100.0, last_rss], "listing": listing}
    monkeypatch.setattr(shards, "_turn", lambda work, n, folder: facts)
    assert bench.main(["--small", "shards"]) == code
    out = capsys.readouterr().out
    assert "200 lines a second, 1.00 of the rate of one file of 200" in out
    assert "CPU microseconds a line: 1000, of one file 10000\n" in out
