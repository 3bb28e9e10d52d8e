"""BatchFormerV2: attention over the batch at every position, inside transformers and detectors.

The independent computation runs the plain model twice on N samples: as it is, and with the input of
the places passed through stock layers, ``nn.TransformerEncoderLayer``, whose sequence is the batch.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import timm
import torch
import transformers
from torch import Tensor, nn
from torchvision.models import segmentation
from torchvision.models._utils import IntermediateLayerGetter

from batchformer import BatchFormer, attach, check, duplicate, match, split
from batchformer.nn.module import encoders_of
from helpers.promises import assert_promises_are_kept, outputs_of, refusal
from helpers.tiny_transformers import tiny

N, K = 4, 3


def images(side: int) -> dict[str, Tensor]:
    return {"x": torch.randn(N, 3, side, side, generator=torch.Generator().manual_seed(1))}


def padded_images() -> dict[str, Tensor]:
    """Images of unequal size, padded to the largest."""
    mask = torch.ones(N, 64, 64, dtype=torch.long)
    mask[1, :, 32:], mask[2, 32:] = 0, 0
    return {"pixel_values": images(64)["x"] * mask[:, None], "pixel_mask": mask}


# ---- The families, small and with random weights.

TIMM = {"img_size": 32, "depth": 3, "embed_dim": 32, "num_heads": 2, "num_classes": K}
HF = {"num_hidden_layers": 3, "image_size": 16, "patch_size": 8}


def timm_swin() -> nn.Module:
    return timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=56,
        depths=(2, 2, 1, 1),
        embed_dim=16,
        num_heads=(2, 2, 2, 2),
        num_classes=K,
    )


def hf_swin() -> nn.Module:
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "window_size": 4, "num_labels": K}
    return tiny("SwinForImageClassification", sizes, depths=[2, 2], num_heads=[2, 2])


def detector(kind: str, width: int = 32, maps: tuple[str, ...] = ("stage4",), **more: Any) -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=list(maps),
    )
    config = getattr(transformers, f"{kind}Config")(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=width,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=5,
        num_labels=K,
        dropout=0.0,
        **more,
    )
    return getattr(transformers, f"{kind}ForObjectDetection")(config)


def deformable(**more: Any) -> Any:
    return detector(
        "DeformableDetr", 64, ("stage3", "stage4"), num_feature_levels=3, encoder_n_points=2, **more
    )


def backbone(**layers: str) -> nn.Module:
    """Feature maps of 8 and 16 channels."""

    def halve(read: int, written: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(read, written, 3, stride=2, padding=1), nn.ReLU())

    stages = OrderedDict(first=halve(3, 8), second=halve(8, 8), third=halve(8, 16))
    return IntermediateLayerGetter(nn.Sequential(stages), return_layers=layers)


def fcn() -> nn.Module:
    heads = segmentation.fcn.FCNHead(16, K), segmentation.fcn.FCNHead(8, K)
    return segmentation.FCN(backbone(second="aux", third="out"), *heads)


def deeplab() -> nn.Module:
    return segmentation.DeepLabV3(backbone(third="out"), segmentation.deeplabv3.DeepLabHead(16, K))


def lraspp() -> nn.Module:
    return segmentation.LRASPP(backbone(second="low", third="high"), 8, 16, K, 16)


class Family(NamedTuple):
    build: Callable[[], Any]
    inputs: Callable[[], dict[str, Tensor]]
    at: list[str]


DETECTORS = {
    "DETR": Family(lambda: detector("Detr"), padded_images, ["model.encoder.layers.1"]),
    "Conditional DETR": Family(
        lambda: detector("ConditionalDetr"),
        padded_images,
        ["model.encoder.layers.1", "model.encoder.layers.2"],
    ),
    "Deformable DETR": Family(deformable, padded_images, ["model.encoder.layers.1"]),
}
FAMILIES = {
    "timm ViT": Family(
        lambda: timm.create_model("vit_tiny_patch16_224", **TIMM),
        lambda: images(32),
        ["blocks.1", "blocks.2"],
    ),
    "timm DeiT": Family(
        lambda: timm.create_model("deit_tiny_distilled_patch16_224", **TIMM),
        lambda: images(32),
        ["blocks.1"],
    ),
    "timm Swin": Family(timm_swin, lambda: images(56), ["layers.0.blocks.1", "layers.1"]),
    "Hugging Face ViT": Family(
        lambda: tiny("ViTForImageClassification", **HF),
        lambda: {"pixel_values": images(16)["x"]},
        ["vit.layers.1", "vit.layers.2"],
    ),
    "Hugging Face DeiT": Family(
        lambda: tiny("DeiTForImageClassification", **HF),
        lambda: {"pixel_values": images(16)["x"]},
        ["deit.layers.1"],
    ),
    "Hugging Face Swin": Family(
        hf_swin,
        lambda: {"pixel_values": images(32)["x"]},
        ["swin.encoder.layers.0.blocks.1", "swin.encoder.layers.1"],
    ),
    **DETECTORS,
    "FCN": Family(fcn, lambda: {"x": images(32)["x"]}, ["backbone.third"]),
    "DeepLabV3": Family(deeplab, lambda: {"x": images(32)["x"]}, ["backbone.third", "classifier"]),
    "LR-ASPP": Family(lraspp, lambda: {"input": images(32)["x"]}, ["backbone.third"]),
}
family = pytest.mark.parametrize("name", FAMILIES)


def built(name: str) -> Any:
    torch.manual_seed(0)
    return FAMILIES[name].build()


def stock_layer(encoder: BatchFormer) -> nn.TransformerEncoderLayer:
    """The stock layer with an encoder's weights."""
    layer = nn.TransformerEncoderLayer(encoder.dim, encoder.heads, encoder.dim, 0.0).double()
    layer.load_state_dict(encoder.layers[0].state_dict())
    return layer


def mixing_places(
    attached: nn.Module, plain: nn.Module, padding: Tensor | None = None
) -> tuple[dict[str, nn.Module], list[Any]]:
    """Let features of the plain model pass through stock layers; these by place, and the hooks.

    Args:
        padding: (L, N) bool, for the stock layers.
    """
    layers: dict[str, nn.Module] = {}
    handles = []
    for name, encoder in attached.named_modules():
        if not isinstance(encoder, BatchFormer):
            continue
        place, axis = name.removesuffix(".batchformer"), encoder.channel_axis
        layer = layers[place] = stock_layer(encoder)

        def hook(
            _: nn.Module, args: tuple[Any, ...], layer: Any = layer, axis: Any = axis
        ) -> tuple[Any, ...]:
            x = args[0].movedim(axis, -1)
            mixed = layer(x.flatten(1, -2), src_key_padding_mask=padding).reshape(x.shape)
            return (mixed.movedim(-1, axis), *args[1:])

        handles.append(plain.get_submodule(place).register_forward_pre_hook(hook))
    return layers, handles


def by_two_passes(
    attached: nn.Module, plain: nn.Module, inputs: dict[str, Tensor], padding: Tensor | None = None
) -> list[Tensor]:
    """What two streams give: two passes of the plain model over N samples, and stock layers."""
    first = outputs_of(plain, inputs)
    _, handles = mixing_places(attached, plain, padding)
    second = outputs_of(plain, inputs)
    for handle in handles:
        handle.remove()
    # An auxiliary output of features before the place has one stream.
    return [
        a if torch.equal(a, b) else torch.cat((a, b)) for a, b in zip(first, second, strict=True)
    ]


def only_batchformer_trains(model: nn.Module) -> nn.Module:
    """Dropout and BatchNorm would differ between a pass over 2N rows and two over N."""
    model.eval()
    for encoder in encoders_of(model):
        encoder.train()
    return model


def in_float64(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


@family
def test_both_streams_are_those_of_two_passes_with_stock_layers(name: str) -> None:
    model, inputs = built(name).double().eval(), in_float64(FAMILIES[name].inputs())
    plain = copy.deepcopy(model)
    attach(model, at=FAMILIES[name].at, dropout=0.0, verbose=False)
    expected = by_two_passes(model, plain, inputs)
    outputs = outputs_of(only_batchformer_trains(model), inputs)
    assert len(outputs[0]) == 2 * N and not torch.equal(*split(outputs[0]))
    for mine, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(mine.as_subclass(Tensor), reference)
    sum(t.square().sum() for t in outputs).backward()  # type: ignore[union-attr]
    sum(t.square().sum() for t in expected).backward()  # type: ignore[union-attr]
    reference_gradients = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    gradients = {n: p.grad for n, p in model.named_parameters() if n in reference_gradients}
    assert reference_gradients
    torch.testing.assert_close(gradients, reference_gradients)


@family
def test_every_promise_is_kept(name: str) -> None:
    _, inputs, at = FAMILIES[name]
    assert_promises_are_kept(built(name), inputs(), at=at)


def test_the_control_is_proven_though_reference_points_do_not_depend_on_images() -> None:
    model = attach(built("Deformable DETR"), at="model.encoder.layers.1", attend="self")
    result = check(model, padded_images())
    assert result, str(result)


def test_the_settings_of_the_authors_are_the_defaults() -> None:
    model = attach(built("timm ViT"), at="blocks.1", verbose=False)
    (encoder,) = encoders_of(model)
    (layer,) = encoder.layers
    assert isinstance(layer, nn.TransformerEncoderLayer) and not layer.norm_first
    assert (encoder.dim, encoder.heads, encoder.dropout) == (32, 4, 0.5)
    assert layer.linear1.out_features == 32 and layer.activation is torch.nn.functional.relu


# ---- Detectors: targets, and what is refused.


def boxes_of_each_image() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        {
            "class_labels": torch.randint(K, (count,), generator=generator),
            "boxes": 0.2 + 0.3 * torch.rand(count, 4, generator=generator),
        }
        for count in (1, 0, 1, 0)  # two boxes: as many pairs in 2N images as there are images
    ]


@pytest.fixture
def double_by_default() -> Iterator[None]:
    """DETR's loss makes tensors of torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("name", DETECTORS)
def test_the_models_own_loss_is_the_mean_over_both_streams(name: str) -> None:
    """Of two passes of the plain model, each matched to its targets; its gradients are theirs."""
    model, inputs = built(name).double().eval(), in_float64(padded_images())
    targets = [in_float64(target) for target in boxes_of_each_image()]
    plain = copy.deepcopy(model)
    attach(model, at=FAMILIES[name].at, dropout=0.0, verbose=False)
    outputs = only_batchformer_trains(model)(**inputs, labels=duplicate(targets))
    assert match(outputs.logits, targets) == duplicate(targets)
    first = plain(**inputs, labels=targets)
    layers, handles = mixing_places(model, plain)
    second = plain(**inputs, labels=targets)
    expected = (first.loss + second.loss) / 2
    torch.testing.assert_close(outputs.loss.as_subclass(Tensor), expected)
    outputs.loss.backward()
    expected.backward()
    for handle in handles:
        handle.remove()
    found = {n: p.grad for n, p in model.named_parameters()}
    assert {
        n for n, gradient in found.items() if ".batchformer." in n and gradient is None
    } == set()
    for n, parameter in plain.named_parameters():
        torch.testing.assert_close(found[n], parameter.grad, msg=n)
    for place, layer in layers.items():
        for n, parameter in layer.named_parameters():
            torch.testing.assert_close(found[f"{place}.batchformer.layers.0.{n}"], parameter.grad)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", DETECTORS)
def test_forgotten_targets_of_a_detector_are_told(name: str) -> None:
    model = attach(built(name), at="model.encoder.layers.1", verbose=False).train()
    with pytest.raises(RuntimeError, match="8 rows for 4 samples"):
        model(**padded_images(), labels=boxes_of_each_image())


def test_padding_is_not_attended_to_if_a_mask_is_named() -> None:
    model, inputs = built("DETR").double().eval(), in_float64(padded_images())
    plain = copy.deepcopy(model)
    place = "model.encoder.layers.1"
    attach(model, at=place, dropout=0.0, mask="attention_mask", verbose=False)
    kept = nn.functional.interpolate(inputs["pixel_mask"][:, None].double(), size=(2, 2))
    padding = kept.flatten(1).T == 0  # (L, N)
    assert padding.any() and not padding.all(1).any()
    only_batchformer_trains(model)
    expected = by_two_passes(model, plain, inputs, padding)[0]
    torch.testing.assert_close(model(**inputs).logits.as_subclass(Tensor), expected)
    assert check(model, inputs)
    without = attach(copy.deepcopy(plain), at=place, dropout=0.0, verbose=False)
    without.load_state_dict(model.state_dict())
    only_batchformer_trains(without)
    assert not torch.allclose(without(**inputs).logits[N:], expected[N:])
    whole = {"pixel_values": inputs["pixel_values"]}  # a batch without padding has no mask
    expected = by_two_passes(model, plain, whole)[0]
    torch.testing.assert_close(model(**whole).logits.as_subclass(Tensor), expected)


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "features and others combined outside a submodule": (
        lambda: detector("ConditionalDetr"),
        {"at": "model.decoder.layers.1"},
        r"a training pass fails.*batchformer\.match\(features, skip\)",
    ),
    "proposals of the encoder": (
        lambda: deformable(two_stage=True, with_box_refine=True),
        {"at": "model.encoder.layers.1"},
        r"a training pass fails.*batchformer\.match\(features, skip\)",
    ),
    "a module that takes no features by position": (
        lambda: detector("Detr"),
        {"at": "model.decoder"},
        r"is given by keyword.*Choose the first layer inside",
    ),
    "no single classifier": (lraspp, {}, "no single classifier"),
    "a mask of another name": (
        lambda: detector("Detr"),
        {"at": "model.encoder.layers.1", "mask": "padding"},
        "mask='padding' is no argument of 'model.encoder.layers.1', which takes 'attention_mask'",
    ),
    "a mask across ranks": (
        lambda: detector("Detr"),
        {"at": "model.encoder.layers.1", "mask": "attention_mask", "exchange": True},
        "mask= cannot be used with exchange=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_and_leaves_no_trace(name: str) -> None:
    build, options, reason = REFUSED[name]
    refusal(build(), reason, **options)


@pytest.mark.parametrize("branch", ["attn", "attn.qkv", "mlp.fc2"])
def test_inside_a_residual_the_block_around_it_is_advised_and_works(branch: str) -> None:
    told = refusal(built("timm ViT"), "a training pass fails", at=f"blocks.1.{branch}")
    assert "Try the block around the place: 'blocks.1'. " in told
    assert check(attach(built("timm ViT"), at="blocks.1", verbose=False))
