"""A model of one's own, as a person would write it."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import batchformer as bf
from batchformer.insight import look_at


@pytest.fixture(scope="module")
def loader() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, 32, 32, generator=draw)
    return DataLoader(TensorDataset(x, torch.arange(40) % 4), batch_size=16)


def own_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def test_three_lines(tmp_path: Path, loader: DataLoader[Any]) -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4)
    bf.attach(model, verbose=False)
    optimizer = torch.optim.SGD(bf.param_groups(model, lr=0.01))
    images, labels = next(iter(loader))
    logits = model(images)
    F.cross_entropy(logits, bf.match(logits, labels)).backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    id2label = {1: "dog", 0: "cat", 2: "owl", 3: "eel"}
    seen = look_at(model, loader, classes=id2label)
    file = seen.save(tmp_path)
    page = seen.page(tmp_path / "page.html", "Mine").read_text()

    assert "Mine" in page and "Inside a batch" in page and "owl" in page
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with np.load(file, allow_pickle=False) as found:
        assert file == tmp_path / "insight.npz"
        assert found["classes"].tolist() == ["cat", "dog", "owl", "eel"]
        assert found["cam_layer"] == "layer3" and found["cam_heat"].shape[1:] == (2, 2)
        assert found["gradient_samples"].tolist() == found["train_counts"].tolist() == [10] * 4
        assert (found["gradient_abs"] > 0).all() and (found["gradient_images_l2"] > 0).all()
        small = found["batch_thumbnails"]
        assert small.shape == (1, 40, 32, 32, 3) and small.min() == 0 and small.max() == 255


def test_images_of_two_channels_are_shown_by_their_first() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(12, 2, 8, 8, generator=draw)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    found = look_at(model, DataLoader(TensorDataset(x, torch.arange(12) % 3), batch_size=6)).arrays
    small = found["cam_thumbnails"]
    assert small.shape == (12, 8, 8, 3) and (small == small[..., :1]).all()
    rows = x[found["cam_rows"]]
    first = (255 * (rows[:, 0] - rows.min()) / (rows.max() - rows.min())).numpy()
    np.testing.assert_allclose(small[..., 0], first, atol=0.51)


def test_a_notebook_shows_the_page_and_a_terminal_one_line(
    tmp_path: Path, loader: DataLoader[Any]
) -> None:
    seen = look_at(bf.attach(own_network(), verbose=False), loader)
    assert repr(seen).startswith("Insight(4 classes, with BatchFormer;") and len(repr(seen)) < 120
    framed = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', seen._repr_html_())
    assert framed
    assert html.unescape(framed[1]) == seen.page(tmp_path / "page.html").read_text()


def test_the_page_says_whether_it_counts_training_samples(
    tmp_path: Path, loader: DataLoader[Any]
) -> None:
    model, words = own_network(), "The numbers of training samples are not known."
    guessed = look_at(model, loader).page(tmp_path / "guessed.html").read_text()
    given = look_at(model, loader, train_counts=[9, 5, 3, 2]).page(tmp_path / "given.html")
    assert words in guessed and words not in given.read_text()


def test_what_is_seen_is_what_the_model_does(loader: DataLoader[Any]) -> None:
    """Attention and gradients of all images in one batch, from the outside of the model."""
    model = bf.attach(own_network(), heads=2, dropout=0.0, verbose=False)
    found = look_at(model, loader, loss=nn.CrossEntropyLoss()).arrays
    x, y = loader.dataset.tensors  # type: ignore[attr-defined]
    model.eval()
    model[5].batchformer.train()  # two streams, with normalisation by running statistics
    heard: list[Tensor] = []
    handle = model[5].register_forward_pre_hook(lambda _, args: heard.append(args[0]))
    plain, mixed = model(x).chunk(2)
    handle.remove()
    losses = F.cross_entropy((plain + mixed) / 2, y, reduction="none")
    for label in (0, 3):
        means = []
        for i in (y == label).nonzero().flatten().tolist():
            (slope,) = torch.autograd.grad(losses[i], heard[0], retain_graph=True)
            means.append(float(slope[torch.arange(40) != i].abs().mean()))
        assert found["gradient_abs"][label] == pytest.approx(np.mean(means), rel=1e-4)
    right = int((plain.argmax(1) == y).sum())
    assert found["reliability_correct"][0].sum() == right


def test_a_plain_model_and_mixed_only(loader: DataLoader[Any]) -> None:
    plain = look_at(own_network(), loader, train_counts=[500, 60, 30, 2]).arrays
    assert "attention" not in plain and plain["shot_of_class"].tolist() == [0, 1, 1, 2]
    alone = bf.attach(own_network(), heads=2, streams="mixed_only", verbose=False)
    other = bf.attach(own_network(), heads=2, verbose=False)
    alone[5].batchformer.load_state_dict(other[5].batchformer.state_dict())
    both, mixed = look_at(other, loader).arrays, look_at(alone, loader).arrays
    np.testing.assert_allclose(plain["projection"], mixed["projection"], atol=1e-5)
    assert not np.allclose(both["gradient_abs"], mixed["gradient_abs"])


def test_fewer_images_and_a_named_layer(loader: DataLoader[Any]) -> None:
    found = look_at(own_network(), loader, most=20, layer="0").arrays
    assert found["reliability_count"][0].sum() == 20 and found["cam_layer"] == "0"


class Dequantized(nn.Module):
    """Images (N, channels, H, W) of integers from 0 to 255, in the precision of a model."""

    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16() / 255


def test_a_model_in_bfloat16_of_images_in_integers(loader: DataLoader[Any]) -> None:
    x, y = loader.dataset.tensors  # type: ignore[attr-defined]
    integers = (255 * x.sigmoid()).round().byte()
    model = bf.attach(own_network().bfloat16(), heads=2, verbose=False)
    found = look_at(nn.Sequential(Dequantized(), model), [(integers, y)]).arrays
    assert found["cam_heat"].any() and (found["gradient_abs"] > 0).all()
    assert "gradient_images_abs" not in found, "integers have no gradient"
    model.eval()
    sure = model(integers.bfloat16() / 255).float().softmax(1)[torch.arange(40), y]
    rows = found["cam_rows"]
    np.testing.assert_allclose(found["cam_confidence"], sure[rows].detach(), rtol=1e-2)
    np.testing.assert_allclose(found["batch_attention"].sum(-1), 1, atol=0.02)


def test_images_of_a_model_without_maps_are_shown_without_grad_cam(tmp_path: Path) -> None:
    layers = nn.Flatten(), nn.Linear(3 * 64, 8), nn.ReLU(), nn.Linear(8, 4)
    model = bf.attach(nn.Sequential(*layers), heads=2, verbose=False)
    with torch.inference_mode():  # gradients are turned on
        seen = look_at(model, [(torch.rand(40, 3, 8, 8), torch.arange(40) % 4)])
    assert not any(name.startswith("cam_") for name in seen.arrays)
    assert (seen.arrays["gradient_images_abs"] > 0).all()
    page = seen.page(tmp_path / "page.html").read_text()
    assert "Inside a batch" in page and "Where the network looks" not in page


def test_what_cannot_be_looked_at_is_refused(loader: DataLoader[Any]) -> None:
    with pytest.raises(ValueError, match="4 outputs, there are 2 names"):
        look_at(own_network(), loader, classes=["a", "b"])
    with pytest.raises(ValueError, match=r"single samples\. Wrap the data set in a DataLoader"):
        look_at(own_network(), loader.dataset)
    elsewhere = bf.attach(own_network(), at="1", heads=2, verbose=False)
    for model, said in (
        (elsewhere, r"logits \(N, K\) of 1, which has BatchFormer before it"),
        (own_network().append(nn.LogSoftmax(1)), "of 5, which looks like the classifier"),
    ):
        with pytest.raises(ValueError, match=said):
            look_at(model, loader)
    with pytest.raises(TypeError, match="the loader gives dict"):
        look_at(own_network(), [{"x": torch.zeros(2, 3, 8, 8)}])
    images = torch.zeros(2, 3, 8, 8)
    wrong: list[Any] = [torch.rand(2, 4), torch.rand(2), torch.zeros(2, 1), torch.tensor([-1, 0])]
    for labels in (*wrong, ["cat", "dog"]):
        with pytest.raises(ValueError, match="one class from 0 on for each sample"):
            look_at(own_network(), [(images, labels)])
    diverged = own_network()
    diverged[5].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="outputs for the first samples are NaN"):
        look_at(diverged, loader)
    images, labels = next(iter(loader))
    images[5] = torch.nan
    with pytest.raises(ValueError, match="features of test sample 6 are NaN"):
        look_at(own_network(), [(images, labels)])
    for counts in ([1, 2], torch.ones(2, 2), [5] * 9):
        with pytest.raises(ValueError, match="4 classes, and train_counts= has the shape"):
            look_at(own_network(), loader, train_counts=counts)
    with pytest.raises(ValueError, match="two or more samples, and the loader gives 0"):
        look_at(own_network(), [])
    with pytest.raises(ValueError, match="two or more samples, but most= is 1"):
        look_at(own_network(), loader, most=1)


class LastState(nn.Module):
    """Reads (L, N, 5) and classifies the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[1][-1])  # type: ignore[no-any-return]


class Transposed(nn.Module):
    """A wrapper that reads (N, L, 5)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.transpose(0, 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", [6, 50])
def test_sequence_first_samples_are_told_how_to_be_looked_at(length: int) -> None:
    x, labels = torch.randn(length, 20, 5), torch.arange(20) % 3
    model = bf.attach(LastState(), example=x, input_axis=1, verbose=False)
    with pytest.raises(ValueError, match=r"20 labels for inputs of shape.*wrap it in a module"):
        look_at(model, [(x, labels)])
    assert "attention" in look_at(Transposed(model), [(x.transpose(0, 1), labels)]).arrays
