"""Methods on batches of several domains: rows find their domain, and losses by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.losses.domains import coral, irm_penalty
from batchformer.lab.methods.domains import by_domain
from batchformer.lab.models.domains import MixStyle

NAMES = ["coral", "irm", "vrex", "mixstyle"]
AFTER = {"mixstyle_after": ("layer1",)}


@pytest.mark.parametrize(("rows", "groups", "streams"), [(10, 3, 1), (20, 3, 2), (0, 2, 1)])
def test_unequal_blocks_are_refused(rows: int, groups: int, streams: int) -> None:
    with pytest.raises(ValueError, match=f"{rows // streams} rows is not {groups} equal blocks"):
        by_domain(torch.zeros(rows, 4), groups, streams)


@pytest.mark.parametrize("name", NAMES)
def test_batches_without_blocks_are_refused(make: Any, batch: Any, name: str) -> None:
    with pytest.raises(ValueError, match=r"data\.sampler domains"):
        make(name, AFTER)
    with pytest.raises(ValueError, match=r"equal blocks.*data\.sampler domains"):
        make(name, AFTER, {"groups": 3}).step(batch)


def variance(features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """Of the domains' cross-entropies, domain by domain."""
    losses = [F.cross_entropy(z, y) for z, y in zip(logits, targets, strict=True)]
    mean = sum(losses) / len(losses)
    return torch.stack([(loss - mean) ** 2 for loss in losses]).mean()


PENALTIES: dict[str, Any] = {
    "coral": lambda rows, *_: coral(rows),
    "irm": lambda _, *given: irm_penalty(*given),
    "vrex": variance,
}


@pytest.mark.parametrize("streams", ["shared", "mixed_only", "none"])
@pytest.mark.parametrize(
    ("name", "groups", "grouping"),
    [
        *((name, groups, "by_domain") for name in ("coral", "vrex") for groups in (2, 5)),
        *(("irm", 2, grouping) for grouping in ("by_domain", "official")),
    ],
)
def test_losses_and_gradients_by_hand(
    make: Any, batch: Any, streams: str, name: str, groups: int, grouping: str
) -> None:
    module = {"enabled": False} if streams == "none" else {"streams": streams}
    hyper = {"penalty": 0.7, "irm_grouping": grouping}
    method = make(name, hyper, {"groups": groups}, dropout=0.0, **module)
    method.network.eval()
    plain = method.network.forward_features(batch["x"])
    mixed = plain if streams == "none" else method.encoder.mix(plain)
    rows = torch.cat((plain, mixed)) if streams == "shared" else mixed
    logits, labels = method.network.fc(rows), batch["y"].repeat(len(rows) // 10)
    picks = torch.arange(10).chunk(groups)
    if streams == "shared":
        picks = [torch.cat((pick, pick + 10)) for pick in picks]
        if grouping == "official":  # consecutive rows, which mix domains
            picks = torch.arange(20).chunk(groups)
    parts = [torch.stack([values[pick] for pick in picks]) for values in (rows, logits, labels)]
    penalty, ce = PENALTIES[name](*parts), F.cross_entropy(logits, labels)
    losses = method.step(batch)
    assert set(losses) == {"loss", "ce", "penalty"}
    torch.testing.assert_close(losses["ce"], ce)
    torch.testing.assert_close(losses["penalty"], penalty)
    torch.testing.assert_close(losses["loss"], ce + 0.7 * penalty)
    parameters = [p for p in method.parameters() if p.requires_grad]
    own = torch.autograd.grad(losses["loss"], parameters)
    expected = torch.autograd.grad(ce + 0.7 * penalty, parameters)
    for a, b in zip(own, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_scales_of_the_streams_are_of_the_cross_entropy_alone(make: Any, batch: Any) -> None:
    def losses(**module: Any) -> Any:
        method = make("coral", {"penalty": 1.0}, {"groups": 2}, dropout=0.0, **module)
        method.network.eval()
        return method.step(batch)

    mean, official = losses(), losses(loss_scale="official")
    torch.testing.assert_close(official["ce"], 3 * mean["ce"])
    torch.testing.assert_close(official["penalty"], mean["penalty"])


def test_the_penalty_sees_the_features_that_the_head_sees(make: Any, batch: Any) -> None:
    method = make("coral", {"feature_dropout": 0.5}, {"groups": 2}, enabled=False)
    method.network.eval()
    seen = []
    head = method.network.fc
    head.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    penalty = method.step(batch)["penalty"]
    torch.testing.assert_close(penalty, coral(seen[0].view(2, 5, 64)))
    assert (seen[0] == 0).float().mean() > 0.4


def test_the_phase_weighs_the_penalty(make: Any, batch: Any, quiet: Any) -> None:
    method = quiet(make("irm", {"penalty": 5.0, "penalty_from": 2}, {"groups": 2}, dropout=0.0))
    for epoch, weight in ((1, 1.0), (2, 5.0)):
        method.begin_epoch(epoch)
        losses = method.step(batch)
        torch.testing.assert_close(losses["loss"], losses["ce"] + weight * losses["penalty"])


def test_the_variance_does_not_weigh_the_streams(make: Any, batch: Any) -> None:
    def losses(**module: Any) -> Any:
        method = make("vrex", {}, {"groups": 2}, dropout=0.0, **module)
        method.network.eval()
        return method.step(batch)

    even, plain_alone = losses(), losses(mixed_weight=0.0)
    torch.testing.assert_close(even["penalty"], plain_alone["penalty"])
    assert not torch.isclose(even["ce"], plain_alone["ce"])


MIXSTYLE = {"mixstyle_after": ("layer1",), "mixstyle_p": 1.0, "mixstyle_alpha": 0.5}


def test_settings_of_mixstyle_reach_the_network(make: Any) -> None:
    method = make("mixstyle", MIXSTYLE, {"groups": 5})
    (module,) = (m for m in method.modules() if isinstance(m, MixStyle))
    assert module is method.network.layer1[-1]
    assert (module.p, module.alpha, module.groups) == (1.0, 0.5, 5)


def test_the_loss_of_mixstyle_by_hand(make: Any, batch: Any) -> None:
    method = make("mixstyle", MIXSTYLE, {"groups": 2}, dropout=0.0)
    for module in method.network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    torch.manual_seed(0)
    features = method.network.forward_features(batch["x"])
    torch.manual_seed(0)
    losses = method.step(batch)
    rows = torch.cat((features, method.encoder.mix(features)))
    expected = F.cross_entropy(method.network.fc(rows), batch["y"].repeat(2))
    assert set(losses) == {"loss"}
    torch.testing.assert_close(losses["loss"], expected)
    other = make("cross_entropy", dropout=0.0)
    other.network.eval()
    assert not torch.isclose(other.step(batch)["loss"], expected)


def test_both_arms_mix_alike(make: Any, batch: Any) -> None:
    features = []
    for enabled in (True, False):
        method = make("mixstyle", MIXSTYLE, {"groups": 2}, enabled=enabled)
        torch.manual_seed(3)
        features.append(method.features(batch["x"]))
    assert torch.equal(*features)


def test_state_is_that_of_cross_entropy(make: Any) -> None:
    own, plain = make("mixstyle", MIXSTYLE, {"groups": 2}), make("cross_entropy")
    assert list(own.state_dict()) == list(plain.state_dict())
