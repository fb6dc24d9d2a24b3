"""Validates values against the JSON Schemas that `jaxscore schema` prints: their keywords alone.

Also reads the files of configs/, whose inputs have to fit.
"""

import yaml

from jaxscore.systems import declaration
from tests.conftest import ROOT

KINDS = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
    "array": list, "object": dict,
}  # fmt: skip


def problems(schema, value, root, where="value"):
    """Sentences on what does not fit; none if the value is valid."""
    if "$ref" in schema:
        definition = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return problems(definition, value, root, where)
    found = []
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        is_kind = any(
            isinstance(value, KINDS[name]) and (name == "boolean" or not isinstance(value, bool))
            for name in names
        )
        if not is_kind:
            found.append(f"{where} is {value!r}, expected {names}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where} is {value!r}, expected one of {schema['enum']}")
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        found.append(f"{where} is {value}, below {schema['minimum']}")
    if "anyOf" in schema and all(problems(one, value, root) for one in schema["anyOf"]):
        found.append(f"{where} is {value!r}, which fits none of {schema['anyOf']}")
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        found += [
            f"{where} has no {name}" for name in schema.get("required", ()) if name not in value
        ]
        for name, own in value.items():
            if name not in properties and others is False:
                found.append(f"{where} has {name}")
            else:
                found += problems(properties.get(name, others), own, root, f"{where}.{name}")
    if isinstance(value, list):
        for k, own in enumerate(value):
            found += problems(schema.get("items", {}), own, root, f"{where}[{k}]")
    return found


def check(schema, part, value):
    assert problems(schema["$defs"][part], value, schema, part) == []


def config(name):
    """Flags in the file of a command."""
    return yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text("utf-8"))


def rows_of_config(name):
    """Items of the input that the file of a system names."""
    flags = config(name)
    columns = dict(word.split("=") for word in flags.get("column", ()))
    return [row.item for row in declaration(name).read_rows(ROOT / flags["input"], columns, ())]
