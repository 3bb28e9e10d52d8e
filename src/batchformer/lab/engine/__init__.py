"""The training loop: optimizer steps, checkpoints, logs, CUDA graphs and several ranks."""
