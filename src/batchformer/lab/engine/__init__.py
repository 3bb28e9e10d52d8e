"""The training loop: stages, optimizer steps, checkpoints, logs, CUDA graphs and several ranks."""
