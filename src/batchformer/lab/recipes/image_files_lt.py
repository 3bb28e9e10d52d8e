"""Long tails in image files: ImageNet-LT, iNaturalist 2018, Places-LT; tables 2 to 4 of the paper.

We have measured none of them yet. On ImageNet-LT the paper trains RIDE and PaCo on 4 GPUs, so that
100 and 32 samples attend to one another and are normalised together. For RIDE, ``--train.accumulate
4`` computes the same gradients on one device; without it whole batches attend and are normalised.
PaCo also shuffles the keys' images between its GPUs. ``hyper.norm_parts`` 4, which its recipe has,
normalises as they do, and whole batches attend. ``--train.accumulate`` is no substitute there: it
does not shuffle, and a part already finds the keys of the parts before it in the queue.

The last epoch is scored. The released code of Balanced Softmax chooses it on the third list, that
of PaCo by the test images (``--train.select-on test``). That of RIDE keeps the best and the last;
which one the paper tested is not said.
"""

from __future__ import annotations

from dataclasses import replace

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.data.sets.image_layouts import ANNOTATED
from batchformer.lab.recipes.cifar_lt import PACO_MODULE
from batchformer.lab.recipes.shared import in_epochs, named, warm_up_and_drop

# ImageNet-LT: table 2, ResNet-10 and ResNet-50, and ResNeXt-50 beside them

#: Training images of the published lists.
IMAGES = {name: known.images for name, known in ANNOTATED.items()}
#: Resized crop, flip and colour jitter.
DATA = LongTailConfig(name="imagenet_lt", augment="jitter")
TITLES = {"resnet10": "ResNet-10", "resnet50": "ResNet-50", "resnext50": "ResNeXt-50 32x4d"}


def _balanced_softmax(name: str, model: str) -> Recipe:
    """90 epochs of batches of 128 from random weights, SGD at 0.05 with a cosine to 0.

    The released code holds rates within an epoch and runs one epoch ahead, which is
    ``--schedule.per epoch --schedule.ahead 1``, and leaves out the last batch of an epoch, six
    images. Its loss, three times the paper's, is the arm ``batchformer_official_loss``.
    """
    return Recipe(
        name=name,
        summary=f"ImageNet-LT, Balanced Softmax, {TITLES[model]}",
        table=f"T2 ImageNet-LT, Balanced, {TITLES[model]}",
        task="long_tailed",
        data=DATA,
        model=model,
        method="balanced_softmax",
        optim=OptimConfig(name="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine"),
        train=in_epochs(IMAGES["imagenet_lt"], 90, 128, evaluations=10),
    )


def _ride(name: str, model: str) -> Recipe:
    """RIDE with 3 experts: 100 epochs of batches of 400, as the paper says.

    The released configurations have 120 epochs and batches of 512 (ResNet-10), or 256. BatchFormer
    has no shared classifier here: the experts' classifiers are trained on mixed features alone.
    ResNeXt-50 is not in the paper; the released code's page has 55.9, + BatchFormer 56.5 (all).
    """
    printed = model != "resnext50"
    return Recipe(
        name=name,
        summary=f"ImageNet-LT, RIDE with 3 experts, {TITLES[model]}",
        table=f"T2 ImageNet-LT, RIDE, {TITLES[model]}" if printed else NOT_IN_THE_PAPER,
        task="long_tailed",
        data=DATA,
        model=f"ride_{model}",
        method="ride",
        hyper=MethodConfig(
            experts=3, diversity=-0.2, temperature_factor=0.02, margin=0.5, reweight_epoch=80
        ),
        module=ModuleConfig(streams="mixed_only", lr_factor=1.0),
        optim=OptimConfig(name="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-4),
        schedule=warm_up_and_drop(5, (60, 80), 0.1),
        train=in_epochs(IMAGES["imagenet_lt"], 100, 400, evaluations=10),
    )


def _two_stages(name: str, model: str) -> Recipe:
    """RIDE from the weights of a trained RIDE, on the same schedule.

    The paper adds BatchFormer in the second stage, to a network trained without it. Its row without
    BatchFormer is RIDE's own second stage, distillation from 6 experts: that number stands at the
    baseline of _distilled. The baseline here is trained twice as long instead, so that arms differ
    in BatchFormer alone, and has no number in the paper.

    According to the author, in an issue of the released code, its first stage had BatchFormer on
    frequent or on rare classes alone. These are the arms ``batchformer_many`` and
    ``batchformer_not_many`` of the first stage, and ``--start RECIPE/ARM`` begins with one of them.
    """
    base = _ride(f"imagenet_lt_ride_{model}", model)
    return base.changed(
        name=name,
        summary=f"ImageNet-LT, RIDE started from a trained RIDE, {TITLES[model]}",
        table=f"T2 ImageNet-LT, RIDE in two stages, {TITLES[model]}",
        start=f"{base.name}/baseline",
    )


def _six_experts(name: str, model: str) -> Recipe:
    """RIDE with 6 experts, the teacher of the distilled one."""
    base = _ride(f"imagenet_lt_ride_{model}", model)
    return base.changed(
        name=name,
        summary=f"ImageNet-LT, RIDE with 6 experts, a teacher, {TITLES[model]}",
        table=NOT_IN_THE_PAPER,
        hyper={"experts": 6},
    )


def _distilled(name: str, model: str) -> Recipe:
    """RIDE with 3 experts that follow a trained RIDE with 6: the two stages of RIDE's authors.

    The paper's two-stage row without BatchFormer; it has none of this with BatchFormer.
    """
    base = _ride(f"imagenet_lt_ride_{model}", model)
    return base.changed(
        name=name,
        summary=f"ImageNet-LT, RIDE with 3 experts distilled from 6, {TITLES[model]}",
        table=f"T2 ImageNet-LT, RIDE in two stages, distilled, {TITLES[model]}",
        teacher=f"{base.name}_6experts/baseline",
    )


def paco_on_files(
    name: str,
    title: str,
    table: str,
    data: LongTailConfig,
    epochs: int,
    warmup: int,
    gpus: int,
) -> Recipe:
    """PaCo's settings for large images: a queue of 8192 keys, alpha 0.05, a cosine after warm-up.

    Batches are normalised in as many parts as the protocol has GPUs, and keys are shuffled between
    these parts. BatchFormer has the network's learning rate, as in the paper's MoCo; the paper
    gives none here.
    """
    return Recipe(
        name=name,
        summary=f"{title}, PaCo",
        table=table,
        task="long_tailed",
        data=data,
        model="resnet50",
        method="paco",
        hyper=MethodConfig(
            alpha=0.05, temperature=0.2, queue=8192, dim=128, momentum=0.999, norm_parts=gpus
        ),
        module=PACO_MODULE,
        optim=OptimConfig(name="sgd", lr=0.02, momentum=0.9, weight_decay=5e-4),
        # The last epoch of the warm-up already has the full rate.
        schedule=ScheduleConfig(
            kind="cosine", per="epoch", warmup=warmup - 1, warmup_from=1 / warmup
        ),
        train=in_epochs(IMAGES[data.name], epochs, 128, evaluations=10, drop_last=True),
    )


def imagenet_lt_paco() -> Recipe:
    """Table 2, ResNet-50: PaCo 57.0, + BatchFormer 57.4 (all), 400 epochs.

    The paper trains on 4 GPUs: on one device, as on 2 or 4 ranks, batches are normalised in 4
    parts with the keys shuffled. The query's view has torchvision's RandAugment with 2 operations
    of magnitude 10; PaCo's authors use another implementation, with noise on the magnitude. Ours:
    not measured yet.
    """
    data = replace(DATA, augment="paco")
    table = "T2 ImageNet-LT, PaCo, ResNet-50"
    return paco_on_files("imagenet_lt_paco", "ImageNet-LT", table, data, 400, 10, gpus=4)


# iNaturalist 2018: table 3, ResNet-50

#: Resized crop and flip.
INATURALIST_DATA = LongTailConfig(name="inaturalist18", augment="resized")


def inaturalist18_ride() -> Recipe:
    """Table 3: RIDE with 3 experts 72.5, + BatchFormer 74.1 (all).

    Batches of 400, 100 epochs, a cosine from 0.2, as the paper says, after RIDE's 5 epochs of
    warm-up; the released code multiplies the rate with itself in its cosine, which is not followed.
    The paper trains on 4 GPUs, so that 100 samples attend to one another: ``--train.accumulate 4``.
    """
    return Recipe(
        name="inaturalist18_ride",
        summary="iNaturalist 2018, RIDE with 3 experts, ResNet-50",
        table="T3 iNaturalist 2018, RIDE",
        task="long_tailed",
        data=INATURALIST_DATA,
        model="ride_resnet50",
        method="ride",
        hyper=MethodConfig(
            experts=3, diversity=-0.2, temperature_factor=0.015, margin=0.5, reweight_epoch=80
        ),
        module=ModuleConfig(streams="mixed_only", lr_factor=1.0),
        optim=OptimConfig(name="sgd", lr=0.2, momentum=0.9, nesterov=True, weight_decay=2e-4),
        # The fifth epoch already has the full rate, so the rise takes four.
        schedule=ScheduleConfig(kind="cosine", per="epoch", warmup=4, warmup_from=1 / 5),
        train=in_epochs(IMAGES["inaturalist18"], 100, 400, evaluations=10),
    )


def inaturalist18_cross_entropy() -> Recipe:
    """Cross-entropy, the features of cRT; no row of the paper.

    Batches of 512, 90 epochs and a cosine from 0.2 are those of Kang et al.; the paper takes their
    number over and gives no settings.
    """
    return Recipe(
        name="inaturalist18_cross_entropy",
        summary="iNaturalist 2018, cross-entropy, ResNet-50",
        task="long_tailed",
        data=INATURALIST_DATA,
        model="resnet50",
        method="cross_entropy",
        optim=OptimConfig(name="sgd", lr=0.2, momentum=0.9, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="cosine"),
        train=in_epochs(IMAGES["inaturalist18"], 90, 512, evaluations=10),
    )


def inaturalist18_crt() -> Recipe:
    """Table 3: cRT 65.2 (all), a new classifier in 10 epochs, classes balanced.

    Every arm starts from the same arm of the cross-entropy recipe.
    """
    return inaturalist18_cross_entropy().changed(
        name="inaturalist18_crt",
        summary="iNaturalist 2018, cRT after cross-entropy, ResNet-50",
        table="T3 iNaturalist 2018, cRT",
        data=replace(INATURALIST_DATA, sampler="class_balanced"),
        method="crt",
        start="inaturalist18_cross_entropy",
        train=in_epochs(IMAGES["inaturalist18"], 10, 512, evaluations=2),
    )


def inaturalist18_bbn() -> Recipe:
    """Table 3: BBN 66.3 (all), 90 epochs of 128 pairs of images from random weights.

    BBN's authors have two schedules, and the paper does not say which one the number is of; it fits
    the shorter one, which is taken here. The released configuration is the longer one: twice the
    updates, ``--schedule.milestones 120 160``, ``--hyper.cumulative-epochs 200``. It normalises by
    the colours of ImageNet and begins with torch's initial weights; here colours are those of
    iNaturalist, and initial weights timm's.
    """
    return Recipe(
        name="inaturalist18_bbn",
        summary="iNaturalist 2018, BBN, ResNet-50",
        table="T3 iNaturalist 2018, BBN",
        task="long_tailed",
        data=replace(INATURALIST_DATA, paired="reversed"),
        model="resnet50",
        method="bbn",
        hyper=MethodConfig(cumulative_epochs=100),
        optim=OptimConfig(name="sgd", lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
        # The released code counts epochs from 1, so that rates drop one epoch early.
        schedule=ScheduleConfig(
            kind="multistep", per="epoch", milestones=(60, 80), gamma=0.1, ahead=1
        ),
        train=in_epochs(IMAGES["inaturalist18"], 90, 128, evaluations=10, drop_last=True),
    )


def inaturalist18_paco() -> Recipe:
    """Table 3: PaCo 73.2 (all), 400 epochs; the paper has no row with BatchFormer.

    Batches are normalised in 4 parts with the keys shuffled, for the 4 GPUs on which the paper
    estimates its cost; how many PaCo's authors had is not known here. The query's view has
    torchvision's RandAugment with 2 operations of magnitude 10; PaCo's authors use another
    implementation, with noise on the magnitude.
    """
    data = replace(INATURALIST_DATA, augment="paco")
    table = "T3 iNaturalist 2018, PaCo"
    base = paco_on_files("inaturalist18_paco", "iNaturalist 2018", table, data, 400, 10, gpus=4)
    return base.changed(optim={"weight_decay": 1e-4})


# Places-LT, ResNet-152
#
# BALMS and tau-normalisation work on features that Kang et al. trained on Places-LT and published;
# their file is looked for as places_lt/resnet152_uniform.pth in the folder of all data, and as
# resnet152_uniform.pth in ``--data.root``. ``--weights FILE`` names another one; ``--weights timm``
# takes timm's of ImageNet, which have no classifier of these scenes.

#: Resized crop, flip and colour jitter.
PLACES_DATA = LongTailConfig(name="places_lt", augment="jitter")
FEATURES = "places_lt/resnet152_uniform.pth"


def places_lt_balms() -> Recipe:
    """Table 4: BALMS 37.8, + BatchFormer 38.2 (all): a new classifier on frozen features.

    Of the released code's two configurations this is the one with the meta sampler, 10 epochs of
    batches of 256; which one made the table is not said. The balanced batches are of the third
    list. With BatchFormer both streams of them judge the sampling, which is our choice
    (``--hyper.meta-streams``), and each update draws again from a batch of the data, where the
    released code draws from all images. The released code goes on to normalise frozen features by
    batch statistics, ``--hyper.frozen-mode train``, and holds rates within an epoch and runs one
    epoch ahead, ``--schedule.per epoch --schedule.ahead 1``.
    """
    return Recipe(
        name="places_lt_balms",
        summary="Places-LT, Balanced Softmax with the meta sampler on frozen features, ResNet-152",
        table="T4 Places-LT, BALMS",
        task="long_tailed",
        data=replace(PLACES_DATA, meta_batch=512, meta_from="val"),
        model="resnet152",
        weights=FEATURES,
        method="balms",
        hyper=MethodConfig(sampler_power=0.3, sampler_lr=1e-3),
        optim=OptimConfig(name="sgd", lr=0.02, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine"),
        train=in_epochs(IMAGES["places_lt"], 10, 256, evaluations=2),
    )


def places_lt_tau_norm() -> Recipe:
    """Table 4: tau-normalised 37.9 (all), a number of Kang et al.; nothing is trained.

    Tau is given (``--hyper.tau``). Kang et al. choose it on the third list, which scores are
    measured on by ``--data.scored-on val``. It is the baseline alone, ``--arms baseline``.
    """
    return places_lt_balms().changed(
        name="places_lt_tau_norm",
        summary="Places-LT, tau-normalised classifier, ResNet-152",
        table="T4 Places-LT, tau-normalized",
        data=PLACES_DATA,
        method="tau_norm",
        hyper=MethodConfig(tau=1.0),
        train=TrainConfig(batch_size=128, updates=1),
    )


def places_lt_paco() -> Recipe:
    """Table 4: PaCo 41.2, + BatchFormer 41.6 (all), 30 epochs from ImageNet's weights.

    Of the convolutions only those of the last block are trained. PaCo's authors measure on the
    third list of 7,300 images, which is ``--data.scored-on val``; here scores are measured on the
    36,500 test images. Weights are torchvision's first ones, by timm. The paper trains on one GPU,
    so that keys are not shuffled.
    """
    data = replace(PLACES_DATA, augment="simclr")
    table = "T4 Places-LT, PaCo"
    base = paco_on_files("places_lt_paco", "Places-LT", table, data, 30, 5, gpus=1)
    return base.changed(
        model="resnet152.tv_in1k",
        weights="timm",
        convolutions="last_block",
        train={"precision": "fp16"},
    )


#: In the order of `batchformer list`.
RECIPES = (
    named("imagenet_lt_balanced_softmax_resnet10", _balanced_softmax, "resnet10"),
    named("imagenet_lt_balanced_softmax_resnet50", _balanced_softmax, "resnet50"),
    named("imagenet_lt_ride_resnet10", _ride, "resnet10"),
    named("imagenet_lt_ride_resnet50", _ride, "resnet50"),
    named("imagenet_lt_ride_resnext50", _ride, "resnext50"),
    named("imagenet_lt_ride_resnet10_two_stage", _two_stages, "resnet10"),
    named("imagenet_lt_ride_resnet50_two_stage", _two_stages, "resnet50"),
    named("imagenet_lt_ride_resnet10_6experts", _six_experts, "resnet10"),
    named("imagenet_lt_ride_resnet50_6experts", _six_experts, "resnet50"),
    named("imagenet_lt_ride_resnet10_distilled", _distilled, "resnet10"),
    named("imagenet_lt_ride_resnet50_distilled", _distilled, "resnet50"),
    imagenet_lt_paco,
    inaturalist18_ride,
    inaturalist18_cross_entropy,
    inaturalist18_crt,
    inaturalist18_bbn,
    inaturalist18_paco,
    places_lt_balms,
    places_lt_tau_norm,
    places_lt_paco,
)
