"""Names of the methods, as a recipe and the command line say them."""

from __future__ import annotations

from typing import Literal

MethodName = Literal[
    "cross_entropy",
    "balanced_softmax",
    "ldam",
    "ride",
    "ride_assignment",
    "paco",
    "crt",
    "tau_norm",
    "lws",
    "balms",
    "coral",
    "irm",
    "vrex",
    "mixstyle",
    "mdd",
    "cge",
    "compcos",
    "ce_gzsl",
    "eszsl",
    "moco_v2",
    "moco_v3",
    "linear_probe",
    "knn",
    "detector",
]
