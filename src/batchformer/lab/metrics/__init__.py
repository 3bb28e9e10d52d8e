"""Scores of trained networks. Accuracies are in percent, their differences in percentage points."""
