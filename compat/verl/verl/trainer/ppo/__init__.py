"""What users' files import of verl's PPO trainer: the algorithms."""
