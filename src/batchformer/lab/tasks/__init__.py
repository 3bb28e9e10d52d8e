"""What is trained on and how it is scored: one file for each family of experiments."""
