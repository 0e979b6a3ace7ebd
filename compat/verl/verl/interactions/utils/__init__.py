"""Where verl has `interaction_registry`."""
