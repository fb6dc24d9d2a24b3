"""Small checkpoints with tokenizers of several kinds."""

import json
import shutil
from pathlib import Path

import transformers

from tests.conftest import CASES
from tests.models.checkpoints import FIFTH, saved

LINE = "saved_by_5" if FIFTH else "saved_by_4"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system here') }}{% endif %}[{{ m.role }}] {{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% if loud %}!{% endif %}{% endif %}"
)


def made(folder: Path, kind: str, tokenizer: str, **config: object) -> Path:
    """A random checkpoint of a family with one of the tokenizers of tests/cases/tokenizers."""
    source = CASES / "tokenizers" / tokenizer
    folder.mkdir(exist_ok=True)
    shutil.copy(source / "tokenizer.json", folder)
    for path in (source / LINE).iterdir():
        shutil.copy(path, folder)
    backend = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    saved(folder, kind, vocab_size=len(backend), **config)
    return folder


def case(name: str) -> Path:
    """One of the kept checkpoints."""
    return CASES / "models" / name


def changed(folder: Path, source: Path, **files: dict[str, object]) -> Path:
    """A copy of a checkpoint, attributes of its JSON files changed: `config={...}`."""
    shutil.copytree(source, folder)
    for name, attributes in files.items():
        path = folder / f"{name}.json"
        written = json.loads(path.read_text("utf-8")) if path.exists() else {}
        path.write_text(json.dumps(written | attributes), "utf-8")
    return folder


def args(name: str = "tiny-llama3", **more: object) -> dict[str, object]:
    """`model_args` of one of them."""
    return {"pretrained": str(case(name)), "dtype": "float32", **more}
