"""What is right, written down without an engine: plain forward passes, and what each token must be.

`check_exact` is the definition that every engine follows: token t of a request is what `sample` draws from the logits
of a plain forward over all that came before it, with the noise of (seed, t). The plain forward has no cache and no
other sequence's work in it. Where the noise falls within `TIE` of the border between two tokens, either may come:
matrix products round differently with the batch.
"""

import gc
from dataclasses import dataclass

import numpy as np
import torch

from burnish.engine.forward import Forward
from burnish.engine.packing import pack
from burnish.rollout.base import Sampling, uniforms
from burnish.rollout.in_process import sample

TIE = 1e-5
EOS = 1  # of the byte tokenizer
ROWS_AT_ONCE = 128


def random_prompts(count, seed=0, shortest=1, longest=20, vocabulary=259):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, rng.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def random_requests(count, seed=0, longest=20, most=30):
    """Mixed prompts, lengths and sampling parameters; equal prompts and greedy rows among them."""
    rng = np.random.default_rng(seed)
    prompts = random_prompts(count, seed, longest=longest)
    for i in range(0, count, 3):
        prompts[i] = prompts[0]
    kinds = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.0}]
    return [
        (prompt, Sampling(max_tokens=int(rng.integers(1, most)), seed=1000 * seed + i, **kinds[i % len(kinds)]))
        for i, prompt in enumerate(prompts)
    ]


@torch.no_grad()
def greedy(module, prompt, count, **settings):
    ids = torch.tensor([prompt], device=module.device)
    out = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, **settings)
    return out[0, len(prompt) :].tolist()


@dataclass
class Checked:
    tokens: int  # that were compared
    near_ties: int  # of them, that a plain forward would have drawn otherwise, if barely


def check_exact(module, requests, completions, *, context, atol=1e-5):
    """Fails at the first request with a token, a log-prob or an end that a plain forward does not give.

    Completions that were aborted may be shorter than they would have been. Stop strings are not looked at. Where
    weights changed on the way, `module` is a dictionary: the module of each version.
    """
    checked = Checked(0, 0)
    pairs = sorted(zip(requests, completions, strict=True), key=lambda pair: len(pair[0][0]) + len(pair[1].token_ids))
    for i in range(0, len(pairs), ROWS_AT_ONCE):
        _check_rows(module, pairs[i : i + ROWS_AT_ONCE], checked, atol)
    for (prompt, sampling), completion in pairs:
        _check_end(prompt, sampling, completion, context)
    return checked


@torch.no_grad()
def _check_rows(module, pairs, checked, atol):
    lines = [[*prompt, *completion.token_ids] for (prompt, _), completion in pairs]
    width = max(len(line) for line in lines)
    modules = module if isinstance(module, dict) else {None: module}
    device = next(iter(modules.values())).device
    ids = torch.tensor([line + [0] * (width - len(line)) for line in lines], device=device)  # (B, L)
    mask = torch.tensor([[1] * len(line) + [0] * (width - len(line)) for line in lines], device=device)
    logits = {version: one(input_ids=ids, attention_mask=mask).logits for version, one in modules.items()}  # (B, L, V)
    rows, samplings, owners, places = [], [], [], []
    for row, ((prompt, sampling), completion) in enumerate(pairs):
        count = len(completion.token_ids)
        versions = completion.token_versions() if isinstance(module, dict) else [None] * count
        rows += [logits[version][row, len(prompt) - 1 + i][None] for i, version in enumerate(versions)]
        samplings += [sampling] * count
        owners += [row] * count
        places += range(count)
    if not owners:
        return
    rows = torch.cat(rows).float().cpu()  # (n, V)
    got = torch.tensor([token for _, completion in pairs for token in completion.token_ids])
    reported = torch.tensor([value for _, completion in pairs for value in completion.log_probs])
    noise = torch.from_numpy(uniforms([s.seed for s in samplings], places))
    scale = torch.tensor([s.temperature or 1.0 for s in samplings])
    plain = torch.log_softmax(rows / scale[:, None], dim=-1)
    own = plain.gather(1, got[:, None]).squeeze(1)
    drawn, _ = sample(rows, samplings, noise)
    low, _ = sample(rows, samplings, (noise - TIE).clamp(min=0))
    high, _ = sample(rows, samplings, (noise + TIE).clamp(max=1 - 2**-53))
    is_greedy = torch.tensor([s.greedy for s in samplings])
    right = torch.where(is_greedy, own >= plain.amax(-1) - TIE, (low <= got) & (got <= high))
    off = (reported - own).abs()
    for bad in ((~right) | ~(off <= atol)).nonzero().flatten().tolist()[:1]:
        (prompt, sampling), completion = pairs[owners[bad]]
        raise AssertionError(
            f"token {places[bad]} of {completion} after the prompt {prompt} with {sampling}: a plain forward gives "
            f"{drawn[bad].item()}, log-prob {own[bad].item():.6f}, log-prob off by {off[bad].item():.2e}"
        )
    checked.tokens += len(got)
    checked.near_ties += int((got != drawn).sum())


def _check_end(prompt, sampling, completion, context):
    room = context - len(prompt)
    limit = min(sampling.max_tokens or room, room)
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    *before, last = completion.token_ids or [None]
    assert len(completion.log_probs) == len(completion.token_ids) <= limit
    assert not stops & set(before), f"{completion} goes on after a stop token"
    if completion.finish_reason == "stop":
        assert last in stops and completion.stop == last
    elif completion.finish_reason == "length":
        assert len(completion.token_ids) == limit and last not in stops and completion.stop is None
    else:
        assert completion.finish_reason == "abort" and last not in stops


@torch.no_grad()
def difference_to_training(module, requests, completions, temperature=1.0):
    """|log-prob of the engine - log-prob of the trainer's own pass| for every sampled token, (n,)."""
    width = max(len(prompt) for prompt, _ in requests)
    longest = max(len(completion.token_ids) for completion in completions)
    ids = torch.zeros(len(requests), width + longest, dtype=torch.long)
    attention = torch.zeros_like(ids)
    for row, ((prompt, _), completion) in enumerate(zip(requests, completions, strict=True)):
        real = slice(width - len(prompt), width + len(completion.token_ids))
        ids[row, real] = torch.tensor([*prompt, *completion.token_ids])
        attention[row, real] = 1
    batch = {"input_ids": ids, "attention_mask": attention, "responses": ids[:, width:]}
    packed = pack({name: column.to(module.device) for name, column in batch.items()})
    trained = Forward(module).log_probs(packed, temperature)["log_prob"].cpu()[attention[:, width:].bool()]
    return (torch.tensor([value for completion in completions for value in completion.log_probs]) - trained).abs()


def tensor_bytes():
    """Bytes of all storages that live dense tensors of this process hold; each storage once."""
    gc.collect()
    sizes = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and not thing.is_meta and thing.layout is torch.strided:
            storage = thing.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
