"""The loop: one training run, whatever the method; interrupted and resumed as if it were not."""
