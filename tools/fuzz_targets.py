"""The targets of `tools/fuzz.py`: all readers of users' files.

A target takes the bytes of one input and an empty folder for files. It ends well where a reader
gives a value or refuses in one line of bounded length; whatever else is raised is a finding.
"""

import contextlib
import functools
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from jaxscore.cli import app
from jaxscore.cli.config import Config
from jaxscore.errors import LONGEST, UNPRINTABLE, InputError
from jaxscore.evaluate import evaluate
from jaxscore.io.items import read_items, read_previous_output, read_rows
from jaxscore.journal import Journal, files
from jaxscore.models import native
from jaxscore.models.weights import generation_config, lora, tensor_files
from jaxscore.models.weights.checkpoint import Checkpoint
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.shell.items import read_file
from jaxscore.systems.choose import SYSTEM as CHOOSE
from jaxscore.systems.chronologic import SYSTEM as CHRONOLOGIC
from jaxscore.systems.paths import SYSTEM as PATHS
from jaxscore.systems.paths import read_system_prompts
from jaxscore.systems.perplexity import SYSTEM as PERPLEXITY
from jaxscore.systems.probsem import repeated_queries
from jaxscore.systems.probsem.suite import load as load_suite
from jaxscore.systems.rag import (
    evaluator_file,
    experiment_folder,
    results_table,
    retrieval_runs,
)
from jaxscore.systems.score import SYSTEM as SCORE
from jaxscore.systems.selection import answers, livecode, math_answers, symbolic, usc_select
from jaxscore.systems.self_certainty import SYSTEM as SELF_CERTAINTY
from jaxscore.systems.usc_generate import SYSTEM as USC_GENERATE

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
SEED_BYTES = 4096  # of a file of seeds; longer ones are cut at a line
MARGIN = 40  # characters that say how many others are left out of a message
SEQUENCE = TokenSequence((1, 2, 3), 1)

Target = Callable[[bytes, Path], None]


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Allow a reader to refuse with a message of one printable line."""
    try:
        yield
    except InputError as problem:
        message = str(problem)
        if UNPRINTABLE.search(message) or len(message) > LONGEST + MARGIN:
            raise AssertionError(f"a message that is not printable: {message!r}") from problem


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def read_json(data: bytes, folder: Path) -> None:
    """Files of items, of records, of metrics, of a suite."""
    path = _file(folder, "in.json", data)
    for read in (read_items, read_previous_output):
        with refusing():
            read(path)
    for system, settings in (
        (SELF_CERTAINTY, SELF_CERTAINTY.settings()),
        (USC_GENERATE, USC_GENERATE.settings(n=4)),
    ):
        with refusing():
            read_file(system, path, settings).recall(read_previous_output(path), settings, {})
    with refusing():
        items = read_items(path)
        for name in ("select", "livecode-select", "livecode-parse", "usc-select"):
            evaluate(name, None, items)
    path.rename(folder / "eval_dev_out.json")
    _file(folder, "eval_dev_metrics.json", data)
    with refusing():
        output = experiment_folder.load(folder, "dev")
        output.save({"M": {}}, {"M": 0.5})
    with refusing():
        results_table.table(results_table.load(folder.parent, "dev")[0], "all", "Generator")
    _file(folder, "p.txt", b"prompt")
    _file(folder, "p_t.json", data)
    with refusing():
        repeated_queries([{"queries": load_suite(folder, "p", "t").queries}])


def read_jsonl(data: bytes, folder: Path) -> None:
    """Files of one object a line, and the rankings of trec_eval."""
    path = _file(folder, "in.jsonl", data)
    for system in (SCORE, PATHS, CHRONOLOGIC, CHOOSE, PERPLEXITY):
        with refusing():
            read_file(system, path, system.settings())
    with refusing():
        read_system_prompts(path)
    with refusing():
        retrieval_runs.load(path)


def read_tables(data: bytes, folder: Path) -> None:
    """Tables whose cells are text, and a text that is one document."""
    for name in ("in.csv", "in.tsv"):
        path = _file(folder, name, data)
        with refusing():
            for row in read_rows(path, {"text": "a"}, ["a", "text"]):
                assert row.item
        with refusing():
            read_file(CHOOSE, path, CHOOSE.settings(), columns={"context": "a"})
    with refusing():
        read_file(PERPLEXITY, _file(folder, "in.txt", data), PERPLEXITY.settings())


def read_yaml(data: bytes, folder: Path) -> None:
    """An evaluator file, the config of an experiment, `--config`."""
    path = _file(folder, "config.yaml", data)
    with refusing():
        evaluator_file.load(path)
    with refusing():
        experiment_folder.read_config(folder, "dev")
    with refusing(), contextlib.suppress(SystemExit):
        config = Config.read(path)
        app.values(app.command(config.command(None)), [], config)


def read_template(data: bytes, folder: Path) -> None:
    """One template of an evaluator file; what is filled in stays as it is."""
    text = data.decode("utf-8", "surrogateescape")
    values = dict.fromkeys({*evaluator_file.NAMES.values()}, "{question} %s")
    with refusing():
        template = evaluator_file.parse(text, evaluator_file.POINTWISE, "template")
        filled = template.format(**values)
        assert len(filled) <= len(text) + 20 * text.count("{")


def read_answers(data: bytes, folder: Path) -> None:
    """Read a model's output."""
    text = data.decode("utf-8", "surrogateescape")
    answers.read_published(text, answers.BOXING)
    answers.read_first(text, answers.FORMS, "number")
    answers.code_form(text)
    math_answers.sanitise(text)
    math_answers.arithmetic_value(text)
    livecode.code(text)
    usc_select.named_response(text)
    symbolic.expression(text)


def read_safetensors(data: bytes, folder: Path) -> None:
    """Read a whole file, or, after a first byte below 128, a header and some data."""
    content = data[1:]
    if data[:1] < b"\x80":
        content = struct.pack("<Q", len(content)) + content + bytes(64)
    path = _file(folder, "model.safetensors", content)
    with refusing():
        for array in tensor_files.map_file(path).values():
            assert array.nbytes <= len(content)
            assert not array.flags.writeable


def read_config(data: bytes, folder: Path) -> None:
    """Read a config, an adapter's, an index of shards or generation defaults, by the first byte."""
    selector, content = data[:1], data[1:]
    with refusing():
        if selector < b"\x80":
            _file(folder, "config.json", content)
            source = Checkpoint.open(folder)
            generation_config.read_generation_config(folder, source.written)
            _ = source.scheme
            native.translate(folder, source.config)
        elif selector < b"\xa0":
            _file(folder, lora.CONFIG, content)
            _file(folder, lora.WEIGHTS, _adapter())
            lora.read(folder)
        elif selector < b"\xc0":
            _file(folder, "model.safetensors.index.json", content)
            _file(folder, "a.safetensors", _adapter())
            tensor_files.open_tensors(folder)
        else:
            _file(folder, "generation_config.json", content)
            generation_config.read_generation_config(folder, {})
            generation_config.read_generation_config(folder, {})


def _adapter() -> bytes:
    """Weights of an adapter of rank 2."""
    header, at = {}, 0
    for half, shape in (("A", [2, 4]), ("B", [4, 2])):
        name = f"{lora.ROOT}model.layers.0.self_attn.q_proj.lora_{half}.weight"
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 32]}
        at += 32
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def read_journal(data: bytes, folder: Path) -> None:
    """Read a journal with these bytes in it, at an offset that the first two decide."""
    journal = _journal()
    at = int.from_bytes(data[:2], "big") * len(journal) // 65536
    path = _file(folder, "journal", journal[:at] + data[2:] + journal[at + len(data[2:]) :])
    with refusing():
        files.list_models(path)
    with refusing(), contextlib.closing(Journal(path, {"a": 1})) as opened:
        opened.read_scores([SEQUENCE])
    with refusing():
        files.prune(path, 1)


@functools.cache
def _journal() -> bytes:
    """A journal of two models, one with scores."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        for about in ({"a": 1}, {"b": 2}):
            with contextlib.closing(Journal(path, about)) as opened:
                opened.write_scores(
                    [(SEQUENCE, SequenceScores(*3 * [np.zeros(2)], np.zeros(2, bool)))]
                )
        return path.read_bytes()


TARGETS: dict[str, Target] = {
    "json": read_json,
    "jsonl": read_jsonl,
    "tables": read_tables,
    "yaml": read_yaml,
    "template": read_template,
    "answers": read_answers,
    "safetensors": read_safetensors,
    "config": read_config,
    "journal": read_journal,
}
# Words of the formats, which a fuzzer would take long to find.
WORDS = (
    "!!python/object/apply:os.system", "!!int", "!!timestamp", "!!binary", "&a", "*a", "<<: *a",
    "- ", "\\ud800", "\\u0000", "NaN", "-Infinity", "1e999", "\ufeff", '{"', '": ', "[[[[", "{{{{",
    '"answer": ', "\\boxed{", "\\frac{", "\\sqrt", "```python\n", "\n```", "Response 1",
    "{question}", 'f"{', "{prediction!r:>9}", "9**9**9", "__import__('os')", '"dtype": "F32"',
    '"shape": [', '"data_offsets": [0, ', "__metadata__", "../../etc/passwd", "(a+)+$",
    '"rank_pattern": {"', "amps_hard", "99999999999999999999", "\x1b[31m", "\u202e",
)  # fmt: skip


def seeds(name: str) -> Iterator[bytes]:
    """Yield the fuzzer's seeds: the cases of the tests, and the shipped configs."""
    places = {
        "json": CASES.rglob("*.json"),
        "jsonl": CASES.rglob("*.jsonl"),
        "yaml": (ROOT / "configs").rglob("*.yaml"),
        "answers": CASES.rglob("samples.json"),
    }
    for path in sorted(places.get(name, ())):
        if "models" not in path.parts:
            yield path.read_bytes()[:SEED_BYTES]
    if name == "json":
        yield from (_some_items(path) for path in sorted(CASES.rglob("samples.json")))
    if name == "tables":
        yield b'\xef\xbb\xbfid,a,options\r\n1,"x, ""y""\n","["" a"", "" b""]"\r\n'
        yield b"a\tgold\n\n1\t2\n"
    if name == "answers":
        texts = json.loads((CASES / "voting/samples.json").read_bytes())[0]["output"]
        yield from (text.encode() for text in texts[:20])
    if name == "template":
        for path in sorted((ROOT / "configs/evaluator").glob("*.yaml")):
            yield from (line.encode() for line in path.read_text(encoding="utf-8").splitlines())
        yield b'f"{self.rubrik_section} {question} {list(self.options.keys())}"'
    if name == "safetensors":
        yield b"\x00" + _adapter()[8:-64]
        yield b"\xff" + _adapter()
    if name == "config":
        for path in sorted((CASES / "models").glob("*/config.json")):
            yield b"\x00" + path.read_bytes()
        yield b'\x80{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {"q_proj": 2}}'
        shards = dict.fromkeys(_names(), "a.safetensors")
        yield b"\xa0" + json.dumps({"weight_map": shards}).encode()
        yield b'\xc0{"eos_token_id": [1, 2]}'
    if name == "journal":
        yield from (bytes([at, 0, 255, 255, 255]) for at in range(0, 256, 16))
    yield b""


def _names() -> list[str]:
    adapter = _adapter()
    (length,) = struct.unpack("<Q", adapter[:8])
    return list(json.loads(adapter[8 : 8 + length]))


def _some_items(path: Path) -> bytes:
    items = json.loads(path.read_bytes())[:1]
    for item in items:
        item["output"] = item.get("output", [])[:2]
        item["confidence_list"] = [0.5] * len(item["output"])
    return json.dumps(items).encode()
