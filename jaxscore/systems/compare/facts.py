"""What a run was made of and with, and where that differs between two runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind, read_json
from jaxscore.io.run_files import manifest_path

# Flags and facts that say nothing of the numbers, and those that are compared elsewhere.
LEFT_OUT = frozenset(
    "output output_dir output_file journal quiet distributed coordinator num_processes process_id "
    "join_timeout trust_remote_code cache_dir date config html no_html numbers noise failed".split()
)
# Settings of later versions, with their value in a record of a run that does not have them yet.
LATER_SETTINGS: Mapping[str, Any] = {"answer_separator": None}
ENDINGS = (  # of a result's name, and what ends the name of the file beside which its manifest lies
    ("_results.json", "_results.csv"),
    ("_out.json", "_metrics.json"),
    (".json", ".md"),
)


def manifest_file(path: Path) -> Path | None:
    """The manifest of a result; None where there is none.

    It lies beside the result, or beside the table, the metrics or the page that was written with
    it: reports/README.md has the list.
    """
    places = (manifest_path(place) for place in (path, *_beside(path)))
    return next(filter(_is_file, places), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name of a long one has no room for the ending
        return False


def manifest(path: Path) -> Mapping[str, Any] | None:
    """What the manifest of a result says; None where there is none.

    Raises:
        InputError: it cannot be read or is no manifest.
    """
    found = manifest_file(path)
    if found is None:
        return None
    value = read_json(found, "a manifest, as a run writes it")
    if not isinstance(value, dict) or not isinstance(value.get("command"), str):
        raise InputError(
            f"{found}: found {json_kind(value)} that is no manifest; delete it to compare "
            "without it"
        )
    return value


def _beside(path: Path) -> list[Path]:
    name = path.name.replace("eval_results_", "eval_report_", 1)
    return [
        path.with_name(name.removesuffix(ending) + other)
        for ending, other in ENDINGS
        if name.endswith(ending)
    ]


def flat(made: Mapping[str, Any] | None, settings: object = None) -> dict[str, Any]:
    """Facts of a run by name: those of its manifest, and the settings that its report holds."""
    out: dict[str, Any] = dict(settings) if isinstance(settings, dict) else {}
    if made is None:
        return out
    out |= _part(made, "flags")
    model = _part(made, "model")
    out |= {name: value for name, value in model.items() if name != "model"}
    if "model" in model:
        out["weights"] = model["model"]
    versions = _part(made, "versions")
    out |= {name: made[name] for name in ("command", "input_sha256") if name in made}
    return out | versions


def _part(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = made.get(name)
    return dict(value) if isinstance(value, dict) else {}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Facts that both runs tell and that differ, as `{setting, a, b}`."""
    if a and b:  # without any fact a run's settings are not known
        a, b = {**LATER_SETTINGS, **a}, {**LATER_SETTINGS, **b}
    return [
        {"setting": name, "a": a[name], "b": b[name]}
        for name in a
        if name in b and name not in LEFT_OUT and a[name] != b[name]
    ]
