"""Tests that only one line of transformers can run, each with the reason."""

from importlib.metadata import version
from importlib.util import find_spec

import pytest

from jaxscore.errors import install_extra

TRANSFORMERS_4 = int(version("transformers").split(".")[0]) == 4
of_4 = pytest.mark.skipif(not TRANSFORMERS_4, reason="asks the classes of transformers 4.57")

NO_FLAX_CLASSES = f"transformers has no Flax classes; {install_extra('flax-classes')}"
HAS_FLAX_CLASSES = find_spec("transformers.modeling_flax_utils") is not None
flax_classes = pytest.mark.skipif(not HAS_FLAX_CLASSES, reason=NO_FLAX_CLASSES)
native_and_transformers = pytest.mark.parametrize(
    "implementation", ["native", pytest.param("transformers", marks=flax_classes)]
)
