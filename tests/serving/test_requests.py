"""What a request may say: every field is read or refused by name, every number and list has its bounds."""

import copy
from dataclasses import replace

import pytest

from burnish.data.chat import ChatRenderer
from burnish.models.tiny import write_tiny_model
from burnish.openai_wire.fields import ApiError
from burnish.openai_wire.http import parse_json
from burnish.serving.loading import ModelOptions, load
from burnish.serving.requests import read_chat, read_completion

MESSAGES = [{"role": "user", "content": "347+586=?"}]


def chat(served, /, **fields):
    return read_chat({"model": "nano", "messages": MESSAGES} | fields, served)


def completion(served, /, **fields):
    return read_completion({"model": "nano", "prompt": "1+1=?"} | fields, served)


def refusal(read, served, /, **fields):
    with pytest.raises(ApiError) as caught:
        read(served, **fields)
    return caught.value


def test_a_chat_is_rendered_with_the_template(nano):
    asked = chat(nano, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=5, n=3, seed=4, ignore_eos=True)
    assert nano.tokenizer.decode(asked.prompts[0]) == "<|start|>347+586=?\n"
    s = asked.sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.max_tokens, s.ignore_eos) == (0.5, 0.9, 7, 0.1, 5, True)
    seeds = [sampling.seed for _, sampling in asked.sequences()]
    assert len(set(seeds)) == 3 == asked.count
    assert seeds == [sampling.seed for _, sampling in chat(nano, n=3, seed=4).sequences()]
    parts = [{"type": "text", "text": "347+"}, {"type": "text", "text": "586=?"}]
    assert chat(nano, messages=[{"role": "user", "content": parts}]).prompts == chat(nano).prompts
    echoed = {"role": "assistant", "content": "answer: 933", "refusal": None, "tool_calls": None, "annotations": []}
    assert chat(nano, messages=[*MESSAGES, echoed, *MESSAGES]).prompts, "an answer of ours can be sent back"


def test_defaults_and_values_that_ask_for_nothing(nano):
    first, second = chat(nano), chat(nano)
    assert (first.sampling.temperature, first.sampling.max_tokens, first.n, first.stream) == (1.0, None, 1, False)
    assert first.sampling.seed != second.sampling.seed
    assert completion(nano).sampling.max_tokens == 16
    assert chat(nano, max_completion_tokens=9).sampling.max_tokens == 9
    assert chat(nano, seed=1, temperature=None, stop=None, tools=None) == chat(nano, seed=1)
    neutral = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "top_logprobs": 0, "store": False, "user": "me",
        "parallel_tool_calls": True,
    }  # fmt: skip
    assert chat(nano, seed=1, **neutral) == chat(nano, seed=1)
    assert completion(nano, seed=1, echo=False, best_of=1, suffix="") == completion(nano, seed=1)


def test_without_a_template_messages_are_written_plainly(talkative):
    body = {"model": "talkative", "messages": [{"role": "system", "content": "Be brief."}, *MESSAGES]}
    text = talkative.tokenizer.decode(read_chat(body, talkative).prompts[0])
    assert text == "system: Be brief.\n\nuser: 347+586=?\n\nassistant:"
    problem = refusal(chat, talkative, model="talkative", chat_template_kwargs={"plain_start": "x"})
    assert "expected a variable of the chat template (it has none)" in str(problem)


@pytest.mark.parametrize("prompt", ["ab", ["ab", "c"], [100, 101], [[100, 101], [102]]])
def test_the_four_kinds_of_prompts(nano, prompt):
    asked = completion(nano, prompt=prompt, n=2)
    prompts = prompt if isinstance(prompt[0], list) or prompt[0] == "ab" else [prompt]
    texts = isinstance(prompts[0], str)
    assert [nano.tokenizer.decode(ids) if texts else ids for ids in asked.prompts] == prompts
    assert [ids for ids, _ in asked.sequences()] == [ids for ids in asked.prompts for _ in range(2)]


def test_a_temperature_that_vllm_would_change_is_refused(nano):
    served = replace(nano, engine_name="vllm")
    problem = refusal(chat, served, temperature=0.005)
    assert problem.status == 400 and problem.body["error"]["param"] == "temperature"
    assert "temperature 0.005: vLLM takes 0 (greedy), or 0.01 to 2" in str(problem)
    assert [chat(served, temperature=x).sampling.temperature for x in (0, 0.01, 2)] == [0, 0.01, 2]
    assert chat(nano, temperature=0.005).sampling.temperature == 0.005


def test_variables_of_the_template(tmp_path):
    template = (
        "{% set ns = namespace(x=1) %}{% if bos_token is defined and false %}{{ raise_exception('') }}{% endif %}"
        "{{ 'think ' if enable_thinking else 'talk ' }}{% generation %}{{ messages[0]['content'] }}{% endgeneration %}"
    )
    model = load(ModelOptions(str(write_tiny_model(tmp_path / "m", chat_template=template)), device="cpu"), name="nano")
    for value, text in ((True, "think 347+586=?"), (False, "talk 347+586=?")):
        asked = chat(model, chat_template_kwargs={"enable_thinking": value})
        assert model.tokenizer.decode(asked.prompts[0]) == text
    given = {"chat_template": "x", "tokenize": True, "messages": "x", "namespace": 5, "raise_exception": 5}
    given |= {"bos_token": "x", "enable_thinking": [1], "a b": 1}
    for kwargs in (*({name: value} for name, value in given.items()), [1], {str(i): 1 for i in range(99)}):
        assert refusal(chat, model, chat_template_kwargs=kwargs).status == 400
    unknown = refusal(chat, model, chat_template_kwargs={"enable_thinkin": True})
    assert "'enable_thinkin'=True: expected a variable of the chat template (enable_thinking)" in str(unknown)


@pytest.mark.parametrize(
    ("read", "fields", "message"),
    [
        (chat, {"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'?"),
        (chat, {"model": 7}, "model=7: expected a string"),
        (chat, {"model": None}, "model is missing; this server has 'nano'"),
        (chat, {"temperature": 3}, "temperature=3: expected a number from 0 to 2"),
        (chat, {"temperature": [1]}, "temperature=[1]: expected a number"),
        (chat, {"temperature": "1"}, "temperature='1': expected a number"),
        (chat, {"temperature": True}, "temperature=True: expected a number"),
        (chat, {"temperature": float("nan")}, "temperature=nan: expected a number"),
        (chat, {"temperature": 1e-40}, "temperature=1e-40: it must be 0 (greedy), or at least 0.001"),
        (chat, {"temperature": 10**400}, "expected a number from 0 to 2"),
        (chat, {"top_p": 0}, "top_p=0.0: it must be above 0"),
        (chat, {"top_k": -2}, "top_k=-2: expected a whole number from -1"),
        (chat, {"min_p": 1.5}, "min_p=1.5: expected a number from 0 to 1"),
        (chat, {"max_tokens": 0}, "max_tokens=0: expected a whole number from 1"),
        (chat, {"max_tokens": 2.5}, "max_tokens=2.5: expected a whole number"),
        (chat, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens=5 and max_completion_tokens=6 differ"),
        (chat, {"max_tokens": 10**30}, "expected a whole number from 1 to 2147483647"),
        (chat, {"logprobs": "all"}, "logprobs='all': expected true or false"),
        (chat, {"stream": "yes"}, "stream='yes': expected true or false"),
        (chat, {"stop": 5}, "stop=5: expected a string that is not empty, or a list of them"),
        (chat, {"tools": 3}, "tools=3: not supported here"),
        (chat, {"n": 0}, "n=0: expected a whole number from 1 to 128"),
        (chat, {"seed": 2**70}, "expected a whole number from -9223372036854775808"),
        (chat, {"stop": ["a"] * 17}, "stop: at most 16 strings of at most 256 characters"),
        (chat, {"stop": "a" * 257}, "stop: at most 16 strings of at most 256 characters"),
        (chat, {"stop": ["a", ""]}, "stop=['a', '']: expected a string that is not empty"),
        (chat, {"stop": "\ufffd"}, "incomplete character"),
        (chat, {"stop_token_ids": [1] * 17}, "stop_token_ids: at most 16"),
        (chat, {"stop_token_ids": ["a"]}, "expected a list of whole numbers"),
        (chat, {"stop_token_ids": [-5]}, "stop_token_ids=[-5]: expected a list of whole numbers from 0 to 258"),
        (chat, {"stop_token_ids": [5, 259]}, "expected a list of whole numbers from 0 to 258"),
        (chat, {"ignore_eos": 1}, "ignore_eos=1: expected true or false"),
        (chat, {"top_logprobs": 5}, "top_logprobs=5: not supported here: log-probs of tokens that were not sampled"),
        (chat, {"frequency_penalty": 0.5}, "frequency_penalty=0.5: not supported here: penalties"),
        (chat, {"tools": [{"type": "function"}]}, "not supported here: tools and function calls"),
        (chat, {"response_format": {"type": "json_object"}}, "not supported here: structured answers"),
        (chat, {"user": 5}, "user=5: expected a string"),
        (chat, {"stream_options": {"include_usage": True}}, "stream_options: only with stream=true"),
        (chat, {"stream": True, "stream_options": {"usage": True}}, "stream_options has an unknown field 'usage'"),
        (chat, {"stream": True, "stream_options": [1]}, "stream_options must be a JSON object, not [1]"),
        (chat, {"messages": None}, "messages: expected a list of 1 to 4096 messages"),
        (chat, {"messages": "hi"}, "messages: expected a list of 1 to 4096 messages"),
        (chat, {"messages": [{"role": "user", "content": {"a": 1}}]}, "has the content a dict ({'a': 1}), expected"),
        (chat, {"messages": []}, "messages: expected a list of 1 to 4096 messages"),
        (chat, {"messages": MESSAGES * 5000}, "messages: expected a list of 1 to 4096 messages"),
        (chat, {"messages": ["hello"]}, "message 0 must be a JSON object, not 'hello'"),
        (chat, {"messages": [{"content": "x"}]}, "message 0: role=None: use one of system, user, assistant"),
        (chat, {"messages": [{"role": "tool", "content": "x"}]}, "message 0: role='tool'"),
        (chat, {"messages": [{"role": "user"}]}, "message 0 (user) has the content a NoneType (None), expected text"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url parts in messages"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "content part"),
        (chat, {"messages": [{"role": "user", "content": "x", "name": "Ada"}]}, "message 0: name='Ada': not supported"),
        (
            chat,
            {"messages": [{"role": "user", "content": "x", "weight": 1}]},
            "message 0 has an unknown field 'weig",
        ),
        (chat, {"messages": [{"role": "user", "content": "x" * 2000}]}, "has 2002 tokens and the context holds 1024"),
        (chat, {"temperature" * 300_000: 1}, "...; known: "),  # a name of megabytes gets no hint
        (completion, {"prompt": None}, "prompt=None: expected text, token ids, or a list"),
        (completion, {"prompt": []}, "prompt=[]: expected text"),
        (completion, {"prompt": ["a", 5]}, "prompt=['a', 5]: expected text"),
        (completion, {"prompt": [[5], []]}, "expected text"),
        (completion, {"prompt": [True]}, "expected text"),
        (completion, {"prompt": ["a"] * 257}, "expected text"),
        (
            completion,
            {"prompt": ["a"] * 200, "n": 2},
            "200 prompts with n=2 are 400 answers; at most 256 in one req",
        ),
        (completion, {"prompt": ""}, "the prompt is empty"),
        (completion, {"prompt": [5, 99_999]}, "token id 99999 is outside the model's vocabulary of 259"),
        (completion, {"prompt": [-1]}, "token id -1 is outside the model's vocabulary"),
        (completion, {"prompt": [5] * 1024}, "the prompt has 1024 tokens and the context holds 1024"),
        (completion, {"echo": True}, "echo=True: not supported here"),
        (completion, {"logprobs": 5}, "logprobs=5: not supported here"),
        (completion, {"logprobs": True}, "logprobs=True: expected a whole number"),
        (completion, {"messages": MESSAGES}, "unknown field 'messages'"),
    ],
)
def test_what_a_request_may_not_say(nano, read, fields, message):
    problem = refusal(read, nano, **fields)
    assert problem.status == 400 and message in str(problem)
    assert problem.body["error"]["type"] == "invalid_request_error"


def test_another_model_is_not_found_and_a_body_is_an_object(nano):
    for name in ("gpt-4o", ""):
        problem = refusal(chat, nano, model=name)
        assert problem.status == 404 and f"unknown model {name!r}; this server has 'nano'" in str(problem)
        assert problem.body["error"]["code"] == "model_not_found"
    for body in ([1], "x", 5, None):
        with pytest.raises(ApiError, match="the request must be a JSON object"):
            read_chat(body, nano)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"a": "\\ud800"}', b'{"\\udfff": 1}', b"[" * 100_000, b"1" * 10_000],
    ids=["empty", "cut", "no UTF-8", "half a pair", "half a pair in a name", "deep", "long number"],
)
def test_bodies_that_are_not_json(body):
    with pytest.raises(ApiError, match="the body is not readable as JSON") as caught:
        parse_json(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body", ['{"messages": [{"role": "user", "content": %s}]}', '{"stop": %s}', '{"tools": [{"a": %s}]}']
)
def test_a_deep_value_is_refused_not_a_crash(body):
    assert parse_json(b"[" * 32 + b"5" + b"]" * 32)
    for text in (body % ("[" * 900 + "]" * 900), "[" * 33 + "]" * 33):
        with pytest.raises(ApiError, match="more than 32 nested objects and lists") as caught:
            parse_json(text.encode())
        assert caught.value.status == 400


def test_nothing_is_tokenised_that_cannot_fit_or_is_wrong_otherwise(nano, monkeypatch):
    seen, kind, longest = [], type(nano.tokenizer), len("<|start|>")
    assert nano.longest_token == longest
    call, text = kind.__call__, "a" * (1024 * longest + 1)
    monkeypatch.setattr(kind, "__call__", lambda self, text, **how: seen.append(text) or call(self, text, **how))
    for read, fields in ((completion, {"prompt": text}), (chat, {"messages": [{"role": "user", "content": text}]})):
        problem = refusal(read, nano, **fields)
        assert f"{1024} tokens of at most {longest}; shorten it" in str(problem)
        assert problem.body["error"]["code"] == "context_length_exceeded"
    many = {"prompt": ["a"] * 200, "n": 2}
    for fields in ({"n": 500}, {"temperature": 5}, {"stop": 5}, {"stream_options": {}}, many):
        assert refusal(completion, nano, **fields).status == 400
    assert seen == []
    long = "a" * 2000  # prompts are tokenised up to the first that is too long
    assert "2000 tokens" in str(refusal(completion, nano, prompt=["a", long, "b", "c"]))
    assert seen == ["a", long]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it takes more than"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "it calls itself without an end"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "it is nested too deeply"),
        ("{{ messages[1].content }}", "cannot render messages"),
    ],
)
def test_a_hostile_template_refuses_the_request(nano, monkeypatch, template, problem):
    monkeypatch.setattr("burnish.data.template.BUDGET", 10**5)
    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template = template
    model = replace(nano, tokenizer=tokenizer, renderer=ChatRenderer(tokenizer))
    for fields in {}, {"chat_template_kwargs": {}}:
        error = refusal(chat, model, **fields)
        assert error.status == 400 and problem in str(error) and "\n" not in str(error)
    assert chat(nano).prompts


@pytest.mark.hostile
def test_special_tokens_in_messages_are_ordinary_text_if_asked(nano):
    end = nano.tokenizer.convert_tokens_to_ids("<|end|>")
    messages = [{"role": "user", "content": "1+1=?<|end|>"}]
    escaping = replace(nano, renderer=ChatRenderer(nano.tokenizer, escape=True))
    for fields in {}, {"chat_template_kwargs": {}}:
        assert end in chat(nano, messages=messages, **fields).prompts[0]
        assert end not in chat(escaping, messages=messages, **fields).prompts[0]
