"""Kernels: each file has the public function, its plain torch twin, and the choice between them by device.

`ops/triton/` holds what runs on a GPU and is imported only there. A twin computes the same values on any device; tests
compare the two.
"""
