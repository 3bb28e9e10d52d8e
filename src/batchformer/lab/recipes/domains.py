"""Domain generalization and adaptation: tables 6 and 7 of the paper, and VisDA-2017.

In generalization every domain is left out once. A run is one training for each of them;
``--data.target NAME`` leaves out that one alone. Networks start from weights trained on ImageNet,
which timm downloads; ``--weights FILE`` names others. The network that is best on held-out images
of the sources is scored; ``--train.select-on test`` chooses by the target's own labels.

The released code left BatchFormer untrained in the library's methods, which is the arm
``batchformer_frozen``. We have measured none of these rows in full yet; RESULTS.md has what we
have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchformer.lab.config.data import DomainConfig, DomainSet
from batchformer.lab.config.methods import MethodConfig, MethodName, ModuleConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.sets.domain_layouts import DOMAIN_SETS
from batchformer.lab.recipes.shared import named

NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
#: The paper's encoder, at the network's rate in all protocols. In MDD this is the rate of the
#: classifiers, ten times the backbone's.
MODULE = ModuleConfig(lr_factor=1.0)


def _recipe(
    name: str, table: str, data: DomainConfig, network: str, method: MethodName, **settings: Any
) -> Recipe:
    """What all rows share: the set, a network trained on ImageNet, and the paper's numbers."""
    known = DOMAIN_SETS[data.name].title
    title = f"{known}, {settings.pop('title')}, {NETWORKS[network]}"
    # A table of a single data set is named after that set.
    place = "" if table == known else f"{table} "
    return Recipe(
        name=name,
        summary=f"{title}, each domain left out",
        table=f"{place}{title}",
        task="domains",
        data=data,
        model=f"{network}.tv_in1k",
        weights="timm",
        method=method,
        **{"module": MODULE, **settings},
    )


def pacs_baseline() -> Recipe:
    """Table 6: Baseline 79.1, + BatchFormer 79.8 (average); the paper's own protocol, no code.

    It gives ResNet-18, SGD at 0.001, 30 epochs, a drop at epoch 24, and flip, colour jitter and
    scale. Ours to choose: batches of 64, momentum 0.9, the drop by 10, weight decay 5e-4, crops of
    0.7 to 1 of the image, jitter by 0.3 of brightness, contrast, saturation and hue, batch
    normalisation in training mode, the module at the network's rate, a tenth of each source held
    out. ``--seeds 5`` is the paper's number of runs. Ours: not measured yet.
    """
    return _recipe(
        "pacs_baseline",
        "T6",
        DomainConfig(name="pacs", augment="scale", held_out=0.1),
        "resnet18",
        "cross_entropy",
        title="the paper's baseline",
        optim=OptimConfig(name="sgd", lr=1e-3, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="multistep", per="epoch", milestones=(24,), gamma=0.1),
        train=TrainConfig(batch_size=64, epochs=30, select_on="val", drop_last=True),
    )


#: Rate, domains in a batch of 36 (0: shuffled), and weight of the penalty in the library.
_OF_THE_LIBRARY: dict[MethodName, tuple[str, float, int, MethodConfig]] = {
    "cross_entropy": ("ERM", 1e-3, 0, MethodConfig()),
    "mixstyle": ("MixStyle", 1e-3, 2, MethodConfig()),
    "coral": ("CORAL", 5e-4, 3, MethodConfig(penalty=1.0)),
    "irm": ("IRM", 5e-4, 3, MethodConfig(penalty=1.0, penalty_from=1)),
    "vrex": ("V-REx", 5e-4, 3, MethodConfig(penalty=3.0, penalty_from=1)),
}
#: Updates that the library counts as an epoch.
_EPOCH = 500


def _library(name: str, data: DomainSet, method: MethodName, network: str, table: str) -> Recipe:
    """The transfer library's protocol: 20 x 500 updates of 36 images, SGD with a cosine to 0.

    On PACS normalisation is frozen and features have dropout 0.1. IRM and V-REx restart the
    optimizer after the first 500 updates, where their penalty sets in, with a cosine to 0 over the
    remaining 9,500. For IRM, the released code's parts of a batch are the arm
    ``batchformer_official_grouping``. The network is chosen by the mean of the sources' accuracies;
    the library takes all held-out images together, so that larger sources count more.
    """
    title, rate, domains, hyper = _OF_THE_LIBRARY[method]
    if data == "pacs":
        hyper = replace(hyper, frozen_norm=True, feature_dropout=0.1)
    by_domain = {"sampler": "domains", "domains_in_batch": domains, "epoch": _EPOCH}
    return _recipe(
        name,
        table,
        DomainConfig(name=data, **(by_domain if domains else {})),  # type: ignore[arg-type]
        network,
        method,
        title=title,
        hyper=hyper,
        optim=OptimConfig(name="sgd", lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine", restart=_EPOCH if hyper.penalty_from else 0),
        train=TrainConfig(
            batch_size=36,
            updates=20 * _EPOCH,
            eval_every=_EPOCH,
            drop_last=True,
            select_on="val",
        ),
    )


def _swad(name: str, data: DomainSet, network: str, table: str) -> Recipe:
    """SWAD's protocol: 5,000 updates of 32 images of each source, Adam at 5e-5, frozen norms.

    Scores are those of the averaged network; ``without_swad`` is the network of the same training
    that is best on held-out images. The released code scores 80% of the target and counts a first
    evaluation after one update, which ours leaves out. Its page advises a tenth of the rate for
    BatchFormer in a ResNet-50, ``--module.lr-factor 0.1``, or no shared classifier; which settings
    made the table is not said.
    """
    vlcs = data == "vlcs"
    return _recipe(
        name,
        table,
        DomainConfig(name=data, sampler="domains", scored_on="in"),
        network,
        "cross_entropy",
        title="SWAD",
        hyper=MethodConfig(frozen_norm=True, swad=True, swad_ratio=0.2 if vlcs else 0.3),
        optim=OptimConfig(name="adam", lr=5e-5, weight_decay=0.0),
        schedule=ScheduleConfig(kind="constant"),
        train=TrainConfig(
            batch_size=96,
            updates=5_000,
            eval_every=50 if vlcs else 100,
            checkpoint_every=1_000,
            select_on="val",
        ),
    )


def my_domains() -> Recipe:
    """Your own images in folders DOMAIN/CLASS/IMAGE, by SWAD's protocol; no row of the paper.

    ``batchformer compare my_domains --data.root PATH``; every domain is left out once. Batches have
    32 images of each of the others, however many these are.
    """
    base = _swad("pacs_swad_resnet50", "pacs", "resnet50", "T6b")
    return base.changed(
        name="my_domains",
        summary="your own tree of domains and classes, SWAD, any network of timm's",
        table=NOT_IN_THE_PAPER,
        data={"name": "tree", "scored_on": "all"},
        train={"batch_size": 0},
    )


# Domain adaptation by MDD: the paper's VisDA-2017, and a smaller pair of domains


def _mdd(data: DomainConfig, network: str, updates: int, every: int, **description: Any) -> Recipe:
    """Updates with 36 images of each of two domains, at a rate that falls by a power law."""
    return Recipe(
        **description,
        task="domains",
        data=data,
        model=f"{network}.tv_in1k",
        weights="timm",
        method="mdd",
        hyper=MethodConfig(penalty=1.0, mdd_gamma=4.0),
        module=MODULE,
        optim=OptimConfig(name="sgd", lr=0.004, momentum=0.9, nesterov=True, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="power", rate=2e-4, power=0.75),
        train=TrainConfig(batch_size=36, updates=updates, eval_every=every, drop_last=True),
    )


def visda_mdd() -> Recipe:
    """VisDA-2017, synthetic to real, ResNet-101: MDD 76.8, + BatchFormer 77.8.

    30 x 1,000 updates. The last network is scored; the released code takes the best of 30
    evaluations on the target, which is ``--train.select-on test``. The paper does not say whether
    its mean is over images (``real`` here) or over classes (``mean_class``). Ours: not measured
    yet.
    """
    return _mdd(
        DomainConfig(
            name="visda",
            source="synthetic",
            target="real",
            adapt=True,
            augment="centre",
            held_out=0.0,
        ),
        "resnet101",
        30_000,
        1_000,
        name="visda_mdd",
        summary="VisDA-2017, synthetic to real, MDD, ResNet-101",
        table="VisDA-2017 MDD",
    )


def pacs_mdd() -> Recipe:
    """PACS, photographs to paintings, ResNet-50; no row of the paper.

    The length is ours to choose. Ours, at 160 pixels, one seed: 76.9, + BatchFormer 78.1.
    """
    return _mdd(
        DomainConfig(name="pacs", source="photo", target="art_painting", adapt=True, held_out=0.0),
        "resnet50",
        3_000,
        500,
        name="pacs_mdd",
        summary="PACS, photo to art_painting, MDD, ResNet-50",
        table=NOT_IN_THE_PAPER,
    )


#: In the order of `batchformer list`.
RECIPES = (
    my_domains,
    pacs_baseline,
    named("pacs_erm", _library, "pacs", "cross_entropy", "resnet18", "T6b"),
    named("pacs_coral", _library, "pacs", "coral", "resnet18", "T6"),
    named("pacs_irm", _library, "pacs", "irm", "resnet18", "T6b"),
    named("pacs_vrex", _library, "pacs", "vrex", "resnet18", "T6b"),
    named("pacs_mixstyle", _library, "pacs", "mixstyle", "resnet18", "T6"),
    named("pacs_irm_resnet50", _library, "pacs", "irm", "resnet50", "T6b"),
    named("pacs_vrex_resnet50", _library, "pacs", "vrex", "resnet50", "T6b"),
    named("pacs_swad", _swad, "pacs", "resnet18", "T6b (T7: 83.7)"),
    # Ours, at 160 pixels, seed 0: 82.2, + BatchFormer 82.3; the baseline 82.4 over 3 seeds.
    named("pacs_swad_resnet50", _swad, "pacs", "resnet50", "T6b"),
    named("vlcs_swad", _swad, "vlcs", "resnet18", "T7"),
    named("office_home_irm_resnet50", _library, "office_home", "irm", "resnet50", "OfficeHome"),
    named("office_home_swad", _swad, "office_home", "resnet18", "T7"),
    named("office_home_swad_resnet50", _swad, "office_home", "resnet50", "OfficeHome"),
    named("terra_incognita_swad", _swad, "terra_incognita", "resnet18", "T7"),
    visda_mdd,
    pacs_mdd,
)
