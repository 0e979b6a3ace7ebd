"""The fused decoder against the HF module, and the calls that compile its kernels ahead. Adapters: test_lora.py."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import AutoConfig, AutoModelForCausalLM

from burnish.config.model import ModelConfig
from burnish.models.compile_ahead import FirstCalls, compile_ahead
from burnish.models.decoders import FusedDecoder, ModuleDecoder, decoder_for
from burnish.models.lora import add_adapter
from burnish.ops.paged_attention import LayerKV, Paged

CONTEXT, BLOCK = 64, 16
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
MODELS = {
    "llama": ("llama", {}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3-tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
}


def build(model_type="llama", seed=0, **overrides):
    settings = dict(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    config = AutoConfig.for_model(model_type, **(settings | overrides))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for parameter in module.parameters():  # biases and norms too: a wrong one must show
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return module.eval()


@pytest.fixture(params=MODELS)
def module(request):
    model_type, overrides = MODELS[request.param]
    return build(model_type, **overrides)


class Lines:
    """Sequences in a pool, each with its own blocks in no particular order; `run` feeds the next tokens of each."""

    def __init__(self, module, decoder, sequences):
        self.decoder, self.sequences, self.done = decoder, sequences, [0] * len(sequences)
        one = next(module.parameters())
        self.device, attention = one.device, module.model.layers[0].self_attn
        width = -(-CONTEXT // BLOCK)
        blocks = torch.randperm(len(sequences) * width, generator=torch.Generator().manual_seed(1)) + 1
        self.tables = blocks.reshape(len(sequences), width).int().to(self.device)
        kv_heads = attention.k_proj.out_features // attention.head_dim
        shape = (len(blocks) + 1, BLOCK, kv_heads, attention.head_dim)
        self.kv = []
        for _ in module.model.layers:
            pool = [torch.full(shape, 3.0, dtype=one.dtype, device=self.device) for _ in range(2)]
            addresses = torch.tensor([part.data_ptr() for part in pool], device=self.device)
            self.kv.append(LayerKV(*pool, addresses))

    def run(self, counts, keep=None):
        """Logits of the next `counts[i]` tokens of each sequence, as one list of (n, V) per sequence."""
        ids, positions, slots = [], [], []
        for i, (sequence, start, count) in enumerate(zip(self.sequences, self.done, counts, strict=True)):
            places = torch.arange(start, start + count)
            ids.append(sequence[start : start + count])
            positions.append(places)
            slots.append(self.tables[i].cpu().long()[places // BLOCK] * BLOCK + places % BLOCK)
            self.done[i] += count
        starts = torch.tensor([0, *counts]).cumsum(0).int().to(self.device)
        where = Paged(
            slots=torch.cat(slots).to(self.device),
            tables=self.tables,
            lengths=torch.tensor(self.done, dtype=torch.int32, device=self.device),
            starts=None if set(counts) == {1} else starts,
            longest_query=max(counts),
            longest=max(self.done),
        )
        with torch.inference_mode():
            line = torch.cat(ids).to(self.device), torch.cat(positions).to(self.device)
            logits = self.decoder(*line, self.kv, where, keep)
        return logits if keep is not None else list(logits.split(counts))


def sequences_of(module, lengths=(37, 5, 20)):
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(module.config.vocab_size, (n,), generator=generator) for n in lengths]


def plain_logits(module, sequence):
    with torch.no_grad():
        return module(sequence[None].to(module.device), use_cache=False).logits[0]


def agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def addresses(module):
    return [parameter.data_ptr() for parameter in module.parameters()]


def test_logits_are_those_of_the_module(module):
    """In one line, in pieces, token by token, and of chosen tokens alone."""
    assert FusedDecoder.problem(module) is None
    sequences = sequences_of(module)
    expected = [plain_logits(module, sequence) for sequence in sequences]  # before anything is merged
    decoder = FusedDecoder(module, CONTEXT)
    agree([plain_logits(module, sequence) for sequence in sequences], expected)
    agree(Lines(module, decoder, sequences).run([37, 5, 20]), expected)
    kept = Lines(module, decoder, sequences).run([37, 5, 20], keep=torch.tensor([61, 36, 40]))
    agree([kept], [torch.stack([expected[2][19], expected[0][36], expected[1][3]])])
    lines = Lines(module, decoder, sequences)
    parts = [lines.run(counts) for counts in ([3, 1, 9], [17, 1, 1], [1, 1, 1], [1, 1, 1], [6, 1, 5])]
    for i, logits in enumerate(expected):
        agree([torch.cat([part[i] for part in parts])], [logits[: lines.done[i]]])


def loss_gradients(module, sequence):
    module.zero_grad()
    module(sequence[None], labels=sequence[None], use_cache=False).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def test_merging_keeps_parameters_and_gradients_and_what_is_saved(module, tmp_path):
    [sequence] = sequences_of(module, lengths=[12])
    before, values = dict(module.named_parameters()), copy.deepcopy(module.state_dict())
    gradients = loss_gradients(module, sequence)
    FusedDecoder(module, CONTEXT)
    after = dict(module.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in after.values())
    assert all(torch.equal(tensor, values[name]) for name, tensor in module.state_dict().items())
    for name, gradient in loss_gradients(module, sequence).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-5, atol=1e-6, msg=name)
    module.save_pretrained(tmp_path / "model")
    torch.save(module.state_dict(), tmp_path / "state.pt")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).state_dict()
    assert list(again) == list(values)
    for loaded in (again, torch.load(tmp_path / "state.pt", weights_only=True)):
        assert all(torch.equal(loaded[name], tensor) for name, tensor in values.items())
    size = sum(f.stat().st_size for f in (tmp_path / "model").glob("*.safetensors"))
    assert size < 1.1 * sum(p.nbytes for p in module.parameters()) + 2**14  # each view its own rows, not the buffer


def test_new_weights_are_used_at_once_and_a_second_decoder_uses_the_same_buffers(module):
    """After an optimiser step, and after other weights were loaded."""
    sequences, original = sequences_of(module), copy.deepcopy(module.state_dict())
    decoder = FusedDecoder(module, CONTEXT)
    before, places = Lines(module, decoder, sequences).run([37, 5, 20]), addresses(module)
    optimiser = torch.optim.AdamW(module.parameters(), lr=0.05)
    loss_gradients(module, sequences[0])
    optimiser.step()
    after = Lines(module, decoder, sequences).run([37, 5, 20])
    assert min((a - b).abs().max() for a, b in zip(after, before, strict=True)) > 0.1
    agree(after, [plain_logits(module, sequence) for sequence in sequences])
    module.load_state_dict(original)
    agree(Lines(module, decoder, sequences).run([37, 5, 20]), before)
    second = FusedDecoder(module, CONTEXT)  # uses the same buffers
    assert addresses(module) == places
    for one, other in zip(decoder._layers, second._layers, strict=True):
        assert one.qkv.weight.data_ptr() == other.qkv.weight.data_ptr()
        assert one.gate_up.weight.data_ptr() == other.gate_up.weight.data_ptr()
    weight = module.model.layers[1].self_attn.k_proj.weight
    weight.data = weight.data.clone()  # a third ties what was rebound
    lines = Lines(module, FusedDecoder(module, CONTEXT), sequences)
    agree(lines.run([37, 5, 20]), [plain_logits(module, sequence) for sequence in sequences])


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def replace_projection(part, name, kind, bias):
    old = getattr(part, name)
    setattr(part, name, kind(old.in_features, old.out_features, bias=bias))


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
# Other settings, or a change of a plain model's layers.
REFUSALS = {
    "another class": ({"model_type": "gemma2", "head_dim": 8}, "Gemma2ForCausalLM is not one of LlamaForCausalLM"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act=gelu"),
    "pretraining_tp": ({"pretraining_tp": 2}, "pretraining_tp=2"),
    "rope": ({"rope_parameters": DYNAMIC}, "rope_type=dynamic"),
    "wrapped projection": (
        lambda m: replace_projection(m.model.layers[1].mlp, "up_proj", Doubled, bias=False),
        ".Doubled, not a plain Linear",
    ),
    "hook": (lambda m: m.model.layers[2].mlp.register_forward_hook(print), "model.layers.2.mlp has forward hooks"),
    "pre-hook": (lambda m: m.model.norm.register_forward_pre_hook(print), "model.norm has forward hooks"),
    "own forward": (lambda m: setattr(m.model.norm, "forward", print), "forward of model.norm was repl"),
    "dtypes": (lambda m: m.model.norm.to(torch.bfloat16), "several kinds: torch.bfloat16 on cpu, torch.float32 on c"),
    "shared": (
        lambda m: setattr(m.model.layers[1].self_attn.q_proj, "weight", m.model.layers[0].self_attn.q_proj.weight),
        "self_attn.q_proj.weight is shared with another projection",
    ),
    "one bias": (
        lambda m: replace_projection(m.model.layers[1].self_attn, "q_proj", nn.Linear, bias=True),
        "layer 1: only some of q_proj, k_proj, v_proj have a bias",
    ),
    "weight norm": (
        lambda m: weight_norm(m.model.layers[0].self_attn.o_proj),
        "ParametrizedLinear, not a plain",
    ),
    "float64": (lambda m: m.double(), "torch.float64 on cpu"),
    "quantised": (lambda m: setattr(m.config, "quantization_config", {"quant_method": "fp8"}), "weights are quantised"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_models_that_are_refused(case):
    change, words = REFUSALS[case]
    module = build(**change) if isinstance(change, dict) else build()
    if callable(change):
        change(module)
    assert words in (FusedDecoder.problem(module) or "")
    assert isinstance(decoder_for(module, CONTEXT), ModuleDecoder)


def test_wrapped_models_and_other_adapters_are_refused():
    peft = pytest.importorskip("peft")
    module = build()
    wrapped = peft.get_peft_model(module, peft.LoraConfig(target_modules=["q_proj"], r=2, use_dora=True))
    assert "PeftModel is not one of" in FusedDecoder.problem(wrapped)
    assert "q_proj is a peft.tuners.lora" in FusedDecoder.problem(module)


def test_made_in_inference_mode_it_can_be_trained_and_outside_of_it_builds_no_graph():
    module = build()
    with torch.inference_mode():
        decoder = FusedDecoder(module, CONTEXT)
    [sequence] = sequences_of(module, lengths=[5])
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    assert loss_gradients(module, sequence)["model.layers.0.self_attn.q_proj.weight"].abs().sum() > 0
    optimiser.step()
    lines = Lines(module, decoder, [sequence])
    slots = lines.tables[0].long()[0] * BLOCK + torch.arange(5)
    where = Paged(slots, lines.tables, torch.tensor([5]).int(), torch.tensor([0, 5]).int(), 5, 5)
    assert not decoder(sequence, torch.arange(5), lines.kv, where, None).requires_grad


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_in_bfloat16(module, device):
    """Rounding moves any pass away from the float32 logits; the fused one must not be further from them than HF's."""
    module = module.to(device, torch.bfloat16)
    exact, sequences = copy.deepcopy(module).float(), sequences_of(module)
    lines = Lines(module, FusedDecoder(module, CONTEXT), sequences)
    parts = [lines.run([20, 2, 7]), *(lines.run([1, 1, 1]) for _ in range(3))]
    for i, sequence in enumerate(sequences):
        found = torch.cat([part[i] for part in parts])
        plain, true = (plain_logits(m, sequence)[: len(found)] for m in (module, exact))
        assert found.dtype == torch.bfloat16
        assert (found - true).norm() < 1.5 * (plain - true).norm() + 1e-3 * true.norm()


@pytest.mark.gpu
def test_on_the_gpu_in_float32(module):
    module, sequences = module.cuda(), sequences_of(module)
    expected = [plain_logits(module, sequence) for sequence in sequences]
    lines = Lines(module, FusedDecoder(module, CONTEXT), sequences)
    parts = [lines.run([20, 2, 7]), *(lines.run([1, 1, 1]) for _ in range(3))]
    for i, logits in enumerate(expected):
        found = torch.cat([part[i] for part in parts])
        torch.testing.assert_close(found, logits[: len(found)], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_a_captured_step_sees_new_weights():
    """A decode step in a CUDA graph reads the parameters' memory, so an optimiser step needs no new capture."""
    module = build("qwen3", head_dim=16).to("cuda", torch.bfloat16)
    sequences = sequences_of(module, lengths=(21, 21))
    decoder = FusedDecoder(module, CONTEXT)

    def line():
        lines = Lines(module, decoder, sequences)
        lines.run([20, 20])
        slots = lines.tables[:, 20 // BLOCK].long() * BLOCK + 20 % BLOCK
        lengths = torch.tensor([21, 21], dtype=torch.int32, device="cuda")
        where = Paged(slots, lines.tables, lengths, None, 1, 21)
        ids = torch.stack([sequence[20] for sequence in sequences]).cuda()
        return ids, torch.full_like(ids, 20), lines.kv, where

    inputs = line()
    with torch.inference_mode():
        decoder(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = decoder(*inputs)
        graph.replay()
        before = logits.clone()
    assert torch.equal(before, decoder(*inputs))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    graph.replay()
    assert torch.equal(logits, decoder(*inputs)) and not torch.equal(logits, before)


BOTH = dict(rollout=True, training=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_every_call_runs_and_leaves_the_module_as_it_was(kind, dtype):
    """Also with frozen weights, which stay so."""
    module = build(kind).to(dtype)
    for adapted in (False, True):
        if adapted:
            add_adapter(module, ModelConfig(path="base", lora_rank=2), seed=0)
        before, trained = copy.deepcopy(module.state_dict()), [p.requires_grad for p in module.parameters()]
        compile_ahead(module, **BOTH)
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
        assert [p.requires_grad for p in module.parameters()] == trained and all(trained) != adapted
        assert all(parameter.grad is None for parameter in module.parameters())


def test_layers_with_and_without_a_window_have_attention_of_their_own_and_a_failure_is_an_error(monkeypatch):
    seen = set()
    monkeypatch.setattr(FirstCalls, "attend", lambda self, window, *line: seen.add(window))
    compile_ahead(build("qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1), **BOTH)
    assert seen == {None, 7}

    def breaks(self):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(FirstCalls, "store", breaks)
    with pytest.raises(RuntimeError, match="no such instruction"):
        compile_ahead(build("llama"), **BOTH)


@pytest.mark.parametrize("wanted", [{"rollout"}, {"training"}, {"rollout", "training"}, set()], ids=sorted)
def test_only_what_is_asked_for_is_compiled_and_nothing_of_modules_that_are_not_run_fused(monkeypatch, wanted):
    called = set()
    for name in ("rollout", "training"):
        monkeypatch.setattr(FirstCalls, f"of_{name}", lambda self, name=name: [lambda: called.add(name)])
    compile_ahead(build("llama"), rollout="rollout" in wanted, training="training" in wanted)
    assert called == wanted
    monkeypatch.setattr(FirstCalls, "__init__", lambda self, module: pytest.fail("called"))
    compile_ahead(build("gemma"), **BOTH)
