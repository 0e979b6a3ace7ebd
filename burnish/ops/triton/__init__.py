"""Triton kernels; imported where a tensor lies on a GPU."""
