"""Comparison of two recordings of `tools/golden.py`, file by file.

JSON, JSON lines, tables, journals and the data of HTML pages are compared by structure, all other
files by line. Dates, durations, versions and names of temporary folders are replaced first.
"""

import base64
import csv
import difflib
import gzip
import hashlib
import html.parser
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MOST_LINES = 12  # printed for each file
MOST_CHARACTERS = 160  # printed of each value

# Values of these keys are facts of a machine or of a moment.
VOLATILE_KEYS = {
    *("date", "start_time", "end_time", "created", "a_sha256", "b_sha256"),
    *("jax", "jaxlib", "jaxscore", "transformers", "numpy", "python", "XLA_FLAGS", "host_cores"),
    *("used", "bytes_temporary", "git_hash", "pretty_env_info", "model_source"),
    *("lm_eval_version", "transformers_version", "upper_git_hash", "evaluation_time"),
    *("mtime_ns", "ctime_ns", "ino"),
}
REPLACEMENTS = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\d{4}-\d\d-\d\d[T :]\d\d[:-]\d\d[:-]\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "<date>"),
        (r"\d{8}_\d{6}", "<date>"),
        (r"/[^\s\"']*/jaxscore/[^\s\"']*/", "<package>/"),
        (r"/\S*?/golden-[^/\s\"']+", "<folder>"),
        (r"127\.0\.0\.1:\d+", "<address>"),
        (r"\b(cmpl|chatcmpl|req)-[0-9a-zA-Z]+", r"\1-<id>"),
        (r" *\b\d[\d.,]*(e-?\d+)? s\b", " <seconds>"),
        (r"\b\d[\d.,]* (ms|seconds)\b", "<seconds>"),
        (r"0x[0-9a-f]{6,}", "<address>"),
        (r'(\w*seconds"): [\d.e-]+', r"\1: <seconds>"),
        (r'"created": ?\d+', '"created":<date>'),
        (r"(File \"[^\"]*\", line )\d+", r"\1<line>"),
    )
]
PROGRESS = re.compile(r"\[\d\d:\d\d(<|, )|^compiling ")
SETTING = re.compile(r"^\| (\w+) \| .* \|$")  # a row of a table of settings in Markdown


class Difference(NamedTuple):
    location: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.location}: {_shorten(self.before)} -> {_shorten(self.after)}"


class Missing:
    def __repr__(self) -> str:
        return "(missing)"


MISSING = Missing()


def compare_folders(
    before: Path, after: Path, cases: Sequence[str] | None, tolerance: float
) -> int:
    """Print the differences of two recordings.

    Args:
        cases: only these folders; None for all of both recordings.
        tolerance: relative difference of two numbers that counts as equal.

    Returns:
        1 if anything differs, else 0.
    """
    names = cases or sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    n_files = n_different = 0
    for case in names:
        files = _files(before / case), _files(after / case)
        for name in sorted(files[0].keys() | files[1].keys()):
            n_files += 1
            differences = _compare_file(name, files[0].get(name), files[1].get(name), tolerance)
            if differences:
                n_different += 1
                print(f"\n{case}/{name}: {len(differences)} differences")
                print("\n".join(f"  {line}" for line in differences[:MOST_LINES]))
                if len(differences) > MOST_LINES:
                    print(f"  ... and {len(differences) - MOST_LINES} more")
    print(f"\n{n_different} of {n_files} files differ in {len(names)} cases")
    return int(n_different > 0)


def _files(folder: Path) -> dict[str, Path]:
    """Files of a case by their normalised names; help pages by their command."""
    paths = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            if folder.name.startswith("help"):
                line = path.with_suffix(".code").read_text(encoding="utf-8").splitlines()[0]
                name = f"{line}{path.suffix}"
            paths[_normalise(name)] = path
    return paths


def _compare_file(
    name: str, before: Path | None, after: Path | None, tolerance: float
) -> list[Difference | str]:
    if before is None or after is None:
        return ["new file" if before is None else "file is gone"]
    if before.read_bytes() == after.read_bytes():
        return []
    read = next((read for suffix, read in READERS.items() if name.endswith(suffix)), _read_lines)
    first, second = read(before), read(after)
    if _are_lines(first) and _are_lines(second):
        return _diff_lines(first, second)
    return list(_differences(first, second, "", tolerance))


def _are_lines(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def _diff_lines(before: list[str], after: list[str]) -> list[Difference | str]:
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _differences(
    before: Any, after: Any, location: str, tolerance: float
) -> Iterator[Difference | str]:
    """Compare two values as JSON has them, with the order of keys and the types of numbers."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in before or key not in after:
                yield Difference(
                    f"{location}.{key}", before.get(key, MISSING), after.get(key, MISSING)
                )
            elif not _is_volatile(key):
                yield from _differences(before[key], after[key], f"{location}.{key}", tolerance)
        if set(before) == set(after) and list(before) != list(after):
            yield Difference(f"{location} (order of keys)", list(before), list(after))
    elif _are_lines(before) and _are_lines(after) and len(before) != len(after):
        yield from (f"{location}: {line}" for line in _diff_lines(before, after))
    elif isinstance(before, list) and isinstance(after, list):
        for k, (first, second) in enumerate(zip(before, after, strict=False)):
            yield from _differences(first, second, f"{location}[{k}]", tolerance)
        if len(before) != len(after):
            yield Difference(f"{location} (length)", len(before), len(after))
    elif isinstance(before, str) and isinstance(after, str):
        if _normalise(before) != _normalise(after):
            yield Difference(location, before, after)
    elif type(before) is not type(after) or not _equal(before, after, tolerance):
        yield Difference(location, before, after)


def _is_volatile(key: str) -> bool:
    return key in VOLATILE_KEYS or key.endswith("seconds")


def _equal(before: Any, after: Any, tolerance: float) -> bool:
    if isinstance(before, float) and tolerance:
        return abs(before - after) <= tolerance * max(abs(before), abs(after))
    return repr(before) == repr(after)  # NaN is NaN, and -0.0 is not 0.0


def _normalise(text: str) -> str:
    for pattern, new in REPLACEMENTS:
        text = pattern.sub(new, text)
    return text


def _read_lines(path: Path) -> list[str]:
    """Lines of text without progress bars; of a file that is not UTF-8 its hash."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return [hashlib.sha256(data).hexdigest()]
    lines = [line for line in re.split(r"[\r\n]", text) if not PROGRESS.search(line)]
    kept = []
    for line in filter(None, lines):
        setting = SETTING.match(line)
        if setting is None or not _is_volatile(setting.group(1)):
            kept.append(_normalise(line).rstrip())
    return sorted(kept) if path.name == "server.err" else kept  # requests end in any order


def _read_json(path: Path) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return _read_lines(path)
    if path.name.endswith(".run.json") and isinstance(value, dict) and "programs" in value:
        # Which programs were compiled depends on what ran before in the same process.
        value["programs"] = sorted({program["name"] for program in value["programs"]})
    if path.name.endswith(".run.json") and isinstance(value, dict) and "outputs" in value:
        # Reports have a date, and so have some names; the files themselves are compared.
        outputs = {_normalise(name): facts for name, facts in value["outputs"].items()}
        is_dated = ("_report.json", ".report.json")
        value["outputs"] = {
            name: {} if "<date>" in name or name.endswith(is_dated) else facts
            for name, facts in outputs.items()
        }
    return value


def _read_json_lines(path: Path) -> Any:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except ValueError:
        return _read_lines(path)


def _read_csv(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    rows = list(csv.reader(io.StringIO(text), delimiter="\t" if path.suffix == ".tsv" else ","))
    return {
        "header": rows[:1],
        "rows": [dict(zip(map(str, rows[0]), row, strict=False)) for row in rows[1:]],
        "ends of line": sorted(
            {line[len(line.rstrip("\r\n")) :] for line in text.splitlines(True)}
        ),
    }


def _read_parquet(path: Path) -> Any:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return {
        "schema": {field.name: str(field.type) for field in table.schema},
        "rows": table.to_pylist(),
    }


def _read_journal(path: Path) -> Any:
    """Tables of a journal with their rows by key, without the times of use."""
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        models = database.execute("SELECT id, fingerprint, about FROM models").fetchall()
        contents: dict[str, Any] = {
            "schema": [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")],
            "application": database.execute("PRAGMA application_id").fetchone()[0],
            "version": database.execute("PRAGMA user_version").fetchone()[0],
            "models": {fingerprint: about for _, fingerprint, about in sorted(models)},
        }
        fingerprints = {model: fingerprint for model, fingerprint, _ in models}
        for table in ("scores", "texts"):
            rows = database.execute(f"SELECT model, key, value FROM {table}").fetchall()
            contents[table] = {
                f"{fingerprints[model][:8]} {key.hex()}": value.hex()
                for model, key, value in sorted(rows)
            }
    return contents


class _Markup(html.parser.HTMLParser):
    """Tags without classes, and texts, of a page; scripts and styles are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.data = ""
        self.text = ""  # the one before: the name of a setting before its value
        self.hidden: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        facts = [f'{name}="{value}"' for name, value in attributes if name != "class"]
        self.lines.append(" ".join([f"<{tag}", *facts]))
        if tag in ("script", "style"):
            self.hidden = "data" if ("id", "data") in attributes else tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.hidden = None

    def handle_data(self, data: str) -> None:
        if self.hidden == "data":
            self.data += data
        elif self.hidden is None and data.strip():
            if not _is_volatile(self.text):
                self.lines += [_normalise(line) for line in data.splitlines() if line.strip()]
            self.text = data.strip()


def _read_page(path: Path) -> Any:
    """Markup of a report page, and its embedded data: a JSON header and arrays."""
    page = _Markup()
    page.feed(path.read_text(encoding="utf-8"))
    contents: dict[str, Any] = {"markup": page.lines}
    if page.data:
        block = gzip.decompress(base64.b64decode(page.data))
        end = 4 + int.from_bytes(block[:4], "little")
        contents["data"] = json.loads(block[4:end])
        contents["arrays"] = block[end:].hex()
    return contents


READERS: dict[str, Callable[[Path], Any]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".journal": _read_journal,
    ".html": _read_page,
}


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text)})"
