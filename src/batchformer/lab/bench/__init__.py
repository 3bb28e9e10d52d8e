"""What ``batchformer bench`` measures, one file for each part; candidates take turns in one run."""
