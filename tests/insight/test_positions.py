"""Which patches attend to which: numbers against the stock layer's, and a picture of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from batchformer import BatchFormer, attach
from batchformer.insight import look_at_positions
from batchformer.insight.positions import PositionAttention

N = 4


def vit() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": (32, 48), "patch_size": 16, "depth": 3, "embed_dim": 32, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)


def images() -> Tensor:
    return torch.randn(N, 3, 32, 48, generator=torch.Generator().manual_seed(1))


def stock_weights(encoder: BatchFormer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (N, L, C), and weights (L, heads, N, N) of torch's attention over the batch."""
    layer = nn.TransformerEncoderLayer(32, 4, 32, 0.0)
    layer.load_state_dict(encoder.layers[0].state_dict())
    options = {"need_weights": True, "average_attn_weights": False}
    weights = layer.self_attn(tokens, tokens, tokens, **options)[1]
    return layer(tokens), weights


@torch.no_grad()
def test_the_weights_of_every_place_are_the_stock_layers() -> None:
    model = attach(vit(), at=["blocks.1", "blocks.2"], verbose=False).train()
    x = images()
    first, second = look_at_positions(model, x)
    assert model.training and model.blocks[1].batchformer.dropout == 0.5
    model.eval()
    tokens = model.blocks[0](
        model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))
    )
    mixed, weights = stock_weights(model.blocks[1].batchformer, tokens)
    torch.testing.assert_close(first.weights, weights.movedim(1, 0), atol=1e-5, rtol=1e-4)
    _, later = stock_weights(model.blocks[2].batchformer, model.blocks[1](mixed))
    torch.testing.assert_close(second.weights, later.movedim(1, 0), atol=1e-5, rtol=1e-4)
    assert [seen.place for seen in (first, second)] == ["blocks.1", "blocks.2"]
    assert (first.prefix, first.grid) == (1, (2, 3))
    maps = first.maps()
    assert maps.shape == (N, N, 2, 3)
    torch.testing.assert_close(maps.sum(1), torch.ones(N, 2, 3))
    torch.testing.assert_close(
        maps[1, 3, 1, 2], weights[1 + 5, :, 1, 3].mean(), atol=1e-5, rtol=1e-4
    )


def test_a_batch_of_a_loader_is_taken_without_its_labels() -> None:
    model = attach(vit(), at="blocks.1", verbose=False)  # its second argument is a mask
    (plain,) = look_at_positions(model, images())
    (seen,) = look_at_positions(model, [images(), torch.arange(N)])
    assert torch.equal(seen.weights, plain.weights)


def test_a_picture_and_feature_maps(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    attach(model, at="0.2", verbose=False)
    (seen,) = look_at_positions(model, images())
    assert repr(seen) == "PositionAttention(place='0.2', grid=(8, 12), prefix=0)"
    picture = seen.figure(tmp_path / "new" / "attention").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_the_labels_of_the_scale_do_not_cover_each_other(tmp_path: Path) -> None:
    for count, labels in ((2, ["even", "100%", "0"]), (16, ["even", "100%"])):
        small = torch.zeros(count, 8, 12, 3, dtype=torch.uint8)
        weights = torch.eye(count).expand(1, 6, count, count)
        seen = PositionAttention("blocks.1", weights, (2, 3), 0, small)
        words = re.findall("<!-- (.*?) -->", seen.figure(tmp_path / "a.svg").read_text())
        assert [word for word in words if word in ("even", "0", "100%")] == labels


def test_a_page_holds_the_maps_and_runs_its_own_script_alone(tmp_path: Path) -> None:
    (seen,) = look_at_positions(attach(vit(), at="blocks.1", verbose=False), images())
    page = seen.page(tmp_path / "attention.html").read_text()
    assert page.count('<img src="data:image/webp') == N and "before <code>blocks.1</code>" in page
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
    content = json.loads(data)
    assert (content["rows"], content["columns"]) == seen.grid
    maps = np.frombuffer(base64.b64decode(content["maps"]), "<f4").reshape(seen.maps().shape)
    np.testing.assert_array_equal(maps, seen.maps().numpy())
    assert content["darkest"] == max(4 / N, maps.max())
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.replace("&#39;", "'").replace("&#43;", "+")


def test_positions_that_form_no_grid_and_models_without_it() -> None:
    model = attach(vit(), at="blocks.1", verbose=False)
    (seen,) = look_at_positions(model, images())
    with pytest.raises(ValueError, match="form no grid"):
        PositionAttention(seen.place, seen.weights, None, 0, seen.images).maps()
    with pytest.raises(ValueError, match="needs a model with BatchFormer"):
        look_at_positions(vit(), images())
