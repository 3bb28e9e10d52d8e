"""What holds for every method, by its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.config.methods import METHODS
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep

CPU = torch.device("cpu")
#: Methods for batches of several domains; accumulation would separate them.
DOMAINS = ("coral", "irm", "vrex", "mixstyle")
#: Methods that need pairs, features, a bank or boxes; their own files have the same tests.
OTHERS = ("cge", "compcos", "ce_gzsl", "eszsl", "knn", "detector")
OF_IMAGES = [name for name in METHODS if name not in OTHERS]
TRAIN: list[dict[str, Any]] = [{"precision": "bf16"}, {"accumulate": 2}]
CASES = [(name, t) for name in OF_IMAGES for t in (TRAIN[:1] if name in DOMAINS else TRAIN)]


def made(make: Any, name: str, **module: Any) -> Any:
    groups = {"groups": 2} if name in DOMAINS else None
    return make(name, {"mixstyle_after": ("layer1",)}, groups, **module)


@pytest.mark.parametrize(("name", "train"), CASES, ids=str)
def test_half_precision_and_accumulation(
    make: Any, batch: Any, name: str, train: dict[str, Any]
) -> None:
    method = made(make, name).train()
    optimizers = method.optimizers(OptimConfig())
    before = {k: v.clone() for k, v in method.named_parameters()}
    optimizer_step = OptimizerStep(TrainConfig(batch_size=10, **train), CPU)
    losses = method.update({**batch, "x_target": batch["view2"]}, optimizers, optimizer_step)
    method.after_update()
    assert losses["loss"].isfinite() and losses["loss"].dtype == torch.float32
    for key, value in method.named_parameters():
        assert value.isfinite().all(), key
        # Attention that is uniform at first has next to no gradient for some biases.
        if value.requires_grad and value.ndim > 1:
            assert not torch.equal(value, before[key]), key


def test_settings_without_sense_are_refused_by_name(make: Any) -> None:
    with pytest.raises(ValueError, match="never released"):
        make("paco", loss_scale="official")


@pytest.mark.parametrize("name", OF_IMAGES)
def test_answers_in_eval_are_of_one_sample_alone(make: Any, batch: Any, name: str) -> None:
    method = made(make, name).eval()
    with torch.no_grad():
        whole, alone = method.predict(batch["x"]), method.predict(batch["x"][3:4])
    torch.testing.assert_close(whole[3:4], alone)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_predictions_do_not_depend_on_batchformer(make: Any, batch: Any, name: str) -> None:
    with_it, without = (made(make, name, enabled=enabled).eval() for enabled in (True, False))
    with torch.no_grad():
        assert torch.equal(with_it.predict(batch["x"]), without.predict(batch["x"]))


@pytest.mark.parametrize("name", ["ldam", "crt", "lws", "balms", "linear_probe", *DOMAINS])
@pytest.mark.parametrize("module", [{}, {"enabled": False}, {"streams": "mixed_only"}], ids=str)
def test_every_parameter_is_trained_once(
    make: Any, batch: Any, name: str, module: dict[str, Any], assert_trained_once: Any
) -> None:
    assert_trained_once(made(make, name, **module), batch)


@pytest.mark.parametrize("name", ["crt", "lws", "balms", "tau_norm", "mixstyle", "linear_probe"])
def test_resumed_equals_unbroken(make: Any, assert_resumes: Any, name: str) -> None:
    assert_resumes(lambda: made(make, name))
