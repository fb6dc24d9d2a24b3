"""The numbers, texts and metrics are those of lighteval's own `TransformersModel`."""

import importlib.util
import json
import shutil
import warnings

import numpy as np
import pytest

from jaxscore.errors import InputError
from tests.conftest import CASES, MODELS

if importlib.util.find_spec("lighteval") is None:
    pytest.skip(
        "lighteval is not installed; it needs an environment of its own, see tests/README.md",
        allow_module_level=True,
    )

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.models.custom.custom_model import CustomModelConfig
    from lighteval.models.model_input import GenerationParameters
    from lighteval.models.transformers.transformers_model import (
        TransformersModel,
        TransformersModelConfig,
    )
    from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
    from lighteval.tasks.registry import Registry
    from lighteval.tasks.requests import Doc

    from jaxscore.adapters.lighteval import JaxscoreModel

pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries

FILE = "from jaxscore.adapters.lighteval import JaxscoreModel\n"
QUESTION = "Question: who?\nAnswer:"


def ours(name, **arguments):
    given = {"pretrained": CASES / "models" / name, "dtype": "float32", **arguments}
    written = ",".join(f"{key}={value}" for key, value in given.items())
    return JaxscoreModel(CustomModelConfig(model_name=written, model_definition_file_path=""))


def their_config(name, folder, **arguments):
    """The reference: float32, eager attention, one document a batch. It writes into `folder`."""
    shutil.copytree(CASES / "models" / name, folder)  # its cache is a folder of the checkpoint
    return TransformersModelConfig(
        model_name=str(folder), dtype="float32", device="cpu", batch_size=1,
        model_loading_kwargs={"attn_implementation": "eager"}, **arguments,
    )  # fmt: skip


def theirs(name, folder, **arguments):
    model = TransformersModel(their_config(name, folder, **arguments))
    model._cache = None
    return model


def doc(place=0, query=QUESTION, choices=(" A", " B"), **more):
    return Doc(query, list(choices), 0, id=str(place), task_name="task|0", **more)


def docs():
    """Blanks, a cut prompt, choices of several lengths, examples, an instruction, stop strings."""
    texts = [
        {"stop_sequences": ["\n\n", "\n"], "generation_size": 40},
        {"query": "The cat sat on ", "choices": [" the mat", " a very long dog house", "x"],
         "stop_sequences": ["a"], "generation_size": 8},
        {"query": "word " * 60, "stop_sequences": [], "generation_size": 5},
        {"query": "Do. One two three", "instruction": "Do.", "fewshot_samples": [doc()],
         "stop_sequences": [" the", "."], "generation_size": 9},
    ]  # fmt: skip
    return [doc(place, **one) for place, one in enumerate(texts)]


@pytest.mark.parametrize(("chat", "length"), [(False, 40), (True, None)])
@pytest.mark.parametrize("name", MODELS)
def test_choices_and_texts(name, chat, length, tmp_path):
    reference = theirs(name, tmp_path / "m", override_chat_template=chat, max_length=length)
    some = {} if length is None else {"max_length": length}
    model = ours(name, override_chat_template=chat, **some)
    assert model.max_length == reference.max_length
    for got, want in zip(model.loglikelihood(docs()), reference.loglikelihood(docs()), strict=True):
        np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-6, atol=1e-3)
        assert got.argmax_logits_eq_gold == want.argmax_logits_eq_gold
        assert got.input_tokens == want.input_tokens.tolist()
        # Theirs are padded to the longest choice, and only so many choices as it has tokens.
        kept = [[one for one in row if one != -1] for row in want.output_tokens.tolist()]
        assert got.output_tokens[: len(kept)] == kept
        assert len(got.output_tokens) == len(got.logprobs)
    written = reference.greedy_until(docs())
    assert any(one.text != [""] for one in written)
    for got, want in zip(model.greedy_until(docs()), written, strict=True):
        assert (got.text, got.input_tokens) == (want.text, want.input_tokens)


def test_a_text_without_a_size_goes_on_to_max_length(tmp_path):
    one = doc(stop_sequences=[], generation_size=None)
    [want] = theirs("tiny-qwen2", tmp_path / "m", max_length=60).greedy_until([one])
    [got] = ours("tiny-qwen2", max_length=60).greedy_until([one])
    assert got.text == want.text
    assert len(got.input_tokens) + len(got.output_tokens[0]) == 60


TASKS = """
from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc


def prompt(line, task_name):
    return Doc(line["q"], line["a"], line["g"], task_name=task_name)


TASKS_TABLE = [
    LightevalTaskConfig(
        name=name, prompt_function=prompt, hf_repo=FOLDER, hf_subset="default", metrics=metrics,
        hf_avail_splits=["test"], evaluation_splits=["test"], few_shots_split="test",
        generation_size=6, stop_sequence=["\\n"],
    )
    for name, metrics in [
        ("choices", [Metrics.loglikelihood_acc]),
        ("texts", [Metrics.exact_match]),
    ]
]
"""


def test_a_run_of_lighteval(tmp_path, monkeypatch):
    """A task file, data, and FILE, as `lighteval custom` reads them."""
    for kind in ("files", "subdirs"):  # of its own tasks one downloads a file when it is imported
        monkeypatch.setattr(Registry, f"_load_from_{kind}", lambda *_: {})
    lines = [
        {"q": f"{k} and {k} is", "a": [f" {j * k}" for j in range(1, 5)], "g": 1} for k in range(9)
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (tmp_path / "tasks.py").write_text(TASKS.replace("FOLDER", repr(str(tmp_path / "data"))))
    (tmp_path / "model.py").write_text(FILE)
    own = CustomModelConfig(
        model_name=f"pretrained={CASES / 'models/tiny-llama3'},dtype=float32",
        model_definition_file_path=str(tmp_path / "model.py"),
    )
    found, names = [], []
    for config in (own, their_config("tiny-llama3", tmp_path / "m")):
        pipeline = Pipeline(
            "choices|2,texts|1",
            PipelineParameters(
                launcher_type=ParallelismManager.CUSTOM,
                custom_tasks_directory=str(tmp_path / "tasks.py"),
            ),
            EvaluationTracker(output_dir=str(tmp_path / "out")),
            model_config=config,
        )
        pipeline.evaluate()
        pipeline.save_and_push_results()
        found.append(pipeline.get_results())
        names.append(type(pipeline.model).__name__)
    assert names == ["JaxscoreModel", "TransformersModel"]
    assert found[0]["results"] == found[1]["results"]
    assert {"choices:2", "texts:1"} <= set(found[0]["results"])
    assert 0 <= found[0]["results"]["choices:2"]["acc"] <= 1


@pytest.mark.parametrize(
    ("one", "call", "why"),
    [
        (doc(choices=[" word" * 40]), "loglikelihood", "task.0, document 0, choice 0 has .* 30"),
        (doc(choices=[]), "loglikelihood", "document 0: expected choices"),
        (doc(query=""), "loglikelihood", "choice 0: its context is empty"),
        (doc(query="\ud800"), "loglikelihood", "document 0: expected valid Unicode"),
        (doc(images=["an image"]), "greedy_until", "document 0: expected whole .* no images"),
        (doc(num_samples=2), "greedy_until", "document 0: expected one sample"),
        (doc(stop_sequences=[""]), "greedy_until", "document 0: .* no empty stop string"),
        (doc(), "loglikelihood_rolling", "perplexity tasks .* are not computed"),
    ],
)
def test_documents_that_are_refused(one, call, why):
    model = ours("tiny-gpt2", override_chat_template=False, max_length=30)
    with pytest.raises(InputError, match=why):
        getattr(model, call)([one])


def test_arguments_that_are_refused():
    with pytest.raises(InputError, match="details, max_gen_toks: not used in lighteval"):
        ours("tiny-gpt2", max_gen_toks=5, details="a.jsonl")
    with pytest.raises(InputError, match="override_chat_template is 'maybe', expected true or"):
        ours("tiny-gpt2", override_chat_template="maybe")
    config = CustomModelConfig(
        model_name="demo",
        model_definition_file_path="",
        generation_parameters=GenerationParameters(temperature=1),
    )
    with pytest.raises(InputError, match="texts are greedy"):
        JaxscoreModel(config)
