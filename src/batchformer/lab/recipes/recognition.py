"""Plain image recognition: ImageNet with ResNet-50 and vision transformers, and digits beside it.

The paper has one pair of rows, ResNet-50 with timm for 200 epochs, 78.9 with and without
BatchFormer, and states nothing else of it. It announces results with vision transformers and prints
none; numbers on the released code's page are of a second module, which acts inside the transformer.
Here BatchFormer stands before the classifier, on the class token of a transformer.

The batch is on one device, so that 1024 samples attend to one another; ``--train.accumulate 8``
lets 128 do so, each part with its own Mixup, as on 8 devices. bf16 is our choice: the fp16 of timm
and DeiT cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.recipes.shared import named

BATCH = 1024
#: Resized crop, flip, RandAugment and erasing.
DATA = LongTailConfig(name="imagenet", augment="deit", scores="top")
#: The same, with every image three times in a row.
REPEATED = LongTailConfig(name="imagenet", augment="deit", scores="top", sampler="repeated")


def _train(epochs: int, clip_norm: float = 0.0) -> TrainConfig:
    """Batches of 1024, evaluated every tenth epoch."""
    return TrainConfig(
        batch_size=BATCH,
        epochs=epochs,
        eval_epochs=10,
        drop_last=True,
        precision="bf16",
        clip_norm=clip_norm,
        channels_last=True,
    )


def imagenet_resnet50() -> Recipe:
    """Table "Image Recognition", ResNet-50: 78.9, + BatchFormer 78.9 (top1), 200 epochs.

    All but the network and the length is ours to choose: SGD at 0.5 for batches of 1024 with a
    cosine after 5 epochs of warm-up, RandAugment, erasing and smoothed targets, in the manner of
    timm's recipes that come near 79; BatchFormer has its usual settings. Ours: not measured yet.
    """
    name = "imagenet_resnet50"
    return Recipe(
        name=name,
        summary="ImageNet, cross-entropy, ResNet-50, 200 epochs",
        table="ImageNet, ResNet-50",
        task="recognition",
        data=DATA,
        model="resnet50",
        method="cross_entropy",
        # The last normalisation of each block begins at 0 by timm's own default.
        hyper=MethodConfig(smoothing=0.1, zero_init_last=True),
        optim=OptimConfig(
            name="sgd",
            lr=0.5,
            momentum=0.9,
            nesterov=True,
            weight_decay=5e-5,
            decayed="matrices",
        ),
        schedule=ScheduleConfig(kind="cosine", per="epoch", warmup=5, warmup_from=0.01),
        train=_train(200),
    )


def deit(name: str, size: str) -> Recipe:
    """DeiT's settings: 300 epochs, AdamW, strong augmentation.

    Rates are 5e-4 for 512 samples. They begin at 1e-6, rise for 5 epochs and fall to 1e-5; DeiT's
    cosine is counted from the first epoch, ours from the end of the warm-up, and its code sets a
    rate one epoch late. DeiT does not decay the class token and the embedding of places, which are
    decayed here. Its code keeps a mean of the weights, and so does the released one, but both score
    the weights themselves, as here; ``--train.ema 0.99996`` scores the mean. BatchFormer has the
    network's rate, as the released code for transformers has in effect. Without a module the
    released code's page has 72.2 (tiny), 79.8 (small) and 81.7 (base; top1). Ours: not measured
    yet.
    """
    rate = 5e-4 * BATCH / 512
    return Recipe(
        name=name,
        summary=f"ImageNet, DeiT-{size.title()}, 300 epochs",
        task="recognition",
        data=REPEATED,
        model=f"deit_{size}_patch16_224",
        method="cross_entropy",
        hyper=MethodConfig(mixup=0.8, cutmix=1.0, mix_switch=0.5, smoothing=0.1, drop_path=0.1),
        module=ModuleConfig(lr_factor=1.0),
        optim=OptimConfig(name="adamw", lr=rate, weight_decay=0.05, decayed="matrices"),
        schedule=ScheduleConfig(
            kind="cosine", per="epoch", warmup=5, warmup_from=1e-6 / rate, floor=1e-5 / rate
        ),
        train=_train(300),
    )


def imagenet_vit_small() -> Recipe:
    """ViT-S/16 with a shorter, plainer training; no row of the paper. Ours: not measured yet.

    90 epochs of AdamW at 1e-3 with clipped gradients and Mixup, without repeated augmentation,
    CutMix and stochastic depth. The settings are ours.
    """
    return Recipe(
        name="imagenet_vit_small",
        summary="ImageNet, ViT-S/16, 90 epochs",
        task="recognition",
        data=DATA,
        model="vit_small_patch16_224",
        method="cross_entropy",
        hyper=MethodConfig(mixup=0.2),
        module=ModuleConfig(lr_factor=1.0),
        optim=OptimConfig(name="adamw", lr=1e-3, weight_decay=0.1, decayed="matrices"),
        schedule=ScheduleConfig(kind="cosine", per="epoch", warmup=8, warmup_from=1e-3),
        train=_train(90, clip_norm=1.0),
    )


def digits_recognition() -> Recipe:
    """All embedded digits, as many of each, with Mixup and smoothed targets; no row of the paper.

    Ours: 98.7 [98.2, 99.2] and 98.5 [97.9, 99.1] (top1) over 5 paired seeds, a minute on two cores.
    """
    return Recipe(
        name="digits_recognition",
        summary="balanced digits, cross-entropy with Mixup, a small network, seconds on a CPU",
        task="recognition",
        data=LongTailConfig(name="digits", ratio=1.0, scores="top"),
        model="digits_net",
        method="cross_entropy",
        hyper=MethodConfig(mixup=0.2, smoothing=0.1),
        optim=OptimConfig(name="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine", warmup=50, warmup_from=0.1),
        train=TrainConfig(batch_size=64, updates=600, eval_every=100, log_every=50),
    )


#: In the order of `batchformer list`.
RECIPES = (
    imagenet_resnet50,
    *(named(f"imagenet_deit_{size}", deit, size) for size in ("tiny", "small", "base")),
    imagenet_vit_small,
    digits_recognition,
)
