"""JSON Schemas of systems: real items and settings fit them, others do not."""

import dataclasses
import json
from typing import TypedDict

import pytest

from jaxscore.cli.schema import DIALECT, schema_of
from jaxscore.io.json_output import to_json_value
from jaxscore.systems import SYSTEMS, declaration
from tests.cli.conftest import run  # noqa: F401
from tests.conftest import ROOT
from tests.systems.json_schemas import check, config, problems, rows_of_config


@pytest.mark.parametrize("name", SYSTEMS)
def test_defaults_of_settings_fit(name):
    system = declaration(name)
    schema = schema_of(system)
    settings = schema["$defs"]["settings"]
    given = dict.fromkeys(settings.get("required", ()), 1)
    made = vars(system.settings(**given))
    # An object in place of its name, such as an evaluator, is read when the settings are made.
    read = {name for name, value in made.items() if hasattr(value, "__dict__")}
    known = {
        name: settings["properties"][name]["default"] if name in read else to_json_value(value)
        for name, value in made.items()
    }
    check(schema, "settings", known)
    defaults = {
        field: value["default"]
        for field, value in settings["properties"].items()
        if field not in given
    }
    assert given | defaults == known


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_items_of_configs_fit(name):
    if not (ROOT / "configs" / f"{name}.yaml").exists():
        pytest.skip("no command of this name")
    system, path = declaration(name), ROOT / config(name).get("input", "outputs")
    if not path.is_file():
        pytest.skip("another command of the file writes the input, or it is no file")
    rows = rows_of_config(name)
    assert rows
    for row in rows:
        check(schema_of(system), "item", row)


def test_what_does_not_fit():
    schema = schema_of(declaration("choose"), "item")
    assert (schema["$schema"], schema["$ref"]) == (DIALECT, "#/$defs/item")
    item = {"context": "c", "options": ["a", "b"], "mine": [1]}
    assert problems(schema, item, schema) == []
    assert problems(schema, {"options": ["a", 2]}, schema) == [
        "value has no context", "value.options[1] is 2, expected ['string']"
    ]  # fmt: skip
    settings = schema["$defs"]["settings"]
    assert problems(settings, {"n_bootstrap": 0}, schema) == ["value.n_bootstrap is 0, below 1"]
    assert (
        "expected one of ['joint', 'separate']" in problems(settings, {"boundary": "no"}, schema)[0]
    )
    assert problems(settings, {"nboot": 1}, schema) == ["value has nboot"]


def test_descriptions_are_those_of_help_docstrings_and_comparisons():
    definitions = schema_of(declaration("choose"))["$defs"]
    assert definitions["item"]["properties"]["context"]["description"] == "text before each option."
    assert "category" not in definitions["item"]["required"]
    assert definitions["settings"]["properties"]["n_bootstrap"]["description"] == (
        "draws for the 95% intervals (default 1000)"
    )
    right = definitions["record"]["properties"]["acc"]
    assert right["description"] == "the option chosen by log-probability is right"


def test_the_command_prints_a_schema(run):  # noqa: F811
    code, out, _ = run("schema", "perplexity", "record")
    assert code == 0
    assert json.loads(out) == schema_of(declaration("perplexity"), "record")
    code, _, err = run("schema", "perplexety")
    assert code == 2
    assert "perplexity" in err


def test_classes_without_docstrings_have_no_description():
    @dataclasses.dataclass(frozen=True)
    class Item:
        text: str

    class Record(TypedDict):
        gap: float

    system = dataclasses.replace(declaration("choose"), item=Item, record=Record)
    parts = schema_of(system)["$defs"]
    assert not {"description"} & {*parts["item"], *parts["record"]}
