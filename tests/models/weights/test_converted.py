"""What `converted.save` writes is the model that it was given, or is refused."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxscore.device.dots import from_storage
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.weights import checksums, converted
from tests.conftest import with_devices
from tests.models.checkpoints import loaded, ragged, saved, scorer
from tests.models.families import STRUCTURES
from tests.models.weights.test_params import run_sharded

FACTS = converted.Facts("llama", "float32", "somewhere", None, None, "1")


def convert(folder, output, dtype="float32", model_type="llama"):
    facts = converted.Facts(model_type, dtype, str(folder), None, None, "1")
    model = loaded(folder, dtype=dtype)
    converted.save(output, folder, model.params, facts, with_code=False)
    return model


def assert_same(one, other):
    """Bit for bit, names and dtypes too."""
    one, other = (dict(jax.tree.leaves_with_path(model.params)) for model in (one, other))
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        assert leaf.dtype == other[path].dtype, path
        assert np.array_equal(leaf, other[path]), path


@pytest.fixture(scope="module")
def written(originals, tmp_path_factory):
    """`written(kind, dtype)`: a converted folder."""
    known = {}

    def make(kind="llama", dtype="float32"):
        if (kind, dtype) not in known:
            known[kind, dtype] = tmp_path_factory.mktemp("converted") / kind
            convert(originals[kind], known[kind, dtype], dtype, kind)
        return known[kind, dtype]

    return make


@pytest.fixture
def copied(written, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(written(), folder)
    return folder


def refused(folder, *parts, **options):
    with pytest.raises(InputError) as problem:
        load(folder, **options)
    for part in parts:
        assert str(part) in str(problem.value)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_parameters_are_those_of_the_original(tmp_path, kind):
    """Of the float32 folder, which holds all there is, in either dtype."""
    saved(tmp_path / "source", kind)
    convert(tmp_path / "source", tmp_path / "converted", model_type=kind)
    for dtype in ("float32", "bfloat16"):
        found, want = (loaded(tmp_path / one, dtype=dtype) for one in ("converted", "source"))
        assert_same(found, want)


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_bfloat16_is_what_is_left_of_bfloat16(originals, written, asked):
    found = loaded(written("llama", "bfloat16"), dtype=asked)
    want = loaded(originals["llama"], dtype="bfloat16")
    if asked == "bfloat16":
        assert_same(found, want)
    else:
        widened = jax.tree.map(lambda x: x.astype(np.float32), from_storage(want.params))
        pairs = zip(jax.tree.leaves(found.params), jax.tree.leaves(widened), strict=True)
        assert all(one.dtype == np.float32 and np.array_equal(one, other) for one, other in pairs)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_are_bit_for_bit_those_of_the_original(originals, written, dtype):
    folder = written("llama", dtype)
    got, want = (
        scorer(loaded(one, dtype=dtype)).score_sequences(ragged())
        for one in (folder, originals["llama"])
    )
    for one, other in zip(got, want, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_shards_are_restored_on_eight_devices(written):
    run_sharded("bfloat16", written("llama", "float32"), written("gpt2", "bfloat16"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_auto_is_float32_on_the_cpu(written, dtype):
    assert load(written("llama", dtype)).dtype == "float32"


def test_the_folder_holds_what_made_it_and_no_weights(originals, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(originals["llama"], source)
    extra = ("tokenizer.json", "generation_config.json", "merges.txt", "chat_template.jinja")
    for name in (*extra, "tokenizer.model"):
        (source / name).write_text('{"eos_token_id": 5, "top_k": 7}', encoding="utf-8")
    for name in ("model.safetensors.index.json", "code.py", "notes.md"):
        (source / name).write_text("{}", encoding="utf-8")
    output = tmp_path / "deep" / "converted"
    convert(source, output)
    own = {"params", "jaxscore.json", "checksums.json"}
    expected = {"config.json", *extra, "tokenizer.model", *own}
    assert {path.name for path in output.iterdir()} == expected
    assert [path.name for path in output.parent.iterdir()] == ["converted"]
    for name in expected - own:
        assert (output / name).read_bytes() == (source / name).read_bytes()
    assert converted.read_facts(output).source == str(source)
    assert loaded(output).checkpoint.eos_ids == (5,)
    assert loaded(output).generation_defaults.top_k == 7


def test_code_is_copied_where_it_is_asked_for(originals, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(originals["llama"], source)
    (source / "tokenization_x.py").write_text("x = 1\n", encoding="utf-8")
    params = loaded(source).params
    converted.save(tmp_path / "converted", source, params, FACTS, with_code=True)
    assert (tmp_path / "converted/tokenization_x.py").read_text(encoding="utf-8") == "x = 1\n"


def test_an_output_that_is_there(originals, written, tmp_path):
    full, empty, file = tmp_path / "full", tmp_path / "empty", tmp_path / "file"
    for folder in (full, empty):
        folder.mkdir()
    (full / "x").touch()
    file.touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    under = file / "under"
    for output, why in (
        (full, "not empty"),
        (file, "not a folder"),
        (link, "not a folder"),
        (under, "cannot be written"),
    ):
        with pytest.raises(InputError, match=f"{output}: .*{why}"):
            converted.check_absent(output)
        with pytest.raises(InputError, match=f"{output}: .*{why}"):
            convert(originals["llama"], output)
    convert(originals["llama"], empty)
    assert_same(loaded(empty), loaded(written()))


def test_what_fails_leaves_nothing(originals, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(converted, "_save_params", full)
    with pytest.raises(InputError, match=r"converted: cannot be written \(No space left"):
        convert(originals["llama"], tmp_path / "converted")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"num_hidden_layers": 3},
            "layers.attention.q.weight has (2, 32, 32), expected (3, 32, 32)",
        ),
        ({"vocab_size": 212}, "embed.token has (211, 32), expected (212, 32)"),
        ({"tie_word_embeddings": True}, "unembed.weight has (211, 32), expected None"),
        ({"attention_bias": True}, "layers.attention.k.bias has None, expected (2, 16)"),
    ],
    ids=str,
)
def test_another_config(copied, change, named):
    path = copied / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(json.dumps(config), encoding="utf-8")
    refused(copied, copied / "params", named, "convert the original again")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"format": None},
        {"dtype": "float16"},
        {"dtype": None},
        {"surprise": 1},
        "not an object",
        "{",
    ],
    ids=str,
)
def test_a_mark_that_is_not_ours(copied, change):
    path = copied / "jaxscore.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(written | change if isinstance(change, dict) else change)
    path.write_text("{" if change == "{" else text, encoding="utf-8")
    refused(copied, path)


# In a process of its own: Orbax lets the reads of other parameters fail in threads, later.
LOADS = """
import sys
from pathlib import Path
from jaxscore.errors import InputError
from jaxscore.models.load import load
for folder in sys.argv[1:]:
    try:
        load(Path(folder))
    except InputError as problem:
        print("refused:", problem)
"""


@pytest.mark.slow
def test_parameters_that_are_damaged(written, tmp_path):
    folders = []
    for damage in ("manifest", "data", "all"):
        folders.append(tmp_path / damage)
        shutil.copytree(written(), folders[-1])
        params = folders[-1] / "params"
        if damage == "all":
            shutil.rmtree(params)
        else:
            held = (params / "ocdbt.process_0/d").iterdir()
            largest = max(held, key=lambda file: file.stat().st_size)
            file = {"manifest": params / "manifest.ocdbt", "data": largest}[damage]
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2])
    command = [sys.executable, "-c", LOADS, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for folder, line in zip(folders, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"refused: {folder / 'params'}: cannot be restored ("), line
        assert line.endswith("convert the original again")


def flipped(folder, name):
    """One bit of the middle of a parameter is another one on disk."""
    array = loaded(folder).params
    for key in name.split("/"):
        array = array[key]
    middle = np.asarray(array).reshape(-1)[array.size // 2 :][:8].tobytes()
    for file in (folder / "params").rglob("*"):
        content = bytearray(file.read_bytes()) if file.is_file() else b""
        if (place := content.find(middle)) >= 0:
            content[place + 3] ^= 0x40
            file.write_bytes(content)
            return
    raise AssertionError(f"{name} is in no file")


@pytest.mark.parametrize("name", ["embed/token", "layers/mlp/down/weight"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_flipped_bit_is_refused_by_the_name_of_the_array(copied, name, dtype):
    flipped(copied, name)
    refused(copied, f"1 arrays differ from what was converted, such as {name}: ", dtype=dtype)


ON_SHARDS = """
import sys
from pathlib import Path
from jaxscore.engine.devices import mesh_choice
from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.models.weights import checksums
for mesh in ("data=2,model=2", "fsdp=4", "fsdp=2,model=2", "fsdp=3"):
    for folder in sys.argv[1:]:
        try:
            load(Path(folder), mesh_choice=mesh_choice(mesh, 1))
            print("sound")
        except InputError as problem:
            print(problem)
    print("all checked", file=sys.stderr)
every = checksums._distinct_shards
checksums._distinct_shards = lambda array: every(array)[:2]  # as of one of two processes
load(Path(sys.argv[1]), mesh_choice=mesh_choice("fsdp=4", 1))
"""


def test_each_shard_is_checked(written, tmp_path):
    _, embedding, down = folders = [tmp_path / name for name in ("sound", "embed", "down")]
    for folder in folders:
        shutil.copytree(written(), folder)
    flipped(embedding, "embed/token")
    flipped(down, "layers/mlp/down/weight")
    command = [sys.executable, "-c", ON_SHARDS, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env=with_devices(4), check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[::3] == ["sound"] * 4
    for k, name in (1, "embed/token"), (2, "layers/mlp/down/weight"):
        for line in lines[k::3]:
            assert f"1 arrays differ from what was converted, such as {name}: " in line
    before, after = done.stderr.rsplit("all checked", 1)
    assert "unchecked" not in before
    assert "such as embed/token, are divided among processes" in after


def test_a_folder_of_an_older_version_has_no_checksums_and_loads(copied, written, capsys):
    mark = copied / "jaxscore.json"
    facts = json.loads(mark.read_text(encoding="utf-8"))
    mark.write_text(json.dumps(facts | {"format": 1}), encoding="utf-8")
    (copied / "checksums.json").unlink()
    capsys.readouterr()
    assert_same(loaded(copied), loaded(written()))
    said = capsys.readouterr().err
    assert said.count("converted by an earlier version, without checksums") == 1
    assert str(copied) in said


def test_checksums_are_checked_whatever_the_format_says(copied):
    mark = copied / "jaxscore.json"
    facts = json.loads(mark.read_text(encoding="utf-8"))
    mark.write_text(json.dumps(facts | {"format": 1}), encoding="utf-8")
    flipped(copied, "embed/token")
    refused(copied, "1 arrays differ from what was converted, such as embed/token: ")


@pytest.mark.parametrize("change", [lambda parts: parts[:-1], lambda parts: [*parts, 0]])
def test_another_number_of_checksums_is_damage(copied, change):
    where = copied / "checksums.json"
    found = json.loads(where.read_text(encoding="utf-8"))
    found["embed/token"]["float32"] = change(found["embed/token"]["float32"])
    where.write_text(json.dumps(found), encoding="utf-8")
    refused(copied, "1 arrays differ from what was converted, such as embed/token: ")


def test_arrays_of_an_accelerator_are_checked_in_slices(copied, monkeypatch):
    monkeypatch.setattr(checksums, "_is_on_host", lambda array: False)
    monkeypatch.setattr(checksums, "PIECE", 999)
    loaded(copied)
    flipped(copied, "embed/token")
    refused(copied, "1 arrays differ from what was converted, such as embed/token: ")


@pytest.mark.parametrize("content", ["{", "[]", '{"embed/token": 1}', '{"embed/token": {}}', "{}"])
def test_checksums_that_are_none(copied, content):
    (copied / "checksums.json").write_text(content, encoding="utf-8")
    refused(copied, copied)


def test_what_a_converted_folder_does_not_take(copied, tmp_path):
    refused(copied, copied, "is converted", implementation="transformers")
    refused(copied, copied, "is converted", adapter=tmp_path)


@pytest.mark.slow
def test_more_parameters_than_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(converted, "CHUNK", 999)
    saved(tmp_path / "source", "llama")
    convert(tmp_path / "source", tmp_path / "converted")
    assert_same(loaded(tmp_path / "converted"), loaded(tmp_path / "source"))
    run_sharded("float32", tmp_path / "converted")
