"""BatchFormerV2: BatchFormer inside the network, against two streams written out in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from batchformer import check
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.methods import build_method
from batchformer.lab.methods.classifier import Classifier
from batchformer.nn.module import BatchFormer
from batchformer.nn.randomness import drawing

COUNTS = torch.tensor([50, 20, 10, 5, 1])
Y = torch.tensor([0, 0, 1, 2, 3, 4])
X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
#: After every block.
ALL = ("blocks.1", "blocks.2", "norm")


def vit(drop_path: float = 0.0) -> VisionTransformer:
    """Three blocks over four patches and a class token, of 16 channels."""
    with drawing(0, "weights"):
        sizes: dict[str, Any] = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 3}
        return VisionTransformer(num_heads=2, num_classes=5, drop_path_rate=drop_path, **sizes)


def method(
    name: str = "cross_entropy", drop_path: float = 0.0, hyper: Any = None, **module: Any
) -> Classifier:
    options = {"at": ALL, "dropout": 0.0, **module}
    built = build_method(
        name,
        network=vit(drop_path),
        module=ModuleConfig(**options),
        seed=0,
        class_counts=COUNTS,
        hyper=hyper or MethodConfig(),
    )
    assert isinstance(built, Classifier)
    return built.double()


def encoders(classifier: Classifier) -> list[BatchFormer]:
    return [m for m in classifier.modules() if isinstance(m, BatchFormer)]


def stock_layer(encoder: BatchFormer) -> nn.TransformerEncoderLayer:
    """torch's own layer with the same weights; its sequence is the first axis, the samples."""
    layer = nn.TransformerEncoderLayer(16, 4, 16, dropout=0.0, dtype=torch.float64)
    layer.load_state_dict(encoder.layers[0].state_dict())
    return layer


def forward(network: Any, x: Tensor, layers: dict[str, nn.Module]) -> Tensor:
    """Logits of one stream, with these layers over samples before the modules they name."""
    tokens = network.patch_embed(x)
    first = network.cls_token.expand(len(x), -1, -1)
    tokens = torch.cat((first, tokens), dim=1) + network.pos_embed
    for name in ("blocks.0", "blocks.1", "blocks.2", "norm"):
        if name in layers:
            tokens = layers[name](tokens)
        tokens = network.get_submodule(name)(tokens)
    logits: Tensor = network.head(tokens[:, 0])
    return logits


@pytest.mark.parametrize(("at", "share"), [(ALL, False), (ALL, True), (("blocks.1",), False)])
@pytest.mark.parametrize("streams", ["shared", "mixed_only"])
def test_a_step_is_two_streams_written_out(at: tuple[str, ...], share: bool, streams: str) -> None:
    classifier = method(at=at, share=share, streams=streams)
    layers = [stock_layer(encoder) for encoder in encoders(classifier)]
    assert len(layers) == (1 if share else len(at))
    by_place: dict[str, nn.Module] = dict(zip(at, layers * (3 if share else 1), strict=False))
    plain: Any = vit().double()
    logits = forward(plain, X, by_place)
    if streams == "shared":
        logits = torch.cat((forward(plain, X, {}), logits))
    expected = F.cross_entropy(logits, Y.repeat(len(logits) // 6))
    expected.backward()  # type: ignore[no-untyped-call]
    loss = classifier.step({"x": X, "y": Y})["loss"]
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    found: Any = classifier.network
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(found.get_parameter(name).grad, weight.grad)
    for encoder, layer in zip(encoders(classifier), layers, strict=True):
        own = dict(encoder.layers[0].named_parameters())
        for name, weight in layer.named_parameters():
            torch.testing.assert_close(own[name].grad, weight.grad)


@pytest.mark.parametrize(
    "module", [{}, {"share": True}, {"streams": "mixed_only"}, {"encoder": "none"}]
)
def test_eval_is_the_plain_network_and_so_is_what_is_deployed(module: dict[str, Any]) -> None:
    classifier, plain = method(**module), vit().double().eval()
    classifier.eval()
    with torch.no_grad():
        expected = plain(X)
        assert torch.equal(classifier.predict(X), expected)
        assert torch.equal(classifier(X), expected)
        deployed = classifier.deployed()
        assert torch.equal(deployed(X), expected)
        assert torch.equal(deployed.train()(X), expected), "no stream is left in training"
    assert type(deployed) is VisionTransformer
    assert deployed.state_dict().keys() == plain.state_dict().keys()
    assert len(encoders(classifier)) > 0, "the trained network keeps its own"


def test_doubling_with_the_identity_is_the_baseline_but_for_what_is_drawn() -> None:
    same, baseline = method(encoder="none"), method(enabled=False)
    names = [[n for n, _ in built.named_parameters()] for built in (same, baseline)]
    assert names[0] == names[1], "there is nothing to train but the network"
    with torch.no_grad():
        torch.testing.assert_close(same(X), baseline(X).repeat(2, 1))
    torch.testing.assert_close(
        same.step({"x": X, "y": Y})["loss"], baseline.step({"x": X, "y": Y})["loss"]
    )
    dropping = method(encoder="none", drop_path=0.5)
    torch.manual_seed(0)
    with torch.no_grad():
        plain, copied = dropping(X).chunk(2)
    assert not torch.allclose(plain, copied), "each stream drops paths of its own"


def test_samples_attend_to_one_another_at_every_token_and_not_in_the_control() -> None:
    moved = X.clone()
    moved[0] += 1
    with torch.no_grad():
        for attend in ("batch", "self"):
            classifier = method(attend=attend)
            before, after = classifier(X), classifier(moved)
            others = (before != after).any(dim=1).view(2, 6)[:, 1:]
            assert not others[0].any(), "no plain row depends on another sample"
            assert others[1].all() if attend == "batch" else not others[1].any()
    classifier = method()
    result = check(classifier, X)
    assert result.passed, str(result)


def test_encoders_begin_the_same_whatever_else_is_drawn_and_change_no_other_weight() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = method()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    two, baseline = method(), method(enabled=False)
    for name, value in two.state_dict().items():
        assert torch.equal(value, one.state_dict()[name])
    for name, value in baseline.state_dict().items():
        assert torch.equal(value, one.state_dict()[name])


def test_the_module_has_its_own_rate_or_is_not_trained() -> None:
    groups = method(lr_factor=0.5).parameter_groups(OptimConfig(lr=0.01))
    assert {g["name"]: g["lr"] for g in groups} == {"model": 0.01, "batchformer": 0.005}
    groups = method(trained=False).parameter_groups(OptimConfig())
    assert [group["name"] for group in groups] == ["model"]


def test_a_copy_trains_through_its_own_encoders() -> None:
    """As a mean of the weights does."""
    classifier = method(share=True)
    other = copy.deepcopy(classifier)
    other.step({"x": X, "y": Y})["loss"].backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in classifier.parameters())


def test_mixed_images_have_mixed_targets_in_both_streams() -> None:
    classifier = method(hyper=MethodConfig(mixup=0.8, smoothing=0.1))
    torch.manual_seed(0)
    batch = classifier.mixed({"x": X, "y": Y})  # type: ignore[operator]
    torch.testing.assert_close(
        classifier.step(batch)["loss"],
        F.cross_entropy(classifier(batch["x"]), batch["y"].repeat(2, 1), label_smoothing=0.1),
    )


def test_a_place_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no submodule 'block\.1'\. Do you mean 'blocks\.1'"):
        method(at=("block.1",))
