"""DETR and its relatives, without BatchFormer and with it, against what transformers computes."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from timm.models import resnet
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.losses.set_prediction import Targets, set_loss, total
from batchformer.lab.methods import build_method
from batchformer.lab.methods.detr import Detr
from batchformer.lab.models import detr
from batchformer.nn.module import BatchFormer

transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")
KINDS: tuple[detr.Kind, ...] = get_args(detr.Kind)
PLACE = "model.encoder.layers.1"
SMALL = {
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "dropout": 0.0,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detr, "SIZES", SMALL)


def build(kind: detr.Kind = "detr", hyper: dict[str, Any] | None = None, **module: Any) -> Detr:
    torch.manual_seed(0)
    made = build_method(
        "detr",
        network=resnet.ResNet(
            resnet.BasicBlock,
            (1, 1, 1, 1),
            num_classes=7,
            channels=(8, 8, 16, 16),
            zero_init_last=False,
        ),
        classes=("ant", "bee", "cow"),
        module=ModuleConfig(**{"enabled": False, "at": (PLACE,), "dropout": 0.0, **module}),
        seed=0,
        hyper=MethodConfig(detr=kind, queries=5, **(hyper or {})),
        class_counts=torch.tensor([5, 3, 1]),
    )
    assert isinstance(made, Detr)
    for norm in made.network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 0.0
    return made


def targets() -> Targets:
    """The boxes of `boxed` by hand: centre, width and height, over the sides of each image."""
    boxes = torch.zeros(2, 2, 4)
    boxes[0] = torch.tensor([[20.0, 24.0, 32.0, 32.0], [51.0, 40.0, 22.0, 40.0]]) / 64
    boxes[1, 0] = torch.tensor([34 / 48, 30 / 60, 28 / 48, 40 / 60])
    return Targets(torch.tensor([[0, 2], [1, 0]]), boxes, [2, 1], 1.5)


def test_images_are_normalised_and_padded_at_their_right_and_bottom(boxed: Any) -> None:
    images = boxed["x"]
    x, mask = detr.padded(images)
    assert x.shape == (2, 3, 64, 64) and mask.sum((1, 2)).tolist() == [64 * 64, 60 * 48]
    assert not x[1, :, 60:].any() and not x[1, :, :, 48:].any() and not mask[1, 59, 48]
    expected = (images[1].float() / 255)[2, 5, 7].sub(0.406) / 0.225
    torch.testing.assert_close(x[1, 2, 5, 7], expected)
    assert torch.equal(detr.padded([image / 255 for image in images])[0], x)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_loss_of_every_decoder_layer(boxed: Any, kind: detr.Kind) -> None:
    method = build(kind).train()
    found = method.step(boxed)
    seen: list[Tensor] = []
    own = method.detector.loss_function

    def function(*args: Any) -> Any:
        seen.extend(args[5:])
        return own(*args)

    method.detector.loss_function = function
    with torch.no_grad():
        method(*detr.padded(boxed["x"]), targets())
    logits, boxes = seen
    assert logits.shape[:3] == boxes.shape[:3] == (2, 2, 5), "layers, images, queries"
    parts = set_loss(logits, boxes, targets(), kind != "detr")
    torch.testing.assert_close(found["loss"], total(parts, kind != "detr"))
    assert list(found) == ["loss", "classes", "boxes", "overlap"]
    torch.testing.assert_close(found["overlap"], parts.overlap[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights_are_the_authors(kind: detr.Kind) -> None:
    method = build(kind)
    model = method.detector.model
    assert 0.8 < model.query_position_embeddings.weight.std() < 1.2
    wide = model.encoder.layers[0].mlp.fc1.weight  # (16, 64)
    assert wide.abs().max().item() == pytest.approx((6 / (16 + 64)) ** 0.5, rel=0.01)
    image = torch.full((3, 64, 64), 100, dtype=torch.uint8)
    with torch.no_grad():
        out = method.eval()(*detr.padded([image]))
    if kind == "detr":
        return
    assert out.logits.sigmoid().mean().item() == pytest.approx(0.01, rel=0.5)
    centres, sizes = out.pred_boxes[0, :, :2], out.pred_boxes[0, :, 2:]
    assert centres.std(0).min() > 0.05, "boxes begin all over the image"
    expected = torch.tensor(-2.0 if kind == "deformable" else 0.0).sigmoid()
    torch.testing.assert_close(sizes, expected.expand_as(sizes))


def test_each_box_of_an_update_counts_the_same_in_every_part(boxed: Any) -> None:
    method = build("deformable").train()
    for row, count in enumerate((2, 1)):
        part = {**boxed, "row": torch.tensor([row])}
        own = method.step({**part, "objects_per_image": float(count)})["boxes"]
        torch.testing.assert_close(method.step(part)["boxes"] * 1.5, own * count)


@pytest.mark.parametrize("kind", KINDS)
def test_detections_are_transformers_own(boxed: Any, kind: detr.Kind) -> None:
    method = build(kind).eval()
    image = boxed["x"][1]
    processor = getattr(transformers, f"{detr.FAMILIES[kind][0]}ImageProcessor")()
    x, mask = detr.padded([image])
    with torch.no_grad():
        (found,) = method.predict([image])
        out = method.detector(pixel_values=x, pixel_mask=mask)
    (expected,) = processor.post_process_object_detection(
        out, threshold=0.0, target_sizes=torch.tensor([[60, 48]])
    )
    order = expected["scores"].argsort(descending=True)
    for name in ("scores", "labels", "boxes"):
        torch.testing.assert_close(found[name], expected[name][order])
    assert len(found["scores"]) == (5 if kind == "detr" else 15)


@pytest.mark.parametrize("kind", ["detr", "deformable"])
def test_the_stem_and_the_classifier_are_not_trained_and_the_rest_has_its_rates(
    kind: detr.Kind,
) -> None:
    method = build(kind)
    optim = OptimConfig(name="adamw", lr=0.1)
    groups = {group["name"]: group for group in method.parameter_groups(optim)}
    rates = {name: group["lr"] for name, group in groups.items()}
    points = {"points": 0.01} if kind == "deformable" else {}
    assert rates == pytest.approx({"backbone": 0.01, "model": 0.1, **points})
    given = [id(p) for group in groups.values() for p in group["params"]]
    trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
    assert sorted(given) == sorted(map(id, trained.values()))
    still = {name for name, _ in method.named_parameters()} - set(trained)
    assert {name.split(".")[1] for name in still} == {"conv1", "bn1", "layer1", "fc"}
    # Layers of Deformable DETR share their heads.
    state = {k: v for k, v in method.state_dict().items() if "_embed.1." not in k}
    assert len({value.data_ptr() for value in state.values()}) == len(state)
    if points:
        slow = {id(p) for p in groups["points"]["params"]}
        names = {name.rsplit(".", 2)[1] for name, p in trained.items() if id(p) in slow}
        assert names == {"reference_points", "sampling_offsets"}


def test_frozen_normalisation_keeps_its_scale_and_shift() -> None:
    method = build(hyper={"frozen_norm": True})
    norms = [part for part in method.network.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms and not any(p.requires_grad for norm in norms for p in norm.parameters())
    assert method.network.get_submodule("layer2.0.conv1").weight.requires_grad


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_updates_lower_the_loss(boxed: Any, precision: Any) -> None:
    method = build("conditional").train()
    optimizer_step = OptimizerStep(TrainConfig(batch_size=2, precision=precision), CPU)
    optimizers = method.optimizers(OptimConfig(name="adamw", lr=1e-3, weight_decay=1e-4))
    losses = [method.update(boxed, optimizers, optimizer_step) for _ in range(6)]
    assert losses[-1]["loss"] < 0.95 * losses[0]["loss"]
    assert all(value.dtype == torch.float32 for value in losses[0].values())
    assert "on the CPU" in str(method.why_eager())


# BatchFormer: places whose modules read masks and positions beside their tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_mean_of_two_streams_written_out(boxed: Any, kind: detr.Kind) -> None:
    method = build(kind, enabled=True).double().train()
    (encoder,) = (m for m in method.modules() if isinstance(m, BatchFormer))
    width = SMALL["d_model"]
    layer = nn.TransformerEncoderLayer(width, 4, width, dropout=0.0, dtype=torch.float64)
    layer.load_state_dict(encoder.layers[0].state_dict())
    plain = build(kind).double().train()
    x, mask = detr.padded(boxed["x"])
    x = x.double()
    both = method(x, mask)
    of_plain = plain(x, mask, targets())
    place = plain.detector.get_submodule(PLACE)
    # The stock layer's sequence is the first axis, that of the samples.
    handle = place.register_forward_pre_hook(lambda _, args: (layer(args[0]), *args[1:]))
    of_mixed = plain(x, mask, targets())
    handle.remove()
    for name in ("logits", "pred_boxes"):
        expected = torch.cat((of_plain[name], of_mixed[name]))
        torch.testing.assert_close(both[name], expected, rtol=1e-10, atol=1e-10)
    # Losses are in single precision; each stream is matched on its own.
    loss = method(x, mask, targets()).loss
    torch.testing.assert_close(loss, (of_plain.loss + of_mixed.loss) / 2)


@pytest.mark.parametrize(("streams", "factor"), [("shared", 2), ("mixed_only", 1)])
def test_only_the_loss_of_two_streams_has_a_scale(boxed: Any, streams: str, factor: int) -> None:
    mean, total = (
        build(enabled=True, streams=streams, loss_scale=scale).train().step(boxed)["loss"]
        for scale in ("mean", "sum")
    )
    torch.testing.assert_close(total, factor * mean)


@pytest.mark.parametrize("module", [{}, {"encoder": "none"}, {"attend": "self"}])
def test_eval_is_the_plain_detector(boxed: Any, module: dict[str, Any]) -> None:
    method, plain = build(enabled=True, **module).eval(), build().eval()
    with torch.no_grad():
        pairs = zip(method.predict(boxed["x"]), plain.predict(boxed["x"]), strict=True)
        for found, expected in pairs:
            assert all(torch.equal(found[name], expected[name]) for name in expected)
    rates = {g["name"]: g["lr"] for g in method.parameter_groups(OptimConfig(lr=0.1))}
    assert ("batchformer" in rates) == (module.get("encoder") != "none")
    assert method.train()(*detr.padded(boxed["x"])).logits.shape[0] == 4


def test_a_wrong_place_is_answered_with_names_that_can_be_given() -> None:
    with pytest.raises(ValueError, match=r"Do you mean 'model\.encoder\.layers\.\d'") as told:
        build(enabled=True, at=("model.encoder.layers.9",))
    assert "no submodule 'model.encoder.layers.9'" in str(told.value)
    assert "'detector." not in str(told.value)
