"""Every method, declared once: where it lives, what it trains on, reads, needs and refuses.

The laboratory asks this registry whenever it has to know something of a method; no other file
lists methods by name. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from batchformer.lab.config import settings
from batchformer.lab.config.module import ModuleConfig as ModuleConfig
from batchformer.lab.config.settings import MethodConfig as MethodConfig

if TYPE_CHECKING:
    from batchformer.lab.config.recipe import Recipe

#: Families of experiments on labelled images of one domain.
LABELLED = ("long_tailed", "ablation", "recognition")
#: What a method refuses: a condition on a recipe, and why; ``{method}`` stands for its name.
Refusal = tuple[Callable[["Recipe"], bool], str]


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """What is known of one method.

    Args:
        path: ``FILE:CLASS`` in ``batchformer.lab.methods``.
        tasks: families of experiments that it fits.
        needs: what kind of data that is, for the refusal of other tasks.
        settings: the classes of ``hyper.*`` that it reads, beside those that all methods read.
        reads: further settings of a recipe that have an effect on this method and on few others.
        given: what it must be given: nothing; the network of a trained run; that network with its
            classifier; or features that were learnt elsewhere, which it measures.
        batchformer: "trains": BatchFormer takes part in the training. "absent": it does not, and
            an arm names the run that the network comes from. "closed_form": nothing is trained.
        own_classifier: it puts a classifier of its own into the network.
        inside: BatchFormer can stand inside the network (``module.at``): one classifier, and a loss
            of logits and targets alone.
        pooled: BatchFormer can stand behind pooled features: its place if ``module.at`` is empty.
        sample_loss: the loss is a mean over images, of one classifier's logits against a label that
            may be soft. So class rows, further streams and other labels can join it.
        refuses: settings of a recipe for a fitting task that make no sense here.
        loss_change: if the loss changes during training, the setting with the epoch, and how.
        bank: it is given all training images without augmentation, to compute something from them.
        teacher_classes: for a method with several teachers, each trained on some of the classes:
            how many classes each has, given the settings and the training images of each class.
    """

    path: str
    tasks: tuple[str, ...] = LABELLED
    needs: str = "labelled images of one domain"
    settings: tuple[type[Any], ...] = ()
    reads: tuple[str, ...] = ()
    given: Literal["", "network", "classifier", "features"] = ""
    batchformer: Literal["trains", "absent", "closed_form"] = "trains"
    own_classifier: bool = False
    inside: bool = False
    pooled: bool = True
    sample_loss: bool = False
    refuses: tuple[Refusal, ...] = ()
    loss_change: tuple[str, str] | None = None
    bank: bool = False
    teacher_classes: Callable[[MethodConfig, Sequence[int]], Sequence[int]] | None = None


def _needs_data(condition: Callable[[Any], bool], otherwise: str) -> Refusal:
    """Refuse data for which the condition does not hold; `otherwise` says what to set."""
    return lambda recipe: not condition(recipe.data), f"{{method}} {otherwise}"


def _no_module(condition: Callable[[Recipe], bool], why: str) -> Refusal:
    """Refuse a recipe with BatchFormer for which the condition holds."""
    return lambda recipe: recipe.module.enabled and condition(recipe), why


def _no_official_loss(why: str) -> Refusal:
    """Refuse the official loss, which is that of the released code for Balanced Softmax."""
    return _no_module(lambda recipe: recipe.module.loss_scale == "official", why)


def _no_mixed_weight(why: str) -> Refusal:
    """Refuse a mixed stream with a weight other than 1."""
    return _no_module(lambda recipe: recipe.module.mixed_weight != 1, why)


def _expert_classes(hyper: MethodConfig, counts: Sequence[int]) -> list[int]:
    return [len(group) for group in settings.cut_classes(counts, hyper.expert_cuts)]


_OF_DOMAINS: dict[str, Any] = {
    "tasks": ("domains",),
    "needs": "images of several domains",
    "refuses": (
        _needs_data(
            lambda data: data.sampler == "domains" and data.domains_in_batch != 1,
            "compares the domains of a batch; set data.sampler domains",
        ),
        (
            lambda recipe: recipe.train.accumulate > 1,
            "{method} needs all domains of a batch at once, and accumulation would separate them; "
            "set train.accumulate 1",
        ),
    ),
}
_OF_PAIRS: dict[str, Any] = {
    "tasks": ("compositional",),
    "needs": "images of attributes and objects, some pairs of which are never trained on",
    "own_classifier": True,
}
_OF_FEATURES: dict[str, Any] = {
    "tasks": ("generalized",),
    "needs": "features and attributes of classes, some of which are never trained on",
}
_GENERATED: tuple[Refusal, ...] = (
    _no_official_loss(
        "there is no released code of this method with BatchFormer, so no official loss; leave "
        "module.loss-scale mean"
    ),
    (
        lambda recipe: recipe.train.ema > 0,
        "the final classifier is trained for the current weights, not for a mean of weights; set "
        "train.ema 0",
    ),
)
_ADVERSARIAL: tuple[Refusal, ...] = (
    *_GENERATED,
    (
        lambda recipe: recipe.train.compile,
        "the critic needs second derivatives, which torch.compile lacks; leave train.compile off",
    ),
)
_OF_VIEWS: dict[str, Any] = {
    "tasks": ("contrastive",),
    "needs": "two views of images without labels",
    "refuses": (
        _no_official_loss(
            'the released code of MoCo-v3 adds its terms, which is module.loss-scale "sum", and '
            'that of MoCo-v2 takes their mean, which is "mean"; the official loss is that of '
            "Balanced Softmax"
        ),
        _no_mixed_weight(
            "in MoCo both streams are contrasted with each other, so the mixed one has no weight "
            "of its own; leave module.mixed-weight at 1, or choose hyper.contrast-pairs"
        ),
        _no_module(
            lambda recipe: (
                recipe.module.streams == "mixed_only"
                and (recipe.hyper.contrast_pairs, recipe.hyper.enqueued) != ("all", "both")
            ),
            'with module.streams "mixed_only" there is one stream, and nothing to choose from; '
            "leave hyper.contrast-pairs all and hyper.enqueued both",
        ),
        _no_module(
            lambda recipe: (
                recipe.method == "moco_v2" and recipe.hyper.contrast_pairs not in ("all", "plain")
            ),
            "hyper.contrast-pairs first_release and readme are lists of the released MoCo-v3; "
            "{method} has all and plain",
        ),
    ),
}
_REWEIGHTED = ("reweight_epoch", "the loss weights classes by how rare they are")
_PENALISED = ("penalty_from", "the penalty has its full weight")
_MOCO = (settings.KeyEncoder, settings.MomentumContrast, settings.Neighbours)

#: Settings that every method, or every network, reads.
COMMON = (settings.Network, settings.Features, settings.ValleyAverage)
#: Every method by its name.
METHODS: dict[str, MethodEntry] = {
    "cross_entropy": MethodEntry(
        path="erm:CrossEntropy",
        tasks=(*LABELLED, "domains"),
        settings=(settings.Mixing, settings.Smoothing, settings.NormalisedFeatures),
        inside=True,
        sample_loss=True,
    ),
    "balanced_softmax": MethodEntry(
        path="erm:BalancedSoftmaxMethod",
        tasks=(*LABELLED, "domains"),
        settings=(settings.Mixing, settings.NormalisedFeatures),
        inside=True,
        sample_loss=True,
    ),
    "ldam": MethodEntry(
        path="erm:LDAMMethod",
        tasks=(*LABELLED, "domains"),
        settings=(settings.Margins,),
        own_classifier=True,
        loss_change=_REWEIGHTED,
    ),
    "ride": MethodEntry(
        path="ride:RideMethod",
        settings=(settings.Margins, settings.Experts, settings.MixedClasses),
        reads=("teacher",),
        refuses=(
            _no_official_loss(
                'the released code of RIDE adds the two streams, which is module.loss-scale "sum"; '
                "the official loss is that of Balanced Softmax"
            ),
        ),
        loss_change=_REWEIGHTED,
    ),
    "ride_assignment": MethodEntry(
        path="ride:AssignedExperts",
        settings=(settings.Experts, settings.Routers, settings.FrozenFeatures),
        given="classifier",
        batchformer="absent",
    ),
    "paco": MethodEntry(
        path="paco:PaCoMethod",
        settings=(settings.ParametricContrast, settings.KeyEncoder, settings.ShuffledNorm),
        refuses=(
            _no_official_loss(
                "PaCo with BatchFormer was never released, so it has no official loss; for three "
                "times its loss set train.loss-multiplier 3"
            ),
            _no_mixed_weight(
                "in PaCo both streams are contrasted with each other, so the mixed one has no "
                "weight of its own; leave module.mixed-weight at 1"
            ),
            _needs_data(
                lambda data: data.augment in ("paco", "simclr"),
                "compares two views of each image; set data.augment paco",
            ),
        ),
    ),
    "crt": MethodEntry(
        path="two_stage:RetrainedClassifier", settings=(settings.FrozenFeatures,), given="network"
    ),
    "tau_norm": MethodEntry(
        path="two_stage:TauNormalised",
        settings=(settings.TauNorm,),
        given="classifier",
        batchformer="absent",
    ),
    "lws": MethodEntry(
        path="two_stage:LearnedScales",
        settings=(settings.FrozenFeatures,),
        given="classifier",
        own_classifier=True,
    ),
    "balms": MethodEntry(
        path="balms:MetaSampled",
        settings=(settings.MetaSampler, settings.FrozenFeatures),
        reads=("data.meta_batch", "data.meta_from"),
        given="network",
        refuses=(
            _needs_data(
                lambda data: data.meta_batch > 0,
                "judges its sampling by a balanced batch; set data.meta-batch, for example 512",
            ),
            (
                lambda recipe: recipe.optim.name != "sgd" and not recipe.hyper.inner_lr,
                "the trial step of {method} is a step of SGD, and optim.name is another; set "
                "hyper.inner-lr, for example to 0.02, for a plain gradient step",
            ),
        ),
    ),
    "bbn": MethodEntry(
        path="bbn:Bbn",
        settings=(settings.CumulativeLearning,),
        reads=("data.paired",),
        own_classifier=True,
        refuses=(
            _needs_data(
                lambda data: data.paired != "none",
                "trains a second branch on images of rare classes; set data.paired reversed",
            ),
        ),
    ),
    "oltr_plain": MethodEntry(path="oltr:PlainStage", settings=(settings.BackboneRate,)),
    "oltr": MethodEntry(
        path="oltr:Oltr",
        settings=(settings.VisualMemory, settings.BackboneRate),
        given="classifier",
        own_classifier=True,
        bank=True,
    ),
    "lfme": MethodEntry(
        path="lfme:Lfme",
        settings=(settings.SelfPacing,),
        reads=("teacher", "data.meta_from"),
        bank=True,
        teacher_classes=_expert_classes,
    ),
    "coral": MethodEntry(path="domains:Coral", settings=(settings.Penalty,), **_OF_DOMAINS),
    "irm": MethodEntry(
        path="domains:Irm",
        settings=(settings.Penalty, settings.LatePenalty, settings.Grouping),
        loss_change=_PENALISED,
        **_OF_DOMAINS,
    ),
    "vrex": MethodEntry(
        path="domains:VRex",
        settings=(settings.Penalty, settings.LatePenalty),
        loss_change=_PENALISED,
        **_OF_DOMAINS,
    ),
    "mixstyle": MethodEntry(
        path="domains:MixStyleMethod", settings=(settings.StyleMixing,), **_OF_DOMAINS
    ),
    "mdd": MethodEntry(
        path="domains:Mdd",
        tasks=("domains",),
        needs="images of several domains",
        settings=(settings.Penalty, settings.Disparity, settings.BackboneRate),
        reads=("data.adapt",),
        own_classifier=True,
        refuses=(
            _needs_data(
                lambda data: data.adapt, "adapts to a target; set data.adapt, and name data.target"
            ),
        ),
    ),
    "cge": MethodEntry(
        path="compositional:Cge",
        settings=(settings.Pairs, settings.PairGraph, settings.BackboneRate),
        **_OF_PAIRS,
    ),
    "compcos": MethodEntry(
        path="compositional:CompCos",
        settings=(settings.Pairs, settings.Feasibility, settings.FrozenFeatures),
        reads=("data.mask",),
        refuses=(
            (
                lambda recipe: recipe.hyper.image_embedding == 0,
                "{method} embeds images and pairs in one space; set the channels of it by "
                "hyper.image-embedding, for example as many as the word vectors have",
            ),
        ),
        **_OF_PAIRS,
    ),
    "ce_gzsl": MethodEntry(
        path="ce_gzsl:CeGzsl",
        settings=(settings.Synthesis, settings.Adversary, settings.ContrastiveEmbedding),
        refuses=(
            *_ADVERSARIAL,
            _no_module(
                lambda recipe: (
                    recipe.hyper.module_at == "embedding" and recipe.module.mixed_weight != 1
                ),
                "on the embedding of {method} both streams are contrasted with each other, so the "
                "mixed stream cannot have its own weight; leave module.mixed-weight at 1",
            ),
        ),
        own_classifier=True,
        **_OF_FEATURES,
    ),
    "tf_vaegan": MethodEntry(
        path="tf_vaegan:TfVaegan",
        settings=(settings.Synthesis, settings.Adversary, settings.SemanticFeedback),
        refuses=_ADVERSARIAL,
        own_classifier=True,
        **_OF_FEATURES,
    ),
    "izf": MethodEntry(
        path="izf:Izf",
        settings=(settings.Synthesis, settings.InvertibleFlow),
        refuses=_GENERATED,
        own_classifier=True,
        **_OF_FEATURES,
    ),
    "eszsl": MethodEntry(
        path="eszsl:Eszsl",
        settings=(settings.ClosedForm,),
        batchformer="closed_form",
        **_OF_FEATURES,
    ),
    "moco_v2": MethodEntry(
        path="moco:MocoV2",
        settings=(*_MOCO, settings.QueuedKeys, settings.ShuffledNorm),
        **_OF_VIEWS,
    ),
    "moco_v3": MethodEntry(path="moco:MocoV3", settings=_MOCO, **_OF_VIEWS),
    "linear_probe": MethodEntry(
        path="probes:LinearProbe",
        settings=(settings.Probe,),
        given="features",
        batchformer="absent",
        bank=True,
    ),
    "knn": MethodEntry(
        path="probes:NearestNeighbours",
        settings=(settings.Neighbours,),
        reads=("data.views",),
        given="features",
        batchformer="absent",
        bank=True,
    ),
    "detector": MethodEntry(
        path="detector:Detector",
        tasks=("detection",),
        needs="images with boxes",
        settings=(settings.Detection,),
        batchformer="absent",
    ),
    "detr": MethodEntry(
        path="detr:Detr",
        tasks=("detection",),
        needs="images with boxes",
        settings=(settings.SetPrediction, settings.BackboneRate),
        inside=True,
        pooled=False,
        refuses=(
            _no_official_loss(
                "DETR's loss is one mean over the boxes of both streams, and the official loss is "
                "that of Balanced Softmax; for three times the loss set train.loss-multiplier 3"
            ),
            _no_mixed_weight(
                "DETR's loss is one mean over the boxes of both streams; leave module.mixed-weight "
                "at 1"
            ),
        ),
    ),
}

# The names of METHODS are the choices of the command line; a type checker sees a string.
if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]


def find_method(name: str) -> MethodEntry:
    """The declaration of a method.

    >>> find_method("focl")
    Traceback (most recent call last):
    ...
    ValueError: There is no method 'focl'; there are cross_entropy, balanced_softmax, ...
    """
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")
    return METHODS[name]


def methods_that(condition: Callable[[MethodEntry], bool]) -> list[str]:
    """Names of the methods for which the condition holds.

    >>> methods_that(lambda entry: entry.sample_loss)
    ['cross_entropy', 'balanced_softmax']
    """
    return [name for name, entry in METHODS.items() if condition(entry)]


def without_batchformer(method: str | None) -> bool:
    """Whether BatchFormer takes no part: an arm names the run that the network comes from.

    >>> without_batchformer("knn"), without_batchformer("ldam"), without_batchformer("unknown")
    (True, False, False)
    """
    return method in METHODS and METHODS[method].batchformer == "absent"


def loss_change(method: str | None) -> tuple[str, str] | None:
    """The setting with the epoch at which a method changes its loss, and how; None if it does not.

    >>> loss_change("vrex"), loss_change("coral")
    (('penalty_from', 'the penalty has its full weight'), None)
    """
    return METHODS[method].loss_change if method in METHODS else None


def reweights(method: str | None) -> bool:
    """Whether a method weights classes by how rare they are from hyper.reweight-epoch on.

    >>> reweights("ride"), reweights("crt")
    (True, False)
    """
    return loss_change(method) == _REWEIGHTED
