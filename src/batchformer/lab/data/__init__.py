"""Data of the experiments: sets, batches of them, transforms of whole batches, and files."""
