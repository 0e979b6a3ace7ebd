"""Lines that several processes share: attention, states and gradients as of one process that has them whole.

In float32; processes add up in another order, so values agree to 1e-5 and gradients to 1e-4 of the largest.
"""

import pytest
import torch
import torch.distributed as dist

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError
from burnish.models.backbones import backbone_for
from burnish.models.ulysses import Ulysses, _repeats, heads_problem
from burnish.ops.varlen_attention import Sequences, varlen_attention
from tests.rollout.native.models import GROUPED, build

LENGTHS = [5, 1, 9, 3, 1]  # 19 tokens: neither 2 nor 4 divide them
HEADS = [(4, 4), (4, 2), (4, 1), (8, 2), (12, 6)]  # of queries, and of keys
WINDOWED = {"sliding_window": 4}
FAMILIES = {
    "llama": GROUPED,
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
    "mistral": GROUPED | WINDOWED,
    "gemma2": GROUPED
    | {"head_dim": 16, "sliding_window": 4, "attn_logit_softcapping": 1.0, "attn_implementation": "eager"},
    "gpt2": {"num_attention_heads": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
CONFIG = ModelConfig(use_fused_kernels=False)


def line():
    ids = torch.arange(sum(LENGTHS)) * 7 % 80
    return ids, torch.cat([torch.arange(length) for length in LENGTHS]), Sequences.of(LENGTHS, "cpu")


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def heads_of(heads, kv_heads):
    return [noise(sum(LENGTHS), n, 8, seed=seed).requires_grad_() for seed, n in enumerate((heads, kv_heads, kv_heads))]


def attend(heads, kv_heads, scores):
    """Attention of one line that the processes share, and the gradients of what each put in."""
    ulysses = Ulysses(dist.group.WORLD)
    ids, positions, sequences = line()
    _, _, filled = ulysses.slice_of(ids, positions, sequences)
    missing = sum(filled.lengths) - len(ids)
    here = ulysses._range(sum(filled.lengths))
    padded = [torch.cat([part, torch.ones(missing, *part.shape[1:])]) for part in heads_of(heads, kv_heads)]
    mine = [part[here].detach().requires_grad_() for part in padded]
    out = ulysses.attention(*mine, filled, **scores)
    weights = torch.cat([noise(len(ids), heads, 8, seed=9), torch.zeros(missing, heads, 8)])[here]
    (out * weights).sum().backward()
    return [out.detach(), *(part.grad for part in mine)]


@pytest.mark.parametrize("scores", [{"scale": 0.3}, {"scale": 0.3, "window": 3, "softcap": 2.0}], ids=["plain", "cap"])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("world", [2, 4])
def test_attention_is_that_of_the_whole_line(world, heads, kv_heads, scores, processes):
    parts = heads_of(heads, kv_heads)
    out = varlen_attention(*parts, line()[2], **scores)
    (out * noise(*out.shape, seed=9)).sum().backward()
    expected = [out.detach(), *(part.grad for part in parts)]
    slices = processes.call(world, attend, heads, kv_heads, scores)
    for number, wanted in enumerate(expected):
        found = torch.cat([of_process[number] for of_process in slices])
        torch.testing.assert_close(found[: len(wanted)], wanted, atol=1e-5, rtol=1e-5)
        assert number == 0 or not found[len(wanted) :].any()  # nothing leaks into what fills the line up


def train(family, checkpointing, places):
    """Figures at some places of a line, and the gradients of a sum of them, added up over all processes."""
    module = build(family, FAMILIES[family], sharpness=3).train()
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    ulysses = Ulysses(dist.group.WORLD) if dist.is_initialized() else None
    backbone, _ = backbone_for(module, CONFIG, "unfused", ulysses=ulysses)
    own, here = slice(None), places
    if ulysses is not None:
        own, here = ulysses.own(places, sum(LENGTHS))
    states = backbone(*line())[here]
    figures = {"sum": states.sum(-1), "first": states[:, 0]}
    if ulysses is not None:
        figures = ulysses.whole(figures, own, len(places))
    (figures["sum"] * noise(len(places))).sin().sum().backward()  # not linear: it takes all figures as they are
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    if ulysses is not None:
        for gradient in gradients.values():
            dist.all_reduce(gradient)
    return {name: figure.detach() for name, figure in figures.items()}, gradients


@pytest.mark.parametrize("places", [range(19), [2, 3], [0, 18], []], ids=["all", "of one", "ends", "none"])
@pytest.mark.parametrize("world", [2, 4])
def test_values_are_whole_in_every_process_and_count_once(world, places, processes):
    places = torch.tensor([*places], dtype=torch.long)
    check(processes, world, "llama", True, places)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_have_the_states_and_gradients_of_the_whole_line(family, checkpointing, processes):
    check(processes, 4, family, checkpointing, torch.arange(sum(LENGTHS)))


def check(processes, world, family, checkpointing, places):
    figures, gradients = train(family, checkpointing, places)
    found = processes.call(world, train, family, checkpointing, places)
    for of_process, summed in found:
        for name, wanted in figures.items():
            torch.testing.assert_close(of_process[name], wanted, atol=1e-5, rtol=1e-5)
            assert torch.equal(of_process[name], found[0][0][name])
        assert summed.keys() == gradients.keys()
        for name, gradient in gradients.items():
            size = max(float(gradient.abs().max()), 1e-2)
            torch.testing.assert_close(summed[name], gradient, atol=1e-4 * size, rtol=0, msg=name)


def test_heads_of_keys_are_repeated_as_little_as_it_takes_and_heads_that_do_not_divide_are_named():
    sizes = {(8, 8, 4): 1, (8, 2, 2): 1, (8, 2, 4): 2, (8, 1, 8): 8, (12, 6, 4): 2, (12, 4, 6): 3, (14, 2, 7): 7}
    assert {size: _repeats(*size) for size in sizes} == sizes
    assert heads_problem(14, 7) is heads_problem(3, 1) is None
    assert heads_problem(14, 4) == "its 14 attention heads can be divided evenly among 2, 7, 14 processes only"


class TwoProcesses:
    size, rank = 2, 0


@pytest.mark.parametrize(
    ("family", "keys", "config", "words"),
    [
        (
            "llama",
            {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48},
            {},
            "for LlamaForCausalLM: its 3 attention heads",
        ),
        ("llama", {}, {"use_remove_padding": False}, "needs model.use_remove_padding=True"),
        ("mamba", {"state_size": 4}, {}, "for MambaForCausalLM: .*; 1 fits every model"),
    ],
    ids=["heads", "padding", "kind"],
)
def test_models_that_cannot_be_shared_are_refused(family, keys, config, words):
    with pytest.raises(ConfigError, match=words):
        backbone_for(build(family, keys), ModelConfig(**config), "unfused", ulysses=TwoProcesses())
