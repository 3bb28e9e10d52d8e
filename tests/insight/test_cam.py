"""Grad-CAM: by hand, by its formula in loops, and where it looks in networks of several kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.cam import NoMaps, as_maps, grad_cam, last_maps
from batchformer.lab.models.build import build_model
from batchformer.lab.models.ride import ride_resnet32


class Linear(nn.Module):
    """Maps are two channels of the image and its negative; logits weigh their means."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Conv2d(1, 2, 1, bias=False)
        self.maps.weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
        self.fc = nn.Linear(2, 2, bias=False)
        self.fc.weight.data = torch.tensor([[3.0, 0.0], [0.0, 2.0]])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.maps(x).mean((2, 3)))
        return out


def test_a_linear_network_by_hand() -> None:
    """dz_0 / dA_0 is 3 / 4 at each of 4 pixels: the map is the positive part of the image."""
    network = Linear()
    x = torch.tensor([[[[4.0, -1.0], [2.0, 0.0]]], [[[4.0, -1.0], [2.0, -0.5]]]])
    cam = grad_cam(network, network, x, torch.tensor([0, 1]))
    assert cam.layer == "maps"
    assert cam.heat.tolist() == [[[1.0, 0.0], [0.5, 0.0]], [[0.0, 1.0], [0.0, 0.5]]]
    torch.testing.assert_close(cam.logits, network(x).detach())


def test_a_class_that_nothing_speaks_for_has_no_heat() -> None:
    network = Linear()
    cam = grad_cam(network, network, torch.ones(1, 1, 2, 2), torch.tensor([1]))
    assert not cam.heat.any()


def test_the_formula_in_loops() -> None:
    torch.manual_seed(0)
    network: Any = build_model("resnet32", 5).double().eval()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    labels = torch.tensor([4, 0, 2])
    cam = grad_cam(network, network, x, labels)
    assert cam.layer == "layer3" and cam.heat.shape == (3, 4, 4)
    for image, label, heat in zip(x, labels.tolist(), cam.heat.numpy(), strict=True):
        with torch.no_grad():
            stem = F.relu(network.bn1(network.conv1(image[None])))
        maps = network.layer3(network.layer2(network.layer1(stem))).detach().requires_grad_()
        network.fc(maps.mean((2, 3)))[0, label].backward()
        expected = np.zeros((4, 4))
        for channel in range(maps.shape[1]):
            weight = maps.grad[0, channel].numpy().mean()
            expected += weight * maps.detach()[0, channel].numpy()
        expected = np.maximum(expected, 0)
        np.testing.assert_allclose(heat, expected / max(expected.max(), 1e-300), atol=1e-9)


def test_frozen_networks_have_maps_too() -> None:
    network = Linear().requires_grad_(False)
    cam = grad_cam(network, network, torch.ones(1, 1, 2, 2), torch.tensor([0]))
    assert cam.heat.min() == 1


def test_tokens_are_looked_at_before_the_last_attention() -> None:
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"img_size": (24, 40), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
        network = timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes).eval()
        x = torch.randn(2, 3, 24, 40)
    labels = torch.tensor([0, 2])
    cam = grad_cam(network, network, x, labels)
    assert cam.layer == "blocks.1.norm1" and cam.heat.shape == (2, 3, 5)
    assert cam.heat.amax((1, 2)).tolist() == [1, 1]
    kept: list[Tensor] = []
    handle = network.blocks[1].norm1.register_forward_hook(lambda m, a, out: kept.append(out))
    score = network(x).gather(1, labels[:, None]).sum()
    handle.remove()
    slope = torch.autograd.grad(score, kept[0])[0][:, 1:].mean(1)
    weighed = torch.einsum("nc,ntc->nt", slope, kept[0][:, 1:]).clamp_min(0).detach()
    expected = (weighed / weighed.amax(1, keepdim=True)).view(2, 3, 5)
    torch.testing.assert_close(cam.heat, expected)


#: Small ones with the layers of their kind.
SIZES: dict[str, Any] = {
    "swin_tiny_patch4_window7_224": {
        "embed_dim": 16,
        "depths": (1, 1, 2, 1),
        "num_heads": (1, 1, 1, 1),
    },
    "vit_base_patch16_siglip_224": {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 64},
}


@pytest.mark.parametrize(
    ("name", "side", "layer", "shape"),
    [
        ("resnet18", 64, "layer4", (2, 2)),
        ("resnet18", 32, "layer3", (2, 2)),
        ("convnext_atto", 64, "norm_pre", (2, 2)),
        ("swin_tiny_patch4_window7_224", 224, "norm", (7, 7)),
        ("vit_base_patch16_siglip_224", 64, "blocks.1.norm1", (4, 4)),  # it pools by attention
    ],
)
def test_the_last_maps_of_timms_networks(
    name: str, side: int, layer: str, shape: tuple[int, int]
) -> None:
    import timm

    network = timm.create_model(name, num_classes=3, **SIZES.get(name, {})).eval()
    cam = grad_cam(network, network, torch.randn(1, 3, side, side), torch.tensor([1]))
    assert cam.layer == layer and cam.heat.shape == (1, *shape)


def test_the_released_layer_is_the_third_of_four() -> None:
    """Where the last is the default."""
    import timm

    network: Any = timm.create_model("resnet18", num_classes=3).eval()
    cam = grad_cam(network, network, torch.randn(2, 3, 64, 64), torch.tensor([2, 0]), "released")
    assert cam.layer == "layer3" and cam.heat.shape == (2, 4, 4)
    with pytest.raises(ValueError, match="Linear has no layer layer3; its parts are maps, fc"):
        grad_cam(Linear(), Linear(), torch.ones(1, 1, 2, 2), torch.tensor([0]), "released")


def test_the_branches_of_experts_are_as_channels_of_one() -> None:
    torch.manual_seed(0)
    network = ride_resnet32(5, 3, in_channels=1, widths=(4, 6, 8), depth=8).double().eval()
    x, labels = torch.randn(2, 1, 16, 16, dtype=torch.float64), torch.tensor([3, 1])
    cam = grad_cam(network, network, x, labels)
    assert cam.layer == "branches.0, branches.1, branches.2"
    total = torch.zeros(2, 4, 4, dtype=torch.float64)
    shared = network.shared(x)
    for expert, branch in enumerate(network.branches):
        maps = branch(shared).detach().requires_grad_()
        logits = network.classify(maps.mean((2, 3)), expert) / 3
        (slope,) = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), maps)
        total += (slope.mean((2, 3), keepdim=True) * maps).sum(1).detach()
    expected = total.clamp_min(0)
    expected = expected / expected.amax((1, 2), keepdim=True).clamp_min(1e-300)
    torch.testing.assert_close(cam.heat, expected)


def test_entries_of_a_list_that_follow_one_another_are_no_experts() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Conv2d(1, 1, 1), nn.Conv2d(1, 2, 1)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x.mean((2, 3))

    network = Blocks()
    assert last_maps(network, lambda: network(torch.ones(1, 1, 2, 2)), (2, 2)) == ["blocks.1"]


def test_maps_of_parts_of_images_are_no_maps_of_images() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole, self.part = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.whole(x).unfold(2, 2, 2).movedim(2, 1).flatten(0, 1)
            return self.part(rows).mean((2, 3)).unflatten(0, (len(x), -1)).mean(1)

    network = Folded()
    assert last_maps(network, lambda: network(torch.ones(3, 1, 4, 2)), (4, 2)) == ["whole"]


def test_a_layer_can_be_named_and_a_wrong_one_is_refused() -> None:
    network: Any = build_model("resnet32", 5).eval()
    x, y = torch.randn(1, 3, 16, 16), torch.tensor([0])
    assert grad_cam(network, network, x, y, "layer1").heat.shape == (1, 16, 16)
    with pytest.raises(ValueError, match="no layer layer9; its parts are conv1"):
        grad_cam(network, network, x, y, "layer9")
    with pytest.raises(ValueError, match="name another layer"):
        as_maps(torch.zeros(2, 3), (4, 4))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(NoMaps, match="Sequential has no layer with maps"):
        last_maps(flat, lambda: flat(torch.zeros(1, 1, 2, 2)), (2, 2))
