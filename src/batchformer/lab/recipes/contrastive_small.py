"""MoCo where it is quick: CIFAR-100-LT, the embedded digits, and your own images.

None is a row of the paper, which learns without labels on ImageNet alone. Linear probes and nearest
neighbours have every class equally often in their training, since labels of a long tail would hide
what the features know of its rare classes. BatchFormer learns at the rate of the network, as on
ImageNet. With MoCo-v3 that rate is probably too high: LARS moves each matrix by a share of its
length, and no normalisation follows BatchFormer's matrices that would undo their growth. With
BatchFormer the loss rose by more than 0.02 between logged epochs 7 to 10 times, and never without
it or with it frozen. ``--module.lr-factor 0.1`` is the first thing to try; it is not measured.

Probes divide features by the root of their mean squared length (``hyper.probe_scale``). It is 30
for a random ResNet-18 and different for every trained one, so one rate would not suit all arms. The
rate is the largest of 1, 3, 10 and 30 at which the training loss of a probe on random features
falls, with the recipe's batches and length: 10 on CIFAR-100, where at 30 the loss rises from 4.6 to
11 and more (8 images a class, two networks), and 3 on the digits, where at 10 it rises from 2.3 to
6 and more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchformer.lab.config.data import ContrastConfig, LongTailConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.recipes.contrastive import MODULE, neighbours_of, probe_of
from batchformer.lab.recipes.shared import IMAGES, Make, named

CIFAR_LT = ContrastConfig(name="cifar100", ratio=100.0, views="moco_v2")
DIGITS = ContrastConfig(name="digits", ratio=10.0, views="byol")
FOLDER = ContrastConfig(name="folder", views="byol")


def cifar100_lt_moco_v2() -> Recipe:
    """MoCo-v2 on CIFAR-100-LT, ratio 100, ResNet-18 with a small stem; its probe has the results.

    Settings are those of the demonstration on CIFAR-10 by MoCo's authors: temperature 0.1, a queue
    of 4096, momentum 0.99, weight decay 5e-4, 200 epochs, batches normalised in 8 parts, between
    which the keys are shuffled. Two deviate: rate and batch are halved, and the head has a hidden
    layer, as in MoCo-v2 but not in that demonstration. A queue of 65,536 would hold each of the
    10,847 images six times over, and a key encoder that follows as slowly as on ImageNet would lag
    too far behind in 8,400 updates.
    """
    return Recipe(
        name="cifar100_lt_moco_v2",
        summary="cifar100-LT ratio 100 without labels, MoCo-v2, ResNet-18",
        task="contrastive",
        data=CIFAR_LT,
        model="resnet18_small",
        method="moco_v2",
        hyper=MethodConfig(
            temperature=0.1,
            queue=4096,
            dim=128,
            momentum=0.99,
            projection_layers=2,
            projection_hidden=512,
            norm_parts=8,
        ),
        module=MODULE,
        optim=OptimConfig(name="sgd", lr=0.03, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine", per="epoch"),
        train=TrainConfig(batch_size=256, epochs=200, eval_epochs=20, drop_last=True),
    )


def cifar100_lt_moco_v3() -> Recipe:
    """MoCo-v3 on CIFAR-100-LT, ratio 100, ResNet-18 with a small stem; its probe has the results.

    Temperature 0.2 and LARS at 0.3 / 256 with trust 0.02 are what CIFAR is usually trained with. On
    ImageNet they are 1, for thousands of negatives, and 0.001, for ten times as many updates. Each
    update then moves a matrix by 0.6 * 0.02 = 0.012 of its length, which is 0.0096 on ImageNet.
    """
    batch = 512
    return Recipe(
        name="cifar100_lt_moco_v3",
        summary="cifar100-LT ratio 100 without labels, MoCo-v3, ResNet-18",
        task="contrastive",
        data=replace(CIFAR_LT, views="byol"),
        model="resnet18_small",
        method="moco_v3",
        hyper=MethodConfig(
            temperature=0.2,
            dim=256,
            momentum=0.99,
            momentum_schedule="cosine",
            projection_layers=2,
            projection_hidden=4096,
        ),
        module=MODULE,
        optim=_lars(0.3 * batch / 256),
        schedule=ScheduleConfig(kind="cosine", warmup=10 * (IMAGES["cifar100", 100.0] // batch)),
        train=TrainConfig(
            batch_size=batch,
            epochs=200,
            eval_epochs=20,
            drop_last=True,
            log_every=21,
            sync_norm=True,
        ),
    )


def digits_moco_v3() -> Recipe:
    """MoCo-v3 on the embedded digits, ratio 10, a small network; a minute on a CPU.

    Views are shifts by up to a pixel. The ratio was chosen among six settings by test scores of the
    baseline and of random weights with seed 0, so the difference of these two is biased upwards; at
    ratio 50 neighbours were no better than with random weights. BatchFormer played no part in the
    choice.
    """
    return Recipe(
        name="digits_moco_v3",
        summary="digits-LT ratio 10 without labels, MoCo-v3, a small network",
        task="contrastive",
        data=DIGITS,
        model="digits_net",
        method="moco_v3",
        hyper=MethodConfig(
            temperature=0.2,
            dim=32,
            momentum=0.99,
            momentum_schedule="cosine",
            projection_layers=2,
            projection_hidden=128,
            neighbours=10,
        ),
        module=MODULE,
        optim=OptimConfig(name="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine", warmup=50),
        train=TrainConfig(
            batch_size=128, updates=1_000, eval_every=200, drop_last=True, log_every=50
        ),
    )


def my_folder_moco_v3() -> Recipe:
    """MoCo-v3 on your own folders or lists of images, any network of timm's.

    ``batchformer compare my_folder_moco_v3 --data.root PATH`` as for my_folder; labels score the
    features and play no part in learning them. ``--weights FILE`` or ``--weights timm`` begins with
    trained weights. The length is ours to choose: set ``--train.epochs``. Rates are those of
    cifar100_lt_moco_v3 for batches of 256; the smaller the batch, the fewer the negatives.
    """
    return Recipe(
        name="my_folder_moco_v3",
        summary="your own images without labels, MoCo-v3, any network of timm's",
        task="contrastive",
        data=FOLDER,
        model="resnet50",
        method="moco_v3",
        hyper=replace(cifar100_lt_moco_v3().hyper, zero_init_last=True),
        module=MODULE,
        optim=_lars(0.3),
        schedule=ScheduleConfig(kind="cosine", per="epoch", warmup=10, warmup_from=0.1),
        train=TrainConfig(
            batch_size=256, epochs=200, eval_epochs=20, drop_last=True, sync_norm=True
        ),
    )


def my_folder_probe() -> Recipe:
    """A linear probe of features on your own images, classes balanced.

    Features have unit scale, and the rate suits any of them: on such features a linear classifier
    with a bias, trained with momentum 0.9, overshoots only at rates of 3.8 and above.

    By default the features are those of my_folder_moco_v3. Those of another run are named by
    ``--start RECIPE``, those of a file, or of timm's weights, by ``--start "" --weights FILE``.
    """
    found = probe_of(
        my_folder_moco_v3(), _labelled(FOLDER), lr=3.0, batch=256, epochs=90, scale="unit"
    )
    return found.changed(
        name="my_folder_probe",
        summary="your own images, linear probe of features that another run has learnt",
    )


def my_folder_knn() -> Recipe:
    """Nearest neighbours on your own images, whose features are named as for my_folder_probe."""
    return neighbours_of(my_folder_moco_v3(), _labelled(FOLDER)).changed(
        name="my_folder_knn",
        summary="your own images, nearest neighbours by features that another run has learnt",
    )


def _probe(
    name: str, learnt: Make, lr: float, batch: int, epochs: int, drops: tuple[int, ...] = ()
) -> Recipe:
    """The probe of a recipe's features at unit scale, classes balanced; a cosine, or drops."""
    base: Any = learnt()
    found = probe_of(base, _labelled(base.data), lr=lr, batch=batch, epochs=epochs, scale="unit")
    steps = ScheduleConfig(kind="multistep", per="epoch", milestones=drops)
    return found.changed(schedule=steps) if drops else found


def _knn(name: str, learnt: Make, neighbours: int = 200) -> Recipe:
    """Nearest neighbours on a recipe's features, classes balanced."""
    base: Any = learnt()
    found = neighbours_of(base, _labelled(base.data))
    return found.changed(hyper={"neighbours": neighbours})


def _labelled(config: ContrastConfig) -> LongTailConfig:
    """The images with labels, every class equally often, scored by shots and by top answers."""
    of_cifar = {"augment": "standard"} if config.name == "cifar100" else {}
    return config.images(sampler="class_balanced", scores="both", **of_cifar)


def _lars(lr: float) -> OptimConfig:
    return OptimConfig(
        name="lars", lr=lr, momentum=0.9, weight_decay=1e-6, decayed="matrices", trust=0.02
    )


#: In the order of `batchformer list`. Probes have rate, batch, epochs and where the rate drops,
#: neighbours have their number. Drops and lengths are those of MoCo on ImageNet. Comments have our
#: scores, baseline -> with BatchFormer: of the probe, then of neighbours. On CIFAR-100-LT they are
#: after 100 epochs of MoCo.
RECIPES = (
    cifar100_lt_moco_v2,
    # 25.96 -> 23.01, 18.18 -> 16.06
    named("cifar100_lt_moco_v2_probe", _probe, cifar100_lt_moco_v2, 10.0, 256, 100, (60, 80)),
    named("cifar100_lt_moco_v2_knn", _knn, cifar100_lt_moco_v2),
    cifar100_lt_moco_v3,
    # 29.71 -> 23.81, 21.72 -> 16.68
    named("cifar100_lt_moco_v3_probe", _probe, cifar100_lt_moco_v3, 10.0, 256, 90),
    named("cifar100_lt_moco_v3_knn", _knn, cifar100_lt_moco_v3),
    digits_moco_v3,
    # 90.50 -> 90.93, 91.03 -> 90.40
    named("digits_moco_v3_probe", _probe, digits_moco_v3, 3.0, 64, 60),
    named("digits_moco_v3_knn", _knn, digits_moco_v3, 10),
    my_folder_moco_v3,
    my_folder_probe,
    my_folder_knn,
)
