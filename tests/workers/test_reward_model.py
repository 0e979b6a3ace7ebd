"""The reward model on small random models: its scores are those of a plain transformers forward, whatever the policy's
tokenizer, template and the cut into micro-batches."""

import math
import shutil

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import Trajectory
from burnish.config import PPOConfig
from burnish.controller.local import LocalWorkerGroup
from burnish.data.chat import ChatRenderer
from burnish.errors import ModelError
from burnish.models.loading import load_tokenizer
from burnish.models.tiny import CHAT_TEMPLATE, byte_tokenizer, write_tiny_model
from burnish.protocol import DataProto
from burnish.workers.reward_model import ConversationReader, RewardModelWorker, padded
from burnish.workers.trajectories import to_batch
from tests.models.helpers import edit_json

KINDS = {"sequences": AutoModelForSequenceClassification, "tokens": AutoModelForTokenClassification}
CUTS = [{}, {"micro_batch_size_per_gpu": 1}, {"micro_batch_size_per_gpu": 2},
        {"use_dynamic_bsz": True, "forward_max_token_len_per_gpu": 90}]  # fmt: skip
LINES = "{% for m in messages %}{{ m['role'] + ' says ' + m['content'] + '<end>\\n' }}{% endfor %}{% if add_generation_prompt %}assistant says {% endif %}"  # noqa: E501
SAYS_ALL = LINES.replace("<end>", "<|end|>")
TRAILING = CHAT_TEMPLATE.replace("'<|end|>' }}", "'<|end|>\\n' }}")  # a newline after each turn
CHATS = [
    ([{"role": "user", "content": "What is 2+3?"}], "It is 5."),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "Hello, what can I do for you?"),
    ([{"role": "user", "content": "And é?"}], "é"),
    ([{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}], "D"),
    ([{"role": "user", "content": "1+1="}], "2\n\n2"),
]


def word_tokenizer():
    """Tokens of several characters, a begin token, and a template of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<pad>", "<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    raw.train_from_iterator(["assistant says user says It is Hello, what can I do for you?"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", chat_template=LINES)


@pytest.fixture
def write_reward_model(tmp_path):
    """A random classifier with one label, as transformers saves it, with a tokenizer."""

    def write(tokenizer=None, kind="sequences", labels=1, name="rm", **overrides):
        tokenizer = tokenizer or byte_tokenizer()
        language_model = write_tiny_model(
            tmp_path / f"{name}-lm", hidden_size=24, layers=1, seed=7,
            **{"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id} | overrides,
        )  # fmt: skip
        torch.manual_seed(5)
        module = KINDS[kind].from_pretrained(language_model, num_labels=labels)
        torch.nn.init.normal_(module.score.weight)  # scores of the size of 1
        module.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def configured(tiny_model):
    def make(path, policy=tiny_model, **changes):
        config = PPOConfig()
        config.actor_rollout_ref.model.path = str(policy)
        config.reward_model.enable, config.reward_model.model.path = True, str(path)
        config.reward_model.use_dynamic_bsz, config.reward_model.forward_max_token_len_per_gpu = False, 128
        for name in ("input_tokenizer", "tokenizer_path"):
            setattr(config.reward_model.model, name, changes.pop(name, None))
        config.data.apply_chat_template_kwargs = changes.pop("template_kwargs", {})
        for name, value in changes.items():
            setattr(config.reward_model, name, value)
        return config

    return make


@pytest.fixture
def worker(configured):

    def make(*args, **changes):
        group = LocalWorkerGroup(RewardModelWorker(configured(*args, **changes), total_steps=1))
        group.init_model()
        return group

    return make


def rollouts(tokenizer=None, chats=CHATS, end=True):
    """What the policy answered, as a batch holds it, with the end of text, another token, or none at the end."""
    tokenizer = tokenizer or byte_tokenizer()
    renderer, trajectories = ChatRenderer(tokenizer), []
    for prompt, answer in chats:
        ending = [] if end is False else [tokenizer.eos_token_id if end is True else end]
        response = tokenizer(answer)["input_ids"] + ending
        output = AgentLoopOutput(renderer.prompt_ids(prompt), response, [1] * len(response), [-1.0] * len(response))
        trajectories.append(Trajectory({}, output, answer))
    batch = to_batch(trajectories, tokenizer.pad_token_id)
    return batch.union(DataProto.from_dict(non_tensors={"raw_prompt": [prompt for prompt, _ in chats]}))


def plain_scores(path, kind="sequences", chats=CHATS):
    """By hand, one by one: the chat through the model's own template, then the model."""
    tokenizer, module = AutoTokenizer.from_pretrained(path), KINDS[kind].from_pretrained(path).eval()
    scores = []
    for prompt, answer in chats:
        messages = [*prompt, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        with torch.no_grad():
            logits = module(torch.tensor([ids])).logits
        scores.append(logits.flatten()[-1].item())
    return scores


def scores_of(answer):
    return answer.batch["rm_scores"].sum(-1).tolist()


def check(group, path, *args, kind="sequences", **how):
    """That the scores of a batch are those of the plain model; they are returned."""
    found = scores_of(group.compute_rm_score(rollouts(*args, **how)))
    assert found == pytest.approx(plain_scores(path, kind), abs=1e-5)
    return found


@pytest.mark.parametrize("tokenizer", [word_tokenizer, byte_tokenizer])
@pytest.mark.parametrize("kind", KINDS)
def test_any_tokenizer_and_template_in_any_cut(worker, write_reward_model, kind, tokenizer):
    """One of its own, by rendering; the policy's own, with the ids as they are."""
    path = write_reward_model(tokenizer(), kind)
    expected = plain_scores(path, kind)
    assert min(abs(a - b) for i, a in enumerate(expected) for b in expected[:i]) > 1e-3, "the scores tell rows apart"
    for cut in CUTS:
        group = worker(path, **cut)
        assert group.worker.conversations.as_they_are == (tokenizer is byte_tokenizer)
        check(group, path, kind=kind)
    module = group.worker.forward.module
    assert not module.training and not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("template", [TRAILING, LINES.replace("<end>", ""), LINES.replace("<end>", " </answer><end>")])
def test_a_turn_is_closed_as_the_template_closes_it(worker, write_reward_model, tmp_path, template):
    """What it writes after a turn, no special token at all, more than one; also of a response without an end."""
    tokenizer = byte_tokenizer(template)
    policy, path = write_tiny_model(tmp_path / "policy", chat_template=template), write_reward_model(tokenizer)
    group = worker(path, policy)
    assert group.worker.conversations.as_they_are
    for end in (True, False):
        check(group, path, tokenizer, end=end)


@pytest.mark.parametrize("template", [TRAILING, SAYS_ALL])
@pytest.mark.parametrize("special", [True, False])
def test_the_token_that_ends_a_turn_is_no_way_to_a_higher_score(
    worker, write_reward_model, tmp_path, special, template
):
    """A policy may stop with any token that its generation_config.json lists, special or not."""
    tokenizer = byte_tokenizer(TRAILING)
    other = tokenizer.convert_tokens_to_ids("<|pad|>" if special else "~")
    policy = write_tiny_model(tmp_path / "policy", chat_template=TRAILING)
    edit_json(policy / "generation_config.json", eos_token_id=[tokenizer.eos_token_id, other])
    path = write_reward_model(byte_tokenizer(template))
    group = worker(path, policy)
    assert group.worker.conversations.as_they_are == (template == TRAILING)
    for end in (tokenizer.eos_token_id, other):
        check(group, path, tokenizer, end=end)


def test_an_end_is_taken_off_the_response_alone(configured, write_reward_model, tmp_path):
    template = CHAT_TEMPLATE.replace("assistant\\n", "assistant<|end|>")
    assert template != CHAT_TEMPLATE
    tokenizer = byte_tokenizer(template)
    policy = write_tiny_model(tmp_path / "policy", chat_template=template)
    read = ConversationReader(configured(write_reward_model(tokenizer), policy))
    batch = rollouts(tokenizer, [(CHATS[0][0], "")])
    prompt = ChatRenderer(tokenizer).prompt_ids(CHATS[0][0])
    assert prompt[-1] == tokenizer.eos_token_id and read.of(batch)[0].ids == prompt + read.closing


def test_another_template_of_the_same_vocabulary_is_rendered(worker, write_reward_model, configured):
    path = write_reward_model(byte_tokenizer(TRAILING))
    group = worker(path)
    assert not group.worker.conversations.as_they_are
    check(group, path)
    same = worker(path, template_kwargs={"chat_template": TRAILING})
    assert same.worker.conversations.as_they_are, "the policy's prompts are made with that template"
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})  # a reward model's tokenizer often has one more
    assert ConversationReader(configured(write_reward_model(tokenizer, name="added"))).as_they_are


def test_ids_are_not_encoded_again_where_they_need_not(worker, write_reward_model):
    """The policy may write a text in tokens that its tokenizer would not choose."""
    tokenizer = word_tokenizer()
    path = write_reward_model(tokenizer)
    group = worker(path, path)
    prompt = ChatRenderer(tokenizer).prompt_ids(CHATS[0][0])
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "user"]
    assert tokenizer("user")["input_ids"] != letters and tokenizer.decode(letters) == "user"
    output = AgentLoopOutput(prompt, [*letters, tokenizer.eos_token_id], [1] * 5, [-1.0] * 5)
    batch = to_batch([Trajectory({}, output, "user")], tokenizer.pad_token_id)
    newline = load_tokenizer(path)("\n", add_special_tokens=False)["input_ids"]
    (read,) = group.worker.conversations.of(batch)
    assert read.ids == prompt + letters + [tokenizer.eos_token_id] + newline


def test_all_turns_are_read_as_they_are_and_the_policys_text_where_rendered(configured, write_reward_model):
    tokenizer = byte_tokenizer()
    first, tool, second = (tokenizer(text)["input_ids"] for text in ("look", "<found>", "done"))
    prompt = ChatRenderer(tokenizer).prompt_ids(CHATS[0][0])
    mask = [1] * len(first) + [0] * len(tool) + [1] * len(second)
    output = AgentLoopOutput(prompt, first + tool + second, mask, [-1.0] * len(mask))
    batch = to_batch([Trajectory({}, output, "")], tokenizer.pad_token_id)
    batch = batch.union(DataProto.from_dict(non_tensors={"raw_prompt": [CHATS[0][0]]}))
    (whole,) = ConversationReader(configured(write_reward_model())).of(batch)
    assert whole.ids == prompt + first + tool + second + [tokenizer.eos_token_id]
    other = ConversationReader(configured(write_reward_model(word_tokenizer(), name="other")))
    (rendered,) = other.of(batch)
    assert other.tokenizer.decode(rendered.ids).endswith("assistant says lookdone<end>\n")
    batch.batch["response_mask"][0, -len(second) :] = 0  # the last tokens are an observation: no turn to end
    (unended,) = ConversationReader(configured(write_reward_model(name="third"))).of(batch)
    assert unended.ids == prompt + first + tool + second


def test_scores_stand_on_the_last_token_of_the_policy(worker, write_reward_model):
    group, batch = worker(write_reward_model()), rollouts()
    batch.batch["response_mask"][0, 2:] = 0
    batch.batch["response_mask"][1] = 0  # padding: no token to reward
    placed = group.compute_rm_score(batch).batch["rm_scores"]
    assert placed.shape == batch.batch["responses"].shape and placed.dtype == torch.float32
    assert placed[0].nonzero().tolist() == [[1]] and not placed[1].any()
    assert placed[2].nonzero().tolist() == [[int(batch.batch["response_mask"][2].sum()) - 1]]


def test_a_long_conversation_loses_its_start(worker, write_reward_model, configured):
    path = write_reward_model()
    batch = rollouts()
    answer = worker(path, max_length=30).compute_rm_score(batch)
    lengths = batch.batch["attention_mask"].sum(-1).tolist()
    assert answer.non_tensor_batch["rm_cut"].tolist() == [length > 30 for length in lengths]
    assert 0 < answer.non_tensor_batch["rm_cut"].sum() < len(batch)
    module = AutoModelForSequenceClassification.from_pretrained(path).eval()
    for row, score in enumerate(scores_of(answer)):
        ids = batch.batch["input_ids"][row][batch.batch["attention_mask"][row].bool()][-30:]
        with torch.no_grad():
            assert score == pytest.approx(module(ids[None]).logits.item(), abs=1e-5)
    path = write_reward_model(context=33)
    assert ConversationReader(configured(path)).max_length == 33, "the model's context"
    assert ConversationReader(configured(path, max_length=8)).max_length == 8


def test_a_folder_without_a_padding_token_is_scored_as_alone(worker, write_reward_model):
    """Transformers then takes the last token of a lone conversation and refuses several. With the end of text for
    padding, which is what a tokenizer without one pads with, it would take another token."""
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    path = write_reward_model(tokenizer)
    for nothing in (None, -1):
        edit_json(path / "config.json", pad_token_id=nothing)
        found = check(worker(path), path)
    edit_json(path / "config.json", pad_token_id=tokenizer.eos_token_id)
    assert check(worker(path), path) != pytest.approx(found, abs=1e-3)


def test_ids_that_the_model_does_not_have(worker, write_reward_model):
    tokenizer = byte_tokenizer(TRAILING)
    tokenizer.add_tokens(["<far>"])  # nobody enlarged the model
    path = write_reward_model(tokenizer, vocab_size=len(tokenizer) - 1)
    chats = [CHATS[0], ([{"role": "user", "content": "go <far>"}], "where?")]
    answer = worker(path).compute_rm_score(rollouts(chats=chats))
    assert answer.non_tensor_batch["rm_problem"].tolist() == [
        None, f"the reward model has no token {len(tokenizer) - 1} ('<far>'), only {len(tokenizer) - 1}"
    ]  # fmt: skip
    small = write_reward_model(byte_tokenizer(TRAILING), name="small", vocab_size=100)
    words = r"^reward_model\.model\.path: .* ids up to 25\d, .* knows 100 tokens; name the"
    with pytest.raises(ModelError, match=words):
        worker(small)


def test_a_pass_pads_little(worker, write_reward_model, monkeypatch):
    widths, plain = [], padded
    monkeypatch.setattr(
        "burnish.workers.reward_model.padded", lambda ids, device: widths.append(sorted(map(len, ids))) or plain(ids)
    )
    path = write_reward_model()
    check(worker(path, micro_batch_size_per_gpu=2), path)
    lengths = [length for of_pass in widths for length in of_pass]
    assert lengths == sorted(lengths) and len(widths) == 3


def test_nan_and_unrenderable_rows_are_reported_by_row(worker, write_reward_model):
    picky = LINES.replace(
        "{% for m", "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m"
    )
    tokenizer = word_tokenizer()
    tokenizer.chat_template = picky
    group = worker(write_reward_model(tokenizer))
    answer = group.compute_rm_score(rollouts())
    problems = answer.non_tensor_batch["rm_problem"].tolist()
    assert "no system" in problems[1] and "roles system, user, assistant" in problems[1]
    assert [problem is None for problem in problems] == [True, False, True, True, True]
    assert [math.isnan(score) for score in scores_of(answer)] == [False, True, False, False, False]
    with torch.no_grad():
        group.worker.forward.module.score.weight.fill_(math.nan)
    assert all(math.isnan(score) for score in scores_of(group.compute_rm_score(rollouts())))


def test_a_tokenizer_without_a_chat_template(configured, write_reward_model, tmp_path):
    bare = word_tokenizer()
    bare.chat_template = None
    path = write_reward_model(bare)
    said = rf"reward_model\.model\.path={path}: its tokenizer has no chat template.*reward_model\.model\.tokenizer_path"
    with pytest.raises(ModelError, match=said):
        ConversationReader(configured(path))
    word_tokenizer().save_pretrained(tmp_path / "with")
    shutil.copy(path / "config.json", tmp_path / "with")
    assert ConversationReader(configured(path, tokenizer_path=str(tmp_path / "with"))).tokenizer.chat_template == LINES


def test_neither_needs_a_template_where_both_have_none(worker, write_reward_model, tmp_path):
    policy = write_tiny_model(tmp_path / "policy", chat_template=None)
    tokenizer = byte_tokenizer(None)
    path = write_reward_model(tokenizer)
    group, renderer = worker(path, policy), ChatRenderer(tokenizer)
    assert group.worker.conversations.as_they_are
    module = AutoModelForSequenceClassification.from_pretrained(path).eval()
    for score, (prompt, answer) in zip(scores_of(group.compute_rm_score(rollouts(tokenizer))), CHATS, strict=True):
        written = tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id] + tokenizer("\n\n")["input_ids"]
        ids = renderer.prompt_ids(prompt) + written
        with torch.no_grad():
            assert score == pytest.approx(module(torch.tensor([ids])).logits.item(), abs=1e-5)


def test_responses_are_decoded_with_the_policys_tokens(configured, write_reward_model, tiny_model, tmp_path):
    path = write_reward_model(word_tokenizer())
    copied = shutil.copytree(tiny_model, tmp_path / "copied")
    decoder = ConversationReader(configured(path, input_tokenizer=str(copied))).decoder
    assert decoder.name_or_path == str(copied) and decoder.decode([decoder.eos_token_id]) == "<|end|>"
    word_tokenizer().save_pretrained(tmp_path / "other")
    shutil.copy(tiny_model / "config.json", tmp_path / "other")
    with pytest.raises(ModelError, match=r"input_tokenizer=.*/other: .* other ids for \d+ of them, such as .*leave it"):
        ConversationReader(configured(path, input_tokenizer=str(tmp_path / "other")))
    same = write_reward_model(name="same")
    assert ConversationReader(configured(same)).as_they_are
    with pytest.raises(ModelError, match="input_tokenizer=.*/other: "):  # not needed there, and not left unread
        ConversationReader(configured(same, input_tokenizer=str(tmp_path / "other")))
    for name in ("input_tokenizer", "tokenizer_path"):
        with pytest.raises(ModelError, match=rf"^reward_model\.model\.{name}: .*\./nowhere"):
            ConversationReader(configured(path, **{name: "./nowhere"}))
