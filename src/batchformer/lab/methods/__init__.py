"""Methods by name. To add one: a file here, a line here, a recipe, a test."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from batchformer.lab.config.methods import MethodConfig, ModuleConfig, require_sense

if TYPE_CHECKING:
    from batchformer.lab.engine.method import Method

#: Where each method lives; loaded when asked for, so that listing them is quick.
METHODS = {
    "cross_entropy": "batchformer.lab.methods.erm:CrossEntropy",
    "balanced_softmax": "batchformer.lab.methods.erm:BalancedSoftmaxMethod",
    "ldam": "batchformer.lab.methods.ldam:LDAMMethod",
    "ride": "batchformer.lab.methods.ride:RideMethod",
    "ride_assignment": "batchformer.lab.methods.ride:AssignedExperts",
    "paco": "batchformer.lab.methods.paco:PaCoMethod",
    "crt": "batchformer.lab.methods.two_stage:RetrainedClassifier",
    "tau_norm": "batchformer.lab.methods.two_stage:TauNormalised",
    "lws": "batchformer.lab.methods.two_stage:LearnedScales",
    "balms": "batchformer.lab.methods.balms:MetaSampled",
    "coral": "batchformer.lab.methods.domains:Coral",
    "irm": "batchformer.lab.methods.domains:Irm",
    "vrex": "batchformer.lab.methods.domains:VRex",
    "mixstyle": "batchformer.lab.methods.domains:MixStyleMethod",
    "mdd": "batchformer.lab.methods.mdd:Mdd",
    "cge": "batchformer.lab.methods.compositional:Cge",
    "compcos": "batchformer.lab.methods.compositional:CompCos",
    "ce_gzsl": "batchformer.lab.methods.ce_gzsl:CeGzsl",
    "eszsl": "batchformer.lab.methods.eszsl:Eszsl",
    "moco_v2": "batchformer.lab.methods.moco:MocoV2",
    "moco_v3": "batchformer.lab.methods.moco:MocoV3",
    "linear_probe": "batchformer.lab.methods.probes:LinearProbe",
    "knn": "batchformer.lab.methods.probes:NearestNeighbours",
    "detector": "batchformer.lab.methods.detector:Detector",
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
        from batchformer.lab.methods.swad import Swad

        return Swad(method, hyper.swad_converge, hyper.swad_tolerance, hyper.swad_ratio)
    return method
