"""Settings of the methods around BatchFormer, and values they cannot have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.module import ModuleConfig as ModuleConfig
from batchformer.lab.config.module import require_sense as require_sense
from batchformer.lab.config.training import require

# Names of the methods, as a recipe and the command line say them.

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


# Values that settings of methods cannot have.

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


# Settings of the methods around BatchFormer; nothing here needs torch.


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What methods can be told; each reads the settings that name it and no others."""

    margin: float = 0.5
    """ldam, ride: margin of the rarest class, in cosines."""
    scale: float = 30.0
    """ldam, ride: what cosines are multiplied by."""
    reweight_epoch: int = 160
    """ldam, ride: the epoch, from 0, at which deferred re-weighting begins."""
    reweight_beta: float = 0.9999
    """ldam, ride: of the effective-number class weights."""
    experts: int = 3
    """ride: experts of the network."""
    diversity: float = -0.45
    """ride: weight of the experts' divergence from their mean; -0.2 for ImageNet-LT."""
    temperature_factor: float = 0.05
    """ride: how far temperatures of rare classes fall; 0.02 ImageNet-LT, 0.015 iNaturalist."""
    teacher_experts: int = 6
    """ride with a teacher: experts of the teacher's network."""
    teacher_mode: Literal["eval", "train"] = "eval"
    """ride with a teacher: "train" normalises by batch statistics, as the released code does."""
    distillation_temperature: float = 1.5
    """ride with a teacher: temperature of the distillation."""
    distillation_factor: float = 1.0
    """ride with a teacher: weight of the distillation."""
    distillation_count: Literal["once", "per_expert"] = "once"
    """ride with a teacher: "per_expert" takes the loss once for each expert, as RIDE's code."""
    router_top: int = 30
    """ride_assignment: largest logits that a router sees; 50 for ImageNet-LT and iNaturalist."""
    router_width: int = 16
    """ride_assignment: channels that a router makes of an expert's features."""
    router_positive_weight: float = 100.0
    """ride_assignment: weight of samples that a further expert would put right."""
    alpha: float = 0.01
    """paco: weight of a sample of the same class among the positives; 0.05 for ImageNet-LT."""
    temperature: float = 0.05
    """paco, moco: divides the similarities of samples; 0.2 for ImageNet-LT and MoCo-v2, 1 for
    MoCo-v3."""
    queue: int = 1024
    """paco, moco_v2: keys kept of earlier batches; 8192 for ImageNet-LT, 65536 for MoCo-v2."""
    dim: int = 32
    """paco, moco: channels of the projection; 128 for ImageNet-LT and MoCo-v2, 256 for MoCo-v3."""
    momentum: float = 0.999
    """paco, moco: share of its old weights that the key encoder keeps at each update."""
    momentum_schedule: Literal["constant", "cosine"] = "constant"
    """moco: "cosine" lets that share rise to 1 over the training, by half a cosine."""
    projection_layers: int = 2
    """moco: linear layers of the projection; MoCo-v3 has 3 for a ViT."""
    projection_front: bool = False
    """moco_v2: one more linear layer with batch normalisation and ReLU in front of the projection,
    in all arms; the released code has it with BatchFormer alone. Both streams are normalised
    together, in hyper.norm-parts as the network is."""
    projection_hidden: int = 2048
    """moco: channels inside the projection and the predictor; 4096 for MoCo-v3."""
    contrast_pairs: Literal["all", "plain", "first_release", "readme"] = "all"
    """moco with BatchFormer: which streams of queries and keys are contrasted. All four pairs of
    streams; plain with plain alone; moco_v3: the list of the first release, in which pairs are
    repeated or missing, and that list with queries against their own mixed stream, to which the
    released README points."""
    norm_parts: int = 1
    """moco_v2, paco: emulates shuffled batch normalisation over this many devices. Each part of a
    batch is normalised by its own statistics, and samples of the keys are assigned to parts at
    random, so that statistics cannot tell which key belongs to a query. Running statistics are the
    mean over parts."""
    enqueued: Literal["both", "plain", "mixed"] = "both"
    """moco_v2 with BatchFormer: which streams of the keys enter the queue; both turn it over twice
    as fast. One alone suits hyper.contrast-pairs plain: with all pairs the queries of the other
    stream have no negatives of their kind, and features collapse (seen with plain, on digits)."""
    probe_scale: Literal["none", "unit"] = "none"
    """linear_probe: "unit" divides all features by one number, the root of their mean squared
    length over the training images, so that one learning rate suits networks of any scale."""
    neighbours: int = 200
    """knn: training images that vote."""
    vote_temperature: float = 0.07
    """knn: a vote weighs exp(cosine / temperature)."""
    detector: Literal["c4", "fpn"] = "c4"
    """detector: the network's last stage on every region, or a pyramid of features."""
    mixup: float = 0.0
    """cross_entropy, balanced_softmax: alpha of the Beta distribution of Mixup's shares; 0:
    none."""
    cutmix: float = 0.0
    """cross_entropy, balanced_softmax: alpha of CutMix; where both are set, each batch has one of
    the two."""
    mix_switch: float = 0.5
    """With both hyper.mixup and hyper.cutmix: probability of CutMix."""
    mix_prob: float = 1.0
    """With hyper.mixup or hyper.cutmix: probability that a batch is mixed."""
    smoothing: float = 0.0
    """cross_entropy: share of the target that all classes have in common."""
    drop_path: float = 0.0
    """Networks of timm's: probability that a block of a sample is left out, at the last block."""
    tau: float = 1.0
    """tau_norm: class weights are divided by the tau-th power of their length."""
    frozen_mode: Literal["eval", "train"] = "eval"
    """crt, lws, balms, ride_assignment, compcos: "train" normalises frozen features by batch
    statistics."""
    sampler_power: float = 0.3
    """balms: sampling weights of classes begin in proportion to n^-power, the least and the largest
    adding up to 1."""
    sampler_lr: float = 1e-3
    """balms: Adam's rate for the sampling weights, which the schedule does not change."""
    inner_lr: float = 0.0
    """balms: rate of the classifier's trial step, by which the sampling weights are judged, as a
    plain gradient step. 0: the step that SGD would take next, as in the released code."""
    meta_streams: Literal["both", "plain", "mixed"] = "both"
    """balms with BatchFormer: the streams of the class-balanced batch by which a trial step is
    judged. The released code judges through BatchFormer; that both streams count is our choice."""
    zero_init_last: bool = False
    """Networks of timm's ResNet family: begin the last normalisation of each block at 0."""
    frozen_norm: bool = False
    """Batch normalisation by the statistics that the weights came with; scale and shift are
    trained."""
    feature_dropout: float = 0.0
    """Dropout of the features that a classifier sees, of both streams."""
    penalty: float = 1.0
    """coral, irm, vrex, mdd: weight of what is added to the cross-entropy; 3 for vrex."""
    penalty_from: int = 0
    """irm, vrex: the epoch, from 0, at which the penalty has this weight; before it, 1."""
    irm_grouping: Literal["by_domain", "official"] = "by_domain"
    """irm with BatchFormer: "official" cuts plain and mixed rows, one stream after the other, into
    as many parts as there are domains, as the released code does; the parts mix domains."""
    mixstyle_after: tuple[str, ...] = ("layer1", "layer2", "layer3")
    """mixstyle: parts of the network after which styles are mixed."""
    mixstyle_p: float = 0.5
    """mixstyle: probability that a batch is mixed."""
    mixstyle_alpha: float = 0.1
    """mixstyle: of the Beta distribution that shares are drawn from."""
    mdd_gamma: float = 4.0
    """mdd: margin factor, the weight of the source domain's term."""
    bottleneck: int = 1024
    """mdd: channels between the backbone and the classifiers."""
    backbone_lr_factor: float = 0.1
    """mdd, cge: learning rate of the backbone as a multiple of what stands on it."""
    reversal: float = 0.1
    """mdd: what the factor of the reversed gradient rises to."""
    reversal_updates: int = 1000
    """mdd: how many updates that takes, roughly; 2 / (1 + exp(-t / updates)) - 1 of it at t."""
    image_embedding: int = 0
    """cge: channels of a linear layer with ReLU between image features and pairs; 0: none, so that
    pairs have the features' channels. compcos: channels of the space of images and pairs."""
    image_hidden: int = 768
    """compcos: channels of the hidden layer on image features."""
    graph_hidden: int = 4096
    """cge: channels of the graph network's hidden layer."""
    pair_dropout: float = 0.5
    """cge, compcos: dropout in the layers that make embeddings."""
    cosine_scale: float = 20.0
    """compcos: what cosines are multiplied by; 20 MIT-States, 50 UT-Zappos, 100 C-GQA."""
    feasibility: Literal["none", "margin"] = "none"
    """compcos in an open world: "margin" compares with all pairs in training, and lowers the scores
    of unseen ones in proportion to how feasible they are."""
    feasibility_margin: float = 0.4
    """compcos: largest margin; 1 for UT-Zappos."""
    feasibility_epochs: int = 15
    """compcos: epochs over which the margin grows to that; 100 for UT-Zappos."""
    module_at: Literal["embedding", "classifier"] = "embedding"
    """ce_gzsl: BatchFormer on the embedding while it is trained, or in the final classifier. The
    paper does not say which."""
    noise: int = 1024
    """ce_gzsl: channels of the generator's noise."""
    gan_hidden: int = 4096
    """ce_gzsl: hidden channels of generator and critic."""
    contrast: float = 0.001
    """ce_gzsl: weight of both contrastive losses in the generator's."""
    contrast_temperature: float = 0.1
    """ce_gzsl: temperature of both contrastive losses."""
    gradient_penalty: float = 10.0
    """ce_gzsl: weight of the critic's gradient penalty."""
    critic_steps: int = 5
    """ce_gzsl: updates of the critic and the embedding for each of the generator."""
    synthetic: int = 100
    """ce_gzsl: features made of each unseen class for the final classifier."""
    classifier_epochs: int = 25
    """ce_gzsl: passes of the final classifier's training."""
    eszsl_gamma: int = 2
    """eszsl: exponent of 10 of the features' regulariser."""
    eszsl_lambda: int = 0
    """eszsl: exponent of 10 of the attributes' regulariser."""
    eszsl_targets: Literal["indicator", "signed"] = "indicator"
    """eszsl: what is wanted with other classes: 0, or -1 as its authors have it."""
    swad: bool = False
    """Any method: also average the weights of every update in the valley of the validation loss."""
    swad_converge: int = 3
    """swad: the valley begins when the oldest of this many validation losses is the least."""
    swad_tolerance: int = 6
    """swad: evaluations that may lie above the threshold before the valley has ended."""
    swad_ratio: float = 0.3
    """swad: the threshold is this share above the mean loss at the valley's beginning."""

    def __post_init__(self) -> None:
        require_possible(self)


# What MoCo with BatchFormer cannot be told; nothing here needs torch.


def require_contrast_sense(method: str, module: ModuleConfig, hyper: MethodConfig) -> None:
    """Refuse settings of the streams that mean nothing to MoCo, or to this one.

    Args:
        method: moco_v2 or moco_v3.
        module: BatchFormer's settings; without it there is nothing to refuse.
        hyper: the method's own.
    """
    if not module.enabled:
        return
    require(
        module.loss_scale != "official",
        'the released code of MoCo-v3 adds its terms, which is module.loss-scale "sum", and that '
        'of MoCo-v2 takes their mean, which is "mean"; the official loss is that of Balanced '
        "Softmax",
    )
    require(
        module.mixed_weight == 1,
        "in MoCo both streams are contrasted with each other, so the mixed one has no weight of "
        "its own; leave module.mixed-weight at 1, or choose hyper.contrast-pairs",
    )
    require(
        module.streams == "shared" or (hyper.contrast_pairs == "all" and hyper.enqueued == "both"),
        'with module.streams "mixed_only" there is one stream, and nothing to choose from; leave '
        "hyper.contrast-pairs all and hyper.enqueued both",
    )
    require(
        method != "moco_v2" or hyper.contrast_pairs in ("all", "plain"),
        f"hyper.contrast-pairs {hyper.contrast_pairs} is a list of the released MoCo-v3; "
        "moco_v2 has all and plain",
    )
