"""What a reward model reads: the trajectories of a batch as conversations in the model's own token ids.

Consumes the rollout columns of a batch and its `raw_prompt`; produces a `JudgedConversation` for each row, read in one
of two ways:

    as they are   The model has the policy's vocabulary and chat template: the ids of the trajectory itself, with all
                  its turns. Its last turn is closed as the template closes one, whatever the policy ended it with.
    rendered      Otherwise: the messages of the prompt and, as one message of the assistant, the text that the policy
                  wrote, by the model's own template and tokenizer.

So both ways end as the template ends a conversation, which is how `burnish rm` trains (`ChatRenderer.whole`). A
conversation that is too long loses its start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from burnish.config import PPOConfig
from burnish.data.chat import ChatRenderer, special_ids, truncate
from burnish.errors import DataError, ModelError
from burnish.models.facts import read_model_facts
from burnish.models.folder import read_json, resolve_path
from burnish.models.loading import load_tokenizer, naming
from burnish.protocol import DataProto

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
    """The tokenizers of a run with a reward model. ModelError where the model could not read its responses."""

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
        self.renderer = ChatRenderer(self.tokenizer, arguments if self.as_they_are else None)
        self.ends = special_ids(theirs) | _end_ids(policy.path)
        self.closing = self._closing() if self.as_they_are else []
        self.decoder = _decoder(model.input_tokenizer, model.trust_remote_code, theirs)

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
        return [self._checked(self._cut(read(data, row))) for row in range(len(data))]

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

    def _cut(self, conversation: JudgedConversation) -> JudgedConversation:
        if self.max_length is None or len(conversation.ids) <= self.max_length:
            return conversation
        return JudgedConversation(truncate(conversation.ids, self.max_length, "left"), is_cut=True)

    def _checked(self, conversation: JudgedConversation) -> JudgedConversation:
        largest = max(conversation.ids, default=0)
        if self.tokens is None or largest < self.tokens:
            return conversation
        token = self.tokenizer.convert_ids_to_tokens(largest)
        return JudgedConversation(
            [], problem=f"the reward model has no token {largest} ({token!r}), only {self.tokens}"
        )

    def _closing(self) -> list[int]:
        """All that the template writes after the text of an assistant's turn."""
        text = self.renderer.text([QUESTION, PROBE], generation_prompt=False)
        return list(self.tokenizer(text.rpartition(PROBE["content"])[2], add_special_tokens=False)["input_ids"])


def other_ids(reader: "PreTrainedTokenizerBase", policy: "PreTrainedTokenizerBase") -> list[str]:
    """The tokens of the policy that are something else to the reader, or nothing."""
    known = reader.get_vocab()
    return sorted(token for token, number in policy.get_vocab().items() if known.get(token) != number)


def padded(conversations: Sequence[list[int]], device: Any = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both (B, L), padded on the right. An id is 0 where the mask is."""
    lengths = torch.tensor([len(ids) for ids in conversations], device=device)
    mask = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
    input_ids = torch.zeros(mask.shape, dtype=torch.long, device=device)
    input_ids[mask] = torch.tensor([token for ids in conversations for token in ids], device=device)
    return input_ids, mask.long()


def _end_ids(policy: str) -> set[int]:
    """The tokens that the policy's folder says end a response; not all of them need be special."""
    folder = resolve_path(policy, weights=False)
    files = [folder / name for name in ("config.json", "generation_config.json")]
    listed = [read_json(file).get("eos_token_id") for file in files if file.is_file()]
    return {number for ids in listed if ids is not None for number in ([ids] if isinstance(ids, int) else ids)}


def _decoder(path: str | None, trust_remote_code: bool, theirs: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    """What turns responses into text: the policy's tokenizer, or the one that was named."""
    if path is None:
        return theirs
    with naming(f"{MODEL}.input_tokenizer"):
        tokenizer = load_tokenizer(path, trust_remote_code)
    if other := other_ids(tokenizer, theirs):
        raise ModelError(
            f"{MODEL}.input_tokenizer={path}: responses are in the policy's tokens, and it has other ids for "
            f"{len(other)} of them, such as {other[0]!r}; name the policy's tokenizer, or leave it out"
        )
    return tokenizer
