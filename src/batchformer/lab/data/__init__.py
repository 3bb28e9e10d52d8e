"""Data sets of the experiments, one family per file, held in memory as uint8 tensors."""
