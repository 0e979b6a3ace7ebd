"""The reward model: a classifier with one label that gives each finished conversation a score; and what it reads.

Made where `reward_model.enable` is set. It is frozen: no optimiser, nothing in a checkpoint. Which rows are sent here,
and what becomes of their scores, is in `trainer/reward_model.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from burnish.config import PPOConfig
from burnish.controller import Dispatch, register
from burnish.data.chat import ChatRenderer, special_ids, truncate
from burnish.engine.batching import MicroBatch
from burnish.engine.offload import HostModule
from burnish.engine.trainable import frozen, infer_rows
from burnish.errors import DataError, ModelError
from burnish.models.facts import read_model_facts
from burnish.models.folder import read_json, resolve_path
from burnish.models.loading import load_reward_model, load_tokenizer, naming
from burnish.protocol import DataProto
from burnish.workers.model_worker import ModelWorker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL = "reward_model.model"
COLUMNS = ("input_ids", "attention_mask", "responses", "response_mask")  # that `ConversationReader.of` reads
PROMPT = "raw_prompt"
QUESTION = {"role": "user", "content": "question"}
PROBE = {"role": "assistant", "content": "xyzzy"}  # an answer that no template contains


@dataclass(frozen=True)
class JudgedConversation:
    """Token ids, or the reason why there are none."""

    ids: list[int]
    is_cut: bool = False  # its start was cut off
    problem: str | None = None


class ConversationReader:
    """The trajectories of a batch as conversations in the reward model's own token ids.

    as they are   The model has the policy's vocabulary and chat template: the ids of the trajectory itself, with all
                  its turns. Its last turn is closed as the template closes one, whatever the policy ended it with.
    rendered      Otherwise: the messages of the prompt and, as one message of the assistant, the text that the policy
                  wrote, by the model's own template and tokenizer.

    Both end as the template ends a conversation, as in `burnish rm`; one that is too long loses its start."""

    def __init__(self, config: PPOConfig, policy_tokenizer: "PreTrainedTokenizerBase | None" = None):
        model, policy = config.reward_model.model, config.actor_rollout_ref.model
        theirs = policy_tokenizer or load_tokenizer(policy.tokenizer_path or policy.path, policy.trust_remote_code)
        self.named = f"{MODEL}.tokenizer_path" if model.tokenizer_path else f"{MODEL}.path"
        with naming(self.named):
            self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.max_length = config.reward_model.max_length or read_model_facts(model.path).context
        self.tokens: int | None = None  # how many the model knows, set by `expect`
        arguments = config.data.apply_chat_template_kwargs
        template = arguments.get("chat_template") or theirs.chat_template
        self.as_they_are = self.tokenizer.chat_template == template and not other_ids(self.tokenizer, theirs)
        if not self.as_they_are and not self.tokenizer.chat_template:
            raise ModelError(
                f"{MODEL}.path={model.path}: its tokenizer has no chat template, and one is needed: the policy has "
                "another tokenizer or template, so each chat is rendered again for the reward model. Name a "
                f"tokenizer that has one in {MODEL}.tokenizer_path, or put chat_template into its tokenizer_config.json"
            )
        # The policy's arguments are for the policy's template.
        escape = config.data.escape_special_tokens
        self.renderer = ChatRenderer(self.tokenizer, arguments if self.as_they_are else None, escape=escape)
        # What ends a response: special tokens, and those that the policy's folder names, which need not be special.
        files = [resolve_path(policy.path, weights=False) / f"{name}config.json" for name in ("", "generation_")]
        listed = [read_json(file).get("eos_token_id") for file in files if file.is_file()]
        of_folder = {i for ids in listed if ids is not None for i in ([ids] if isinstance(ids, int) else ids)}
        self.ends = special_ids(theirs) | of_folder
        self.closing: list[int] = []  # all that the template writes after the text of an assistant's turn
        if self.as_they_are:
            text = self.renderer.text([QUESTION, PROBE], generation_prompt=False)
            self.closing = self.tokenizer(text.rpartition(PROBE["content"])[2], add_special_tokens=False)["input_ids"]
        self.decoder = theirs  # what turns responses into text
        if model.input_tokenizer is not None:
            with naming(f"{MODEL}.input_tokenizer"):
                self.decoder = load_tokenizer(model.input_tokenizer, model.trust_remote_code)
            if other := other_ids(self.decoder, theirs):
                raise ModelError(
                    f"{MODEL}.input_tokenizer={model.input_tokenizer}: responses are in the policy's tokens, and it "
                    f"has other ids for {len(other)} of them, such as {other[0]!r}; name the policy's tokenizer, or "
                    "leave it out"
                )

    def problem_with(self, prompt: Sequence[Mapping[str, Any]]) -> str | None:
        """Why no answer to these messages could be read, or None."""
        if self.as_they_are:
            return None
        try:
            self.renderer.text([*map(dict, prompt), PROBE], generation_prompt=False)
        except DataError as error:
            return f"the reward model's chat: {error}"
        return None

    def expect(self, tokens: int) -> None:
        """Read for a model of so many tokens: ModelError where the tokenizer's ids go beyond them. Added tokens may, if
        the chat template writes none of them; a conversation with such a token is a problem then."""
        largest = max(self.tokenizer.vocab_size - 1, *self.renderer.whole([QUESTION, PROBE]))
        if largest >= tokens:
            raise ModelError(
                f"{self.named}: the tokenizer has ids up to {largest}, and the model of {MODEL}.path knows {tokens} "
                f"tokens; name the tokenizer that it was trained with in {MODEL}.tokenizer_path"
            )
        self.tokens = tokens

    def of(self, data: DataProto) -> list[JudgedConversation]:
        """One for each row of a batch that has COLUMNS, and PROMPT where `as_they_are` does not hold."""
        read = self._taken if self.as_they_are else self._rendered
        return [self._fitted(read(data, row)) for row in range(len(data))]

    def _taken(self, data: DataProto, row: int) -> JudgedConversation:
        there = data.batch["attention_mask"][row].bool()  # (P+R,)
        ids: list[int] = data.batch["input_ids"][row][there].tolist()
        sampled = data.batch["response_mask"][row][there[-data.batch["responses"].shape[1] :]]
        if len(sampled) and not bool(sampled[-1]):  # it ends with an observation: no turn of the assistant to close
            return JudgedConversation(ids)
        prompt = len(ids) - len(sampled)
        return JudgedConversation(ids[:prompt] + self._unended(ids[prompt:]) + self.closing)

    def _rendered(self, data: DataProto, row: int) -> JudgedConversation:
        sampled = data.batch["response_mask"][row].bool()  # (R,)
        ids = self._unended(data.batch["responses"][row][sampled].tolist())
        text = self.decoder.decode(ids, skip_special_tokens=True)
        messages = [*data.non_tensor_batch[PROMPT][row], {"role": "assistant", "content": text}]
        try:
            return JudgedConversation(self.renderer.whole(messages))
        except DataError as error:
            return JudgedConversation([], problem=f"the reward model's chat: {error}")

    def _unended(self, response: list[int]) -> list[int]:
        """Without the tokens that ended it: by its choice among several, a policy could choose its reward."""
        count = len(response)
        while count and response[count - 1] in self.ends:
            count -= 1
        return response[:count]

    def _fitted(self, conversation: JudgedConversation) -> JudgedConversation:
        """No longer than the model reads; a problem where it has a token that the model does not know."""
        if self.max_length is not None and len(conversation.ids) > self.max_length:
            conversation = JudgedConversation(truncate(conversation.ids, self.max_length, "left"), is_cut=True)
        largest = max(conversation.ids, default=0)
        if self.tokens is None or largest < self.tokens:
            return conversation
        unknown = f"{largest} ({self.tokenizer.convert_ids_to_tokens(largest)!r})"
        return JudgedConversation([], problem=f"the reward model has no token {unknown}, only {self.tokens}")


class RewardModelWorker(ModelWorker):
    profiled: ClassVar = {"reward_model": ("compute_rm_score",)}

    @register(dispatch_mode=Dispatch.TOGETHER)
    def init_model(self) -> None:
        model = self.config.reward_model.model
        self.conversations = ConversationReader(self.config)
        self.together = self.mesh(model.fsdp_config)
        with naming(f"{MODEL}.path"):
            module = self.load(partial(load_reward_model, model.path, model), self.together)
        self.conversations.expect(module.get_input_embeddings().weight.shape[0])
        self.forward = frozen(module, model, model.fsdp_config, self.together)
        self.weights = HostModule(module, parks=model.fsdp_config.param_offload)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """`rm_scores` (B, R): the score on the last token with response_mask 1, 0 elsewhere; `rm_problem`, why a row
        has no score (it is NaN then), else None; and `rm_cut`, whether the conversation lost its start."""
        conversations = self.conversations.of(data)
        readable = [row for row, conversation in enumerate(conversations) if conversation.problem is None]
        readable.sort(key=lambda row: len(conversations[row].ids))  # so that a pass pads little
        ids = [conversations[row].ids for row in readable]

        def score(rows: np.ndarray) -> dict[str, torch.Tensor]:
            return {"score": self.forward.scores(*padded([ids[row] for row in rows], self.device))}

        with self.weights.on_device():
            found = infer_rows(self.forward.module, score, list(map(len, ids)), self.micro_batch, self.together)
        scores = torch.full((len(data),), torch.nan)  # (B,)
        if readable:
            scores[readable] = found["score"]
        return DataProto.from_dict(
            {"rm_scores": on_last_token(scores, data.batch["response_mask"])},
            non_tensors={
                "rm_problem": [conversation.problem for conversation in conversations],
                "rm_cut": [conversation.is_cut for conversation in conversations],
            },
        )

    @property
    def micro_batch(self) -> MicroBatch:
        section = self.config.reward_model
        return MicroBatch.choose(
            section.use_dynamic_bsz, section.forward_max_token_len_per_gpu, section.micro_batch_size_per_gpu
        )


def on_last_token(scores: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """(B, R): each score (B,) on the last token of its row with response_mask 1; a row without one has none."""
    width = response_mask.shape[1]
    last = (response_mask * torch.arange(1, width + 1)).argmax(-1)  # (B,)
    placed = torch.zeros(response_mask.shape)
    rows = response_mask.any(-1).nonzero()[:, 0]
    placed[rows, last[rows]] = scores[rows]
    return placed


def other_ids(reader: "PreTrainedTokenizerBase", policy: "PreTrainedTokenizerBase") -> list[str]:
    """The tokens of the policy that are something else to the reader, or nothing."""
    known = reader.get_vocab()
    return sorted(token for token, number in policy.get_vocab().items() if known.get(token) != number)


def padded(conversations: Sequence[list[int]], device: Any = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both (B, L), padded on the right. An id is 0 where the mask is."""
    input_ids = pad_sequence([torch.tensor(ids, dtype=torch.long) for ids in conversations], batch_first=True)
    mask = pad_sequence([torch.ones(len(ids), dtype=torch.long) for ids in conversations], batch_first=True)
    return input_ids.to(device), mask.to(device)
