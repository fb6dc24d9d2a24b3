"""The model's own answers to held-out questions: the input of `self-certainty`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.engine.generation.generator import Generator
from jaxscore.scorer import Scorer
from jaxscore.types.requests import GenerationRequest
from tools.demo_world import held_out

SAMPLES = 8  # of each question
MOST_TOKENS = 72  # two reasons and the answer take about fifty
TEMPERATURE = 1.0
QUESTIONS = 96  # of the demo, 135 KB; with a few dozen, chance decides which sample is right


def sampled_items(
    scorer: Scorer, items: Sequence[held_out.ReasonedItem], seed: int
) -> list[dict[str, Any]]:
    """Items as `self-certainty` reads them, with the right answer beside."""
    written = Generator(scorer).generate(
        GenerationRequest(
            i * SAMPLES + k,
            item.prompt,
            MOST_TOKENS,
            temperature=TEMPERATURE,
            seed=(seed * len(items) + i) * SAMPLES + k,
        )
        for i, item in enumerate(items)
        for k in range(SAMPLES)
    )
    texts = [one.text for one in written]
    return [
        {
            "session_id": f"demo-{i:02d}",
            "model_input": item.prompt,
            "output": texts[i * SAMPLES : (i + 1) * SAMPLES],
            "answer": item.answer,
            "generator": "demo",
        }
        for i, item in enumerate(items)
    ]


def write(folder: Path, scorer: Scorer, seed: int) -> Path:
    """`self_certainty.json`: questions with samples of the model's answers."""
    items = sampled_items(scorer, held_out.reasoned_items(seed, QUESTIONS), seed)
    path = folder / "self_certainty.json"
    path.write_text(json.dumps(items, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path
