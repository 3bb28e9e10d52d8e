"""Classifiers for features that another run has trained, on CIFAR-100-LT; no rows of the paper.

The paper has cRT on iNaturalist (table 3), tau-normalisation and BALMS on Places-LT (table 4).
Every arm starts from the same arm of the cross-entropy recipe: the pipeline as a whole is with
BatchFormer or without.
"""

from __future__ import annotations

import dataclasses

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.methods import MethodConfig, MethodName
from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe
from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.recipes.epochs import IMAGES, in_epochs

#: Ten epochs, and the rate of 0.2 at batches of 512, are those of Kang et al. on ImageNet-LT.
EPOCHS, LR_AT_512 = 10, 0.2
PLAIN = LongTailConfig(name="cifar100", ratio=100.0)
BALANCED = dataclasses.replace(PLAIN, sampler="class_balanced")


def _on_trained_features(
    method: MethodName,
    title: str,
    data: LongTailConfig = BALANCED,
    hyper: MethodConfig | None = None,
    batch: int = 128,
) -> Recipe:
    return Recipe(
        name=f"cifar100_lt_{method}",
        summary=f"cifar100-LT ratio 100, {title}, after cross-entropy",
        table=NOT_IN_THE_PAPER,
        task="long_tailed",
        data=data,
        method=method,
        hyper=hyper or MethodConfig(),
        start="cifar100_lt_cross_entropy",
        optim=OptimConfig(name="sgd", lr=LR_AT_512 * batch / 512, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine"),
        train=in_epochs(IMAGES["cifar100", 100.0], EPOCHS, batch, evaluations=2),
    )


def cifar100_lt_crt() -> Recipe:
    """cRT: a new classifier on frozen features, classes balanced. Ours: not measured yet."""
    return _on_trained_features("crt", "cRT")


def cifar100_lt_lws() -> Recipe:
    """LWS: one learned factor for each class, classes balanced. Ours: not measured yet."""
    return _on_trained_features("lws", "LWS")


def cifar100_lt_tau_norm() -> Recipe:
    """Tau-normalisation with tau = 1, without training. Ours: not measured yet.

    Kang et al. choose tau on validation images; CIFAR-LT has none, and the training images would
    favour the tau that fits them, so tau is given: ``--hyper.tau``.
    """
    hyper = MethodConfig(tau=1.0)
    base = _on_trained_features("tau_norm", "tau-normalised classifier", PLAIN, hyper)
    return dataclasses.replace(base, train=TrainConfig(batch_size=128, updates=1))


def cifar100_lt_balms() -> Recipe:
    """BALMS: Balanced Softmax on frozen features, class sampling learned. Ours: not measured yet.

    Settings are those of the released code on Places-LT; the balanced batches come from the
    training images, as CIFAR-LT has no others.
    """
    base = _on_trained_features(
        "balms",
        "Balanced Softmax with the meta sampler",
        dataclasses.replace(PLAIN, meta_batch=512),
        MethodConfig(sampler_power=0.3, sampler_lr=1e-3),
        batch=256,
    )
    return dataclasses.replace(base, optim=dataclasses.replace(base.optim, lr=0.02))
