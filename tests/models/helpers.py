"""What tests change: a JSON file of a model folder, and the weights of a module."""

import json

import torch


def edit_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shaken(module, seed, width=0.05):
    """The module with something random added to each weight that is trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * width)
    return module
