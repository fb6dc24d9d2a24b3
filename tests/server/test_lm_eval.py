"""lm-evaluation-harness' `local-completions` against the server: the model's own numbers."""

import pytest

from jaxscore.adapters.lm_eval import JaxscoreLM
from tests.adapters.lm_eval.evaluated import assert_same, evaluated
from tests.conftest import CASES
from tests.server.conftest import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries

NAMES = ("choices", "letters", "no_context", "blanks", "rolling", "texts")


@pytest.mark.parametrize("together", [{"num_concurrent": 8}, {"num_concurrent": 1}], ids=str)
def test_the_same_numbers(together, listening, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    served, (host, port) = listening()
    over_http = evaluated(
        "local-completions",
        {
            "base_url": f"http://{host}:{port}/v1/completions",
            "model": "tiny",
            "tokenizer": str(CASES / "models" / MODEL),
            "tokenizer_backend": "huggingface",
            "add_bos_token": True,
            "max_length": 512,
            **together,
        },
        *NAMES,
        batch_size=1 if together["num_concurrent"] > 1 else 4,
    )
    itself = evaluated(JaxscoreLM(served.scorer, max_length=512), None, *NAMES)
    # Answers that are equal come in requests of their own, at different times.
    assert_same(over_http, itself, *NAMES, tied=("choices", "no_context"))
