"""What every test shares: one thread per process, no network, and a small random model."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.processes import Processes

# Set before torch is imported (here or in a child process): the tests run side by side, and small tensors gain
# nothing from threads.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
for _name in ("BURNISH_LOGGING_LEVEL", "VERL_LOGGING_LEVEL"):
    os.environ.pop(_name, None)
# A job in the background (`nohup make test &`) ignores Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight Qwen2 folder with tokenizer and chat template. Read-only: copy it before changing it."""
    from burnish.models.tiny import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Processes"]:
    """Four processes that call functions of the tests together; started once, by the first test that asks."""
    from tests.processes import Processes

    found = Processes(4, tmp_path_factory.mktemp("processes"))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _fresh_logging() -> Iterator[None]:
    """A command run in this process sets up logging; the next test starts without, so that caplog sees all lines."""
    yield
    logger = logging.getLogger("burnish")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
