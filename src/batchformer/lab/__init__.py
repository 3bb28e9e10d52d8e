"""The laboratory: the experiments of the paper, and yours. The plug-in never imports it."""
