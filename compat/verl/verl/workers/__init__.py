"""What users import of verl's workers: reward managers."""
