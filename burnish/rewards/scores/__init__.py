"""Built-in scorers, one per file. Each has `compute_score(solution_str, ground_truth, ...)`; routing.py lists them."""
