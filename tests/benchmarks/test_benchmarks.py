"""The benchmarks run at a small size, so that changes of the library do not break them unseen."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.contrast import TwoViews
from benchmarks.contrast import measure as measure_contrast
from benchmarks.loop import alternated, median_interval
from benchmarks.profile import CONVOLUTION, by_family, family, fill, profiled
from benchmarks.v2_layer import measure as measure_tokens
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import binom
from torch._C._autograd import DeviceType
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

import batchformer
from batchformer.lab.bench.layer import LayerPair
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.step import EAGER, UpdateRunner
from batchformer.lab.bench.table import Spread, Table, read_tables
from batchformer.lab.data.sets.long_tailed_files import own_files
from batchformer.lab.data.transforms import IMAGENET
from batchformer.lab.engine.optim import Lars
from batchformer.lab.models.build import build_model
from benchmarks import (
    attached,
    attention_kernels,
    few_images,
    frozen_features,
    image_features,
    image_folders,
    lab_kernels,
    long_tail_features,
    loop,
    one_stream,
    profile,
    side_by_side,
)
from helpers.data_files import save_images

CPU = torch.device("cpu")
ONCE = BenchSettings(CPU, repeats=1)


def test_parts_without_a_gpu_say_so_and_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["profile", "side_by_side", "--device", "cpu", "--to", str(tmp_path)]
    assert main(arguments) == 1
    assert capsys.readouterr().out.count("needs a CUDA device") == 2
    assert [table.failed for table in read_tables(tmp_path / "bench.json")] == [True, True]
    with pytest.raises(SystemExit):
        main(["speed"])


def test_the_layer_at_tokens() -> None:
    table = measure_tokens(ONCE, ((4, 5, 16),))
    (row,) = table.rows
    assert row[:4] == (4, 5, 16, "eager") and all(isinstance(cell, Spread) for cell in row[4:7])
    stock, ours = row[7:]
    assert isinstance(stock, float) and isinstance(ours, float) and min(stock, ours) > 0
    pair = LayerPair((4, 5, 16), CPU)
    mixed = pair.ours.eval().mix(pair.x)
    torch.testing.assert_close(mixed, pair.stock.eval()(pair.x), atol=1e-5, rtol=1e-5)


def save_features(file: Path, labels: Any, train: int) -> Path:
    """Classes that are easily told apart, in the layout of ``cub_gzsl.npz``."""
    rows = 3 * np.eye(8)[labels] + np.random.default_rng(0).normal(size=(len(labels), 8))
    places = {"trainval_loc": np.arange(train), "test_seen_loc": np.arange(train, len(labels))}
    np.savez(file, features=rows, labels=labels, **places)  # type: ignore[arg-type]
    return file


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """Four classes of nearly equal size."""
    return save_features(tmp_path / "features.npz", np.arange(120) % 4, train=90)


def test_frozen_features(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_features, "RATE", 0.3)
    (x, y), (other, _) = frozen_features.components(features, 4)
    assert (len(x), len(y), len(other)) == (90, 90, 30)
    assert float(x.square().mean()) == pytest.approx(1.0)
    products = x.T @ x
    torch.testing.assert_close(products, products.diag().diag(), atol=1e-3, rtol=0.0)
    table = frozen_features.measure(ONCE, features, channels=4)
    assert [row[1] for row in table.rows] == 3 * [*frozen_features.ARMS]
    assert all(isinstance(row[2], float) and row[2] > 50 for row in table.rows if row[0] == "1")
    assert [row[3] == "" for row in table.rows] == 3 * [True, *4 * [False]]


def test_few_images(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_images, "UPDATES", 20)
    monkeypatch.setattr(few_images, "HIDDEN", 32)
    train, _ = frozen_features.read(features)
    few, more = (few_images.some_of_each(train, n, seed=5) for n in (3, 6))
    assert few[1].bincount().tolist() == [3, 3, 3, 3]
    assert {tuple(row.tolist()) for row in few[0]} < {tuple(row.tolist()) for row in more[0]}
    source = few_images.Source("made up", features, 0.02)
    table = few_images.measure(BenchSettings(CPU, repeats=3), [source], per_class=(3, 6))
    arms, contrasts = table.rows[: len(few_images.ARMS)], table.rows[len(few_images.ARMS) :]
    assert [row[1] for row in arms] == [*few_images.ARMS] and arms[0][4:] == ("", None)
    assert all(isinstance(cell, float) and cell > 50 for row in arms for cell in row[2:4])
    assert [row[1] for row in contrasts] == [" - ".join(c) for c in few_images.CONTRASTS[-3:]]


def test_long_tail_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tail_features, "UPDATES", 20)
    monkeypatch.setattr(few_images, "HIDDEN", 32)
    labels = np.repeat([0, 1, 2, 0, 1, 2], [101, 20, 19, 10, 20, 10])
    file = save_features(tmp_path / "features.npz", labels, train=140)
    source = few_images.Source("made up", file, 0.02)
    table = long_tail_features.measure(BenchSettings(CPU, repeats=3), [source])
    arms = {row[1]: row[2:6] for row in table.rows[: len(long_tail_features.ARMS)]}
    assert [*arms] == [*long_tail_features.ARMS]
    for everyone, many, medium, few in arms.values():
        assert everyone == pytest.approx((many + 2 * medium + few) / 4, abs=0.01)
    # The scores of single seeds are kept, and give the same difference.
    first = table.rows[1]
    by_seed = [table.values[f"made up, {arm}"] for arm in ("without", first[1])]
    assert frozen_features.difference(*by_seed) == first[6]
    # Balanced Softmax moves predictions to rare classes.
    assert arms["without"][3] > arms[long_tail_features.CROSS_ENTROPY][3]


def test_one_stream(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (few_images, long_tail_features):
        monkeypatch.setattr(module, "UPDATES", 20)
    monkeypatch.setattr(few_images, "HIDDEN", 32)
    source = few_images.Source("made up", features, 0.02)
    table = one_stream.measure(BenchSettings(CPU, repeats=2), [source], [source])
    assert {row[0] for row in table.rows} == {"made up, few images", "made up, long tail"}
    assert {row[1] for row in table.rows} >= {*one_stream.ARMS}
    assert all(score > 30 for scores in table.values.values() for score in scores)
    # Dropout acts in training, and not at test, where equal rows have equal outputs.
    train, (x, y) = frozen_features.read(features)
    repeated = x.repeat_interleave(50, 0), y.repeat_interleave(50)
    some, everything = (
        few_images.right(train, repeated, few_images.Arm(dropout=p), 0, 0.02, 20) for p in (0.5, 1)
    )
    assert everything.float().mean() < 0.5 < some.float().mean()
    assert torch.equal(some, some[::50].repeat_interleave(50))


def test_features_of_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network: Any = build_model("resnet10", 2)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    save_images(tmp_path, "train/{c}/{i}.png", (2, 2))
    save_images(tmp_path, "test/{c}/{i}.png", (1, 1))
    files = [str(tmp_path), str(tmp_path / "weights.pth"), str(tmp_path / "features.npz")]
    image_features.main([*files, "--model", "resnet10", "--size", "32"])
    with np.load(tmp_path / "features.npz") as made:
        assert made["labels"].tolist() == [0, 0, 1, 1, 0, 1]
        assert [made["trainval_loc"].tolist(), made["test_seen_loc"].tolist()] == [
            [0, 1, 2, 3],
            [4, 5],
        ]
        found = torch.from_numpy(made["features"]).float()
    # The last one again, from an array.
    image = np.array(Image.open(tmp_path / "test/1/0.png").convert("RGB"))[None]
    arrays = {"x_train": image, "y_train": [1], "x_test": image, "y_test": [0]}
    np.savez(tmp_path / "images.npz", **arrays)  # type: ignore[arg-type]
    files[0] = str(tmp_path / "images.npz")
    image_features.main([*files, "--model", "resnet10", "--size", "32"])
    with np.load(tmp_path / "features.npz") as made:
        assert made["labels"].tolist() == [1, 0]
        again = torch.from_numpy(made["features"]).float()
    torch.testing.assert_close(again, found[[5, 5]], atol=5e-3, rtol=5e-3)
    # And with torchvision's transforms and all of the network but its classifier.
    steps = [Resize(37), CenterCrop(32), ToTensor(), Normalize(IMAGENET.mean, IMAGENET.std)]
    x = Compose(steps)(Image.open(tmp_path / "test/1/0.png").convert("RGB"))
    network.fc = torch.nn.Identity()
    torch.testing.assert_close(found[5], network.eval()(x[None])[0], atol=5e-3, rtol=5e-3)


def test_images_of_an_array_become_folders_of_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = {part: rng.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8) for part in ("train", "test")}
    y = {"train": np.array([1, 0, 1]), "test": np.array([0, 0, 1])}
    arrays = {f"{name}_{part}": a[part] for name, a in (("x", x), ("y", y)) for part in a}
    np.savez(tmp_path / "images.npz", classes=np.array(["cat", "dog"]), **arrays)
    image_folders.main([str(tmp_path / "images.npz"), str(tmp_path / "photos")])
    data = own_files(tmp_path / "photos")
    assert list(data.classes) == ["cat", "dog"]
    for name, part in (("train", data.train), ("test", data.test)):
        order = np.argsort(y[name], kind="stable")
        assert part.labels.tolist() == y[name][order].tolist()
        for path, row in zip(part.paths, order, strict=True):
            image = np.array(Image.open(part.root / path))
            np.testing.assert_array_equal(image, x[name][row])


def test_contrast() -> None:
    images = TwoViews("images", "test_resnet", 10, 32, hidden=16, dim=8)
    features = TwoViews("features", "", 0, 0, hidden=16, dim=8, channels=32)
    table = measure_contrast(ONCE, [(images, 4, (EAGER,)), (features, 8, (EAGER,))])
    assert [row[:2] for row in table.rows] == [("images", 4), ("features", 8)]
    for row in table.rows:
        plain, both, _, rate, share, alone = row[3:]
        assert isinstance(plain, Spread) and isinstance(both, Spread)
        assert isinstance(rate, Spread) and isinstance(row[1], int)
        assert rate.median == pytest.approx(1000 * row[1] / both.median)
        assert isinstance(share, Spread) and isinstance(alone, Spread) and alone.median > 0
        assert share.median == pytest.approx(100 * (1 - plain.median / both.median))
    runner = UpdateRunner(features, EAGER, True, CPU, features.batches(6, CPU))
    assert isinstance(runner.optimizers["main"], Lars)
    before = {name: p.clone() for name, p in runner.method.named_parameters()}
    runner()
    for name, parameter in runner.method.named_parameters():
        # Those of one dimension may have a gradient of zero at first.
        if parameter.requires_grad and parameter.ndim > 1:
            assert not torch.equal(parameter, before[name]), name


def test_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "BLOCK", 4)
    monkeypatch.setattr(loop, "LOG_EVERY", 2)
    bare, by_loop, mean = loop.measure(BenchSettings(CPU, repeats=2), size=4).rows
    assert bare[0] == "bare" and bare[2] is None
    assert isinstance(by_loop[2], Spread) and by_loop[2].rounds == 8
    assert isinstance(mean[2], Spread) and mean[2].rounds == 2
    order: list[str] = []
    alternated(lambda: order.append("b"), lambda: order.append("l"), 4, CPU)
    assert "".join(order) == "lbbllbbl"


@given(st.integers(6, 200))
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    low, high = median_interval([float(i) for i in range(n)])
    assert low + high == n - 1
    assert 2 * binom.cdf(low, n, 0.5) <= 0.05 < 2 * binom.cdf(low + 1, n, 0.5)


def test_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "WARM_UP", 0)
    one, two = side_by_side.compare(ONCE, (1, 2), size=2, updates=2).rows
    assert one[0] == 1 and two[0] == 2 and one[2] is None
    gain = 2 * one[1].median / two[1].median  # type: ignore[union-attr]
    assert isinstance(two[2], Spread) and two[2].median == pytest.approx(gain)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", CONVOLUTION[0]),
        ("sm80_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32", CONVOLUTION[1]),
        ("_weight_gradient", CONVOLUTION[2]),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", "norm"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNN", "matrix"),
        ("void at::native::multi_tensor_apply_kernel<FusedSgdMathFunctor<float, 3>>", "optimizer"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem", "attention"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<AddFunctor>", profile.REST),
    ],
)
def test_kernels_have_families(name: str, expected: str) -> None:
    assert expected in family(name)


def test_the_families_know_no_kernel_that_is_gone() -> None:
    files = Path(batchformer.__file__).parent.rglob("kernels/*.py")
    sources = "".join(file.read_text() for file in files)
    names = re.findall(r"\^(_\w+)", " ".join(pattern for pattern, _ in profile.FAMILIES))
    assert names and [name for name in names if f"def {name}" not in sources] == []


def test_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, data = CONVOLUTION[:2]
    step = [("_product", 1.0), ("softmax_backward", 2.0), ("_product", 4.0), ("FusedSgd", 8.0)]
    found = by_family(step * 2)  # our convolution is a gradient in the backward pass
    assert found[forward] == 2 and found[data] == 8 and found["optimizer"] == 16
    table = Table("profile", "", ("kernels", "with", "%", "without", "adds"), {})
    kernels = {"with": {forward: 60.0, "the rest": 20.0}, "without": {forward: 50.0}}
    fill(table, kernels, {"with": 100.0, "without": 60.0})
    assert table.rows == [
        (forward, 60.0, 60.0, 50.0, 10.0),
        ("the rest", 20.0, 20.0, 0.0, 20.0),
        ("idle", 20.0, 20.0, 10.0, 10.0),
        ("the step", 100.0, 100.0, 60.0, 40.0),
    ]

    def event(name: str, start: float, length: float, device: DeviceType) -> Any:
        span = SimpleNamespace(start=start, elapsed_us=lambda: length)
        return SimpleNamespace(name=name, time_range=span, device_type=device)

    events = [
        event("late", 9.0, 4.0, DeviceType.CUDA),
        event("aten::host", 0.0, 99.0, DeviceType.CPU),
        event("early", 1.0, 2.0, DeviceType.CUDA),
    ]

    fake = MagicMock()
    fake.return_value.__enter__.return_value.events.return_value = events
    monkeypatch.setattr(torch.profiler, "profile", fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runner = MagicMock()
    assert profiled(runner, 2) == [("early", 1.0), ("late", 2.0)] and runner.call_count == 2
    events.clear()
    with pytest.raises(RuntimeError, match="saw no kernels"):
        profiled(runner, 2)


@pytest.fixture
def _quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


@pytest.mark.usefixtures("_quick_compiler")
def test_attached_steps() -> None:
    table = attached.measure(ONCE, [attached.Case("small", "test_resnet", 4, 32, 10)])
    assert [row[:3] for row in table.rows] == [
        ("small", 4, "eager"),
        ("small", 4, "compiled"),
    ], table.notes
    assert all(isinstance(cell, Spread) for row in table.rows for cell in row[3:])


@pytest.mark.usefixtures("_quick_compiler")
def test_kernels_of_the_laboratory() -> None:
    table = lab_kernels.measure(ONCE, ())  # compiling the network would take a minute
    candidates = lab_kernels.COMPILED, lab_kernels.OURS, lab_kernels.STOCK
    assert [row[:3] for row in table.rows] == [("CE-GZSL", "4 x 3 x 8", c) for c in candidates]
    pairs = lab_kernels.pair_candidates((4, 3, 8), CPU)
    network = lab_kernels.network_candidates(2, CPU)
    for works, names in ((pairs, candidates), (network, candidates[1:])):
        first, *others = (works[name]() for name in names)
        for other in others:
            torch.testing.assert_close(other, first)


@pytest.mark.usefixtures("_quick_compiler")
def test_attention_kernels() -> None:
    table = attention_kernels.measure(ONCE, (((6, 16), ("fp32",)),))
    assert [row[3] for row in table.rows] == [
        attention_kernels.COMPILED,
        "ours compiled, attention by our operator",
        "ours",
        "ours without kernels",
        "torch's",
        "torch's compiled",
    ], table.notes
    assert table.rows[0][5] is None and all(isinstance(row[5], Spread) for row in table.rows[1:])
