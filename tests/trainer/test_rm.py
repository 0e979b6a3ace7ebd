"""`burnish rm` from its command line: what is learnt, what a step's loss is, what a checkpoint holds."""

import json
import math
from functools import partial

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from burnish.config.model import ModelConfig
from burnish.data.files import write_parquet
from burnish.engine.forward import Forward
from burnish.errors import DataError, ModelError
from burnish.models.loading import load_reward_model, load_value_model
from burnish.models.tiny import EOS, START, byte_tokenizer, write_tiny_model
from burnish.trainer.rm import padding_token
from burnish.trainer.rm_trainer import main
from tests.trainer.conftest import PAIRS, turns


@pytest.fixture
def rm(supervised):
    return partial(supervised, main)


def reward(model, tokenizer, prompt, answer):
    text = tokenizer.apply_chat_template(turns(prompt, answer), tokenize=False)
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).logits.item()


def values_by_hand(model, tokenizer, pairs, margins=None):
    gaps = [reward(model, tokenizer, p, c) - reward(model, tokenizer, p, r) for p, c, r in pairs]
    losses = [math.log1p(math.exp(m - gap)) for gap, m in zip(gaps, margins or [0] * len(gaps), strict=True)]
    return sum(losses) / len(losses), sum(gap > 0 for gap in gaps) / len(gaps), sum(gaps) / len(gaps)


def loaded(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_it_learns_and_leaves_a_reward_model_that_transformers_loads(rm, world):
    steps = ("data.train_batch_size=7", "trainer.total_training_steps=40")
    folder, metrics = rm(f"data.val_files={world / 'val.parquet'}", *steps)
    first, last, checkpoint = metrics[0], metrics[-1], folder / "global_step_40"
    assert first["train/loss"] == pytest.approx(math.log(2), abs=0.1) and last["train/loss"] < 0.2
    assert {"train/lr", "train/grad_norm", "train/bad_step", "perf/throughput"} <= last.keys()
    assert last["train/margin"] == pytest.approx(last["train/reward_chosen"] - last["train/reward_rejected"], abs=1e-5)
    assert "val/loss" not in first
    model, tokenizer = loaded(checkpoint)
    assert model.config.num_labels == 1 and model.config.pad_token_id == tokenizer.pad_token_id
    assert type(model).__name__ == "Qwen2ForSequenceClassification" and tokenizer.chat_template
    loss, accuracy, margin = values_by_hand(model, tokenizer, PAIRS[:3])
    assert last["val/loss"] == pytest.approx(loss, abs=1e-5) and last["val/accuracy"] == accuracy == 1
    assert last["val/margin"] == pytest.approx(margin, abs=1e-5)
    critic = load_value_model(checkpoint, ModelConfig(), seed=7)  # a critic and another run start from it
    assert torch.equal(critic.score.weight, model.score.weight) and not critic.score.bias.any()
    _, more = rm(f"model.path={checkpoint}", "data.train_batch_size=7", "trainer.seed=9", out="more")
    assert more[0]["train/loss"] == pytest.approx(last["train/loss"], abs=0.1), "its own head, and no new one"


def test_the_loss_is_the_mean_over_pairs_less_their_margins(rm, world):
    """The same seed draws the same head, so the model before the first step can be made again."""
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    model = load_reward_model(world / "model", ModelConfig(), pad_token_id=tokenizer.pad_token_id, new_head_seed=5)
    steps = ("data.train_batch_size=7", "trainer.total_training_steps=1", "trainer.seed=5")
    _, plain = rm(*steps, out="plain")
    loss, accuracy, margin = values_by_hand(model, tokenizer, PAIRS)
    assert plain[0]["train/loss"] == pytest.approx(loss, abs=1e-5)
    assert plain[0]["train/accuracy"] == pytest.approx(accuracy)
    assert plain[0]["train/margin"] == pytest.approx(margin, abs=1e-5)
    _, wider = rm(*steps, "data.margin_key=gap", out="wider")
    with_margins, _, _ = values_by_hand(model, tokenizer, PAIRS, [i / 2 for i in range(7)])
    assert wider[0]["train/loss"] == pytest.approx(with_margins, abs=1e-5) and with_margins > loss + 0.3
    assert wider[0]["train/accuracy"] == plain[0]["train/accuracy"], "a margin is part of the loss alone"


@pytest.mark.parametrize("size", [1, 2, 64])
def test_micro_batches_keep_pairs_and_do_not_change_the_run(rm, monkeypatch, size):
    passes = []

    plain = Forward.scores

    def watched(forward, input_ids, attention_mask):
        passes.append(input_ids.shape)
        return plain(forward, input_ids, attention_mask)

    steps = ("data.train_batch_size=5", "trainer.total_training_steps=3", "optim.lr=0.001")
    _, whole = rm(*steps, out="whole")
    monkeypatch.setattr(Forward, "scores", watched)
    _, cut = rm(*steps, f"data.micro_batch_size_per_gpu={size}", out="cut")
    assert [rows for rows, _ in passes] == 3 * [2 * min(size, 5 - i) for i in range(0, 5, size)]
    if size == 1:
        assert len({width for _, width in passes}) > 2, "a pass is as wide as its longest side"
    for one, other in zip(whole, cut, strict=True):
        for name in ("loss", "accuracy", "margin", "reward_chosen", "reward_rejected"):
            assert other[f"train/{name}"] == pytest.approx(one[f"train/{name}"], abs=1e-5)
        assert other["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)


def test_a_classifier_of_tokens_is_trained_as_one(rm, world, tmp_path):
    tokens = AutoModelForTokenClassification.from_pretrained(world / "model", num_labels=1)
    tokens.save_pretrained(tmp_path / "tokens")
    AutoTokenizer.from_pretrained(world / "model").save_pretrained(tmp_path / "tokens")
    folder, metrics = rm(f"model.path={tmp_path / 'tokens'}", "trainer.total_training_steps=2")
    assert len(metrics) == 2
    architecture = json.loads((folder / "global_step_2" / "config.json").read_text())["architectures"]
    assert architecture == ["Qwen2ForTokenClassification"]


def test_mistakes_in_columns_are_named_before_the_model_loads(rm, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.trainer.rm.load_reward_model", None)
    with pytest.raises(DataError, match=r"train.parquet: no column 'best' \(data.chosen_key\); its columns are mes"):
        rm("data.chosen_key=best")
    with pytest.raises(DataError, match=r"no column 'margin' \(data.margin_key\)"):
        rm("data.margin_key=margin")
    rows = [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in (PAIRS[0], ("a", "same", "same"))]
    write_parquet(rows, tmp_path / "equal.parquet")
    with pytest.raises(DataError, match=r"equal.parquet, row 1 \(the first is 0\): fields 'chosen' and 'rejected' are"):
        rm(f"data.train_files={tmp_path / 'equal.parquet'}")


def test_a_tokenizer_without_a_chat_template_is_refused_unless_one_is_given(rm, world, tmp_path):
    write_tiny_model(tmp_path / "plain", chat_template=None, context=256)
    with pytest.raises(ModelError, match=r"model.path=.*plain: its tokenizer has no chat template.*tokenizer_path"):
        rm(f"model.path={tmp_path / 'plain'}")
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    given = f"data.apply_chat_template_kwargs.chat_template='{template}'"
    folder, _ = rm(f"model.path={tmp_path / 'plain'}", given, out="given")
    assert AutoTokenizer.from_pretrained(folder / "global_step_4").chat_template == template
    folder, _ = rm(f"model.path={tmp_path / 'plain'}", f"model.tokenizer_path={world / 'model'}", out="other")
    assert AutoTokenizer.from_pretrained(folder / "global_step_4").chat_template


def test_two_labels_are_refused_before_the_rows_are_read(rm, world, tmp_path, monkeypatch):
    two = AutoModelForSequenceClassification.from_pretrained(world / "model", num_labels=2)
    two.save_pretrained(tmp_path / "two")
    AutoTokenizer.from_pretrained(world / "model").save_pretrained(tmp_path / "two")
    monkeypatch.setattr("burnish.trainer.rm.PreferenceDataset", None)
    with pytest.raises(ModelError, match="the classifier has 2 labels, a reward model has 1"):
        rm(f"model.path={tmp_path / 'two'}")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(rm, world, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(world / "model")
    tokenizer.add_tokens(["grass"])
    write_tiny_model(tmp_path / "more")
    tokenizer.save_pretrained(tmp_path / "more")
    with pytest.raises(ModelError, match=r"model.tokenizer_path=.*more: .* ids up to 259, .* a vocabulary of 259 "):
        rm(f"model.tokenizer_path={tmp_path / 'more'}")


class TestPadding:
    """Where a model has no pad token of its own: end-of-sequence, which ends every answer, must not become it."""

    @pytest.fixture(params=[None, 1], ids=["no pad token", "the end token as pad token"])
    def without(self, request, tmp_path):
        folder = write_tiny_model(tmp_path / "without", context=256, pad_token_id=request.param)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = tokenizer.decode([request.param]) if request.param else None
        tokenizer.save_pretrained(folder)
        return folder

    def test_the_end_of_an_answer_is_read_and_transformers_reads_the_same(self, rm, without, world):
        folder, metrics = rm(f"model.path={without}", f"data.val_files={world / 'val.parquet'}")
        model, tokenizer = loaded(folder / "global_step_4")
        padding = model.config.pad_token_id
        assert padding == tokenizer.pad_token_id and padding != tokenizer.eos_token_id == 1
        with torch.no_grad():
            ended, cut = (model(**tokenizer([f"<|start|>a{end}"], return_tensors="pt")).logits for end in (EOS, ""))
        assert abs(ended.item() - cut.item()) > 1e-4
        talks = [turns(prompt, answer) for prompt, *sides in PAIRS[:3] for answer in sides]
        texts = [tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
        with torch.no_grad():
            rewards = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.view(-1, 2)
        chosen, rejected = rewards.unbind(-1)
        assert metrics[-1]["val/reward_chosen"] == pytest.approx(chosen.mean().item(), abs=1e-5)
        assert metrics[-1]["val/reward_rejected"] == pytest.approx(rejected.mean().item(), abs=1e-5)

    def test_a_head_that_is_there_keeps_its_padding_token(self, rm, world, tmp_path):
        other = AutoModelForSequenceClassification.from_pretrained(world / "model", num_labels=1, pad_token_id=9)
        other.save_pretrained(tmp_path / "nine")
        AutoTokenizer.from_pretrained(world / "model").save_pretrained(tmp_path / "nine")
        folder, _ = rm(f"model.path={tmp_path / 'nine'}", "trainer.total_training_steps=1")
        model, tokenizer = loaded(folder / "global_step_1")
        assert model.config.pad_token_id == 9 and tokenizer.pad_token_id == 0

    def test_padding_token_falls_back_to_another_token(self):
        tokenizer = byte_tokenizer()
        assert padding_token(tokenizer, 259) == tokenizer.pad_token_id == 0
        tokenizer.pad_token = EOS
        assert padding_token(tokenizer, 259) == 0, "a special token, though no longer the pad token"
        tokenizer.bos_token = START
        assert padding_token(tokenizer, 259) == 2
        assert padding_token(tokenizer, 2) == 0, "the model has no embedding of the other"
        tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        assert padding_token(tokenizer, 259) == 1, "nothing ends with it"
