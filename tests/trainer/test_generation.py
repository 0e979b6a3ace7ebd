"""`burnish generate`: validation's own responses, in a file that keeps the rows as they were and survives a kill."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from burnish.agents.runner import TrajectoryRunner
from burnish.cli.main import main
from burnish.config import GenerationConfig
from burnish.config.key import keys_of
from burnish.config.model import ModelConfig
from burnish.data.chat import ChatRenderer
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import ConfigError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.rewards.scores.arithmetic import compute_score
from burnish.rollout.hosted import spec
from burnish.tracking import watchdog
from burnish.trainer import generation, generation_worker
from burnish.trainer.generation_worker import GenerationWorker
from burnish.trainer.response_file import NEUTRAL
from tests.trainer.conftest import NANO, validated, wait_for

ADDED = {"responses", "response_log_probs", "finish_reasons", "response_lengths", "num_turns", "num_tool_calls"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parquet(arithmetic.rows("test", 10, seed=0), "test.parquet")
    return tmp_path


@pytest.fixture
def job(place):
    paths = ["data.path=test.parquet", "data.output_path=out.parquet", f"model.path={NANO}"]
    return [*paths, "rollout.prompt_length=32", "rollout.response_length=48", "trainer.device=cpu"]


@pytest.fixture
def generate(job, capsys):
    def run(*overrides: str) -> tuple[int, str, str]:
        given = {override.partition("=")[0] for override in overrides}
        code = main(["generate", *(word for word in job if word.partition("=")[0] not in given), *overrides])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def made(generate):
    def run(*overrides: str) -> list[dict]:
        code, _, err = generate(*overrides)
        assert code == 0, err
        output = next((word.partition("=")[2] for word in overrides if word.startswith("data.output_path=")), None)
        return read_rows(output or "out.parquet")

    return run


@pytest.fixture
def refuses(generate, monkeypatch):
    """Run a command that must end as a user's mistake, with one line and before a model is loaded; returns it."""

    def load(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(generation_worker, "load_engine", load)

    def run(*overrides: str) -> str:
        code, _, err = generate(*overrides)
        assert code == 2 and "Traceback" not in err, err
        message = err[err.index("burnish: error: ") :].strip()
        assert "\n" not in message and "actor_rollout_ref" not in message
        assert not list(Path().glob("*.parts")), "a refused command leaves nothing"
        return message

    return run


def test_generate_gives_what_validation_gives(made, place):
    """The same rows, seed and sampling: the same responses in the same order, and so the same accuracy."""
    rows = made("data.n_samples=2", "data.batch_size=3", "rollout.temperature=1", "rollout.top_p=0.9", "trainer.seed=7")
    policy = "actor_rollout_ref.rollout"
    code = main(["ppo", "algorithm.adv_estimator=grpo", "data.train_files=test.parquet",
                      "data.val_files=test.parquet", "data.train_batch_size=2", "data.max_prompt_length=32",
                      "data.max_response_length=48", f"actor_rollout_ref.model.path={NANO}",
                      f"{policy}.val_kwargs.n=2", f"{policy}.val_kwargs.do_sample=true",
                      f"{policy}.val_kwargs.temperature=1", f"{policy}.val_kwargs.top_p=0.9", "trainer.val_only=true",
                      "trainer.seed=7", "trainer.device=cpu", "trainer.default_local_dir=run",
                      "trainer.logger=jsonl"])  # fmt: skip
    assert code == 0
    lines = validated(0)
    end = load_tokenizer(NANO).eos_token
    ours = [pair for row in rows for pair in zip(row["responses"], row["finish_reasons"], strict=True)]
    assert ours == [(line["response"].removesuffix(end), line["finish_reason"]) for line in lines]
    assert len(set(ours)) > 10, "the responses are sampled, and differ"
    sums = [total for row in rows for total in row["response_log_probs"]]
    assert sums == pytest.approx([sum(line["rollout_log_probs"]) for line in lines], abs=0.01)
    scores = [compute_score(t, row["reward_model"]["ground_truth"]) for row in rows for t in row["responses"]]
    assert [score["score"] for score in scores] == [line["score"] for line in lines]


def test_log_prob_sums_are_those_of_a_forward_pass(made):
    tokenizer = load_tokenizer(NANO)
    module = load_causal_lm(NANO, ModelConfig())
    rows = made("data.n_samples=3", "rollout.temperature=0.8", "rollout.top_k=5", "rollout.response_length=12")
    assert {reason for row in rows for reason in row["finish_reasons"]} == {"stop", "length"}
    for row in rows[:4]:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for text, total, reason, length in zip(*(row[name] for name in
                ("responses", "response_log_probs", "finish_reasons", "response_lengths")), strict=True):  # fmt: skip
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids = [*ids, tokenizer.eos_token_id] if reason == "stop" else ids
            assert len(ids) == length
            with torch.no_grad():
                logits = module(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            log_probs = (logits / 0.8).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
            assert total == pytest.approx(float(log_probs.sum()), abs=1e-4)


def test_every_column_stays_as_it_was(made, place):
    table = pa.table(
        {
            "prompt": ["347+586=?", "100+100=?", "222-111=?"],
            "nested": pa.array([{"a": [1, None], "b": None}, None, {"a": [], "b": "x"}]),
            "map": pa.array([[("k", 1)], [], None], type=pa.map_(pa.string(), pa.int32())),
            "nothing": pa.nulls(3),
            "category": pa.array(["x", "y", "x"]).dictionary_encode(),
            "day": pa.array([0, 1, None], type=pa.date32()),
            "messages": [1.5, 2.5, 3.5],  # a name that a run uses itself
        }
    ).replace_schema_metadata({"made by": "someone"})
    pq.write_table(table, "rows.parquet")
    made("data.path=rows.parquet", "data.batch_size=2")
    out = pq.read_table("out.parquet")
    assert out.select(table.column_names).equals(table) and set(out.column_names) - set(table.column_names) == ADDED
    assert out.schema.metadata[b"made by"] == b"someone"
    assert [len(row) for row in out["responses"].to_pylist()] == [1, 1, 1]


def test_json_rows_with_different_fields(made, place):
    """And prompts that are cut where that is asked for."""
    lines = [{"question": "1+1=?", "n": None}, {"question": "2+2=?", "n": 2, "extra": {"a": [1]}}]
    with gzip.open("rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    cut = ["rollout.prompt_length=8", "data.truncation=left"]
    rows = made("data.path=rows.jsonl.gz", "data.prompt_key=question", *cut)
    found = [{name: row[name] for name in ("question", "n", "extra")} for row in rows]
    assert found == [{"question": "1+1=?", "n": None, "extra": None}, lines[1]]
    assert all(row["responses"][0] is not None for row in rows)


def test_the_last_line_says_what_there_is_and_how_to_continue(generate, place):
    write_parquet([{"question": "1+1=?"}] * 10, "rows.parquet")
    keys = ["data.path=rows.parquet", "data.prompt_key=question", "data.n_samples=2", "rollout.response_length=3"]
    code, out, err = generate(*keys)
    assert code == 0, err
    assert "10 rows, 20 responses, 100.0% cut at 3 tokens, " in out and " tokens/s: out.parquet" in out
    assert "burnish eval data.path=out.parquet data.prompt_key=question" in out
    assert "every response was cut at rollout.response_length=3; raise it" in err
    assert "generating: 10/10 rows" in err


def test_a_limit_of_the_agent_loop_is_not_taken_for_ours(generate, own_loop):
    code, out, err = generate(*own_loop)
    assert code == 0 and "10 responses, 100.0% cut, " in out
    assert "every response was cut, 10 before they had the 48 tokens of rollout.response_length; look at the" in err


def test_gradient_checkpointing_stays_off(generate, monkeypatch):
    def load(model, *_args):
        raise AssertionError(f"checkpointing: {model.enable_gradient_checkpointing}")

    monkeypatch.setattr(generation_worker, "load_engine", load)
    _, _, err = generate("model.enable_gradient_checkpointing=true")
    assert "AssertionError: checkpointing: False" in err and "no effect: model.enable_gradient_checkpointing" in err


def test_objects_of_a_json_file_reach_agent_loops_without_the_fields_of_their_neighbours(made, place, monkeypatch):
    (place / "rows.json").write_text(json.dumps([{"prompt": "1+1=?", "extra_info": {name: 1}} for name in "ab"]))
    seen, run = [], TrajectoryRunner.run
    noted = lambda self, rows, *args, **keys: seen.extend(rows) or run(self, rows, *args, **keys)  # noqa: E731
    monkeypatch.setattr(TrajectoryRunner, "run", noted)
    made("data.path=rows.json")
    assert [row["extra_info"] for row in seen] == [{"a": 1}, {"b": 1}] and [row["index"] for row in seen] == [0, 1]


def test_prompts_are_checked_some_at_a_time(refuses, monkeypatch):
    counts, count = [], ChatRenderer.token_counts
    kept = lambda self, texts, limit: counts.append(len(texts)) or count(self, texts, limit)  # noqa: E731
    monkeypatch.setattr(ChatRenderer, "token_counts", kept)
    write_parquet([{"prompt": "1+1=?" * (1 + 9 * (i == 2500))} for i in range(2600)], "rows.parquet")
    said = refuses("data.path=rows.parquet")
    assert "row 2500 (the first is 0): the prompt has" in said and "(1 of 2600 prompts are, the longest has" in said
    assert sum(counts) == 2600 and max(counts) < 2000


def test_the_same_command_again_does_nothing(made, generate, monkeypatch):
    assert set(NEUTRAL) < set(keys_of(GenerationConfig))
    made("data.n_samples=2")
    before = Path("out.parquet").read_bytes()
    monkeypatch.setattr(generation, "GenerationJob", None)  # nothing is read or loaded
    speed = ["data.batch_size=1", "rollout.max_num_seqs=2", "rollout.timeout=60", "rollout.enforce_eager=true",
             "rollout.gpu_memory_utilization=0.1", "rollout.enable_chunked_prefill=false",
             "rollout.enable_prefix_caching=false"]  # fmt: skip
    code, out, err = generate("data.n_samples=2", *speed)
    assert code == 0 and "out.parquet is complete" in err and out == ""
    assert Path("out.parquet").read_bytes() == before


def test_another_command_does_not_replace_the_file_unless_asked(made, generate, answered):
    made()
    code, _, err = generate("trainer.seed=2")
    assert code == 2 and "out.parquet already exists" in err and "trainer.seed was 1 and is 2" in err
    write_parquet(arithmetic.rows("test", 10, seed=1), "test.parquet")
    code, _, err = generate()
    assert code == 2 and "data.path had other contents" in err and "data.overwrite=true" in err
    answered.clear()
    rows = made("data.overwrite=true")
    assert answered == list(range(10))
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in read_rows("test.parquet")]


@pytest.fixture
def own_loop(place, monkeypatch):
    """An agent loop whose limit comes from a file that it imports."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (place / "limit_of_own_loop.py").write_text("LIMIT = 3\n")
    (place / "own_loop.py").write_text(
        "from limit_of_own_loop import LIMIT\n"
        "from burnish.agents.base import AgentLoopBase, AgentLoopOutput\n"
        "class Short(AgentLoopBase):\n"
        "    def __init__(self, more=0, **rest):\n"
        "        super().__init__(**rest)\n"
        "        self.limit = LIMIT + more\n"
        "    async def run(self, sampling_params, **row):\n"
        "        ids = self.prompt_ids(row['messages'])\n"
        "        sampling_params['max_tokens'] = self.limit\n"
        "        said = await self.server_manager.generate(prompt_ids=ids, sampling_params=sampling_params)\n"
        "        return AgentLoopOutput(prompt_ids=ids, response_ids=said.token_ids,\n"
        "                               response_mask=[1] * len(said.token_ids))\n"
    )
    (place / "loops.yaml").write_text(f"- {{name: {place.name}, _target_: 'own_loop.py:Short', more: 0}}\n")
    yield ["rollout.agent.agent_loop_config_path=loops.yaml", f"rollout.agent.default_agent_loop={place.name}"]
    sys.modules.pop("limit_of_own_loop", None)


EDITS = {"loops.yaml": ("0", "4"), "own_loop.py": ("LIMIT +", "7 +"), "limit_of_own_loop.py": ("3", "7")}


@pytest.mark.parametrize("file", EDITS)
def test_an_edited_agent_loop_does_not_continue_where_the_old_one_stopped(generate, place, monkeypatch, own_loop, file):
    def stop(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(generation.GenerationOutput, "merge", stop)
        assert generate(*own_loop)[0] == 130
    (place / file).write_text((place / file).read_text().replace(*EDITS[file]))
    code, _, err = generate(*own_loop)
    assert code == 2 and "parts holds 10 rows of an unfinished output" in err
    assert "was made by another command (rollout.agent.agent_loop_config_path had other contents);" in err


def test_code_and_attention_of_the_model_decide_too(made, generate, place):
    (place / "own_attention.py").write_text("SCALE = 1\n")
    made("model.external_lib=own_attention")
    code, _, err = generate("model.external_lib=own_attention", "model.attn_implementation=eager")
    assert code == 2 and "(model.attn_implementation was auto and is eager)" in err
    (place / "own_attention.py").write_text("SCALE = 2\n")
    code, _, err = generate("model.external_lib=own_attention")
    assert code == 2 and "(model.external_lib had other contents)" in err


@pytest.fixture
def answered(monkeypatch):
    answer, numbers = GenerationWorker.answer, []

    def noted(self, rows):
        numbers.extend(number for number, _ in rows)
        return answer(self, rows)

    monkeypatch.setattr(GenerationWorker, "answer", noted)
    return numbers


# `python -m burnish.trainer.main_generation`, which is not over when it is to be killed, however late that is.
HELD = """
import runpy, time
from burnish.trainer.generation_worker import GenerationWorker
answer = GenerationWorker.answer
GenerationWorker.answer = lambda self, rows: time.sleep(600) if 20 in dict(rows) else answer(self, rows)
runpy.run_module("burnish.trainer.main_generation", run_name="__main__")
"""


def test_kill_9_and_the_same_command_give_the_file_that_was_never_interrupted(made, job, answered):
    """With the same batch size every bit is the same; with another one the rounding of log-probs differs."""
    write_parquet(arithmetic.rows("test", 24, seed=0), "test.parquet")
    keys = ["data.n_samples=2", "data.batch_size=2"]
    process = subprocess.Popen([sys.executable, "-c", HELD, *job, *keys], start_new_session=True)
    wait_for(lambda: list(Path("out.parquet.parts").glob("rows-*")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not Path("out.parquet").exists(), "the run was over before it could be killed"
    saved = 2 * len(list(Path("out.parquet.parts").glob("rows-*")))
    shutil.copytree("out.parquet.parts", "other.parquet.parts")
    resumed = made(*keys)
    assert answered == list(range(saved, 24)) and not Path("out.parquet.parts").exists()
    other = made(*keys[:1], "data.batch_size=7", "data.output_path=other.parquet")
    assert answered == 2 * list(range(saved, 24))
    whole = made(*keys, "data.output_path=whole.parquet")
    assert resumed == whole
    for one, row in zip(whole, other, strict=True):
        assert row.pop("response_log_probs") == pytest.approx(one.pop("response_log_probs"), abs=1e-4)
        assert row == one


class DyingWorker(GenerationWorker):
    def answer(self, rows):
        if 4 in dict(rows):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(rows)


class ClosedWorker(GenerationWorker):
    def close(self):
        super().close()
        Path(f"closed-{self.rank}").touch()


def test_several_processes_give_the_same_texts_and_a_dead_one_is_named(generate, made, monkeypatch):
    keys = ["data.n_samples=2", "data.batch_size=2", "trainer.n_gpus_per_node=2"]
    with monkeypatch.context() as patch:
        patch.setattr(generation_worker, "GenerationWorker", DyingWorker)
        code, _, err = generate(*keys)
    assert code == 1 and "of pool 'generation'" in err and "died while it ran DyingWorker.answer" in err
    saved = re.search(r"stopped: (\d+) of 10 rows are saved; run the same command to resume", err)
    with monkeypatch.context() as patch:
        patch.setattr(generation_worker, "GenerationWorker", ClosedWorker)
        several = made(*keys)
    assert sorted(path.name for path in Path().glob("closed-*")) == ["closed-0", "closed-1"]
    alone = made(*keys[:1], "data.output_path=alone.parquet")
    assert saved and 2 <= int(saved[1]) <= 8
    for one, row in zip(several, alone, strict=True):
        assert one.pop("response_log_probs") == pytest.approx(row.pop("response_log_probs"), abs=1e-4)
        assert one == row


def test_auto_is_a_process_for_each_gpu_unless_an_engine_has_several(monkeypatch):
    monkeypatch.setattr(generation, "gpus", lambda kind: 4)
    config = GenerationConfig()
    assert generation.process_count(config) == 4
    config.rollout.tensor_model_parallel_size = 2
    assert generation.process_count(config) == 1
    config.trainer.n_gpus_per_node = 2
    with pytest.raises(ConfigError, match=r"tensor_model_parallel_size=2 with trainer.n_gpus_per_node=2: each process"):
        generation.process_count(config)
    config.trainer.n_gpus_per_node = 8
    with pytest.raises(ConfigError, match=r"n_gpus_per_node=8: 8 processes with a GPU each, and this machine has 4"):
        generation.process_count(config)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_reports_what_is_saved(generate, made, answered, monkeypatch, number):
    answer = GenerationWorker.answer

    def stopped(self, rows):
        if 4 in dict(rows):
            signal.raise_signal(number)
        return answer(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(GenerationWorker, "answer", stopped)
        code, _, err = generate("data.batch_size=2")
    assert code == 130 and "stopped: 4 of 10 rows are saved; run the same command to resume" in err
    answered.clear()
    assert len(made("data.batch_size=2")) == 10 and answered == list(range(4, 10))


def test_rows_choose_their_agent_loop(made, place):
    """Only what the policy wrote is in the response, its length and its log-prob."""
    (place / "loops.py").write_text(
        "from burnish.agents.base import AgentLoopBase, AgentLoopOutput\n"
        "class Twice(AgentLoopBase):\n"
        "    async def run(self, sampling_params, **row):\n"
        "        assert self.config.actor_rollout_ref.model.path and self.config.trainer.seed == 1\n"
        "        ids = self.prompt_ids(row['messages'])\n"
        "        first = await self.server_manager.generate(prompt_ids=ids, sampling_params=sampling_params)\n"
        "        heard = self.tokenizer('ok', add_special_tokens=False)['input_ids']\n"
        "        again = await self.server_manager.generate(\n"
        "            prompt_ids=[*ids, *first.token_ids, *heard], sampling_params=sampling_params)\n"
        "        parts = [(first.token_ids, 1), (heard, 0), (again.token_ids, 1)]\n"
        "        return AgentLoopOutput(\n"
        "            prompt_ids=ids, response_ids=[i for part, _ in parts for i in part],\n"
        "            response_mask=[mask for part, mask in parts for _ in part], num_turns=4)\n"
    )
    (place / "loops.yaml").write_text("- {name: twice, _target_: 'loops.py:Twice'}\n")
    prompts = [{"prompt": "347+586=?", "agent_name": name} for name in ("single_turn_agent", "twice")]
    write_parquet(prompts, "rows.parquet")
    keys = ["data.path=rows.parquet", "rollout.agent.agent_loop_config_path=loops.yaml", "rollout.temperature=0"]
    one, two = made(*keys, "rollout.response_length=100")
    assert two["responses"][0].startswith(one["responses"][0]) and "ok" not in two["responses"][0]
    assert two["response_lengths"][0] > one["response_lengths"][0] > 0
    assert (one["num_turns"], two["num_turns"]) == ([2], [4]), "what eval tells reward functions"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["data.path=gone.parquet"], "data file not found: gone.parquet"),
        (["data.prompt_key=text"], "test.parquet: no column 'text'; the columns are data_source, prompt"),
        (["rollout.prompt_length=8"], "data.truncation=left, right or middle"),
        (["rollout.prompt_length=4000"], "rollout.prompt_length=4000 + rollout.response_length=48 = 4048 tokens, but"),
        (["rollout.max_model_len=5000"], "rollout.max_model_len=5000, but"),
        (["model.path=."], "no config.json; the model path must name a Hugging Face model folder"),
        (["model.path=./no/such"], "the model path ./no/such: there is no such folder"),
        (["data.nsamples=3"], "did you mean 'data.n_samples'?"),
        (["rollout.name=vllm"], "rollout.name=vllm needs the package vllm"),
        (
            ["rollout.agent.default_agent_loop=nobody"],
            "rollout.agent.default_agent_loop=nobody: there is no such agent",
        ),
        (["data.output_path=out.json"], "the output is a parquet file; end it with .parquet"),
        (["data.output_path=test.parquet"], "is the file of data.path"),
        (["data.output_path=test.parquet/out.parquet"], "name another place with data.output_path"),
        (["--plan"], "--plan is about training steps"),
    ],
)
def test_a_mistake_is_reported_in_one_line_before_a_model_is_loaded(refuses, monkeypatch, keys, words):
    monkeypatch.setattr(spec, "find_spec", lambda name: None)
    assert words in refuses(*keys)


def test_a_file_that_cannot_get_its_responses_is_reported_before_a_model_is_loaded(refuses, place):
    lone = [{"prompt": "1+1=?"}, {"prompt": "\ud800"}]
    for name, rows, words in (
        ("half.json", lone, "half.json, row 1 (the first is 0): the text has a lone surrogate"),
        ("mixed.json", [{"prompt": "?", "x": 1}, {"prompt": "?", "x": "two"}], "'x' holds integer"),
        ("huge.json", [{"prompt": "1+1=?", "x": 2**70}], "huge.json: column 'x': "),
        ("hollow.json", [{"prompt": "1+1=?", "x": {}}], "the output, a parquet file, cannot hold a column"),
        ("done.json", [{"prompt": "1+1=?", "responses": ["2"]}], "done.json: the column 'responses' already exists"),
        ("null.json", [{"prompt": None}], "row 0 (the first is 0): field 'prompt' is missing or null"),
    ):
        (place / name).write_text(json.dumps(rows))
        assert words in refuses(f"data.path={name}")


@pytest.mark.parametrize("what", [None, "runner", "rows"])
def test_the_engine_is_closed_at_the_end_whatever_it_is(generate, monkeypatch, what):
    closed, load, answer = [], generation_worker.load_engine, GenerationWorker.answer

    def noted(*args):
        engine = load(*args)
        monkeypatch.setattr(engine, "close", lambda: closed.append(what))
        return engine

    def broken(*_):
        raise MemoryError("no room")

    def breaks_later(self, rows):
        return broken() if 4 in dict(rows) else answer(self, rows)

    monkeypatch.setattr(generation_worker, "load_engine", noted)
    if what == "runner":
        monkeypatch.setattr(generation_worker, "TrajectoryRunner", broken)
    if what == "rows":
        monkeypatch.setattr(GenerationWorker, "answer", breaks_later)
    code, _, err = generate("data.batch_size=2")
    assert (code, closed) == (0 if what is None else 1, [what]) and ("no room" in err) == (what is not None)


# Deadlines of a second instead of minutes.
HASTY = """
import runpy
from burnish import waits
from burnish.tracking import watchdog
watchdog.LOOK_S, watchdog.GRACE_S, waits.PROMPT_S = 0.05, 1.0, 0.2
runpy.run_module("burnish.trainer.main_generation", run_name="__main__")
"""


def test_an_agent_loop_that_blocks_ends_the_process_and_its_stack_is_written(place, job, own_loop):
    program = place / "own_loop.py"
    blocks = "        import time; time.sleep(1000)\n        ids = self.prompt_ids(row['messages'])\n"
    program.write_text(program.read_text().replace("        ids = self.prompt_ids(row['messages'])\n", blocks))
    words = [sys.executable, "-c", HASTY, *job, *own_loop, "rollout.timeout=1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == watchdog.EXIT_CODE and "This process is ended" in done.stderr, done.stderr
    (dump, *_) = (place / "out.parquet.parts/stacks").glob("*_generate.txt")
    assert "time.sleep(1000)" in dump.read_text()
