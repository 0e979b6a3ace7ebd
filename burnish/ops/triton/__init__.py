"""Triton kernels; imported where a tensor is on a GPU."""
