"""Tasks of every output type over drawn documents, for lm-evaluation-harness."""

import random
from typing import Any

import datasets

WORDS = (
    "the cat sat on mat dog ran to house and tree under sky blue red one two Oslo Norway river "
    "7 1885 (x) don't"
).split()
LETTERS = " ABCD"


def text(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def documents(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """`q` and `t` texts, `a` four answers, `g` the place of the right one."""
    draw = random.Random(seed)
    out = []
    for _ in range(n):
        answers = [text(draw, 1, 4) for _ in range(4)]
        answers[3] = answers[0] if draw.random() < 0.3 else answers[3]  # two that are equal
        out.append(
            {
                "q": text(draw, 3, 9),
                "a": answers,
                "g": draw.randrange(4),
                "t": f"{text(draw, 1, 70)}\n\n {text(draw, 1, 9)}.",
            }
        )
    return out


DOCUMENTS = documents(8)


def data(**_: Any) -> dict[str, Any]:
    kept = datasets.Dataset.from_list(DOCUMENTS)
    return {"test": kept, "train": datasets.Dataset.from_list(documents(5, seed=1))}


def task(name: str, kind: str, **config: Any) -> dict[str, Any]:
    return {
        "task": name,
        "custom_dataset": data,
        "test_split": "test",
        "fewshot_split": "train",
        "output_type": kind,
        "doc_to_text": "Q: {{q}}\nA:",
        **config,
    }


def metrics(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name} for name in names]


GREEDY = {"until": ["\n", " cat", "."], "max_gen_toks": 12, "do_sample": False}
TASKS = {
    one["task"]: one
    for one in (
        task(
            "choices", "multiple_choice", doc_to_choice="{{a}}", doc_to_target="g", num_fewshot=2,
            metric_list=metrics("acc", "acc_norm"),
        ),
        task(
            "letters", "multiple_choice", doc_to_choice=list("ABCD"), doc_to_target="g",
            doc_to_text="{{q}}\nA. {{a[0]}}\nB. {{a[1]}}\nAnswer:", num_fewshot=1,
            metric_list=metrics("acc"),
        ),
        task(
            "no_context", "multiple_choice", doc_to_text="", doc_to_choice="{{a}}",
            doc_to_target="g", target_delimiter="", metric_list=metrics("acc"),
        ),
        task(
            "blanks", "loglikelihood", doc_to_text="{{q}} \n", doc_to_target=" {{a[1]}}",
            target_delimiter="", metric_list=metrics("perplexity", "acc"),
        ),
        task(
            "rolling", "loglikelihood_rolling", doc_to_text="", doc_to_target="{{t}}",
            metric_list=metrics("word_perplexity", "byte_perplexity", "bits_per_byte"),
        ),
        task(
            "texts", "generate_until", doc_to_target="{{a[0]}}", generation_kwargs=GREEDY,
            num_fewshot=1, metric_list=metrics("exact_match"),
        ),
        task(
            "prefilled", "generate_until", doc_to_target="{{a[0]}}", gen_prefix="So:",
            generation_kwargs={"until": ["\n\n"], "max_gen_toks": 5},
            metric_list=metrics("exact_match"),
        ),
    )
}  # fmt: skip
SCORED = ("choices", "letters", "no_context", "blanks", "rolling")
WRITTEN = ("texts", "prefilled")
OF_EACH_KIND = ("choices", "rolling", "texts")
