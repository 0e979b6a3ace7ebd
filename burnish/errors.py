"""The whole error model on one screen.

A `UserError` is something the user can fix by changing what they typed or brought: the command line prints it without a
traceback and exits with 2. Any other error exits with 1. A failing sample (a reward function that raises, a tool that
hangs) is data, until too many fail: then the step raises one of the run-time errors below with the collected causes.
"""

from pathlib import Path


class BurnishError(Exception):
    """Base of all deliberate errors. The message says what is wrong, where, and how to fix it."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows (IPython asks for it): the message, as a terminal does."""
        return [f"burnish: error: {text_of(self)}"]


class UserError(BurnishError):
    """The command, the configuration or a file the user brought is wrong."""

    exit_code = 2


class ConfigError(UserError):
    """A key, a value or a combination of them; raised before any model is loaded."""


class NotAvailable(ConfigError):
    """A known capability that this version or this machine does not have."""

    def __init__(self, what: str, instead: str = ""):
        super().__init__(f"not available yet: {what}" + (f". {instead}" if instead else ""))


class DataError(UserError):
    """A dataset file, row or column; the message names file, row and field."""


class ModelError(UserError):
    """A model folder without weights, tokenizer or a usable configuration."""


class CheckpointError(UserError):
    """A checkpoint that cannot be written (full disk, read-only folder) or read (truncated, another model)."""


class OutOfMemory(UserError):
    """The device, or the plan for it, has too little memory: the phase, planned and measured memory, and keys that make
    it fit."""


class RewardError(UserError):
    """More samples of a step failed to be scored than `reward.max_failure_ratio` allows."""


class NothingToLearn(RewardError):
    """All samples of all prompts that a step may draw earn the same, and dynamic sampling found no other."""


class RolloutError(BurnishError):
    """The rollout engine could not finish a request."""


class EngineLost(RolloutError):
    """The engine that had the request died or hangs. The request may be sent to another."""


class AgentError(BurnishError):
    """An agent loop broke its contract (ids, masks and log-probs that do not line up, an unknown loop)."""


class ToolFailure(BurnishError):
    """A tool, a retriever or an interaction failed, hung, or broke its contract. The trajectory ends and is dropped and
    counted; RewardError when more of a step do than `reward.max_failure_ratio` allows."""


class WorkerError(BurnishError):
    """A worker failed; the message names the worker and the method."""


class WorkerDied(WorkerError):
    """The process of a worker, its node or its cluster died; the message names them, the reason and the last lines
    of its log. The processes of its group are ended with it: what they held is in the last checkpoint."""


class DeadlineError(BurnishError):
    """A wait passed its deadline; the message names its owner and what it waited for."""


class WorkersLate(DeadlineError):
    """Workers did not finish a call within `trainer.worker_timeout`; the message says where each of them is. The
    processes of their pool are ended, as after WorkerDied."""


class BadStepError(BurnishError):
    """Loss or gradient was NaN or infinite in `trainer.max_bad_steps` updates in a row."""


def text_of(error: BaseException) -> str:
    """What an exception says; a user's own may raise when it is asked."""
    try:
        return str(error)
    except (Exception, SystemExit) as wrong:  # noqa: BLE001
        return f"(its text cannot be shown: __str__ raised {type(wrong).__name__})"


def install_command(extra: str) -> str:
    """The command that installs an extra of burnish. In a checkout it takes the versions in constraints.txt, so that no
    installed package is replaced by another version."""
    root = Path(__file__).parents[1]
    if not ((root / "constraints.txt").is_file() and (root / "pyproject.toml").is_file()):
        return f"pip install 'burnish[{extra}]'"
    folder = Path() if root == Path.cwd() else root
    return f"pip install -c {folder / 'constraints.txt'} -e '{folder}[{extra}]'"
