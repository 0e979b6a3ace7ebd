"""What the tests of kernels share."""

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None


INTERPRETER = pytest.mark.skipif(not INTERPRETED, reason="the interpreter needs TRITON_INTERPRET=1")


@pytest.fixture(params=[pytest.param("cpu", marks=INTERPRETER), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where kernels run: on a GPU (`-m gpu`) or, where Triton is installed, in its interpreter."""
    if request.param == "cpu":
        import triton.runtime.interpreter as interpreter

        patch = interpreter._patch_lang_tensor

        def with_index(tensor, scope) -> None:
            """As Triton does, for a numpy that makes an int of an array of one number only on request."""
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_index)
    return request.param


@pytest.fixture
def saved_by():
    """A function with its calls, and the tensors that each saved for its backward pass, which wait on the CPU."""

    def run(function, device):
        saved = []

        def pack(tensor):
            saved.append(tensor)
            return tensor.cpu()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.to(device)):
            return function(), saved

    return run
