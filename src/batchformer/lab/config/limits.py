"""Values that settings of methods cannot have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchformer.lab.config.training import require

if TYPE_CHECKING:
    from batchformer.lab.config.methods import MethodConfig

#: Settings by the least value that makes sense.
_AT_LEAST = {
    1: (
        *("router_width", "projection_layers", "projection_hidden", "neighbours", "norm_parts"),
        *("image_hidden", "graph_hidden"),
        *("noise", "gan_hidden", "critic_steps", "synthetic", "classifier_epochs"),
    ),
    0: (
        *("margin", "mixup", "cutmix"),
        *("image_embedding", "feasibility_margin", "feasibility_epochs", "backbone_lr_factor"),
        *("contrast", "gradient_penalty"),
    ),
}


def require_possible(hyper: MethodConfig) -> None:
    """Refuse a value that cannot be meant, whichever method reads it.

    >>> from batchformer.lab.config.methods import MethodConfig
    >>> MethodConfig(noise=0)
    Traceback (most recent call last):
    ...
    ValueError: Not possible: hyper.noise is 0, below 1...
    """
    require(hyper.scale > 0, f"hyper.scale is {hyper.scale} and must be above 0")
    require(hyper.reweight_epoch >= 0, f"hyper.reweight-epoch is {hyper.reweight_epoch}, below 0")
    require(hyper.experts >= 1, f"hyper.experts is {hyper.experts}, below 1")
    require(hyper.teacher_experts >= 1, f"hyper.teacher-experts is {hyper.teacher_experts}")
    require(hyper.router_top >= 1, f"hyper.router-top is {hyper.router_top}, below 1")
    require(hyper.queue >= 1, f"hyper.queue is {hyper.queue}, below 1")
    require(hyper.dim >= 1, f"hyper.dim is {hyper.dim}, below 1")
    require(0 <= hyper.momentum <= 1, f"hyper.momentum is {hyper.momentum}, outside [0, 1]")
    for bound, names in _AT_LEAST.items():
        for name in names:
            value, option = getattr(hyper, name), f"hyper.{name.replace('_', '-')}"
            require(value >= bound, f"{option} is {value}, below {bound}")
    temperatures = ("distillation_temperature", "vote_temperature", "contrast_temperature")
    for name in (*temperatures, "cosine_scale"):
        value, option = getattr(hyper, name), f"hyper.{name.replace('_', '-')}"
        require(value > 0, f"{option} is {value} and must be above 0")
    require(hyper.tau >= 0, f"hyper.tau is {hyper.tau}, below 0")
    require(hyper.sampler_lr > 0, f"hyper.sampler-lr is {hyper.sampler_lr} and must be above 0")
    require(hyper.inner_lr >= 0, f"hyper.inner-lr is {hyper.inner_lr}, below 0")
    shares = {
        "feature-dropout": hyper.feature_dropout,
        "pair-dropout": hyper.pair_dropout,
        "mixstyle-p": hyper.mixstyle_p,
        "mix-switch": hyper.mix_switch,
        "mix-prob": hyper.mix_prob,
        "smoothing": hyper.smoothing,
        "drop-path": hyper.drop_path,
    }
    for name, value in shares.items():
        require(0 <= value <= 1, f"hyper.{name} is {value}, outside [0, 1]")
    require(hyper.mixstyle_alpha > 0, f"hyper.mixstyle-alpha is {hyper.mixstyle_alpha}, not > 0")
    require(hyper.bottleneck >= 1, f"hyper.bottleneck is {hyper.bottleneck}, below 1")
    require(hyper.reversal_updates >= 1, "hyper.reversal-updates is below 1")
    require(hyper.swad_converge >= 1, f"hyper.swad-converge is {hyper.swad_converge}, below 1")
    require(hyper.swad_tolerance >= 1, f"hyper.swad-tolerance is {hyper.swad_tolerance}, below 1")
