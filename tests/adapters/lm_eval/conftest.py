"""A model that tests share, and what it answers."""

import pytest

from jaxscore.adapters.lm_eval import JaxscoreLM
from tests.adapters.lm_eval.evaluated import evaluated
from tests.adapters.lm_eval.folders import case
from tests.adapters.lm_eval.tasks import OF_EACH_KIND


@pytest.fixture(scope="session")
def model():
    return JaxscoreLM(str(case("tiny-llama3")), dtype="float32")


@pytest.fixture(scope="session")
def found(model):
    return evaluated(model, None, *OF_EACH_KIND)
