"""The lines that users type (the "Training" section of the commands page), run as they are written.

A line keeps its text; only what it leaves open is filled in: `…` by a value, `~` and names by small files of that
place, and sizes that it does not give by small ones. Where its parts exist it trains to a checkpoint that transformers
loads; where a part comes later it ends with exit code 2 and the name of that part.
"""

import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from burnish.data.files import read_rows, write_parquet
from burnish.entry.guard import guard
from burnish.models.tiny import write_tiny_model
from tests.examples.conftest import on_path
from tests.search.conftest import Words, serving
from tests.trainer.scripted import follow

ROOT = Path(__file__).parents[1]
RUN = Path("outputs/burnish/run")  # where a run goes that names no folder
MAIN = "python3 -m burnish.trainer.main_ppo"

PPO = r"""
    PYTHONUNBUFFERED=1 python3 -m burnish.trainer.main_ppo data.train_files=train.parquet data.val_files=test.parquet \
        data.train_batch_size=16 data.max_prompt_length=512 data.max_response_length=256 \
        actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.actor.optim.lr=1e-6 \
        actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
        actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
        critic.model.path=Qwen/Qwen2.5-0.5B-Instruct critic.optim.lr=1e-5 critic.ppo_micro_batch_size_per_gpu=4 \
        algorithm.kl_ctrl.kl_coef=0.001 trainer.logger=console trainer.val_before_train=False trainer.n_gpus_per_node=1 \
        trainer.nnodes=1 trainer.save_freq=10 trainer.test_freq=10 trainer.total_epochs=3
"""  # noqa: E501
VLLM = r"""
    python3 -m burnish.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files="['~/data/gsm8k/train.parquet']" \
        data.val_files="['~/data/gsm8k/test.parquet']" actor_rollout_ref.model.path=~/models/Qwen2.5-7B-Instruct \
        actor_rollout_ref.rollout.name=vllm trainer.total_epochs=3 trainer.logger='["tensorboard"]'
"""
GRPO = """… algorithm.adv_estimator=grpo algorithm.group_size=4 data.train_files="['…']" actor_rollout_ref.model.path=…
    trainer.total_epochs=10"""
GAE = """… algorithm.adv_estimator=gae algorithm.gamma=1.0 algorithm.lam=0.95 critic.enable=true critic.optim.lr=1e-5
    data.train_files="['…']" actor_rollout_ref.model.path=…"""
CUSTOM_REWARD = """… custom_reward_function.path=my_reward.py custom_reward_function.name=compute_score
    reward_model.reward_manager=naive …"""
FUSION = """… reward_model.reward_manager=prime reward_model.sandbox_fusion.url='http://…/run'
    reward_model.sandbox_fusion.max_concurrent=128 …"""
REWARD_MODEL = """… reward_model.enable=True reward_model.model.path=~/models/rm reward_model.model.input_tokenizer=…
    reward_model.micro_batch_size=64 …"""
KL = """… data.reward_fn_key=data_source algorithm.kl_penalty=0.01 actor_rollout_ref.rollout.temperature=0.7
    actor_rollout_ref.rollout.top_p=0.9 …"""
WEIGHTS = "… data.train_files=\"['a.parquet','b.parquet','c.parquet']\" data.dataset_weights=[0.5,0.3,0.2] …"
STAGE_2 = """… data.train_files="['curriculum/stage2_medium.parquet']"
    actor_rollout_ref.model.path=outputs/stage1/checkpoint-xxx …"""
WANDB = """… trainer.logger='["wandb"]' trainer.project_name=my_project trainer.run_name=exp1
    trainer.log_generation_samples=true …"""

LORA = (
    "… actor_rollout_ref.actor.lora.enable=true actor_rollout_ref.actor.lora.r=16 "
    "actor_rollout_ref.actor.lora.lora_alpha=32 "
    'actor_rollout_ref.actor.lora.target_modules=\'["q_proj","v_proj","k_proj","o_proj"]\' …'
)

SGLANG = (
    "… --config-path=examples/sglang_multiturn/config actor_rollout_ref.rollout.name=sglang "
    "actor_rollout_ref.rollout.agent_loop=tool_agent_loop tool_config_path=….yaml …"
)
SEARCH = (
    "… do_search=true max_turns=4 retriever.url=http://127.0.0.1:8000/retrieve retriever.topk=3 "
    "data.max_start_length=2048 data.max_obs_length=500 actor_rollout_ref.actor.state_masking=true "
    "actor_rollout_ref.rollout.n_agent=5 …"
)

GENERATION = r"""
    python3 -m burnish.trainer.main_generation data.path=test.parquet data.n_samples=5 data.output_path=out.parquet data.batch_size=128 \
        model.path=~/models/m rollout.temperature=1.0 rollout.top_k=50 rollout.top_p=0.7 rollout.prompt_length=1536 rollout.response_length=512
"""  # noqa: E501
EVAL = r"""
    python3 -m burnish.trainer.main_eval data.path=out.parquet data.prompt_key=prompt data.response_key=responses \
        data.data_source_key=data_source data.reward_model_key=reward_model custom_reward_function.path=my_reward.py
"""

OPEN = {  # what stands for `…` where a line leaves a value open
    "['…']": "['train.parquet']",
    "http://…/run": "http://127.0.0.1:9/run",
    "….yaml": "tools.yaml",
    "=…": "=~/models/Qwen2.5-7B-Instruct",
}
SMALL = {
    "data.train_files": "train.parquet",
    "actor_rollout_ref.model.path": "~/models/Qwen2.5-7B-Instruct",
    "data.train_batch_size": "16",
    "data.max_prompt_length": "64",
    "data.max_response_length": "8",
    "trainer.total_epochs": "1",
    "trainer.device": "cpu",
}


def complete(line: str) -> str:
    """The line as a shell takes it: what it leaves open filled in, and small sizes where it names none."""
    for open_value, value in OPEN.items():
        line = line.replace(open_value, value)
    line = re.sub(r"^…", MAIN, line.strip()).removesuffix("…")
    # Newlines in the shorter lines above are for reading only.
    line = re.sub(r"\s*\\?\n\s*", " ", line)
    given = {word.partition("=")[0] for word in shlex.split(line)}
    return " ".join([line, *(f"{key}={value}" for key, value in SMALL.items() if key not in given)])


@pytest.fixture(scope="session")
def place_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("commands") / "model", context=4096)


@pytest.fixture
def place(tmp_path, monkeypatch, place_model):
    """A home and a working directory in which every name of the lines is real."""
    home, here = tmp_path / "home", tmp_path / "here"
    models = [home / "models/Qwen2.5-7B-Instruct", home / "models/m", here / "Qwen/Qwen2.5-0.5B-Instruct"]
    for folder in models:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(place_model)
    for name, count in {"train": 16, "test": 2}.items():
        for folder in (home / "data/gsm8k", here):
            write_parquet(gsm8k_rows(count), folder / f"{name}.parquet")
    for name in ("a", "b", "c"):
        write_parquet(gsm8k_rows(8, opening=f"{name}: "), here / f"{name}.parquet")
    write_parquet(gsm8k_rows(4), here / "curriculum/stage2_medium.parquet")
    (here / "my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': len(solution_str) + 100 * int(ground_truth), 'acc': 0.5}\n"
    )
    (here / "tools.yaml").write_text("tools:\n  - name: calculator\n")
    recipe = here / "examples/sglang_multiturn/config/gsm8k_multiturn_grpo.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("algorithm: {adv_estimator: grpo}\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return here


def gsm8k_rows(count: int, opening: str = "") -> list[dict]:
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{opening}{i} apples and 2 more?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(i + 2)},
            "extra_info": {"split": "train", "index": i},
        }
        for i in range(count)
    ]


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Run a line in this process as its module's entry point does; returns (exit code, stdout, stderr)."""

    def run_line(line: str, *overrides: str) -> tuple[int, str, str]:
        words = shlex.split(complete(line))
        while "=" in words[0]:
            monkeypatch.setenv(*words.pop(0).split("=", 1))
        assert words[:2] == ["python3", "-m"]
        code = guard(importlib.import_module(words[2]).main, [*words[3:], *overrides])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_line


@pytest.fixture
def train(run):
    """Run a line that must train, to a checkpoint that transformers loads; returns what it said."""

    def train_line(line: str, *overrides: str, checkpoint: str | None = "global_step_1", folder: Path = RUN) -> str:
        code, out, err = run(line, *overrides)
        assert code == 0, err
        assert "Traceback" not in err
        if checkpoint:
            assert_loads(folder / checkpoint)
        return out + err

    return train_line


@pytest.fixture
def shell(place, tmp_path):
    """Run a line in bash, in a process of its own, with `python3` and `burnish` on the PATH."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["burnish"]
    module, function = entry.split(":")
    programs = {
        "python3": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
        "burnish": f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n",
    }
    environment = on_path(tmp_path / "bin", programs)

    def run_line(line: str) -> subprocess.CompletedProcess:
        return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=240)

    return run_line


def metrics(folder: Path = RUN) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def rollouts(folder: Path = RUN) -> list[dict]:
    files = sorted((folder / "rollouts").glob("*.jsonl"), key=lambda file: int(file.stem))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def assert_loads(folder: Path) -> None:
    """transformers takes the checkpoint as it is, and the policy inside it."""
    for path in (folder, folder / "actor"):
        model = AutoModelForCausalLM.from_pretrained(path)
        assert model.config.model_type == "qwen2"


def test_ppo_with_a_critic(shell):
    done = shell(f"{PPO.strip()} trainer.device=cpu")
    assert done.returncode == 0, done.stderr
    lines = metrics()
    assert [line["step"] for line in lines] == [1, 2, 3], "16 rows in batches of 16, three times"
    assert "val-core/openai/gsm8k/reward/mean@1" in lines[-1] and "critic/vf_loss" in lines[-1]
    assert lines[-1]["response_length/max"] <= 256
    assert "algorithm.use_kl_in_reward=true, because algorithm.kl_ctrl.kl_coef=0.001 is set" in done.stderr
    assert "critic/score/mean" in done.stdout, "the console shows the figures users look for"
    assert_loads(RUN / "global_step_3")
    assert (RUN / "global_step_3/critic/config.json").is_file()


def test_grpo_takes_4_samples_and_reports_it(train):
    """The same line with an engine that is there."""
    said = train(VLLM.replace("actor_rollout_ref.rollout.name=vllm", ""), checkpoint="global_step_3")
    assert "actor_rollout_ref.rollout.n=4: grpo compares the responses to one prompt" in said
    groups = Counter(row["uid"] for row in rollouts())
    assert len(groups) == 3 * 16 and set(groups.values()) == {4}
    [file] = Path("outputs").rglob("events.out.tfevents.*")  # as `tensorboard --logdir=./outputs` finds it
    assert file.parent == RUN / "tensorboard"
    events = EventAccumulator(str(file.parent)).Reload().Scalars("critic/score/mean")
    assert [event.step for event in events] == [1, 2, 3]


def test_grpo_with_a_group_size_in_the_short_form(shell):
    """`burnish X …` is the short form of every module."""
    line = complete(GRPO).replace(MAIN, "burnish ppo").replace("total_epochs=10", "total_epochs=2")
    done = shell(line)
    assert done.returncode == 0, done.stderr
    assert "algorithm.group_size is read as actor_rollout_ref.rollout.n=4" in done.stderr
    assert [line["step"] for line in metrics()] == [1, 2]
    assert set(Counter(row["uid"] for row in rollouts()).values()) == {4}
    assert_loads(RUN / "global_step_2")


@pytest.mark.parametrize("name", ["rloo", "remax", "reinforce_plus_plus"])
def test_other_estimators(train, name):
    train(f"… algorithm.adv_estimator={name} …")
    samples = Counter(row["uid"] for row in rollouts())
    assert len(samples) == 16 and set(samples.values()) == {4 if name == "rloo" else 1}


def test_custom_reward_function(train):
    train(CUSTOM_REWARD)
    rows = rollouts()
    assert len(rows) == 16
    for row in rows:
        length = row["score"] - 100 * int(row["ground_truth"])
        assert 0 <= length <= 8, "a token of the small model is at most one character"
        assert row["reward_info"]["acc"] == 0.5


def test_prime_with_a_sandbox_server(train):
    """These rows hold no programs, so the server is never asked."""
    said = train(FUSION)
    assert "reward_model.sandbox_fusion.max_concurrent is read as reward_model.sandbox.max_concurrent=128" in said
    assert len(rollouts()) == 16


def test_a_reward_model(train, place_model):
    folder = Path.home() / "models/rm"
    AutoModelForSequenceClassification.from_pretrained(place_model, num_labels=1).save_pretrained(folder)
    AutoTokenizer.from_pretrained(place_model).save_pretrained(folder)
    write_parquet([row | {"reward_model": {"style": "model"}} for row in gsm8k_rows(16)], "train.parquet")
    said = train(REWARD_MODEL)
    assert "reward_model.micro_batch_size is read as reward_model.micro_batch_size_per_gpu=64" in said
    rows = rollouts()
    assert len(rows) == 16 and all(row["score"] == row["reward_info"]["rm_score"] for row in rows)
    assert metrics()[-1]["reward_model/score/mean"] == pytest.approx(sum(row["score"] for row in rows) / 16, abs=1e-5)


def test_lora(train, place_model):
    said = train(LORA, checkpoint=None)
    assert "actor_rollout_ref.actor.lora.r is read as actor_rollout_ref.model.lora_rank=16" in said
    actor = RUN / "global_step_1/actor"
    settings = json.loads((actor / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (16, 32)
    assert settings["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert not (actor / "model.safetensors").exists() and (actor / "adapter_model.safetensors").is_file()
    assert Path(settings["base_model_name_or_path"]) == place_model


def test_kl_penalty_as_a_number(train):
    said = train(KL)
    assert "algorithm.kl_penalty is read as algorithm.kl_ctrl.kl_coef=0.01" in said
    [line] = metrics()
    assert line["actor/reward_kl_penalty_coeff"] == pytest.approx(0.01) and "actor/reward_kl_penalty" in line


def test_weights_of_files(train):
    train(WEIGHTS, "trainer.total_training_steps=4", checkpoint="global_step_4")
    groups = {row["uid"]: row["prompt"] for row in rollouts()}
    drawn = Counter(re.search(r"([abc]): \d+ apples", prompt)[1] for prompt in groups.values())
    assert sum(drawn.values()) == 64
    for name, share in {"a": 0.5, "b": 0.3, "c": 0.2}.items():
        assert abs(drawn[name] / 64 - share) < 0.1, drawn


def test_gae_and_a_next_stage_that_starts_from_its_checkpoint(train, place):
    keys = ("trainer.default_local_dir=outputs/stage1", "actor_rollout_ref.actor.optim.lr=1e-2")
    train(GAE, *keys, folder=place / "outputs/stage1")
    assert metrics(Path("outputs/stage1"))[-1]["critic/lr"] == pytest.approx(1e-5)
    stage1 = (place / "outputs/stage1/global_step_1").rename(place / "outputs/stage1/checkpoint-xxx")
    assert (stage1 / "critic/model.safetensors").is_file()
    train(STAGE_2, "actor_rollout_ref.actor.optim.lr=1e-12")
    start, end = (AutoModelForCausalLM.from_pretrained(path) for path in (stage1, RUN / "global_step_1"))
    for name, weight in start.state_dict().items():
        assert (weight - end.state_dict()[name]).abs().max() < 1e-6, f"{name} is not that of the checkpoint"


def test_run_and_project_names_place_the_run(train):
    """The same line with a logger that is there."""
    line = WANDB.replace("wandb", "console")
    said = train(line, "data.val_files=test.parquet", folder=Path("outputs/my_project/exp1"))
    assert "--- sample 1 of openai/gsm8k ---" in said, "trainer.log_generation_samples shows validation answers"


def test_the_search_agent(train, monkeypatch):
    """The address is that of a server which is there, and the policy writes searches: a random one does not."""

    def write(asked):
        return "<search> a whale </search>" if not asked.turn else f"<answer>{asked.sample}</answer>"

    follow(monkeypatch, write)
    with serving(Words()) as library:
        line = SEARCH.replace("http://127.0.0.1:8000", library.url)
        said = train(line, "data.max_response_length=400", "trainer.total_epochs=2", checkpoint="global_step_2")
        queries = [query for asked, _ in library.retriever.calls for query in asked]
    assert "actor_rollout_ref.rollout.agent.default_agent_loop=search_agent, because do_search=true" in said
    assert queries == ["Is anybody there?", "a whale"], "the documents of a query are kept"
    rows = rollouts()
    assert len(rows) == 2 * 16 * 5 and [line["env/searched"] for line in metrics()] == [1, 1]
    for row in rows:
        told = row["response"].split("</search>")[1].split("<answer>")[0]
        assert told.startswith('\n\n<information>Doc 1(Title: "Moby Dick") A novel by Melville about a whale.\nDoc 2(')
        assert row["response_mask"].count(0) == len(told.encode()) and row["turns"] == 4


def test_the_tool_agent(train, monkeypatch):
    """The same line with an engine that is there."""
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "1+2"}}</tool_call>'
    follow(monkeypatch, lambda asked: "#### 3" if asked.turn else call)
    said = train(SGLANG.replace("actor_rollout_ref.rollout.name=sglang ", ""), "data.max_response_length=200")
    assert "agent_loop is read as actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent" in said
    assert "tool_config_path is read as actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml" in said
    [line] = metrics()
    assert line["tools/calls"] == 1 and line["tool_call_counts/mean"] == 1
    assert line["critic/score/mean"] == 1 / 16, "one of the questions has this answer"
    assert all("3<|end|><|start|>assistant\n#### 3" in row["response"] for row in rollouts())


ENGINE = "actor_rollout_ref.rollout.name={0} needs the package {0}, which is not installed"
LATER = "burnish: error: not available yet: "
MISSING = {
    "… model_engine=megatron …": (LATER, "Megatron-core"),
    "… actor_rollout_ref.actor.strategy=megatron …": (LATER, "Megatron-core"),
    SGLANG: (ENGINE.format("sglang"), "actor_rollout_ref.rollout.name=native"),
    VLLM: (ENGINE.format("vllm"), "actor_rollout_ref.rollout.name=native"),
    SEARCH.replace("127.0.0.1:8000", "127.0.0.1:9"): (  # port 9 is nobody's, as the line's own might not be
        "retriever.url=http://127.0.0.1:9/retrieve",
        "Start one with `burnish retriever serve FOLDER --port 9`",
    ),
}


@pytest.mark.parametrize("line", MISSING, ids=["megatron", "strategy", "sglang", "vllm", "search"])
def test_lines_of_which_a_part_is_missing(run, place, monkeypatch, line):
    monkeypatch.setattr("burnish.rollout.hosted.spec.find_spec", lambda name: None)
    code, _, err = run(line)
    missing, fix = MISSING[line]
    assert code == 2 and "Traceback" not in err and fix in err
    assert err.startswith(missing) if missing == LATER else missing in err
    assert not (place / "outputs").exists()


def test_generate_then_eval(shell):
    done = shell(f"{GENERATION.strip()} trainer.device=cpu")
    assert done.returncode == 0, done.stderr
    rows = read_rows("out.parquet")
    assert [len(row["responses"]) for row in rows] == [5, 5]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "3"], "the rows are those of test.parquet"
    done = shell(EVAL)
    assert done.returncode == 0, done.stderr
    result = json.loads(Path("out.eval.json").read_text())
    expected = 250 + sum(len(text) for row in rows for text in row["responses"]) / 10
    statistics = result["data_sources"]["openai/gsm8k"]["statistics"]
    assert statistics["reward"]["mean@5"] == pytest.approx(expected), "the function of my_reward.py"
    assert result["metrics"]["val-core/openai/gsm8k/acc/mean@5"] == 0.5
