"""Adapters in training: what they change of a module, and that peft and transformers read them the same."""

import json

import peft
import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from burnish.config.model import ModelConfig
from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.models import loading
from burnish.models.loading import (
    check_reward_model,
    load_causal_lm,
    load_reward_model,
    load_tokenizer,
    load_value_model,
)
from burnish.models.lora import adapter_off, adapter_writer, add_adapter, has_adapter, lora_of
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine
from tests.models.helpers import edit_json, shaken

IDS = torch.arange(3, 40)[None]
MLP = {"gate_proj", "up_proj", "down_proj"}
ALL = {"q_proj", "k_proj", "v_proj", "o_proj"} | MLP
QUERY = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


def settings(**changes) -> ModelConfig:
    return ModelConfig(**{"lora_rank": 4, "lora_alpha": 8} | changes)


def trained(module):
    """The names of what requires gradients."""
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def moved(module):
    """What trains moved away from where it began, so that an adapter changes what the model says."""
    return shaken(module, seed=5, width=0.3)


def save_adapter(module, folder):
    adapter_writer(module, lambda tensor: tensor.detach().contiguous())(folder)


@torch.no_grad()
def logits(module):
    return module.eval()(IDS).logits


@pytest.fixture(scope="module")
def base_logits(tiny_model):
    return logits(AutoModelForCausalLM.from_pretrained(tiny_model))


@pytest.fixture
def policy(tiny_model):
    return moved(load_causal_lm(tiny_model, settings()))


@pytest.fixture
def saved(policy, tiny_model, tmp_path):
    """The folder of `policy`'s adapter."""
    save_adapter(policy, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_new_adapter_trains_and_changes_nothing(tiny_model, base_logits):
    plain, module = load_causal_lm(tiny_model, ModelConfig()), load_causal_lm(tiny_model, settings())
    assert type(module) is type(plain) and has_adapter(module) and not has_adapter(plain)
    assert torch.equal(logits(module), base_logits)
    names = trained(module)
    assert len(names) == 2 * 7 * module.config.num_hidden_layers and all("lora_" in name for name in names)
    weights = {name.replace(".base_layer", ""): p for name, p in module.named_parameters() if "lora_" not in name}
    assert weights.keys() == dict(plain.named_parameters()).keys()
    assert all(torch.equal(weight, plain.get_parameter(name)) for name, weight in weights.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_of_the_type_of_the_weights_and_drawn_from_the_seed(tiny_model, dtype):
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    first, same, other = (load_causal_lm(tiny_model, settings(dtype=dtype), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), drawn), "the random state is left alone"
    for name in trained(first):
        one, two, three = (module.get_parameter(name) for module in (first, same, other))
        assert one.dtype == getattr(torch, dtype) and torch.equal(one, two)
        assert torch.equal(one, three) == ("lora_B" in name)
        assert one.any() == ("lora_A" in name)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, ALL),
        ({"target_modules": ["q_proj", "v_proj"]}, {"q_proj", "v_proj"}),
        ({"target_modules": ["self_attn.q_proj"]}, {"q_proj"}),
        ({"exclude_modules": ["down_proj", "lm_head"]}, ALL - {"down_proj"}),
        ({"target_modules": ["k_proj", "o_proj"], "exclude_modules": ["o_proj"]}, {"k_proj"}),
        ({"target_modules": ["model.layers.1.mlp.up_proj"]}, {"up_proj"}),
    ],
)
def test_the_layers_that_get_one(tiny_model, tmp_path, changes, ends):
    module = load_causal_lm(tiny_model, settings(**changes))
    assert {name.split(".")[4] for name in trained(module)} == ends
    if changes.get("target_modules") == ["model.layers.1.mlp.up_proj"]:
        assert {name.rpartition(".lora_")[0] for name in trained(module)} == set(changes["target_modules"])
    plain = AutoModelForCausalLM.from_pretrained(tiny_model)
    add_adapter(plain, settings(**changes), seed=0)
    assert trained(plain) == trained(module), "any module takes one"
    save_adapter(moved(module), tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert written == sorted(written) and {name.rpartition(".")[2] for name in written} == ends
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path)
    assert torch.allclose(logits(again), logits(module), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_modules": ["q_prj"]}, r"no linear layer q_prj .*; it has down_proj, gate_proj, k_proj.*all-linear"),
        ({"target_modules": ["q_proj", "nope"]}, "target_modules: Qwen2ForCausalLM has no linear layer nope"),
        ({"target_modules": ["lm_head"]}, "lm_head of Qwen2ForCausalLM takes no adapter here"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens of Qwen2ForCausalLM takes no adapter here"),
        ({"exclude_modules": ["nope"]}, "exclude_modules: Qwen2ForCausalLM has no module nope"),
        ({"target_modules": ["q_proj"], "exclude_modules": ["self_attn.q_proj"]}, "leaves nothing of"),
    ],
)
def test_names_that_are_not_there(tiny_model, changes, words):
    with pytest.raises(ConfigError, match=words):
        load_causal_lm(tiny_model, settings(**changes))


def test_the_adapter_off_is_the_base_and_comes_back(policy, base_logits, tiny_model):
    before, names = logits(policy), trained(policy)
    assert not torch.allclose(before, base_logits, atol=1e-2)
    with adapter_off(policy):
        assert torch.equal(logits(policy), base_logits)
    assert torch.equal(logits(policy), before) and trained(policy) == names
    with pytest.raises(RuntimeError), adapter_off(policy):
        raise RuntimeError
    assert torch.equal(logits(policy), before)
    plain = load_causal_lm(tiny_model, ModelConfig())
    with adapter_off(plain):  # it has none
        assert torch.equal(logits(plain), base_logits)
    policy.requires_grad_(False)
    with adapter_off(policy):
        with adapter_off(policy):
            pass
        assert torch.equal(logits(policy), base_logits)
    assert torch.equal(logits(policy), before) and not trained(policy)


@pytest.mark.parametrize("model_type", ["qwen2", "gpt2"])
def test_peft_reads_what_is_saved(tmp_path, model_type, monkeypatch):
    write_tiny_model(tmp_path / "model", model_type=model_type)
    monkeypatch.chdir(tmp_path)
    module = moved(load_causal_lm("model", settings(path="model")))
    for name in ("one", "two"):
        save_adapter(module, tmp_path / name)
    written = json.loads((tmp_path / "one/adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(tmp_path / "model"), "found from anywhere"
    known = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", "lora_dropout": 0}
    assert written | known == written
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), tmp_path / "one")
    assert torch.allclose(logits(again), logits(module), atol=1e-6)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    assert not list((tmp_path / "one").glob("model*")), "the base is not copied"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_starts_from_an_adapter(saved, policy, tiny_model, dtype):
    edit_json(saved / "adapter_config.json", lora_dropout=0.5)
    config = ModelConfig(lora_adapter_path=str(saved), dtype=dtype)
    module = load_causal_lm(tiny_model, config)
    assert trained(module) == trained(policy)
    for name in trained(module):
        assert torch.equal(module.get_parameter(name), policy.get_parameter(name).to(module.dtype))
    found = module.train()(IDS).logits.float()  # without dropout
    assert torch.allclose(found, logits(policy), atol=1e-5 if dtype == "float32" else 1)
    before = {name: p.clone() for name, p in module.named_parameters() if not p.requires_grad}
    module(IDS, labels=IDS).loss.backward()
    torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1.0).step()
    assert all(torch.equal(module.get_parameter(name), weight) for name, weight in before.items())
    assert not torch.equal(module.get_parameter(trained(module)[0]), policy.get_parameter(trained(module)[0]))


@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}},
        {"target_modules": r".*\.(q|v)_proj"},
        {"layers_to_transform": [1]},
        {"init_lora_weights": "gaussian"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_training_starts_from_other_peoples_adapters(tiny_model, tmp_path, options):
    given = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"} | options
    theirs = moved(peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(**given)))
    theirs.save_pretrained(tmp_path / "theirs")
    module = load_causal_lm(tiny_model, ModelConfig(lora_adapter_path=str(tmp_path / "theirs")))
    assert torch.allclose(logits(module), logits(theirs), atol=1e-5)
    save_adapter(module, tmp_path / "ours")
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "ours")
    assert torch.allclose(logits(again), logits(theirs), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_dora": True}, "a layer with DoraLinearVariant, which is not plain LoRA"),
        ({"bias": "all"}, "an adapter with bias=all"),
        ({"lora_bias": True, "target_modules": ["q_proj"]}, r"a layer whose adapter has a bias \(lora_bias\)"),
        ({"init_lora_weights": "olora"}, "init_lora_weights=olora"),
        ({"modules_to_save": ["norm"]}, "modules_to_save=norm"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "model.embed_tokens among its modules"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head among its modules"),
        ({"trainable_token_indices": [3]}, r"trainable_token_indices=\[3\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore")
def test_other_kinds_are_refused_with_a_way_out(tiny_model, tmp_path, options, words):
    given = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"} | options
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(**given))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(NotAvailable, match=words) as caught:
        load_causal_lm(tiny_model, ModelConfig(lora_adapter_path=str(tmp_path)))
    assert f"`burnish export {tmp_path} --out FOLDER`" in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop(QUERY), r"lacks .*layers\.1\.self_attn\.q_proj\.lora_A.*; the adapter is incomplete"),
        (lambda t: t.update({QUERY.replace("1", "9"): torch.zeros(4, 32)}), r"layers\.9.* does not fit Qwen2For"),
        (lambda t: t.update({QUERY: torch.zeros(4, 31)}), r"is \(4, 31\) there, \(4, 32\) in this model"),
    ],
    ids=["missing", "left over", "shape"],
)
def test_weights_that_do_not_fit(saved, tiny_model, edit, words, monkeypatch):
    tensors = load_file(saved / "adapter_model.safetensors")
    edit(tensors)
    save_file(tensors, saved / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=words):
        load_causal_lm(tiny_model, ModelConfig(lora_adapter_path=str(saved)))
    monkeypatch.setattr(loading, "_load", None)  # what its settings show is reported before weights are read
    with pytest.raises(ConfigError, match="that adapter has rank 4"):
        load_causal_lm(tiny_model, ModelConfig(lora_adapter_path=str(saved), lora_rank=8))


def test_a_value_model_trains_its_head_too(saved, policy, tiny_model, tmp_path):
    module = load_value_model(tiny_model, settings(), seed=1)
    assert torch.equal(module.score.weight, load_value_model(tiny_model, ModelConfig(), seed=1).score.weight)
    heads = [name for name in trained(module) if "lora_" not in name]
    assert heads == ["score.weight", "score.bias"] and type(module.score) is nn.Linear
    save_adapter(moved(module), tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["modules_to_save"] == ["score"] and written["task_type"] == "TOKEN_CLS"
    plain = AutoModelForTokenClassification.from_pretrained(tiny_model, num_labels=1)
    assert torch.allclose(logits(PeftModel.from_pretrained(plain, tmp_path)), logits(module), atol=1e-6)
    again = load_value_model(tiny_model, ModelConfig(lora_adapter_path=str(tmp_path)), seed=2)
    assert torch.equal(logits(again), logits(module)) and trained(again) == trained(module)
    module = load_value_model(tiny_model, ModelConfig(lora_adapter_path=str(saved)), seed=1)  # the policy's adapter
    assert torch.equal(module.score.weight, load_value_model(tiny_model, ModelConfig(), seed=1).score.weight)
    name = QUERY.removeprefix("base_model.model.").replace("lora_A.", "lora_A.default.")
    assert torch.equal(module.get_parameter(name), policy.get_parameter(name))


def test_a_reward_model_is_its_adapter_on_a_language_model(tiny_model, tmp_path):
    module = moved(load_reward_model(tiny_model, settings(), new_head_seed=1, pad_token_id=0))
    save_adapter(module, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["task_type"] == "SEQ_CLS"
    config = ModelConfig(path=str(tiny_model), lora_adapter_path=str(tmp_path / "adapter"))
    check_reward_model(config)
    again = load_reward_model(tiny_model, config)
    assert torch.equal(logits(again), logits(module))
    plain = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1, pad_token_id=0)
    assert torch.allclose(logits(PeftModel.from_pretrained(plain, tmp_path / "adapter")), logits(module), atol=1e-6)
    save_adapter(moved(load_causal_lm(tiny_model, settings())), tmp_path / "headless")
    with pytest.raises(ModelError, match="this is no reward model"):
        check_reward_model(ModelConfig(path=str(tiny_model), lora_adapter_path=str(tmp_path / "headless")))


def gradients(module):
    module.train()(IDS, labels=IDS, use_cache=False).loss.backward()
    return {name: module.get_parameter(name).grad for name in trained(module)}


def test_gradient_checkpointing_changes_no_gradient(tiny_model):
    kept, recomputed = (
        gradients(moved(load_causal_lm(tiny_model, settings(enable_gradient_checkpointing=on)))) for on in (False, True)
    )
    assert kept.keys() == recomputed.keys() and all(gradient is not None for gradient in kept.values())
    for name, gradient in kept.items():
        assert gradient.any() and torch.allclose(gradient, recomputed[name], atol=1e-7), name


def test_engines_generate_with_the_adapter_unmerged(policy, tiny_model, saved):
    """Greedy tokens are those of transformers with the adapter merged into the base, and not those of the base."""
    tokenizer, prompts = load_tokenizer(tiny_model), [[5, 6, 7, 8], [9, 10, 11], list(range(20, 50))]
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    plain = [greedy(base, prompt) for prompt in prompts]
    merged = PeftModel.from_pretrained(base, saved).merge_and_unload()
    expected = [greedy(merged, prompt) for prompt in prompts]
    assert expected != plain
    requests = [(prompt, Sampling(temperature=0, max_tokens=12, ignore_eos=True)) for prompt in prompts]
    for make in (NativeEngine, HFEngine, NativeEngine):
        completions = make(policy, tokenizer, max_num_seqs=4).run(requests)
        assert [completion.token_ids for completion in completions] == expected, make
        with adapter_off(policy):
            pass


def greedy(module, prompt, count=12):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, module.eval()(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
def test_a_layers_output_is_base_plus_scaled_update_and_other_arithmetic_is_refused(policy, tiny_model, tmp_path):
    layer = policy.model.layers[0].mlp.up_proj
    base, ((down, up, scale),) = lora_of(layer)
    x = torch.randn(5, base.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(layer(x), base(x) + scale * (x @ down.T) @ up.T, atol=1e-6)
    assert type(base) is nn.Linear and scale == 2 and down is layer.lora_A["default"].weight
    with adapter_off(policy):
        assert lora_of(layer) == (base, [])
    assert lora_of(policy.lm_head) is None
    with pytest.raises(NotAvailable, match=r"of a torch\.nn\.modules\.sparse\.Embedding"):
        lora_of(policy.model.embed_tokens)
    layer.merge()
    with pytest.raises(NotAvailable, match="whose adapter is merged into its base"):
        lora_of(layer)
    layer.unmerge()
    config = LoraConfig(target_modules=["up_proj"])
    policy = peft.inject_adapter_in_model(config, policy, "second")
    layer.set_adapter(["default", "second"])
    with pytest.raises(NotAvailable, match=r"with several adapters \(default, second\)"):
        lora_of(layer)
    for options, words in (
        ({"use_dora": True}, "with DoraLinearVariant"),
        ({"lora_bias": True}, "has a bias"),
        ({"lora_dropout": 0.1}, "has dropout"),
    ):
        config = LoraConfig(target_modules=["q_proj"], **options)
        module = peft.inject_adapter_in_model(config, AutoModelForCausalLM.from_pretrained(tiny_model))
        with pytest.raises(NotAvailable, match=words):
            lora_of(module.model.layers[0].self_attn.q_proj)
    write_tiny_model(tmp_path / "gpt", model_type="gpt2")
    conv = load_causal_lm(tmp_path / "gpt", settings()).transformer.h[0].attn.c_attn
    with pytest.raises(NotAvailable, match=r"of a peft\.tuners\.lora"):
        lora_of(conv)
