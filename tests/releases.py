"""Marks of tests that only transformers 4.57 can run, which `.ci/run` installs at its end.

`quick_run` skips them under another line, and adds the mark `lines`.
"""

from importlib.metadata import version
from importlib.util import find_spec

import pytest

from jaxscore.errors import install_extra

TRANSFORMERS_4 = int(version("transformers").split(".")[0]) == 4
of_4 = pytest.mark.transformers_4

NO_FLAX_CLASSES = f"transformers has no Flax classes; {install_extra('flax-classes')}"
HAS_FLAX_CLASSES = find_spec("transformers.modeling_flax_utils") is not None
flax_classes = pytest.mark.flax_classes
native_and_transformers = pytest.mark.parametrize(
    "implementation", ["native", pytest.param("transformers", marks=flax_classes)]
)
# mark -> why its tests are skipped, or None if they run
ABSENT = {
    "transformers_4": None if TRANSFORMERS_4 else "asks the classes of transformers 4.57",
    "flax_classes": None if HAS_FLAX_CLASSES else NO_FLAX_CLASSES,
}
