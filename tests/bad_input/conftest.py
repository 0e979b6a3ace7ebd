"""A place with everything that a right command needs, and ways to run a wrong one, which ends with exit code 2, one
message and no traceback."""

import pytest

from burnish.cli.main import main
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"]
LOADERS = [
    "burnish.workers.actor_rollout_ref.load_causal_lm",
    "burnish.workers.critic.load_value_model",
    "burnish.trainer.sft.load_causal_lm",
    "burnish.trainer.rm.load_reward_model",
    "burnish.workers.reward_model.load_reward_model",
]
EACH = pytest.mark.parametrize("command", ["ppo", "sft", "rm"])
MODEL_KEY = {"ppo": "actor_rollout_ref.model.path", "sft": "model.path", "rm": "model.path"}


def assert_says(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in:\n{message}"


@pytest.fixture
def place(tmp_path, tiny_model, monkeypatch):
    """A working directory with a model, rows for RL and for SFT, and a reward function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(tiny_model)
    write_parquet(arithmetic.rows("train", 4, seed=0), "train.parquet")
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    write_parquet([{"messages": messages}] * 4, "sft.parquet")
    write_parquet([{"prompt": "2+2", "chosen": "4", "rejected": "5"}] * 4, "pairs.parquet")
    (tmp_path / "reward.py").write_text("def compute_score(solution_str):\n    return float(len(solution_str))\n")
    return tmp_path


@pytest.fixture
def jobs(place):
    """The overrides of a right command of each kind."""
    common = ["trainer.device=cpu", "trainer.default_local_dir=run", "trainer.logger=jsonl"]
    ppo = [
        "data.train_files=train.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=4",
        "actor_rollout_ref.model.path=model",
        "custom_reward_function.path=reward.py",
        *GRPO,
        *common,
    ]
    sft = ["data.train_files=sft.parquet", "data.train_batch_size=4", "data.max_length=128", "model.path=model"]
    rm = ["data.train_files=pairs.parquet", *sft[1:]]
    return {"ppo": ppo, "sft": [*sft, *common], "rm": [*rm, *common]}


@pytest.fixture
def run(jobs, capsys):
    """Run `burnish <command>` with its job and further overrides; returns (exit code, stdout, stderr)."""

    def run_command(command: str, *overrides: str) -> tuple[int, str, str]:
        given = {override.partition("=")[0] for override in overrides}
        job = [word for word in jobs[command] if word.partition("=")[0] not in given]
        code = main([command, *job, *(word for word in overrides if word.partition("=")[2] != "DROP")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def refuses(run):
    """Run a command that must end as a user's mistake; returns the message."""

    def refused(command: str, *overrides: str) -> str:
        code, _, err = run(command, *overrides)
        assert code == 2, err
        message = err[err.index("burnish: error: ") :]
        assert "Traceback" not in err
        return message

    return refused


@pytest.fixture
def no_model(monkeypatch):
    """Loading a model is a failure of the test."""

    def load(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    for name in LOADERS:
        monkeypatch.setattr(name, load)
