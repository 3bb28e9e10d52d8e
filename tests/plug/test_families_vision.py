"""What attach promises, kept by every family of model, or refused with the candidates named."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision.models as tv
from timm.models.levit import LevitDistilled
from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.efficientnet import MBConvConfig
from torchvision.models.resnet import BasicBlock
from torchvision.models.segmentation.fcn import FCNHead

from batchformer import attach, check, detach
from batchformer.nn.module import encoders_of
from batchformer.plug.insertion import PerStream
from helpers.promises import assert_promises_are_kept, refusal

N, K = 3, 5


class Mlp(nn.Module):
    head: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, K)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))


class Conv1dNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Residual1d(4, 8), Residual1d(8, 12)
        self.head = nn.Linear(12, K)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.second(self.first(x)).mean(dim=-1))


class Residual1d(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width_in)
        self.conv = nn.Conv1d(width_in, width_out, 3, padding=1)
        self.skip = nn.Conv1d(width_in, width_out, 1)

    def forward(self, x: Tensor) -> Any:
        return self.skip(x) + self.conv(self.norm(x)).relu()


class MultiTask(nn.Module):
    """Two heads on the same features."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.kind: nn.Module = nn.Linear(16, K)
        self.colour = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"kind": self.kind(features), "colour": self.colour(features)}


class DeepHead(MultiTask):
    """One head of several layers, which read the same features as the other head."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, K))


class Ages(Mlp):
    """Regression: one number a sample, without an axis of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x)).squeeze(-1)


def narrow_vgg() -> Any:
    features = tv.vgg.make_layers([16, "M", 512, "M"], batch_norm=True)
    with torch.device("meta"):  # the published width of 4096 means 100 million parameters
        model = tv.VGG(features, num_classes=2, init_weights=False)
    for index, widths in {0: (512 * 49, 64), 3: (64, 64), 6: (64, K)}.items():
        model.classifier[index] = nn.Linear(*widths)
    return model


def small_densenet() -> nn.Module:
    return tv.DenseNet(4, (2, 2, 2, 2), num_init_features=8, num_classes=K)


def small_efficientnet() -> nn.Module:
    stages = [MBConvConfig(1, 3, 1, 32, 16, 1), MBConvConfig(6, 3, 2, 16, 24, 1)]
    return tv.EfficientNet(stages, dropout=0.2, num_classes=K)


def small_resnet() -> nn.Module:
    return tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=K)


def small_levit() -> nn.Module:
    sizes: dict[str, Any] = {"embed_dim": (16, 24, 32), "num_heads": (2, 3, 4), "depth": (1, 1, 1)}
    return LevitDistilled(img_size=64, key_dim=8, num_classes=K, **sizes)


def small_fcn() -> nn.Module:
    backbone = IntermediateLayerGetter(small_resnet(), {"layer4": "out"})
    return tv.segmentation.FCN(backbone, FCNHead(512, K))


def images(side: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(N, 3, side, side)


def rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(N, *shape)


class Family(NamedTuple):
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    places: tuple[str, ...]


def from_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=K, **options)


SMALL_VIT = {"img_size": 32, "depth": 2}
SMALL_SWIN = {"img_size": 56, "depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 1, 2, 2)}
TIMM = {
    "timm resnet": Family(from_timm("test_resnet"), images(32), ("fc",)),
    "timm vit": Family(from_timm("vit_tiny_patch16_224", **SMALL_VIT), images(32), ("head",)),
    "timm convnext": Family(from_timm("convnext_atto"), images(32), ("head.fc",)),
    "timm efficientnet": Family(from_timm("test_efficientnet"), images(32), ("classifier",)),
    "timm swin": Family(
        from_timm("swin_tiny_patch4_window7_224", **SMALL_SWIN), images(56), ("head.fc",)
    ),
    "timm mobilenetv3": Family(from_timm("mobilenetv3_small_050"), images(32), ("classifier",)),
    "timm levit": Family(small_levit, images(64), ("head", "head_dist")),
    "timm distilled deit": Family(
        from_timm("deit_tiny_distilled_patch16_224", **SMALL_VIT), images(32), ("head", "head_dist")
    ),
}
TORCHVISION = {
    "resnet": Family(small_resnet, images(32), ("fc",)),
    "vgg": Family(narrow_vgg, images(32), ("classifier.6",)),
    "densenet": Family(small_densenet, images(32), ("classifier",)),
    "vision transformer": Family(
        lambda: tv.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=K),
        images(32),
        ("heads.head",),
    ),
    "swin": Family(
        lambda: tv.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=K),
        images(32),
        ("head",),
    ),
    "efficientnet": Family(small_efficientnet, images(32), ("classifier.1",)),
    "squeezenet1_0": Family(lambda: tv.squeezenet1_0(num_classes=K), images(48), ("classifier.1",)),
    "fcn segmentation": Family(small_fcn, images(32), ("classifier.4",)),
}
BY_HAND = {
    "sequential": Family(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, K)), rows(6), ("2",)
    ),
    "mlp": Family(Mlp, rows(6), ("head",)),
    "multi-task": Family(MultiTask, rows(6), ("kind", "colour")),
    "multi-task, a deep head": Family(DeepHead, rows(6), ("kind.0", "colour")),
    "regression": Family(Ages, rows(6), ("head",)),
}
FAMILIES = TIMM | TORCHVISION | BY_HAND


@pytest.mark.parametrize("name", FAMILIES)
def test_every_promise_is_kept(name: str) -> None:
    torch.manual_seed(0)
    build, inputs, places = FAMILIES[name]
    model = build()
    assert_promises_are_kept(model, inputs(), places=places)


def test_each_position_attends_only_to_itself_in_other_samples() -> None:
    head = nn.Conv2d(8, K, 1)
    model = attach(nn.Sequential(nn.Conv2d(3, 8, 1), head), dropout=0.0, verbose=False)
    x = torch.randn(N, 3, 4, 4)
    changed = x.clone()
    changed[0, :, 1, 2] += 1.0
    moved = (model(x) - model(changed)).abs().amax(dim=1) > 1e-6
    elsewhere = torch.ones(4, 4, dtype=torch.bool)
    elsewhere[1, 2] = False
    assert moved[N:, 1, 2].all() and moved[0, 1, 2]
    assert not moved[1:N].any() and not moved[:, elsewhere].any()


def test_heads_on_the_same_features_read_one_mixed_stream() -> None:
    model = MultiTask(classes=K)
    model.colour.load_state_dict(model.kind.state_dict())
    attach(model, verbose=False)
    out = model(torch.randn(N, 6))  # with dropout: two draws would differ
    assert torch.equal(out["kind"], out["colour"])
    assert len(encoders_of(model)) == 1


class DropsEachTime(MultiTask):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"kind": self.kind(F.dropout(features, 0.5, self.training))} | {
            "colour": self.colour(F.dropout(features, 0.5, self.training))
        }


class SkipsOneInTraining(MultiTask):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        both = {"kind": self.kind(features)}
        return both if self.training else both | {"colour": self.colour(features)}


@pytest.mark.parametrize("kind", [DropsEachTime, SkipsOneInTraining])
def test_heads_that_share_features_in_eval_alone_keep_nothing_alive(kind: type[MultiTask]) -> None:
    model = attach(kind(), verbose=False)
    out = model(torch.randn(N, 6))
    assert {len(t) for t in out.values()} == {2 * N}
    sum(t.sum() for t in out.values()).backward()
    copy.deepcopy(model)  # fails on features with a graph, kept from the last pass
    pickle.dumps(model)


def test_separate_modules_on_the_same_features_keep_nothing_alive() -> None:
    model = attach(MultiTask(), at=["kind", "colour"], verbose=False)
    sum(t.sum() for t in model(torch.randn(N, 6)).values()).backward()
    assert len(encoders_of(model)) == 2
    assert len(pickle.dumps(copy.deepcopy(model))) == len(pickle.dumps(model))


# Blocks in the middle of a network: the channels are where the block reads them.


@pytest.mark.parametrize(
    ("build", "at", "width"),
    [
        (from_timm("swin_tiny_patch4_window7_224", **SMALL_SWIN), "layers.2.blocks.0", 96),
        (TORCHVISION["swin"].build, "features.3", 32),
        (from_timm("convnext_atto"), "stages.3.blocks.0", 320),
        (from_timm("vit_tiny_patch16_224", **SMALL_VIT), "blocks.1", 192),
        (small_levit, "stages.2", 24),
        (small_resnet, "layer4", 256),
        (Conv1dNet, "second", 8),
    ],
)
def test_blocks_are_entered_along_their_own_channels(
    build: Callable[[], nn.Module], at: str, width: int
) -> None:
    model = attach(build(), at=at, verbose=False)
    (encoder,) = encoders_of(model)
    assert encoder.dim == width


@pytest.mark.parametrize(
    ("build", "at"),
    [  # LeViT accepts images of the size that timm declares alone
        (from_timm("efficientnet_b0"), "blocks.6.0"),
        (from_timm("levit_128s"), "stages.2.blocks.0"),
    ],
)
def test_norms_per_stream_do_to_the_mixed_rows_what_they_do_to_the_plain(
    build: Callable[[], nn.Module], at: str
) -> None:
    model = build()
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    norms = [module for module in model.get_submodule(at).modules() if isinstance(module, kinds)]
    attach(model, at=at, batch_norm="per_stream", verbose=False)
    assert norms and all(isinstance(norm, PerStream) for norm in norms)
    for norm in norms:
        shape = (N, norm.num_features, 2, 2)[: 4 if isinstance(norm, nn.BatchNorm2d) else 2]
        plain, others = torch.randn(shape), torch.randn(shape)
        twin = copy.deepcopy(norm)
        detach(holder := nn.Sequential(twin))
        expected = holder(plain)  # timm's norms apply an activation as well
        torch.testing.assert_close(norm(torch.cat((plain, others)))[:N], expected)
        torch.testing.assert_close(norm.running_mean, twin.running_mean)
        torch.testing.assert_close(norm.running_var, twin.running_var)
        torch.testing.assert_close(norm(torch.cat((others, plain)))[N:], expected)
        assert norm.track_running_stats


# What cannot work is refused, says where else to look, and leaves the model as it was.


class HeadCalledTwice(Mlp):
    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x)) + self.head(self.body(-x))


class HeadOfTwoTensors(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Bilinear(16, 16, K)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x), self.body(-x))


class WeightOutsideLayers(nn.Module):
    """Without a submodule for the classifier, the last layer of the body would be taken for it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12))
        self.weight = nn.Parameter(torch.randn(K, 12))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.body(x)), F.normalize(self.weight))


class RunsItsChildren(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


REFUSED: dict[str, tuple[Callable[[], nn.Module], str | None, str]] = {
    "a head called twice": (HeadCalledTwice, None, "called 2 times"),
    "a head of two tensors": (HeadOfTwoTensors, None, "not one tensor of samples"),
    "a weight outside layers": (WeightOutsideLayers, None, "'weight'.*no layer"),
    "a container that runs its children": (
        lambda: nn.Sequential(nn.Linear(6, 16), RunsItsChildren(), nn.Linear(16, K)),
        "1",
        "first layer instead",
    ),
    "a dictionary that runs its children": (
        small_densenet,
        "features.denseblock4",
        "a training pass fails",
    ),
    "one branch of a residual": (small_resnet, "layer4.0.conv1", "a training pass fails: .*size"),
    "an unknown name": (Mlp, "haed", "no submodule 'haed'. Do you mean 'head'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_list_candidates_and_leave_no_trace(name: str) -> None:
    build, at, reason = REFUSED[name]
    none = name in ("a head called twice", "a head of two tensors")  # whose bodies run twice too
    words = "There is no candidate for at=" if none else "Candidates for at=: '"
    assert words in refusal(build(), reason, at=at)


@pytest.mark.parametrize(
    "name", [pytest.param("inception_v3", marks=pytest.mark.slow), "googlenet"]
)
def test_auxiliary_classifiers_keep_their_rows(name: str) -> None:
    side = {"inception_v3": 299, "googlenet": 64}[name]
    model = attach(getattr(tv, name)(num_classes=K, init_weights=False), verbose=False)
    assert hasattr(model.fc, "batchformer")
    main, *auxiliary = model(torch.randn(2, 3, side, side))
    assert len(main) == 4 and auxiliary and all(len(part) == 2 for part in auxiliary)


def test_the_last_layer_inside_a_container_still_works_by_name() -> None:
    model = WeightOutsideLayers()
    attach(model, at="body.2", verbose=False)
    assert model(torch.randn(N, 6)).shape == (2 * N, K)


def test_caches_filled_in_eval_do_not_outlive_a_check() -> None:
    build, inputs, _ = TIMM["timm levit"]
    model, x = attach(build(), verbose=False), inputs()
    assert check(model, x)  # runs in eval, where LeViT remembers its attention biases
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    fresh = build()
    fresh.load_state_dict(detach(copy.deepcopy(model)).state_dict())
    assert torch.equal(model.eval()(x), fresh.eval()(x))


def test_buffers_that_cannot_be_written_are_left_alone() -> None:
    model = Mlp()
    model.register_buffer("prior", torch.zeros(1).expand(K))
    attach(model, verbose=False)
    assert check(model, torch.randn(N, 6)) and model.get_buffer("prior").stride() == (0,)


class SequenceFirst(nn.Module):
    """(L, N, C) in, (N, K) out, guessed from its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][-1])


def test_a_guessed_sequence_first_input_is_remembered() -> None:
    model = attach(SequenceFirst(), verbose=False)
    result = check(model, torch.randn(9, N, 6))
    assert result.passed, str(result)
