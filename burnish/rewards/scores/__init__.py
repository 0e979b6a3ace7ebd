"""Built-in scorers, one per file; routing.py lists them.

Each has `compute_score(solution_str, ground_truth, ...)`; `reference(ground_truth, extra_info)`: how a right response
is written, which `burnish data check` scores to see that a row can be answered at all; and
`check(ground_truth, extra_info)`. All three raise a ValueError where the row holds nothing that the scorer can compare
with: the row is wrong, not the response.
"""
