"""Texts that are longer than a model's context, in windows, against PyTorch's expected values."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxscore.plan.requests import TextWindows

CASES = Path("/work/shared/cases/features")
