"""Zero-shot learning: T5, compositional; and generalized, on CUB, from the appendix."""

from __future__ import annotations

from batchformer.lab.recipes.paper.row import read_rows

ROWS = read_rows(
    "zero_shot",
    """
= T5 | MIT-States | ResNet-18
CompCos | mit_states_compcos
  4.5 16.4 25.3 24.6 27.9 31.8
CGE (published)
  6.5 21.4 32.8 28.0 30.1 34.7
  # as its authors report it; the pair below is the same method trained again
CGE | mit_states_cge
  6.3 20.0 31.6 27.3 30.3 34.5
  + 6.7 20.6 33.2 27.7 30.8 34.7
= T5 | UT-Zap50K | ResNet-18
CompCos | ut_zappos_compcos
  28.7 43.1 59.8 62.5 44.7 73.5
CGE (published)
  33.5 60.5 64.5 71.5 48.7 76.2
  # as its authors report it; the pair below is the same method trained again; the paper could not
  # fully reproduce it
CGE | ut_zappos_cge
  31.5 46.5 60.3 64.5 46.3 74.4
  + 34.6 49.0 62.5 69.2 49.7 75.6
  # the text's gain of nearly 5 in unseen, said without naming the data set
= T5 | C-GQA | ResNet-18
CGE (published)
  3.6 14.5 31.4 14.0 15.2 30.4
  # as its authors report it; the pair below is the same method trained again
CGE | c_gqa_cge
  3.7 14.9 30.8 14.7 15.8 29.0
  + 3.8 15.5 31.3 14.7 15.3 30.0
= GZSL | CUB | ResNet-101 features | unseen seen *hm
IZF | cub_izf
  52.7 68.0 59.4
TF-VAEGAN | cub_tf_vaegan
  52.8 64.7 58.1
CE-GZSL (published)
  63.9 66.8 65.3
  # as its authors report it; the pair below is the same method trained again
CE-GZSL | cub_ce_gzsl
  67.5 65.1 66.3
  + 68.2 65.8 67.0
""",
    "auc hm seen unseen attribute object",
)
