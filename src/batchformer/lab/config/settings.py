"""Settings of the methods, ``hyper.*`` on the command line: a small class for each concern.

``config/methods.py`` says which method reads which class. :class:`MethodConfig` has all of them,
so that ``hyper`` of every run has the same keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from batchformer.lab.config.training import (
    above_zero,
    at_least,
    below_one,
    limited,
    require,
    require_limits,
    zero_to_one,
)


def epochs(bound: int, default: int) -> Any:
    """A number of epochs with a least value; arms that double the epochs of training double it."""
    metadata = {**at_least(bound, default).metadata, "epochs": True}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Margins:
    """LDAM's margins and deferred re-weighting, which RIDE has too."""

    margin: float = at_least(0, 0.5)
    """ldam, ride: margin of the rarest class, in cosines."""
    scale: float = above_zero(30.0)
    """ldam, ride: factor on cosines."""
    reweight_epoch: int = at_least(0, 160)
    """ldam, ride: the epoch, from 0, at which deferred re-weighting begins."""
    reweight_beta: float = below_one(0.9999)
    """ldam, ride: beta of the effective-number class weights."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """RIDE's experts, and what they learn from a teacher."""

    experts: int = at_least(1, 3)
    """ride: experts of the network."""
    diversity: float = -0.45
    """ride: weight of the experts' divergence from their mean; -0.2 for ImageNet-LT."""
    temperature_factor: float = below_one(0.05)
    """ride: how far temperatures of rare classes fall; 0.02 ImageNet-LT, 0.015 iNaturalist."""
    teacher_experts: int = at_least(1, 6)
    """ride with a teacher: experts of the teacher's network."""
    teacher_mode: Literal["eval", "train"] = "eval"
    """ride with a teacher: "train" normalises by batch statistics, as the released code does."""
    distillation_temperature: float = above_zero(1.5)
    """ride with a teacher: temperature of the distillation."""
    distillation_factor: float = 1.0
    """ride with a teacher: weight of the distillation."""
    distillation_count: Literal["once", "per_expert"] = "once"
    """ride with a teacher: "per_expert" takes the loss once for each expert, as in RIDE's code."""


@dataclass(frozen=True, kw_only=True)
class MixedClasses:
    """Which classes BatchFormer is on, in the first of RIDE's two stages."""

    mixed_classes: Literal["all", "many", "not_many"] = "all"
    """ride with BatchFormer: classes whose samples take their mixed features; "many" have more than
    100 training images. Samples of other classes are attended to, and keep their plain features."""


@dataclass(frozen=True, kw_only=True)
class Routers:
    """RIDE's routers, which assign experts."""

    router_top: int = at_least(1, 30)
    """ride_assignment: largest logits that a router sees; 50 for ImageNet-LT and iNaturalist."""
    router_width: int = at_least(1, 16)
    """ride_assignment: channels that a router makes of an expert's features."""
    router_positive_weight: float = 100.0
    """ride_assignment: weight of samples that a further expert would correct."""


@dataclass(frozen=True, kw_only=True)
class ParametricContrast:
    """PaCo's loss."""

    alpha: float = at_least(0, 0.01)
    """paco: weight of a sample of the same class among the positives; 0.05 for ImageNet-LT."""


@dataclass(frozen=True, kw_only=True)
class KeyEncoder:
    """The key encoder of PaCo and MoCo."""

    temperature: float = above_zero(0.05)
    """paco, moco: divides the similarities of samples; 0.2 for ImageNet-LT and MoCo-v2, 1 for
    MoCo-v3."""
    queue: int = at_least(1, 1024)
    """paco, moco_v2: length of the queue of keys; 8192 for ImageNet-LT, 65536 for MoCo-v2."""
    dim: int = at_least(1, 32)
    """paco, moco: channels of the projection; 128 for ImageNet-LT and MoCo-v2, 256 for MoCo-v3."""
    momentum: float = zero_to_one(0.999)
    """paco, moco: share of its old weights that the key encoder keeps at each update."""


@dataclass(frozen=True, kw_only=True)
class MomentumContrast:
    """MoCo's projection and loss."""

    momentum_schedule: Literal["constant", "cosine"] = "constant"
    """moco: "cosine" raises hyper.momentum to 1 over the training, by half a cosine."""
    projection_layers: int = at_least(1, 2)
    """moco: linear layers of the projection; MoCo-v3 has 3 for a ViT."""
    projection_hidden: int = at_least(1, 2048)
    """moco: channels inside the projection and the predictor; 4096 for MoCo-v3."""
    contrast_pairs: Literal["all", "plain", "first_release", "readme"] = "all"
    """moco with BatchFormer: which streams of queries and keys are contrasted: "all" four pairs,
    or "plain" with plain alone. Only moco_v3 has the others: "first_release" is the list of the
    first release, in which pairs are repeated or missing; "readme", to which the released README
    points, is that list with queries against their own mixed stream."""


@dataclass(frozen=True, kw_only=True)
class ShuffledNorm:
    """Shuffled batch normalisation, emulated on one device."""

    norm_parts: int = at_least(1, 1)
    """moco_v2, paco: emulates shuffled batch normalisation over this many devices. Each part of a
    batch is normalised by its own statistics, and samples of the keys are assigned to parts at
    random, so that statistics cannot tell which key belongs to a query. Running statistics are the
    mean over parts."""


@dataclass(frozen=True, kw_only=True)
class QueuedKeys:
    """MoCo-v2's projection and queue."""

    projection_front: bool = False
    """moco_v2: one more linear layer with batch normalisation and ReLU in front of the projection,
    in all arms; the released code has it with BatchFormer alone. Both streams are normalised
    together, in hyper.norm-parts as the network is."""
    enqueued: Literal["both", "plain", "mixed"] = "both"
    """moco_v2 with BatchFormer: which streams of the keys enter the queue; both turn it over twice
    as fast. One alone suits hyper.contrast-pairs plain: with all pairs the queries of the other
    stream have no negatives of their kind, and features collapse (seen on digits, with plain keys
    alone)."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A linear classifier on features."""

    probe_scale: Literal["none", "unit"] = "none"
    """linear_probe: "unit" divides all features by one number, the root of their mean squared
    length over the training images, so that one learning rate suits networks of any scale."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The vote of nearest neighbours."""

    neighbours: int = at_least(1, 200)
    """knn, moco_v2, moco_v3: training images that vote; moco is scored by their votes too."""
    vote_temperature: float = above_zero(0.07)
    """knn, moco_v2, moco_v3: a vote weighs exp(cosine / temperature)."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """Faster R-CNN."""

    detector: Literal["c4", "fpn"] = "c4"
    """detector: the network's last stage on every region, or a pyramid of features."""


@dataclass(frozen=True, kw_only=True)
class SetPrediction:
    """DETR and its relatives."""

    detr: Literal["detr", "conditional", "deformable"] = "conditional"
    """detr: DETR; Conditional DETR, which learns in fewer epochs; or Deformable DETR, which attends
    to few points of several feature maps."""
    queries: int = at_least(1, 100)
    """detr: objects that are predicted in each image; Conditional and Deformable DETR have 300 on
    COCO."""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixup and CutMix."""

    mixup: float = at_least(0, 0.0)
    """cross_entropy, balanced_softmax: alpha of the Beta distribution of Mixup's shares; 0:
    none."""
    cutmix: float = at_least(0, 0.0)
    """cross_entropy, balanced_softmax: alpha of CutMix; where both are set, each batch has one of
    the two."""
    mix_switch: float = zero_to_one(0.5)
    """With both hyper.mixup and hyper.cutmix: probability of CutMix."""
    mix_prob: float = zero_to_one(1.0)
    """With hyper.mixup or hyper.cutmix: probability that a batch is mixed."""


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Label smoothing."""

    smoothing: float = zero_to_one(0.0)
    """cross_entropy: share of the target that is spread over all classes."""


@dataclass(frozen=True, kw_only=True)
class TauNorm:
    """Tau-normalisation."""

    tau: float = at_least(0, 1.0)
    """tau_norm: class weights are divided by the tau-th power of their length."""


@dataclass(frozen=True, kw_only=True)
class FrozenFeatures:
    """What stands on frozen features."""

    frozen_mode: Literal["eval", "train"] = "eval"
    """crt, lws, balms, ride_assignment, compcos: "train" normalises frozen features by batch
    statistics."""


@dataclass(frozen=True, kw_only=True)
class MetaSampler:
    """BALMS: a sampler that is learnt."""

    sampler_power: float = 0.3
    """balms: initial sampling weights of classes are proportional to n^-power; the least and the
    largest add up to 1."""
    sampler_lr: float = above_zero(1e-3)
    """balms: Adam's constant learning rate for the sampling weights."""
    inner_lr: float = at_least(0, 0.0)
    """balms: learning rate of the trial step of the classifier, which judges the sampling weights,
    as a plain gradient step. 0: the step that SGD would take next, as in the released code."""
    meta_streams: Literal["both", "plain", "mixed"] = "both"
    """balms with BatchFormer: the streams of the class-balanced batch by which a trial step is
    judged. The released code judges through BatchFormer; that both streams count is our choice."""


@dataclass(frozen=True, kw_only=True)
class CumulativeLearning:
    """BBN's schedule."""

    cumulative_epochs: int = epochs(0, 0)
    """bbn: D epochs over which training moves from the first branch, of all images, to the second,
    of rare classes; the first weighs 1 - (t / D)^2 in epoch t, from 0. 0: as many as the training
    has. The released code has 100 for 90 epochs, and 200 for 180."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Networks, whichever method trains them."""

    drop_path: float = zero_to_one(0.0)
    """Networks of timm's, and deit_cifar: drop path; a sample skips the last block with this
    probability."""
    zero_init_last: bool = False
    """Networks of timm's ResNet family: begin the last normalisation of each block at 0."""
    frozen_norm: bool = False
    """Batch normalisation by the statistics that come with the weights; scale and shift are
    trained, except by detr."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """Features that a classifier sees."""

    feature_dropout: float = zero_to_one(0.0)
    """Dropout on the features in front of the classifier, in both streams."""
    feature_layer: int = at_least(0, 0)
    """Channels of a linear layer with ReLU between pooled features and classifier; 0: none. It
    stands in front of BatchFormer (OLTR on Places-LT, LFME)."""


@dataclass(frozen=True, kw_only=True)
class NormalisedFeatures:
    """Features that the classifier normalises."""

    feature_norm: bool = False
    """The classifier normalises each row of features to mean 0 and variance 1, at test too."""


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """A penalty beside the cross-entropy."""

    penalty: float = at_least(0, 1.0)
    """coral, irm, vrex, mdd: weight of the penalty beside the cross-entropy; 3 for vrex."""


@dataclass(frozen=True, kw_only=True)
class LatePenalty:
    """When the penalty sets in."""

    penalty_from: int = at_least(0, 0)
    """irm, vrex: the epoch, from 0, at which the penalty's weight goes from 1 to hyper.penalty."""


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """IRM's parts of a batch."""

    irm_grouping: Literal["by_domain", "official"] = "by_domain"
    """irm with BatchFormer: "official" cuts plain and mixed rows, one stream after the other, into
    as many parts as there are domains, as the released code does; the parts mix domains."""


@dataclass(frozen=True, kw_only=True)
class StyleMixing:
    """Mixed styles of domains."""

    mixstyle_after: tuple[str, ...] = ("layer1", "layer2", "layer3")
    """mixstyle: parts of the network after which styles are mixed."""
    mixstyle_p: float = zero_to_one(0.5)
    """mixstyle: probability that a batch is mixed."""
    mixstyle_alpha: float = above_zero(0.1)
    """mixstyle: parameter of the Beta distribution that shares are drawn from."""


@dataclass(frozen=True, kw_only=True)
class Disparity:
    """MDD: the margin disparity discrepancy."""

    mdd_gamma: float = 4.0
    """mdd: margin factor, the weight of the source domain's term."""
    bottleneck: int = at_least(1, 1024)
    """mdd: channels between the backbone and the classifiers."""
    reversal: float = 0.1
    """mdd: final factor of the reversed gradient."""
    reversal_updates: int = at_least(1, 1000)
    """mdd: how fast that factor rises; at update t it is hyper.reversal times
    (2 / (1 + exp(-t / updates)) - 1)."""


@dataclass(frozen=True, kw_only=True)
class BackboneRate:
    """A rate of the backbone's own."""

    backbone_lr_factor: float = at_least(0, 0.1)
    """mdd, cge, oltr, detr: learning rate of the backbone as a multiple of that of the layers
    on it; of the points that Deformable DETR samples too."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Embeddings of images and pairs."""

    image_embedding: int = at_least(0, 0)
    """cge: channels of a linear layer with ReLU between image features and pairs; 0: none, so that
    pairs have the features' channels. compcos: channels of the space of images and pairs."""
    pair_dropout: float = zero_to_one(0.5)
    """cge, compcos: dropout in the layers that make embeddings."""


@dataclass(frozen=True, kw_only=True)
class PairGraph:
    """CGE's graph."""

    graph_hidden: int = at_least(1, 4096)
    """cge: channels of the graph network's hidden layer."""


@dataclass(frozen=True, kw_only=True)
class Feasibility:
    """CompCos: cosines, and how feasible pairs are."""

    image_hidden: int = at_least(1, 768)
    """compcos: channels of the hidden layer on image features."""
    cosine_scale: float = above_zero(20.0)
    """compcos: factor on cosines; 20 MIT-States, 50 UT-Zappos, 100 C-GQA."""
    feasibility: Literal["none", "margin"] = "none"
    """compcos in an open world: "margin" compares with all pairs in training, and lowers the scores
    of unseen ones in proportion to how feasible they are."""
    feasibility_margin: float = at_least(0, 0.4)
    """compcos: largest margin; 1 for UT-Zappos."""
    feasibility_epochs: int = epochs(0, 15)
    """compcos: epochs over which the margin grows to its largest; 100 for UT-Zappos."""


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """Generated features of unseen classes, and the classifier that is trained on them."""

    synthetic: int = at_least(1, 100)
    """ce_gzsl, tf_vaegan, izf: features made of each unseen class for the final classifier; 300 for
    tf_vaegan and izf."""
    classifier_epochs: int = at_least(1, 25)
    """ce_gzsl, tf_vaegan, izf: passes of the final classifier's training; 30 for izf."""
    classifier_batch: int = at_least(2, 100)
    """ce_gzsl, tf_vaegan, izf: rows of its batches, which attend to one another with BatchFormer;
    300 for tf_vaegan, 3000 for izf."""
    classifier_lr: float = above_zero(1e-3)
    """ce_gzsl, tf_vaegan, izf: its learning rate; 0.01 for izf."""


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """A generator of features against a critic."""

    noise: int = at_least(1, 1024)
    """ce_gzsl, tf_vaegan: channels of the generator's noise; 312 for tf_vaegan."""
    gan_hidden: int = at_least(1, 4096)
    """ce_gzsl, tf_vaegan: hidden channels of generator and critic; tf_vaegan: of all networks."""
    gradient_penalty: float = at_least(0, 10.0)
    """ce_gzsl, tf_vaegan: weight of the critic's gradient penalty; tf_vaegan: at the start."""
    critic_steps: int = at_least(1, 5)
    """ce_gzsl, tf_vaegan: updates of the critic for each of the generator."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveEmbedding:
    """CE-GZSL's embedding."""

    module_at: Literal["embedding", "classifier"] = "embedding"
    """ce_gzsl: BatchFormer on the embedding while it is trained, or in the final classifier. The
    paper does not say which."""
    contrast: float = at_least(0, 0.001)
    """ce_gzsl: weight of both contrastive losses in the generator's."""
    contrast_temperature: float = above_zero(0.1)
    """ce_gzsl: temperature of both contrastive losses."""


@dataclass(frozen=True, kw_only=True)
class SemanticFeedback:
    """TF-VAEGAN's semantic decoder and its feedback."""

    adversarial: float = at_least(0, 10.0)
    """tf_vaegan: weight of the critic's scores, in its own loss and in the generator's."""
    decoding: float = at_least(0, 0.01)
    """tf_vaegan: weight of the error of decoded attributes."""
    feedback: float = 1.0
    """tf_vaegan: factor on what is fed back into the generator; 0: nothing."""
    feedback_lr_factor: float = at_least(0, 0.1)
    """tf_vaegan: learning rate of the feedback network as a multiple of that of the others."""


@dataclass(frozen=True, kw_only=True)
class InvertibleFlow:
    """IZF's invertible network and its losses."""

    flow_blocks: int = at_least(1, 5)
    """izf: blocks of the invertible network."""
    flow_hidden: int = at_least(1, 2048)
    """izf: hidden channels in each block."""
    attribute_scale: float = above_zero(1.0)
    """izf: root mean square to which the attributes of each class are scaled. The noise around them
    has a standard deviation of 1."""
    likelihood: float = at_least(0, 2.0)
    """izf: weight of the negative log-likelihood."""
    centring: float = at_least(0, 1.0)
    """izf: weight of the distances between generated and real class means."""
    separation: float = at_least(0, 0.1)
    """izf: weight of the negative MMD, which keeps generated features of unseen classes away from
    real features."""


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """ESZSL's regularisers and targets."""

    eszsl_gamma: int = 2
    """eszsl: exponent of 10 of the features' regulariser."""
    eszsl_lambda: int = 0
    """eszsl: exponent of 10 of the attributes' regulariser."""
    eszsl_targets: Literal["indicator", "signed"] = "indicator"
    """eszsl: target of other classes: 0 (indicator), or -1 as in the authors' code (signed)."""


@dataclass(frozen=True, kw_only=True)
class VisualMemory:
    """OLTR's second stage: attention, and centroids of classes."""

    attention_after: str = ""
    """oltr: the last stage of the network, behind which spatial attention stands: layer4 of a
    ResNet, layer3 of resnet32. Empty: none."""
    attention_side: int = at_least(1, 7)
    """oltr: side of the maps there; 7 for images of 224 pixels, 8 for resnet32."""
    fresh_layer: bool = False
    """oltr: a new linear layer with ReLU on the features of the first stage (ImageNet-LT)."""
    frozen_backbone: bool = False
    """oltr: train only attention, the linear layer on pooled features, and the classifier
    (Places-LT). Batch normalisation still uses the statistics of the batch."""
    centroid_weight: float = at_least(0, 0.01)
    """oltr: weight of the loss on centroids."""
    centroid_lr_factor: float = at_least(0, 0.1)
    """oltr: learning rate of the centroids as a multiple of the classifier's."""


@dataclass(frozen=True, kw_only=True)
class SelfPacing:
    """LFME: experts by class size, how they fade, and the curriculum of samples."""

    expert_cuts: tuple[int, int] = limited(
        (100, 20),
        lambda cuts: len(cuts) == 2 and bool(cuts[0] > cuts[1] >= 1),
        " and must be two numbers of at least 1, the larger first",
    )
    """lfme: a class with at least the first number of training images is one of many, and with at
    most the second one of few; the experts are trained with the same data.min-images and
    data.max-images."""
    expert_threshold: float = below_one(0.3)
    """lfme: an expert begins to fade when the student has this share of its accuracy."""
    expert_temperature: float = above_zero(2.0)
    """lfme: temperature of the distillation."""
    curriculum_epochs: int = epochs(1, 45)
    """lfme: the epoch, from 1, at which all samples weigh the same; half of the training."""
    curriculum_clipped: bool = False
    """lfme: weights of samples stay at 1 from there on; in the authors' code they go on rising."""


def cut_classes(counts: Sequence[int], cuts: tuple[int, int]) -> list[list[int]]:
    """The classes of lfme's experts, by training images: many, medium, few.

    >>> cut_classes([500, 100, 99, 20, 5, 0], (100, 20))
    [[0, 1], [2], [3, 4]]
    """
    many, few = cuts
    bounds = [(many, max(*counts, many)), (few + 1, many - 1), (1, few)]
    groups = [[c for c, n in enumerate(counts) if low <= n <= high] for low, high in bounds]
    for group, (low, high) in zip(groups, bounds, strict=True):
        require(
            bool(group),
            f"lfme has an expert on classes of {low} to {high} training images, and no class has "
            f"that many; set --hyper.expert-cuts, which is {many} {few}, and the same bounds for "
            "the experts by --data.min-images and --data.max-images",
        )
    return groups


@dataclass(frozen=True, kw_only=True)
class ValleyAverage:
    """SWAD: the average of weights in the valley of the validation loss."""

    swad: bool = False
    """Average the weights of every update in the valley of the validation loss (SWAD)."""
    swad_converge: int = at_least(1, 3)
    """swad: the valley begins when the oldest of this many validation losses is the least."""
    swad_tolerance: int = at_least(1, 6)
    """swad: evaluations that may lie above the threshold before the valley has ended."""
    swad_ratio: float = at_least(0, 0.3)
    """swad: the threshold is this share above the mean loss at the valley's beginning."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(
    SelfPacing,
    VisualMemory,
    ValleyAverage,
    ClosedForm,
    InvertibleFlow,
    SemanticFeedback,
    ContrastiveEmbedding,
    Adversary,
    Synthesis,
    Feasibility,
    PairGraph,
    Pairs,
    BackboneRate,
    Disparity,
    StyleMixing,
    Grouping,
    LatePenalty,
    Penalty,
    NormalisedFeatures,
    Features,
    Network,
    CumulativeLearning,
    MetaSampler,
    FrozenFeatures,
    TauNorm,
    Smoothing,
    Mixing,
    SetPrediction,
    Detection,
    Neighbours,
    Probe,
    QueuedKeys,
    ShuffledNorm,
    MomentumContrast,
    KeyEncoder,
    ParametricContrast,
    Routers,
    MixedClasses,
    Experts,
    Margins,
):
    """All settings of all methods; a method reads those of its declaration.

    >>> MethodConfig(noise=0)
    Traceback (most recent call last):
    ...
    ValueError: Not possible: hyper.noise is 0, below 1.
    """

    def __post_init__(self) -> None:
        require_limits(self, "hyper")
