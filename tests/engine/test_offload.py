"""Moving memory to the host changes no number, and frees the memory.

On a CPU the rules are tested: what is moved, in which order it comes back, that what is used is what came back. There
the `host` fixture makes the CPU the device whose memory is spared. The streams are tested on a GPU.
"""

import gc

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from burnish.config.fsdp import FSDPConfig
from burnish.config.optim import OptimConfig
from burnish.engine import offload
from burnish.engine.offload import Activations, HostModule, HostState, activation_offload, moves_state
from burnish.engine.optim import make_optimizer
from burnish.engine.trainable import Trainable
from burnish.models.tiny import write_tiny_model

CUDA = torch.device("cuda")


@pytest.fixture
def spare_cpu(monkeypatch):
    """As if the CPU were a GPU."""
    monkeypatch.setattr(offload, "SCARCE", "cpu")


class Copies:
    """Transfers within the CPU that write down what they were asked; what is not waited for is not there yet."""

    def __init__(self):
        self.sent, self.fetched = [], []

    def to_host(self, data):
        host = torch.full_like(data, 255)
        self.sent.append(host)
        return host, (host, data)

    def to_device(self, host):
        data = torch.full_like(host, 255)  # bytes of NaN in every float type
        self.fetched.append(self._number(host))
        return data, (data, host)

    def wait(self, mark):
        into, source = mark
        into.copy_(source)

    def _number(self, host):
        return next(number for number, sent in enumerate(self.sent) if sent is host)


class Chain(nn.Module):
    """Layers that each save one activation, their input times a weight that is a view."""

    def __init__(self, layers=12):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, layers * 64).view(layers, 64))
        self.seen = []

    def forward(self, x):
        for row in self.weight:
            x = x * row
            self.seen.append(StorageWeakRef(x.untyped_storage()))
            x = x.sin()
        return x.sum()


def gradients(module, x, activations=None):
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    if activations is None:
        module(leaf).backward()
    else:
        with torch.autograd.graph.saved_tensors_hooks(activations.save, activations.give):
            module(leaf).backward()
        activations.close()
    return [leaf.grad, *(p.grad.clone() for p in module.parameters())]


def same(ours, theirs):
    return all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_gradients_are_those_of_the_copies_which_come_in_reverse_order_ahead_of_their_use(spare_cpu):
    module, x = Chain(), torch.randn(32, 64)
    copies, ahead = Copies(), []
    activations = Activations(module, copies, smallest=1)
    give = activations.give

    def watched(saved):
        tensor = give(saved)
        if not isinstance(saved, torch.Tensor):
            ahead.append(saved.moved.place - min(copies.fetched, default=saved.moved.place))
        return tensor

    activations.give = watched
    assert same(gradients(module, x, activations), gradients(module, x))
    assert len(copies.fetched) > 12  # so what the gradients come from are the copies: unwaited ones are NaN
    # The last ones to leave had not left when the backward pass began, and nothing is brought twice.
    assert copies.fetched == list(range(len(copies.sent) - offload.LEAVING))[::-1]
    assert max(ahead) == offload.AHEAD and ahead[-1] == 0

    class Lost(Copies):
        def wait(self, mark):
            pass

    assert not same(gradients(module, x, Activations(module, Lost(), smallest=1)), gradients(module, x))


def test_memory_is_let_go_in_the_forward_pass(spare_cpu):
    module = Chain()
    activations = Activations(module, Copies(), smallest=1)
    with torch.autograd.graph.saved_tensors_hooks(activations.save, activations.give):
        loss = module(torch.randn(32, 64).requires_grad_())
    gone = [storage.expired() for storage in module.seen]
    assert all(gone[: -offload.LEAVING]) and not gone[-1]
    loss.backward()
    assert all(moved is None for moved in activations.order)  # and nothing of it is held after its use


def test_a_storage_is_moved_once_whatever_views_of_it_are_saved(spare_cpu):
    copies = Copies()
    activations = Activations(nn.Module(), copies, smallest=1)
    whole = torch.randn(6, 8)
    views = [whole, whole.t(), whole[1:3, ::2], whole[0].expand(5, 8)]
    saved = [activations.save(view) for view in views]
    assert len(copies.sent) == 1
    for view, kept in zip(views, saved, strict=True):
        back = activations.give(kept)
        assert back.equal(view) and back.stride() == view.stride()
    assert activations.order == [None]
    before = activations.save(tensor := torch.zeros(4))
    for _ in range(offload.LEAVING):
        activations.save(torch.zeros(4))
    tensor.add_(1)  # written in between, it is moved again
    after = activations.save(tensor)
    assert activations.give(after).tolist() == [1] * 4 and activations.give(before).tolist() == [0] * 4


def test_weights_and_small_tensors_stay(spare_cpu):
    module, x, copies = Chain(), torch.randn(32, 64), Copies()
    activations = Activations(module, copies, smallest=x.nbytes)
    for kept in (module.weight.detach()[3:].t(), module.weight, torch.zeros(32, 63)):
        assert activations.save(kept) is kept
    assert activations.save(x) is not x and len(copies.sent) == 1


def test_a_graph_outlives_the_context_and_is_used_twice(spare_cpu):
    module, x = Chain(), torch.randn(32, 64).requires_grad_()
    activations = Activations(module, Copies(), smallest=1)
    with torch.autograd.graph.saved_tensors_hooks(activations.save, activations.give):
        loss = module(x)
    activations.close()
    first = torch.autograd.grad(loss, module.weight, retain_graph=True)
    second = torch.autograd.grad(loss, module.weight)
    assert same(first, second) and same(first, torch.autograd.grad(module(x), module.weight))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_has_the_same_gradients(spare_cpu, causal_lm, checkpointing):
    if checkpointing:
        causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    causal_lm.train()
    ids, copies = torch.arange(40).view(2, 20), Copies()

    def backward(activations=None):
        causal_lm.zero_grad()
        hooks = (activations.save, activations.give) if activations else (lambda tensor: tensor,) * 2
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            causal_lm(ids).logits.logsumexp(-1).sum().backward()
        return [p.grad.clone() for p in causal_lm.parameters()]

    assert same(backward(Activations(causal_lm, copies, smallest=1)), backward())
    assert len(copies.sent) > 2 and copies.fetched


def test_on_a_cpu_nothing_is_moved(causal_lm):
    tensor = torch.zeros(2**20)
    with activation_offload(causal_lm, torch.device("cpu")):
        out = (tensor.clone().requires_grad_() * tensor).sum()
    assert out.grad_fn.next_functions[0][0]._saved_other is tensor
    pointers = [p.data_ptr() for p in causal_lm.parameters()]
    state = HostState(causal_lm.parameters, torch.device("cpu"))
    state.to_host()
    state.to_device()
    with HostModule(causal_lm).on_device():
        pass
    assert [p.data_ptr() for p in causal_lm.parameters()] == pointers


def test_the_keys_say_what_is_moved():
    assert not moves_state(None, is_sharded=False) and not moves_state(FSDPConfig(), is_sharded=False)
    assert moves_state(FSDPConfig(optimizer_offload=True), is_sharded=False)
    both = FSDPConfig(optimizer_offload=True, offload_policy=True)  # whose optimiser steps in host memory
    assert not moves_state(both, is_sharded=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_reads_its_own_masters_and_moments_only(causal_lm, dtype):
    fsdp = FSDPConfig(optimizer_offload=True)
    trainable = Trainable(causal_lm.to(dtype), OptimConfig(), total_steps=1, fsdp=fsdp)
    trainable.gradients = {name: torch.ones_like(master) for name, master in trainable.masters.items()}
    trainable.optim_step(0.0)
    moved = [tensor for tensor in trainable.host_state.tensors() if tensor.dim()]
    assert not any(tensor is p for tensor in moved for p in trainable.parameters.values())
    # two moments each, and masters that are not parameters
    assert len(moved) == (2 if dtype == torch.float32 else 3) * len(trainable.parameters)


def test_state_is_exchanged_behind_the_same_tensors(spare_cpu):
    module = nn.Linear(4, 3)
    optimizer = make_optimizer(module.parameters(), OptimConfig())
    module(torch.ones(4)).sum().backward()
    optimizer.step()
    state = HostState(lambda: (t for s in optimizer.state.values() for t in s.values()), torch.device("cpu"))
    tensors = list(state.tensors())
    before, pointers = [t.clone() for t in tensors], [t.data_ptr() for t in tensors]
    state.to_host()
    assert same(before, tensors) and all(a is b for a, b in zip(tensors, state.tensors(), strict=True))
    for tensor, pointer in zip(tensors, pointers, strict=True):
        assert (tensor.data_ptr() != pointer) == bool(tensor.dim())
    state.to_device()
    assert same(before, tensors)


class Tied(nn.Module):
    """Two parameters that are rows of one buffer, a frozen one, and a buffer."""

    def __init__(self):
        super().__init__()
        merged = torch.arange(12.0).view(4, 3)
        self.merged = [merged]  # what a fused pass holds on to
        self.first, self.second = nn.Parameter(merged[:1]), nn.Parameter(merged[1:])
        self.fixed = nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("table", torch.full((2,), 7.0))


def sizes(module):
    return [t.untyped_storage().nbytes() for t in (*module.parameters(), *module.buffers())]


def test_the_weights_of_a_module_come_and_go_behind_all_that_hold_them(spare_cpu):
    module = Tied()
    parameters = list(module.parameters())
    host = HostModule(module)
    assert sizes(module) == [0] * 4
    with host.on_device():
        assert module.merged[0].tolist() == torch.arange(12.0).view(4, 3).tolist()
        assert module.table.tolist() == [7.0, 7.0] and module.fixed.tolist() == [1.0] * 5
        with torch.no_grad():
            module.second.mul_(2)
    assert sizes(module) == [0] * 4
    with host.on_device():
        assert module.merged[0][1:].equal(2 * torch.arange(3.0, 12).view(3, 3))  # what was trained was kept
        assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
        assert module.first.data_ptr() == module.merged[0].data_ptr()
    for frozen in ("first", "second"):  # a frozen part of a trained buffer does not hold the rest back
        module = Tied()
        getattr(module, frozen).requires_grad_(False)
        host = HostModule(module)
        with host.on_device():
            module.merged[0].fill_(3)
        with host.on_device():
            assert module.merged[0].eq(3).all(), frozen


def test_frozen_weights_are_not_copied_back_unless_a_pass_merged_them(spare_cpu):
    module = Tied().requires_grad_(False)
    host = HostModule(module)
    with host.on_device():
        module.fixed.zero_()
    with host.on_device():
        assert module.fixed.tolist() == [1.0] * 5
        merged = torch.cat([module.fixed.data, module.fixed.data])
        module.fixed.data = merged[:5]
    assert sizes(module) == [0] * 4 and merged.untyped_storage().nbytes() == 0
    with host.on_device():
        assert merged.tolist() == [1.0] * 10


def test_a_second_use_is_an_error_after_which_weights_leave_too(spare_cpu):
    module = Tied()
    host = HostModule(module)
    with pytest.raises(RuntimeError, match="on their device already"), host.on_device():
        module.first.data.fill_(9)
        with host.on_device():  # used once at a time
            pass
    assert sizes(module) == [0] * 4
    with host.on_device():
        assert module.first.tolist() == [[9.0] * 3]


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("offload") / "model", hidden_size=512, heads=8, layers=24)


def large(folder, dtype=torch.bfloat16, kind=AutoModelForCausalLM, **options):
    return kind.from_pretrained(folder, dtype=dtype, **options).to(CUDA)


@pytest.fixture(autouse=True)
def _nothing_left_on_the_gpu(request):
    """What another test left in a cycle would be counted, and freed in between."""
    if request.node.get_closest_marker("gpu"):
        gc.collect()


@pytest.fixture
def in_order():
    """Sums of gradients in one order, as far as torch can, so that two passes have the same bits."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def measured(function):
    """What a call returns, and the bytes that it took at most beyond those that were there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_in_host_memory_lower_the_peak_and_change_no_gradient(in_order, large_folder, checkpointing, dtype):
    module = large(large_folder, dtype, attn_implementation="eager").train()  # sdpa sums gradients in any order
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    backbone = module.get_decoder()
    inputs = torch.randn(32, 128, module.config.hidden_size, device=CUDA, dtype=dtype)

    def loss():  # without an embedding, whose gradient is summed in any order
        return backbone(inputs_embeds=inputs, use_cache=False).last_hidden_state.float().square().mean()

    def backward(moving):
        module.zero_grad(set_to_none=False)
        gradients = []
        for _ in range(3):  # copies of one pass may not disturb the next
            if moving:
                with activation_offload(module, next(module.parameters()).device):
                    loss().backward()
            else:
                loss().backward()
            gradients.append([p.grad.clone() for p in backbone.layers.parameters()])
        return gradients

    again = backward(False)  # after which gradients and workspaces are there
    plain, usual = measured(lambda: backward(False))
    assert all(same(ours, theirs) for ours, theirs in zip(again, plain, strict=True)), "a pass is not deterministic"
    moved, spared = measured(lambda: backward(True))
    assert all(same(ours, theirs) for ours, theirs in zip(moved, plain, strict=True))
    print(f"checkpointing={checkpointing} {dtype}: {usual / 2**20:.0f} MiB, with offload {spared / 2**20:.0f} MiB")
    held = sum(g.nbytes for g in plain[0]) * 3
    # With checkpointing what is left is one layer recomputed, which stays; without, most of it goes.
    assert spared - held < (0.8 if checkpointing else 0.4) * (usual - held)


@pytest.mark.gpu
def test_an_update_with_its_state_in_host_memory_is_the_same_update(large_folder):
    ids = torch.randint(0, 90, (2, 64), device=CUDA, generator=torch.Generator(CUDA).manual_seed(0))

    def train(moving):
        before = torch.cuda.memory_allocated()
        module = large(large_folder)
        parameters = dict(module.named_parameters())
        masters = {name: nn.Parameter(p.detach().float()) for name, p in parameters.items()}
        optimizer = make_optimizer(masters.values(), OptimConfig(lr=1e-5))  # finite, so that it can be compared
        pointers = [p.data_ptr() for p in module.parameters()]
        moments = optimizer.state
        state = HostState(lambda: [*masters.values(), *(t for of in moments.values() for t in of.values())], CUDA)
        for _ in range(3):
            if moving:
                state.to_host()
                assert all(not m.is_cuda and m.is_pinned() for m in masters.values())
            held = torch.cuda.memory_allocated() - before
            module(ids).logits.float().logsumexp(-1).mean().backward()
            if moving:
                state.to_device()
            for name, parameter in parameters.items():
                masters[name].grad, parameter.grad = parameter.grad.float(), None
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(masters[name])
        assert [p.data_ptr() for p in module.parameters()] == pointers
        weights = [p.detach().cpu() for p in (*module.parameters(), *masters.values())]
        return weights, held, sum(p.numel() for p in module.parameters())

    plain, usual, numbers = train(False)
    moved, spared, _ = train(True)
    assert same(moved, plain)
    assert usual - spared >= 11.9 * numbers  # masters and two moments in float32


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [AutoModelForCausalLM, AutoModelForTokenClassification])
def test_a_module_in_host_memory_computes_the_same_and_takes_none_between_uses(large_folder, kind):
    ids = torch.randint(0, 90, (2, 64), device=CUDA)
    before = torch.cuda.memory_allocated()
    module = large(large_folder, kind=kind).eval().requires_grad_(False)
    size = torch.cuda.memory_allocated() - before
    with torch.no_grad():
        expected = module(ids).logits
    host = HostModule(module)
    assert torch.cuda.memory_allocated() - before < 0.05 * size
    for _ in range(3):
        with host.on_device(), torch.no_grad():
            assert module(ids).logits.equal(expected)
        assert torch.cuda.memory_allocated() - before < 0.05 * size
