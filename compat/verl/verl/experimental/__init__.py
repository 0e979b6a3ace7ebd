"""verl.experimental: agent loops."""
