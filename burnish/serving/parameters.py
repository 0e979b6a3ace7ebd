"""The fields of a request: which there are, their limits, and which of OpenAI's this server does not do.

`requests.py` reads them. A field that is in none of these tables is unknown, and refused.
"""

from typing import Any

MAX_N = 128
MAX_SEQUENCES = 256  # prompts × n of one request
MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TEMPLATE_KWARGS = 16
MAX_TEMPERATURE = 2.0
MIN_TEMPERATURE = 1e-3  # but for 0: dividing logits by less leaves the range of float32
COMPLETION_TOKENS = 16  # of /v1/completions without max_tokens
LARGEST = 2**31 - 1

ROLES = ("system", "user", "assistant")
COMMON = (
    "model", "temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "stop", "stop_token_ids", "ignore_eos",
    "seed", "logprobs", "stream", "stream_options",
)  # fmt: skip
LABELS = ("user", "safety_identifier", "prompt_cache_key")  # say who asks, and change no answer

# Not done here: the values that ask for nothing and are taken, and what any other value asks for.
Unsupported = dict[str, tuple[tuple[Any, ...], str]]
TOOLS = "tools and function calls"
OTHER_THAN_TEXT = "answers that are not text"
_UNSUPPORTED: Unsupported = {
    "frequency_penalty": ((0,), "penalties"),
    "presence_penalty": ((0,), "penalties"),
    "logit_bias": (({},), "biases on tokens"),
    "service_tier": (("auto", "default"), "service tiers"),
}
UNSUPPORTED_CHAT: Unsupported = _UNSUPPORTED | {
    "top_logprobs": ((0,), "log-probs of tokens that were not sampled"),
    "tools": (([],), TOOLS),
    "tool_choice": (("none", "auto"), TOOLS),
    "functions": (([],), TOOLS),
    "function_call": (("none", "auto"), TOOLS),
    "parallel_tool_calls": ((True, False), TOOLS),
    "response_format": (({"type": "text"},), "structured answers"),
    "modalities": ((["text"],), OTHER_THAN_TEXT),
    "audio": ((), OTHER_THAN_TEXT),
    "prediction": ((), "predicted answers"),
    "reasoning_effort": ((), "degrees of reasoning"),
    "verbosity": ((), "degrees of verbosity"),
    "web_search_options": ((), "web search"),
    "store": ((False,), "stored answers"),
    "metadata": (({},), "stored answers"),
}
UNSUPPORTED_COMPLETION: Unsupported = _UNSUPPORTED | {
    "echo": ((False,), "the prompt in the answer"),
    "suffix": (("",), "text after the completion"),
    "best_of": ((1,), "choosing among more samples than are returned (ask for them with n)"),
}
UNSUPPORTED_IN_MESSAGE: Unsupported = {
    "name": ((), "names of participants"),
    "tool_calls": (([],), TOOLS),
    "function_call": ((), TOOLS),
    "tool_call_id": ((), TOOLS),
    "refusal": (("",), "refusals"),
    "audio": ((), "audio"),
    "annotations": (([],), "annotations"),
}
UNSUPPORTED_STREAM_OPTIONS: Unsupported = {"include_obfuscation": ((False,), "padding against eavesdroppers")}

CHAT_FIELDS = {*COMMON, *LABELS, *UNSUPPORTED_CHAT, "messages", "max_completion_tokens", "chat_template_kwargs"}
COMPLETION_FIELDS = {*COMMON, *LABELS, *UNSUPPORTED_COMPLETION, "prompt"}
MESSAGE_FIELDS = {"role", "content", *UNSUPPORTED_IN_MESSAGE}
STREAM_OPTIONS = {"include_usage", *UNSUPPORTED_STREAM_OPTIONS}
