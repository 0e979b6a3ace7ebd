"""The fused output layer against plain autograd in float64, and its kernels against the plain versions.

The kernels run on a GPU (`-m gpu`) or, where Triton is installed, in its interpreter: TRITON_INTERPRET=1 pytest …
"""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint

from burnish.ops import linear_log_probs as ops
from burnish.ops.linear_log_probs import LOG_SUM, OUTPUTS, differentiate_torch, linear_log_probs, summarise_torch

ROWS = 8  # of a chunk in these tests
SUBSETS = [names for size in (1, 2, 3) for names in itertools.combinations(OUTPUTS, size)]
SETTINGS = [
    {"temperature": temperature, "scale": scale, "softcap": softcap}
    for temperature, scale, softcap in itertools.product((1.0, 0.7), (1.0, 0.25), (None, 4.0))
]
ANYWHERE = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(ops, "CHUNK_ELEMENTS", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(ops, "CHUNK_ROWS", ROWS)


def made(count, size=12, vocabulary=37, *, dtype=torch.float32, device="cpu", spread=1.0):
    """States, weight and bias with gradients, and targets."""
    generator = torch.Generator().manual_seed(count + vocabulary)
    shapes = (count, size), (vocabulary, size), (vocabulary,)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors[0] *= spread / size**0.5 * 3
    targets = torch.randint(vocabulary, (count,), generator=generator)
    return [x.to(device, dtype).requires_grad_() for x in tensors], targets.to(device)


def reference(states, weight, targets, outputs, *, bias=None, temperature=1.0, scale=1.0, softcap=None):
    logits = states @ weight.T if bias is None else states @ weight.T + bias
    logits = scale * logits
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = (logits / temperature).log_softmax(-1)
    every = {
        "log_prob": log_p.gather(1, targets[:, None])[:, 0],
        "entropy": -(log_p.exp() * log_p).sum(-1),
        "sum_pi_squared": log_p.exp().square().sum(-1),
    }
    return {name: every[name] for name in outputs}


def differentiated(function, tensors, targets, outputs, through=None, with_bias=True, **settings):
    """The outputs, and the gradients of states, weight and bias through the outputs named in `through`."""
    states, weight, bias = tensors
    found = function(states, weight, targets, outputs, bias=bias if with_bias else None, **settings)
    loss = 0.0
    for name in through or outputs:
        upstream = torch.randn(len(targets), generator=torch.Generator().manual_seed(OUTPUTS.index(name)))
        loss = loss + (found[name] * upstream.to(found[name])).sum()
    wanted = [x for x in (tensors if with_bias else tensors[:2]) if x.requires_grad]
    return found, torch.autograd.grad(loss, wanted)


def doubles(tensors):
    return [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]


def assert_alike(found, expected, tolerance=1e-5):
    """Errors are measured against the largest number of each tensor: sums of many terms cancel."""
    for figures in zip(found[0].values(), expected[0].values(), strict=True):
        assert figures[0].dtype == torch.float32
        torch.testing.assert_close(figures[0].double(), figures[1], rtol=tolerance, atol=tolerance)
    for grad, exact in zip(found[1], expected[1], strict=True):
        largest = exact.abs().max().item() if exact.numel() else 0.0
        torch.testing.assert_close(grad.double(), exact, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize(
    ("where", "outputs"),
    [*(("cpu", names) for names in SUBSETS), pytest.param("cuda", OUTPUTS, marks=pytest.mark.gpu)],
    ids=str,
)
def test_values_and_gradients_are_those_of_autograd(where, outputs, settings, with_bias):
    tensors, targets = made(5 * ROWS + 3, 64, 5003, device=where) if where == "cuda" else made(3 * ROWS + 1)
    settings = settings | {"with_bias": with_bias}
    found = differentiated(linear_log_probs, tensors, targets, outputs, **settings)
    expected = differentiated(reference, doubles(tensors), targets, outputs, **settings)
    assert_alike(found, expected, tolerance=2e-5 if where == "cuda" else 1e-5)


@pytest.mark.parametrize(
    ("count", "spread", "settings"),
    [
        *((count, 1.0, {}) for count in (0, 1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS, 5 * ROWS + 3)),
        *((20, 1.0, {"through": [name], "softcap": 4.0, "temperature": 0.7}) for name in OUTPUTS),
        *((20, spread, {}) for spread in (0.0, 30.0, 1000.0)),
    ],
    ids=str,
)
def test_any_number_of_tokens_any_distribution_and_gradients_through_one_output(count, spread, settings):
    tensors, targets = made(count, spread=spread)
    found = differentiated(linear_log_probs, tensors, targets, OUTPUTS, **settings)
    assert all(figure.shape == (count,) for figure in found[0].values())
    expected = differentiated(reference, doubles(tensors), targets, OUTPUTS, **settings)
    assert_alike(found, expected, tolerance=1e-5 if spread == 1.0 else 1e-4)


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 2), (1, 2), (0, 1)], ids=str)
def test_frozen_parts_get_no_gradient_and_cost_no_product(frozen):
    tensors, targets = made(20, size=12, vocabulary=37)
    for index in frozen:
        tensors[index].requires_grad_(False)
    expected = differentiated(reference, doubles(tensors), targets, OUTPUTS)
    with Recorded() as seen:
        found = differentiated(linear_log_probs, tensors, targets, OUTPUTS)
    assert_alike(found, expected)
    assert (torch.Size((37, 12)) in seen.made) == (1 not in frozen)
    assert (torch.Size((20, 12)) in seen.made) == (0 not in frozen)


@ANYWHERE
def test_tensors_and_upstream_gradients_of_any_strides(where):
    tensors, targets = made(20, size=12, device=where)
    expected = differentiated(reference, doubles(tensors), targets, OUTPUTS)
    states, weight, bias = (x.detach() for x in tensors)
    spaced = torch.zeros(20, 24, device=where)
    spaced[:, ::2] = states
    strided = [spaced[:, ::2].requires_grad_(), weight.T.contiguous().T.requires_grad_(), bias.requires_grad_()]
    repeated = torch.stack([targets, targets], 1)[:, 0]
    assert not any(x.is_contiguous() for x in (*strided[:2], repeated))
    assert_alike(differentiated(linear_log_probs, strided, repeated, OUTPUTS), expected)
    exact = doubles(tensors)  # the gradient of a sum has one number in memory
    linear_log_probs(*tensors[:2], targets, OUTPUTS)["entropy"].sum().backward()
    reference(*exact[:2], targets, OUTPUTS)["entropy"].sum().backward()
    torch.testing.assert_close(tensors[0].grad.double(), exact[0].grad, rtol=1e-5, atol=1e-6)


def test_16_bit_weights_keep_their_dtype_and_sum_in_float32():
    tensors, targets = made(100 * ROWS, dtype=torch.bfloat16)
    found = differentiated(linear_log_probs, tensors, targets, OUTPUTS)
    assert [grad.dtype for grad in found[1]] == [torch.bfloat16] * 3
    _, exact = differentiated(reference, doubles(tensors), targets, OUTPUTS)
    for grad, right in zip(found[1], exact, strict=True):
        assert (grad.double() - right).norm() < 6e-3 * right.norm()


class Recorded(TorchDispatchMode):
    """Shapes of the tensors that operations give, and what the largest of them holds."""

    def __init__(self):
        super().__init__()
        self.made, self.largest = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for x in tree_iter(out):
                if isinstance(x, torch.Tensor):
                    self.made.add(x.shape)
                    self.largest = max(self.largest, x.numel())
        return out


def saved_numbers(call):
    """How many numbers the graph of `call` keeps for its backward pass."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        call()
    return sum(kept)


def test_memory_does_not_grow_with_vocabulary_times_tokens():
    size, vocabulary = 4, 500
    for count in (10 * ROWS, 80 * ROWS):
        tensors, targets = made(count, size, vocabulary)
        with Recorded() as seen:
            differentiated(linear_log_probs, tensors, targets, OUTPUTS, softcap=4.0)
        assert seen.largest == ROWS * vocabulary
        kept = saved_numbers(lambda t=tensors, y=targets: linear_log_probs(*t[:2], y, OUTPUTS, bias=t[2]))
        assert kept <= sum(x.numel() for x in tensors) + 4 * count
    detached = [x.detach() for x in tensors]
    assert saved_numbers(lambda: linear_log_probs(*detached[:2], targets)) == 0, "where nothing needs a gradient"
    with torch.no_grad():
        assert not linear_log_probs(*tensors[:2], targets)["log_prob"].requires_grad


def test_under_checkpoint_and_with_saved_tensors_elsewhere():
    tensors, targets = made(20)
    expected = differentiated(linear_log_probs, tensors, targets, OUTPUTS)

    def again(states, weight, targets, outputs, bias):
        def run(states, weight, bias):
            return linear_log_probs(states * 1, weight, targets, outputs, bias=bias)

        return checkpoint(run, states, weight, bias, use_reentrant=False)

    def elsewhere(states, weight, targets, outputs, bias):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True).copy(), torch.from_numpy):
            return linear_log_probs(states, weight, targets, outputs, bias=bias)

    for function in (again, elsewhere):
        found = differentiated(function, tensors, targets, OUTPUTS)
        assert all(map(torch.equal, [*found[0].values(), *found[1]], [*expected[0].values(), *expected[1]]))


@pytest.mark.parametrize("vocabulary", [1, 37, 4096, 9001])
@pytest.mark.parametrize("cap", [None, 4.0], ids=["plain", "capped"])
@pytest.mark.parametrize("outputs", SUBSETS, ids="+".join)
def test_kernels_are_the_plain_versions(outputs, cap, vocabulary, device):
    from burnish.ops.triton import linear_log_probs as kernels

    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary, generator=generator).mul_(6).to(device)
    targets = torch.randint(vocabulary, (5,), generator=generator).to(device)
    targets[0] = vocabulary - 1
    figures = {name: torch.full((5,), torch.nan, device=device) for name in (*outputs, LOG_SUM)}
    plain = {name: torch.full((5,), torch.nan, device=device) for name in OUTPUTS}
    kernels.summarise(logits, targets, 0.7, cap, figures)
    summarise_torch(logits.clone(), targets, 0.7, cap, plain)
    for name in outputs:
        torch.testing.assert_close(figures[name], plain[name], rtol=1e-5, atol=2e-6)

    grads = {name: torch.randn(5, generator=generator).to(device) for name in outputs}
    given = logits.clone(), targets, 0.7, cap, grads
    for dtype, step in ((torch.bfloat16, 2**-7), (torch.float32, 1e-5)):
        expected = differentiate_torch(logits.clone(), *given[1:], plain, torch.float32)
        found = kernels.differentiate(*given, figures, dtype)
        assert found.dtype == dtype and (found is given[0]) == (dtype == torch.float32)
        torch.testing.assert_close(found.float(), expected, rtol=step, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "size", "vocabulary"), [(300, 896, 151936), (0, 64, 1000), (1, 64, 1000)])
def test_gpu_in_16_bits(count, size, vocabulary, dtype, monkeypatch):
    """Log-probs are those of float32 logits; the gradient of a logit is rounded to the weight's dtype."""
    monkeypatch.setattr(ops, "CHUNK_ROWS", 128)
    tensors, targets = made(count, size, vocabulary, dtype=dtype, device="cuda")
    found = differentiated(linear_log_probs, tensors, targets, OUTPUTS)
    assert [grad.dtype for grad in found[1]] == [dtype] * 3
    expected = differentiated(reference, doubles(tensors), targets, OUTPUTS)
    for name in OUTPUTS:
        torch.testing.assert_close(found[0][name].double(), expected[0][name], rtol=1e-4, atol=1e-4)
    for grad, exact in zip(found[1], expected[1], strict=True):
        assert (grad.double() - exact).norm() <= 1e-2 * exact.norm()


@pytest.mark.gpu
def test_gpu_memory_is_that_of_a_chunk(monkeypatch):
    monkeypatch.setattr(ops, "CHUNK_ROWS", 64)
    vocabulary, peaks = 50_000, []
    for count in (256, 2048):
        tensors, targets = made(count, 64, vocabulary, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        differentiated(linear_log_probs, tensors, targets, OUTPUTS)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] - peaks[0] < 64 * vocabulary  # bytes; the logits of all tokens in 16 bits would add 180 MB
