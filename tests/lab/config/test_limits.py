"""Values that cannot be meant are refused."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.methods import MethodConfig


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.0}, "hyper.scale is 0.0"),
        ({"reweight_epoch": -1}, "hyper.reweight-epoch"),
        ({"experts": 0}, "hyper.experts"),
        ({"queue": 0}, "hyper.queue"),
        ({"margin": -3.0}, "hyper.margin is -3.0, below 0"),
        ({"router_width": 0}, "hyper.router-width is 0, below 1"),
        ({"distillation_temperature": 0.0}, "hyper.distillation-temperature is 0.0 and must be"),
        ({"momentum": 1.5}, "hyper.momentum is 1.5, outside"),
        ({"tau": -0.5}, "hyper.tau"),
        ({"inner_lr": -0.1}, "hyper.inner-lr"),
        ({"neighbours": 0}, "hyper.neighbours is 0, below 1"),
        ({"vote_temperature": 0.0}, "hyper.vote-temperature is 0.0"),
        ({"cutmix": -1.0}, "hyper.cutmix is -1.0, below 0"),
        ({"mix_prob": 1.5}, "hyper.mix-prob is 1.5, outside"),
        ({"graph_hidden": 0}, "hyper.graph-hidden is 0, below 1"),
        ({"image_hidden": 0}, "hyper.image-hidden is 0, below 1"),
        ({"image_embedding": -1}, "hyper.image-embedding is -1, below 0"),
        ({"pair_dropout": 1.5}, "hyper.pair-dropout is 1.5, outside"),
        ({"cosine_scale": 0.0}, "hyper.cosine-scale is 0.0"),
        ({"feasibility_margin": -0.1}, "hyper.feasibility-margin is -0.1, below 0"),
        ({"feasibility_epochs": -1}, "hyper.feasibility-epochs is -1, below 0"),
        ({"backbone_lr_factor": -0.1}, "hyper.backbone-lr-factor is -0.1, below 0"),
        ({"noise": 0}, "hyper.noise is 0, below 1"),
        ({"gan_hidden": 0}, "hyper.gan-hidden is 0, below 1"),
        ({"contrast": -0.1}, "hyper.contrast is -0.1, below 0"),
        ({"contrast_temperature": 0.0}, "hyper.contrast-temperature is 0.0"),
        ({"gradient_penalty": -1.0}, "hyper.gradient-penalty is -1.0, below 0"),
        ({"critic_steps": 0}, "hyper.critic-steps is 0, below 1"),
        ({"synthetic": 0}, "hyper.synthetic is 0, below 1"),
        ({"classifier_epochs": 0}, "hyper.classifier-epochs is 0, below 1"),
    ],
)
def test_impossible_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MethodConfig(**options)


def test_values_at_the_edge_are_possible() -> None:
    none = {"image_embedding": 0, "feasibility_epochs": 0, "gradient_penalty": 0.0, "margin": 0.0}
    assert MethodConfig(**none, noise=1, critic_steps=1).noise == 1  # type: ignore[arg-type]
