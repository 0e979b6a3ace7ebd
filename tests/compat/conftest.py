"""compat/verl as an installed package: on sys.path here, on PYTHONPATH of the processes that a test starts."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPAT = str(ROOT / "compat/verl")
if COMPAT not in sys.path:
    sys.path.append(COMPAT)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    path = [COMPAT, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.delenv("BURNISH_VERL_ANNOUNCED", raising=False)
