"""Methods by name. To add one: a file here, a line here, a recipe, a test."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from batchformer.methods.config import MethodConfig, ModuleConfig, require_sense

if TYPE_CHECKING:
    from batchformer.engine.method import Method

#: Where each method lives; loaded when asked for, so that listing them is quick.
METHODS = {
    "cross_entropy": "batchformer.methods.erm:CrossEntropy",
    "balanced_softmax": "batchformer.methods.balanced_softmax:BalancedSoftmaxMethod",
    "ldam": "batchformer.methods.ldam:LDAMMethod",
    "ride": "batchformer.methods.ride:RideMethod",
    "ride_assignment": "batchformer.methods.ride_assignment:AssignedExperts",
    "paco": "batchformer.methods.paco:PaCoMethod",
    "crt": "batchformer.methods.crt:RetrainedClassifier",
    "tau_norm": "batchformer.methods.tau_norm:TauNormalised",
    "lws": "batchformer.methods.lws:LearnedScales",
    "balms": "batchformer.methods.balms:MetaSampled",
    "coral": "batchformer.methods.coral:Coral",
    "irm": "batchformer.methods.irm:Irm",
    "vrex": "batchformer.methods.vrex:VRex",
    "mixstyle": "batchformer.methods.mixstyle:MixStyleMethod",
    "mdd": "batchformer.methods.mdd:Mdd",
    "cge": "batchformer.methods.cge:Cge",
    "compcos": "batchformer.methods.compcos:CompCos",
    "ce_gzsl": "batchformer.methods.ce_gzsl:CeGzsl",
    "eszsl": "batchformer.methods.eszsl:Eszsl",
    "moco_v2": "batchformer.methods.moco_v2:MocoV2",
    "moco_v3": "batchformer.methods.moco_v3:MocoV3",
    "linear_probe": "batchformer.methods.linear_probe:LinearProbe",
    "knn": "batchformer.methods.knn:NearestNeighbours",
    "detector": "batchformer.methods.detector:Detector",
}


def build_method(name: str, **options: Any) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")
    if isinstance(options.get("module"), ModuleConfig):
        require_sense(name, options["module"])
    module, _, kind = METHODS[name].partition(":")
    method: Method = getattr(importlib.import_module(module), kind)(**options)
    hyper = options.get("hyper")
    if isinstance(hyper, MethodConfig) and hyper.swad:
        from batchformer.methods.swad import Swad

        return Swad(method, hyper.swad_converge, hyper.swad_tolerance, hyper.swad_ratio)
    return method
