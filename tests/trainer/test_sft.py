"""`burnish sft` from its command line: what is learnt, what a step's loss is, what a checkpoint holds."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import SFTConfig, load_sft
from burnish.config.finalise import finalise_sft
from burnish.data.chat import ChatRenderer
from burnish.data.examples import Batches
from burnish.data.files import write_parquet
from burnish.data.sft import SFTDataset
from burnish.engine.forward import Forward
from burnish.errors import BadStepError, CheckpointError, ConfigError, ModelError
from burnish.models.tiny import write_tiny_model
from burnish.tracking.background import Background
from burnish.trainer.checkpoint import CheckpointStore
from burnish.trainer.sft import NextTokens
from burnish.trainer.sft_trainer import main
from burnish.trainer.supervised import tokens_per_pass

TIMES = {"perf/time_per_step", "perf/throughput"}


def turns(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


CONVERSATIONS = [
    turns("1+1", "2"),
    turns("say hello to everybody here", "hello, everybody"),
    turns("first", "one", "second", "two"),
    turns("a", "b"),
    turns("count", "1 2 3 4 5 6 7 8 9"),
    turns("again", "no", "again?", "yes", "sure?", "quite sure"),
    turns("colour of grass", "green"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    write_tiny_model(folder / "model", hidden_size=32, heads=2, context=256)
    write_parquet([{"messages": c} for c in CONVERSATIONS], folder / "train.parquet")
    write_parquet([{"messages": c} for c in CONVERSATIONS[:3]], folder / "val.parquet")
    return folder


@pytest.fixture
def sft(world, tmp_path):
    """Run the command; returns the run folder and the metrics of each step."""

    def run(*overrides, out="run"):
        settings = {
            "data.train_files": world / "train.parquet",
            "data.max_length": 128,
            "data.train_batch_size": 3,
            "model.path": world / "model",
            "optim.lr": 0.01,
            "trainer.default_local_dir": tmp_path / out,
            "trainer.total_training_steps": 4,
            "trainer.device": "cpu",
        }
        settings |= dict(text.split("=", 1) for text in overrides)
        main([f"{key}={value}" for key, value in settings.items()])
        lines = (tmp_path / out / "metrics.jsonl").read_text().splitlines()
        return tmp_path / out, [json.loads(line) for line in lines]

    return run


def without_times(metrics):
    return [{k: v for k, v in step.items() if k not in TIMES and "time" not in k} for step in metrics]


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def hand_loss(model_folder, conversations):
    """Mean over assistant tokens, each conversation alone through transformers."""
    tokenizer, model = AutoTokenizer.from_pretrained(model_folder), AutoModelForCausalLM.from_pretrained(model_folder)
    renderer = ChatRenderer(tokenizer)
    total, count = 0.0, 0
    for conversation in conversations:
        ids, mask = renderer.conversation(conversation)
        with torch.no_grad():
            log_p = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        total -= sum(log_p[t - 1, ids[t]].item() for t in range(1, len(ids)) if mask[t])
        count += sum(mask)
    return total / count


def test_it_learns_and_leaves_a_model_that_transformers_loads(sft, world):
    folder, metrics = sft(f"data.val_files={world / 'val.parquet'}", "trainer.total_training_steps=12")
    assert metrics[-1]["train/loss"] < metrics[0]["train/loss"] - 1
    assert {"train/lr", "train/grad_norm", "val/loss"} <= metrics[-1].keys() and "val/loss" not in metrics[0]
    last = folder / "global_step_12"
    assert metrics[-1]["val/loss"] == pytest.approx(hand_loss(last, CONVERSATIONS[:3]), abs=1e-5)
    assert AutoTokenizer.from_pretrained(last)("1+1")["input_ids"]


def test_loss_is_the_mean_over_assistant_tokens_of_the_batch(sft, world):
    _, metrics = sft("data.train_batch_size=7", "trainer.total_training_steps=1")
    assert metrics[0]["train/loss"] == pytest.approx(hand_loss(world / "model", CONVERSATIONS), abs=1e-5)


def test_epochs_count_the_steps_and_old_checkpoints_are_pruned(sft):
    epochs = ("trainer.total_training_steps=null", "trainer.total_epochs=2")
    folder, metrics = sft(*epochs, "trainer.save_freq=1", "trainer.max_ckpt_to_keep=2")
    assert len(metrics) == 2 * (len(CONVERSATIONS) // 3)
    assert [step["training/epoch"] for step in metrics] == [0, 0, 0, 1]
    assert sorted(p.name for p in folder.glob("global_step_*")) == ["global_step_3", "global_step_4"]


@pytest.mark.parametrize(
    "layout",
    [
        ("data.packing=false",),
        ("data.packing=false", "data.micro_batch_size_per_gpu=1"),
        ("data.packing=true", "data.micro_batch_size_per_gpu=1", "data.max_length=90"),
    ],
)
def test_neither_packing_nor_micro_batches_change_the_run(sft, layout):
    steps = ("data.train_batch_size=5", "trainer.total_training_steps=3", "optim.lr=0.001")
    _, whole = sft(*steps, "data.micro_batch_size_per_gpu=64", out="whole")
    _, cut = sft(*steps, *layout, out="cut")
    for one, other in zip(whole, cut, strict=True):
        assert other["train/loss"] == pytest.approx(one["train/loss"], abs=1e-5)
        assert other["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("packing", [True, False])
def test_passes_are_filled_by_tokens_or_hold_a_number_of_examples(sft, monkeypatch, packing):
    passes = []

    plain = Forward.log_probs

    def watched(forward, packed):
        passes.append(packed.sequences.lengths)
        return plain(forward, packed)

    monkeypatch.setattr(Forward, "log_probs", watched)
    sizes = ("data.train_batch_size=7", "trainer.total_training_steps=1", "data.micro_batch_size_per_gpu=2")
    sft(*sizes, f"data.packing={packing}", "data.max_length=128")
    rows = [len(lengths) for lengths in passes]
    assert sum(rows) == 7
    if packing:
        assert all(sum(lengths) <= 2 * 128 for lengths in passes) and max(rows) > 2
    else:
        assert rows == [2, 2, 2, 1]


def test_prompt_and_response_columns_are_single_turn_conversations(sft, tmp_path):
    single = [c for c in CONVERSATIONS if len(c) == 2]
    rows = [{"question": q["content"], "reply": a["content"]} for q, a in single]
    write_parquet(rows, tmp_path / "pairs.parquet")
    write_parquet([{"messages": c} for c in single], tmp_path / "messages.parquet")
    _, pairs = sft(
        f"data.train_files={tmp_path / 'pairs.parquet'}", "data.prompt_key=question", "data.response_key=reply", out="a"
    )
    _, messages = sft(f"data.train_files={tmp_path / 'messages.parquet'}", out="b")
    assert without_times(pairs) == without_times(messages)


def test_resume_is_the_same_run(sft, tmp_path):
    steps = ("trainer.total_training_steps=6", "trainer.save_freq=3", "optim.lr_scheduler_type=cosine")
    straight, metrics = sft(*steps, out="straight")
    (tmp_path / "killed").mkdir()
    shutil.copytree(straight / "global_step_3", tmp_path / "killed" / "global_step_3")
    lines = (straight / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "killed" / "metrics.jsonl").write_text("".join(lines[:4]))  # step 4 was logged, but not saved
    resumed, again = sft(*steps, out="killed")
    assert without_times(again) == without_times(metrics)
    theirs = weights(resumed / "global_step_6")
    assert all(tensor.equal(theirs[name]) for name, tensor in weights(straight / "global_step_6").items())
    assert (resumed / "latest_checkpointed_iteration.txt").read_text().strip() == "6"


def test_a_checkpoint_that_is_being_written_is_completed_first(sft, tmp_path, monkeypatch):
    outcome, is_stopped = Background.outcome, []

    def stop_once(self, *, wait):
        if self._jobs.running and self.kind == "checkpoint" and not is_stopped:
            is_stopped.append(True)
            raise KeyboardInterrupt
        return outcome(self, wait=wait)

    monkeypatch.setattr(Background, "outcome", stop_once)
    with pytest.raises(KeyboardInterrupt):
        sft("trainer.save_freq=2")
    assert is_stopped and CheckpointStore(tmp_path / "run").latest().name == "global_step_2"


def test_a_run_from_scratch_does_not_move_its_model(sft):
    folder, _ = sft("trainer.total_training_steps=1")
    with pytest.raises(ConfigError, match=r"model.path=\S+global_step_1 was left by an earlier run in"):
        sft(f"model.path={folder / 'global_step_1'}", "trainer.resume_mode=disable", out="run")
    assert (folder / "global_step_1").is_dir()


def test_a_checkpoint_that_does_not_fit_is_refused(sft, tmp_path, monkeypatch):
    folder, _ = sft("trainer.total_training_steps=1")
    write_tiny_model(tmp_path / "wide", hidden_size=48)
    with pytest.raises(CheckpointError, match=r"global_step_1 is a checkpoint of another model: .* \(\d+, 32\) there"):
        sft(f"model.path={tmp_path / 'wide'}", out="run")
    monkeypatch.setattr("burnish.trainer.sft.load_causal_lm", None)  # what follows is found without a model
    with pytest.raises(CheckpointError, match=r"written with data.train_batch_size=3, this run has 2"):
        sft("data.train_batch_size=2", out="run")
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*global_step_7"):
        sft("trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder / 'global_step_7'}", out="run")
    state = folder / "global_step_1" / "trainer.json"
    state.write_text("[]".ljust(state.stat().st_size))
    with pytest.raises(CheckpointError, match=r"global_step_1 is not a checkpoint of `burnish sft`: .* trainer.json"):
        sft("trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder / 'global_step_1'}", out="run")


@pytest.mark.parametrize("change", ["data.max_length=127", "data.truncation=right", "data.messages_key=talk"])
def test_a_run_that_resumes_keeps_its_examples(sft, tmp_path, change):
    write_parquet([{"messages": c, "talk": c[:2]} for c in CONVERSATIONS], tmp_path / "both.parquet")
    rows = f"data.train_files={tmp_path / 'both.parquet'}"
    sft(rows, "trainer.total_training_steps=1")
    key, value = change.split("=")
    with pytest.raises(CheckpointError, match=rf"written with {key}=.*, this run has {value}: it would continue with"):
        sft(rows, change)


def test_keys_that_changed_since_the_checkpoint_are_logged(sft, caplog):
    sft("trainer.total_training_steps=2", "optim.lr=0.01")
    assert "changed since" not in caplog.text
    sft("trainer.total_training_steps=3", "optim.lr=0.5", "data.packing=false")
    told = [record.getMessage() for record in caplog.records if "changed since" in record.getMessage()]
    assert told == [
        "changed since that checkpoint: data.packing: True → False",
        "changed since that checkpoint: optim.lr: 0.01 → 0.5",
        "changed since that checkpoint: trainer.total_training_steps: 2 → 3",
    ]


def test_activations_are_kept_where_they_fit_and_no_metric_depends_on_it(sft, monkeypatch, caplog):
    def line(folder):
        return next(line for line in (folder / "config.yaml").read_text().splitlines() if "checkpointing" in line)

    caplog.set_level("INFO")
    folder, kept = sft(out="kept")
    assert line(folder).endswith(": false") and "activations are kept, " in caplog.text
    sft("trainer.total_training_steps=2")
    monkeypatch.setattr("burnish.config.plan.host_memory", lambda: 2**20)
    folder, recomputed = sft("trainer.total_training_steps=4")
    assert line(folder).endswith(": true") and "activations are recomputed: " in caplog.text
    assert without_times(recomputed) == without_times(kept)
    assert "changed since that checkpoint: model." not in caplog.text


@pytest.mark.parametrize("packing", [True, False])
def test_a_pass_has_no_more_tokens_than_its_examples(world, packing):
    config = SFTConfig()
    config.data.packing, config.data.max_length = packing, 128
    objective = NextTokens(config, AutoTokenizer.from_pretrained(world / "model"))
    batches = Batches(objective.dataset([str(world / "train.parquet")], -1), 3, seed=0, shuffle=True)
    longest = max(len(batches.dataset[i]) for i in range(len(batches.dataset)))
    config.data.micro_batch_size_per_gpu = 1
    assert tokens_per_pass(objective, batches) == (128 if packing else longest) < 3 * longest
    config.data.micro_batch_size_per_gpu = 200
    assert tokens_per_pass(objective, batches) == 3 * longest


def test_a_checkpoint_from_before_keys_were_kept_is_resumed(sft):
    def make_old(step, **facts):
        path = folder / f"global_step_{step}" / "trainer.json"
        old = {"data.train_batch_size": 3, "data.seed": 1, "data.shuffle": True, "number of training examples": 7}
        path.write_text(json.dumps(old | {"bad_steps": 0} | facts).ljust(path.stat().st_size))

    folder, _ = sft("trainer.total_training_steps=1")
    make_old(1)
    _, metrics = sft("trainer.total_training_steps=2")
    assert [step["training/global_step"] for step in metrics] == [1, 2]
    make_old(2, **{"data.seed": 2})
    with pytest.raises(CheckpointError, match=r"written with data.seed=2, this run has 1"):
        sft("trainer.total_training_steps=3")


def test_tokens_that_the_model_does_not_know_are_named(sft, tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "few", context=256, vocab_size=100)
    monkeypatch.setattr("burnish.trainer.sft.load_causal_lm", None)
    with pytest.raises(
        ModelError, match=r"model.path=.*few: its tokenizer gives the examples ids up to \d+, .* a vocabulary of 100 "
    ):
        sft(f"model.path={tmp_path / 'few'}")
    assert not (tmp_path / "run").exists()


def test_a_run_of_bad_steps_stops(sft):
    with pytest.raises(BadStepError, match=r"in 2 updates in a row, up to step \d+. Lower optim.lr"):
        sft("optim.lr=1e30", "trainer.max_bad_steps=2", "trainer.total_training_steps=20")


def test_mistakes_are_named_before_the_model_loads(sft, world):
    with pytest.raises(ConfigError, match=r"data.max_length=512, but .*model has a context of 256 tokens"):
        sft("data.max_length=512")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"trainer.device=cuda, but torch sees no GPU"):
            sft("trainer.device=cuda")


def test_plan_explains_and_trains_nothing(world, tmp_path, capsys):
    files = [f"data.train_files={world / 'train.parquet'}", f"model.path={world / 'model'}"]
    sizes = ["data.max_length=100", "data.train_batch_size=2", "trainer.total_epochs=5"]
    main([*files, *sizes, f"trainer.default_local_dir={tmp_path / 'run'}", "--plan"])
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["steps", "in", "all", "15"] in words and ["steps", "per", "epoch", "3"] in words
    assert not (tmp_path / "run").exists()


def test_collate_splits_at_the_first_assistant_token(world):
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    dataset = SFTDataset([str(world / "train.parquet")], tokenizer, SFTConfig().data)
    examples = [dataset[i] for i in range(len(dataset))]
    columns = NextTokens.collate(None, examples).batch
    assert columns["prompts"].shape[1] + columns["responses"].shape[1] == columns["input_ids"].shape[1]
    names = ("input_ids", "attention_mask", "response_mask")
    for example, ids, attention, mask in zip(examples, *(columns[name] for name in names), strict=True):
        assert ids[attention.bool()].tolist() == example.ids.tolist()
        assert mask[0] == 1  # the response starts with what the assistant says
        assert ids[-len(mask) :][mask.bool()].tolist() == example.ids[example.loss_mask.astype(bool)].tolist()


RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "sft"


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_every_recipe_loads(recipe):
    given = ["data.train_files=train.parquet", "model.path=folder"]
    loaded = load_sft([f"--config-path={RECIPES}", f"--config-name={recipe}", *given])
    finalise_sft(loaded.config, loaded.explicit)
    assert (
        loaded.config.trainer.default_local_dir.startswith("outputs/") and "optim.lr_scheduler_type" in loaded.explicit
    )
