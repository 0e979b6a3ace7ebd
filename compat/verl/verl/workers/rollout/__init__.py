"""What agent loops import of verl's rollout."""
