from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
from timm.models import resnet
from torch import Tensor

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import build_method
from batchformer.lab.methods.detector import Detector
from batchformer.lab.models import faster_rcnn
from batchformer.plug.preserve import seed_device

pytestmark = pytest.mark.usefixtures("few_regions")
CPU = torch.device("cpu")
KINDS = get_args(faster_rcnn.Kind)
#: Narrow stages are as good here, and much faster.
CHANNELS = (8, 16, 32, 64)
PARTS = ["objectness", "proposals", "classes", "boxes"]


def detector(kind: faster_rcnn.Kind = "c4", **changes: Any) -> Detector:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "network": resnet.ResNet(
            resnet.BasicBlock, (1, 1, 1, 2), num_classes=7, channels=CHANNELS, zero_init_last=False
        ),
        "classes": ("ant", "bee", "cow"),
        "module": ModuleConfig(),
        "seed": 0,
        "hyper": MethodConfig(detector=kind),
        "class_counts": torch.tensor([5, 3, 1]),
        **changes,
    }
    made = build_method("detector", **options)
    assert isinstance(made, Detector)
    return made


def updates(method: Detector, batch: Any, number: int, **train: Any) -> list[dict[str, Tensor]]:
    optimizer_step = OptimizerStep(TrainConfig(batch_size=2, **train), CPU)
    optimizers = method.optimizers(OptimConfig(lr=0.03, weight_decay=1e-4))
    method.train()
    losses = []
    for step in range(number):
        seed_device(CPU, step)
        losses.append(method.update(batch, optimizers, optimizer_step))
    return losses


@pytest.mark.parametrize(("kind", "precision"), [("c4", "fp32"), ("fpn", "bf16")])
def test_updates_lower_the_loss(boxed: Any, kind: faster_rcnn.Kind, precision: str) -> None:
    method = detector(kind)
    assert "differ in size" in str(method.why_eager())
    losses = updates(method, boxed, 20, precision=precision)
    assert list(losses[0]) == ["loss", *PARTS]
    for each in losses:
        torch.testing.assert_close(each["loss"], torch.stack([each[p] for p in PARTS]).sum())
    for name in ("loss", "classes", "objectness"):
        last = (losses[-1][name] + losses[-2][name]) / 2
        assert last < 0.95 * losses[0][name], name


@pytest.mark.parametrize("kind", KINDS)
def test_each_trained_parameter_is_registered_once(kind: faster_rcnn.Kind) -> None:
    method = detector(kind)
    (group,) = method.parameter_groups(OptimConfig(lr=0.02))
    given = [id(parameter) for parameter in group["params"]]
    assert len(given) == len(set(given)) and group["lr"] == 0.02
    network: Any = method.network
    head = {id(parameter) for parameter in network.get_classifier().parameters()}
    of_network = {id(parameter) for parameter in network.parameters()}
    of_detector = {id(parameter) for parameter in method.detector.parameters()}
    assert set(given) == (of_network - head) | of_detector and len(head) == 2
    state = method.state_dict()
    own = {name.removeprefix("network.") for name in state if name.startswith("network.")}
    assert own == set(network.state_dict())
    assert method.deployed() is network
    pointers = [value.data_ptr() for value in state.values()]
    assert len(pointers) == len(set(pointers))


def test_all_normalisation_is_trained_and_counted(boxed: Any) -> None:
    method = detector()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    updates(method, boxed, 1)
    after = method.state_dict()
    means = [name for name in after if name.endswith("running_mean")]
    assert len(means) == 16  # 15 of the network, and one after its last stage
    assert not any(torch.equal(before[name], after[name]) for name in means)
    assert torch.equal(before["network.fc.weight"], after["network.fc.weight"])


def test_batchformer_takes_no_part() -> None:
    one, other = (detector(module=ModuleConfig(enabled=enabled)) for enabled in (True, False))
    for (name, left), right in zip(
        one.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(left, right), name
    assert not any("batchformer" in name for name in one.state_dict())


def test_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(7)
    one = detector(seed=3)
    torch.rand(5)
    state, again = one.detector.state_dict(), detector(seed=3).detector.state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)
    other = detector(seed=4).detector.state_dict()
    name = "roi_heads.box_predictor.part.cls_score.weight"
    assert not torch.equal(state[name], other[name])


def test_parts_of_a_batch_have_their_own_images(
    boxed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = detector()
    seen: list[tuple[list[Any], list[Any]]] = []
    whole = method.detector.forward

    def noted(images: list[Tensor], targets: list[dict[str, Tensor]]) -> Any:
        sizes = [tuple(image.shape[1:]) for image in images]
        seen.append((sizes, [target["labels"].tolist() for target in targets]))
        return whole(images, targets)

    monkeypatch.setattr(method.detector, "forward", noted)
    updates(method, boxed, 1, accumulate=2)
    assert seen == [([(64, 64)], [[1, 3]]), ([(60, 48)], [[2]])]  # 0 is the background


def test_predictions_are_of_the_classes(boxed: Any) -> None:
    method = detector().eval()
    method.detector.roi_heads.score_thresh = 0.0
    images = boxed["x"]
    with torch.no_grad():
        found = method.predict(images)
        scaled = method.predict([image / 255 for image in images])
    assert len(found) == 2
    for each, again in zip(found, scaled, strict=True):
        assert set(each) == {"boxes", "labels", "scores"}
        assert each["labels"].min() >= 0 and each["labels"].max() <= 2
        assert all(torch.equal(each[name], again[name]) for name in each)


def test_an_image_is_judged_without_its_neighbours(boxed: Any) -> None:
    method = detector().eval()
    method.detector.roi_heads.score_thresh = 0.0
    images = [boxed["x"][0], boxed["x"][0].flip(2), boxed["x"][0].flip(1)]
    with torch.no_grad():
        together, (alone,) = method.predict(images), method.predict(images[1:2])
    assert len(alone["scores"])
    for name, value in alone.items():
        torch.testing.assert_close(together[1][name], value, rtol=1e-4, atol=1e-4)


def test_a_copy_trains_by_itself(boxed: Any) -> None:
    method = detector()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    other = copy.deepcopy(method)
    updates(other, boxed, 1)
    assert all(torch.equal(before[name], value) for name, value in method.state_dict().items())
    moved = [k for k, v in other.named_parameters() if not torch.equal(before[k], v)]
    assert "network.conv1.weight" in moved and "network.layer4.1.conv2.weight" in moved
