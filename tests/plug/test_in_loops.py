"""Attached models inside the machinery of training loops: compilers, precision, copies, ranks."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch._dynamo.testing import CompileCounter
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import batchformer
from batchformer import attach, check, export, match, stream_loss
from batchformer.nn.module import encoders_of
from batchformer.plug.alive import influence, watched_influence
from batchformer.plug.export import plain_state_dict
from helpers.tiny_transformers import NO_DROPOUT, tiny

SOURCE = str(Path(batchformer.__file__).parents[1])


class Net(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.norm(self.conv(self.stem(x).relu())).relu().mean(dim=(2, 3)))


class TwoHeads(nn.Module):
    """As LeViT: two heads on the same features, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
        self.head_dist = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Any:
        features = self.stem(x).relu()
        return (self.head(features) + self.head_dist(features)) / 2

    def get_classifier(self) -> tuple[nn.Module, nn.Module]:
        # The norms: what reads the features themselves.
        return self.head[0], self.head_dist[0]


def mlp(depth: int = 1) -> nn.Sequential:
    body = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*body, nn.Linear(8, 4))


def vectors(n: int) -> Tensor:
    return torch.randn(n, 8)


def pictures(n: int) -> Tensor:
    return torch.randn(n, 3, 8, 8)


def attached_mlp(dropout: float = 0.5) -> nn.Sequential:
    return attach(mlp(), dropout=dropout, verbose=False)


Built = tuple[nn.Module, Callable[[int], Tensor]]
COMPILED: dict[str, Callable[[float], Built]] = {
    "one head": lambda p: (attached_mlp(p), vectors),
    "two heads": lambda p: (attach(TwoHeads(), dropout=p, verbose=False), vectors),
    "several places, one module": lambda p: (
        attach(mlp(3), at=["2", "4", "6"], share=True, dropout=p, verbose=False),
        vectors,
    ),
    "norms per stream": lambda p: (
        attach(Net(), at="conv", batch_norm="per_stream", dropout=p, verbose=False),
        pictures,
    ),
    "mixed only": lambda p: (
        attach(mlp(), streams="mixed_only", dropout=p, verbose=False),
        vectors,
    ),
    "the control": lambda p: (attach(mlp(), attend="self", dropout=p, verbose=False), vectors),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    torch.autograd.backward(loss)
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


# Compilers.


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_serves_every_ragged_batch(name: str) -> None:
    model, batch = COMPILED[name](0.5)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    factor = 1 if name == "mixed only" else 2
    for n in (8, 8):
        assert len(compiled(batch(n))) == factor * n
    assert counter.frame_count == 1
    for n in (5, 7, 6, 2, 3):
        assert len(compiled(batch(n))) == factor * n
    assert counter.frame_count == 2, "the first ragged batch compiles once more, later ones never"

    model.eval()
    x = batch(8)
    assert torch.equal(compiled(x), model(x)) and len(compiled(batch(5))) == 5
    assert counter.frame_count == 3
    model.train()
    assert len(compiled(batch(4))) == factor * 4
    assert counter.frame_count == 3, "back in training, nothing is compiled anew"


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32)


def resnet() -> Built:
    """A ResNet-50 with one narrow block a stage."""
    block, narrow = timm.models.resnet.Bottleneck, (8, 8, 8, 8)
    return timm.models.ResNet(block, (1, 1, 1, 1), num_classes=5, channels=narrow), images


def vit() -> Built:
    """A ViT-S with two narrow blocks."""
    sizes = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_small_patch16_224", **sizes), images


def bert() -> Built:
    model = tiny("BertForSequenceClassification", **NO_DROPOUT)
    return model, lambda n: torch.randint(0, 50, (n, 6))


@pytest.mark.parametrize("network", [resnet, vit, bert])
def test_a_whole_network_compiles_once_for_each_kind_of_pass(network: Callable[[], Built]) -> None:
    """No break, three graphs in all, and the outputs and gradients of eager code."""
    model, batch = network()
    attach(model, example=batch(2), dropout=0.0, verbose=False)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for training, n, graphs in (
        *((True, 8, 1), (True, 8, 1)),
        *((True, 5, 2), (True, 7, 2)),  # the last, smaller batch of an epoch: once more, for all
        *((False, 8, 3), (False, 5, 3)),
        *((True, 8, 3), (True, 4, 3), (False, 6, 3)),
    ):
        model.train(training)
        x, found = batch(n), []
        for forward in (compiled, copy.deepcopy(model)):
            out = forward(x)
            logits = getattr(out, "logits", out).as_subclass(Tensor)
            assert len(logits) == (2 * n if training else n)
            weights = [p for p in forward.parameters() if p.ndim > 1]
            # Of the first layer, and of the encoder, which is the classifier's child.
            wanted = [weights[0], weights[-1]] if training else weights[:1]
            found.append((logits, *torch.autograd.grad(logits.square().sum(), wanted)))
        for mine, eager in zip(*found, strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
        assert counter.frame_count == graphs


# The C++ compiler takes longer than all other tests of this file.
INDUCTOR = pytest.param("one head", "inductor", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "backend"), [*((n, "aot_eager") for n in COMPILED), INDUCTOR])
def test_compiled_is_eager_in_value_and_gradient(name: str, backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    model, batch = COMPILED[name](0.0)
    x, twin = batch(5), copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    expected, actual = twin(x), compiled(x)
    torch.testing.assert_close(actual, torch.Tensor(expected), check_dtype=True)
    wanted = gradients(twin, expected.square().sum())
    given = gradients(model, actual.square().sum())
    assert wanted.keys() == given.keys() == dict(model.named_parameters()).keys()
    for key, value in wanted.items():
        torch.testing.assert_close(given[key], value, rtol=1e-4, atol=1e-5)
    for (key, buffer), (_, other) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(buffer, other, msg=key)


def test_one_sample_compiles_and_warns_outside_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchformer.nn.module._warned_of_single_sample", False)
    model = attached_mlp()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(vectors(4))
    with pytest.warns(UserWarning, match="batch of one sample"):
        out = compiled(vectors(1))
    assert torch.equal(out[0], out[1])
    mine = gradients(model, out.square().sum())
    assert all(not g.any() for key, g in mine.items() if ".batchformer." in key)
    assert sum(".batchformer." in key for key in mine) == 12, "zeros rather than nothing"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(vectors(1))


def test_a_whole_step_compiles_into_one_graph() -> None:
    """Of mixup, whose share changes, and of a weight of the streams, which may be learnt."""
    model, y, x = attached_mlp(0.0), torch.randint(0, 4, (5,)), vectors(5)

    def step(share: float, weight: Any) -> Tensor:
        logits = model(x)
        a, b, part = match(logits, (y, y.flip(0), share))
        mixed = part * F.cross_entropy(logits, a) + (1 - part) * F.cross_entropy(logits, b)
        return mixed + stream_loss(F.cross_entropy, logits, y, mixed_weight=weight)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    learnt = torch.tensor(0.5, requires_grad=True)
    for share, weight in ((0.3, learnt), (0.7, learnt), (0.1, 0.5)):
        torch.testing.assert_close(compiled(share, weight), step(share, weight))


def test_a_compiled_loss_takes_eager_outputs() -> None:
    model = attached_mlp()
    logits, y = model(vectors(5)), torch.randint(0, 4, (5,))
    # Before torch 2.8 the compiler traces into no tensor subclass: the loss is taken, as a break.
    whole = torch.__version__ >= "2.8"
    compiled = torch.compile(nn.CrossEntropyLoss(), backend="aot_eager", fullgraph=whole)
    torch.testing.assert_close(
        compiled(logits, match(logits, y)), F.cross_entropy(logits, match(logits, y))
    )


# Precision.


def test_bfloat16_autocast_trains_and_leaves_eval_alone() -> None:
    model = Net()
    x, y = pictures(6), torch.randint(0, 4, (6,))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        before = model.eval()(x)
    attach(model.train(), verbose=False)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
        loss = F.cross_entropy(logits, match(logits, y))
    assert logits.dtype is torch.bfloat16 and logits.shape == (12, 4)
    given = gradients(model, loss)
    assert all(g.dtype is torch.float32 and g.isfinite().all() for g in given.values())
    assert all(given[key].any() for key in given if key.endswith("linear1.weight"))
    fresh = Net()
    fresh.load_state_dict(plain_state_dict(model.state_dict()))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        after = model.eval()(x)
        assert torch.equal(after, fresh.eval()(x)) and after.shape == before.shape


def vit_steps(steps: int, *, device: str, dtype: torch.dtype, width: int = 384) -> Tensor:
    """Losses of a ViT, of ViT-S by its width, with BatchFormer before each of twelve blocks."""
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_small_patch16_224", img_size=64, num_classes=5, embed_dim=width
    ).to(device)
    attach(model, at=[f"blocks.{index}" for index in range(12)], verbose=False)
    assert len(encoders_of(model)) == 12
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(8, 3, 64, 64, device=device), torch.randint(0, 5, (8,), device=device)
        with torch.autocast(device, dtype):
            logits = model(x)
            loss = F.cross_entropy(logits, match(logits, y))
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    # A scale that only ever halves would mean gradients that are never finite.
    assert not scaler.is_enabled() or scaler.get_scale() >= 1.0
    return torch.stack(losses)


def test_twelve_insertions_stay_finite_for_a_few_steps() -> None:
    assert vit_steps(3, device="cpu", dtype=torch.bfloat16, width=48).isfinite().all()


@pytest.mark.slow
def test_twelve_insertions_stay_finite_in_bfloat16() -> None:
    assert vit_steps(200, device="cpu", dtype=torch.bfloat16).isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_twelve_insertions_stay_finite_on_the_gpu(dtype: torch.dtype) -> None:
    assert vit_steps(200, device="cuda", dtype=dtype).isfinite().all()


# Loops.


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_give_the_same_gradients(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=4, num_classes=5)
    attach(
        model, at=["blocks.1", "blocks.2"], verbose=False
    )  # dropout on: it must be redrawn alike
    twin = copy.deepcopy(model)
    twin.blocks = nn.Sequential(*(Checkpointed(block) for block in twin.blocks))
    x = torch.randn(3, 3, 32, 32)
    found = []
    for each in (model, twin):
        torch.manual_seed(1)
        logits = each(x.clone().requires_grad_())
        assert logits.shape == (6, 5)
        found.append(gradients(each, logits.square().sum()))
    renamed = {key.replace(".block.", "."): value for key, value in found[1].items()}
    assert renamed.keys() == found[0].keys() and len(renamed) == len(list(model.parameters()))
    for key, value in found[0].items():
        torch.testing.assert_close(renamed[key], value)


def test_a_model_that_checkpoints_itself_can_be_attached_and_checked() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)
    model.set_grad_checkpointing()
    attach(model, at="blocks.1", verbose=False)
    result = check(model, torch.randn(3, 3, 32, 32))
    assert result.passed, str(result)


class Recomputed(nn.Module):
    """A block whose forward runs again in the backward pass, with dropout called as a function."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear, self.reentrant = nn.Linear(8, 8), reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inside, x, use_reentrant=self.reentrant)

    def inside(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.1, self.training).relu()


def test_a_recomputed_pass_drops_as_little_as_the_pass_that_check_observed() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Recomputed(reentrant=False), nn.Linear(8, 4))
    attach(model, at="1.linear", verbose=False)
    x = vectors(4)
    result = check(model, x)
    assert result.passed and result.influence == influence(model, x), str(result)


def test_what_cannot_be_measured_in_a_checkpoint_stops_no_training() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Recomputed(reentrant=True), nn.Linear(8, 4))
    attach(model, at="1.linear", verbose=False)
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        influence(model, vectors(4))
    assert watched_influence(model, vectors(4)) is None


def test_functional_calls_use_the_given_parameters() -> None:
    model = attached_mlp(0.0)
    doubled = {name: (2 * p).detach().requires_grad_() for name, p in model.named_parameters()}
    x, twin = vectors(4), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)
    out = torch.func.functional_call(model, doubled, (x,))
    torch.testing.assert_close(torch.Tensor(out), torch.Tensor(twin(x)))
    assert all(g.any() for g in torch.autograd.grad(out.square().sum(), list(doubled.values())))


def test_an_optimizer_that_failed_to_build_does_not_disturb_attach() -> None:
    model = mlp()
    try:
        torch.optim.SGD(model.parameters(), lr=-1.0)
    except ValueError as error:  # its traceback keeps the half-built optimizer alive
        attach(model, verbose=False)
        assert error is not None
    assert len(model(vectors(3))) == 6


# Copies.


def test_an_average_of_the_weights_acts_on_its_own_and_exports_plain() -> None:
    model = attached_mlp(0.0)
    average, x = AveragedModel(model), vectors(4)
    average.update_parameters(model)
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        average.update_parameters(model)
    before = average(x).detach()
    assert len(before) == 8 and not torch.equal(before, model(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(average(x), before), "the average has a BatchFormer of its own"
    result = check(average, x)
    assert result.passed and "attached before" in result.findings[0].seen
    plain = export(average)
    mlp().load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(plain(x), average.eval()(x))
    assert not any("batchformer" in key for m in plain.modules() for key in m.__dict__)


@pytest.mark.parametrize("name", ["two heads", "norms per stream", "several places, one module"])
def test_a_state_dict_goes_round_into_attached_and_plain(name: str, tmp_path: Path) -> None:
    model, batch = COMPILED[name](0.0)
    model(batch(6))  # running statistics move
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    loaded = torch.load(tmp_path / "weights.pt", weights_only=True)
    again, _ = COMPILED[name](0.0)
    again.load_state_dict(loaded, strict=True)
    x = batch(5)
    assert torch.equal(again(x), model(x))
    plain = {"two heads": TwoHeads, "norms per stream": Net}.get(name, lambda: mlp(3))()
    assert set(loaded) > set(plain_state_dict(loaded)) == set(plain.state_dict())
    plain.load_state_dict(plain_state_dict(model.state_dict()), strict=True)
    assert torch.equal(plain.eval()(x), model.eval()(x))


LOAD = """
import sys, torch
plain, attached = sys.argv[1:]
sys.modules["batchformer"] = None  # importing it would fail
model, x, evaluated = torch.load(plain, weights_only=False)
assert torch.equal(model(x), evaluated)
del sys.modules["batchformer"]
model, x, trained, evaluated = torch.load(attached, weights_only=False)
assert torch.equal(model.train()(x), trained) and len(trained) == 2 * len(x)
assert torch.equal(model.eval()(x), evaluated)
import batchformer
assert batchformer.check(model, x)
kept = batchformer.detach(model)
assert type(kept[2]) is torch.nn.Linear and len(kept.train()(x)) == len(x)
"""


def test_pickles_open_in_a_fresh_process(tmp_path: Path) -> None:
    files = tmp_path / "plain.pt", tmp_path / "attached.pt"
    model, x = attached_mlp(0.0), vectors(4)
    trained = model(x).detach()
    torch.save((model, x, trained, model.eval()(x).detach()), files[1])
    plain = export(model)
    torch.save((plain, x, plain(x).detach()), files[0])
    environment = os.environ | {"PYTHONPATH": SOURCE}
    command = [sys.executable, "-W", "ignore", "-c", LOAD, *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# Ranks.


def train_as(rank: int, folder: Path) -> None:
    """Save gradients of three steps: this rank's, and those that DDP averaged."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = attached_mlp(0.0)
    ranked = nn.parallel.DistributedDataParallel(model)
    for step, sizes in enumerate(((1, 4), (3, 5), (4, 1))):
        n = sizes[rank]
        x = torch.randn(n, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        out = model(x)
        assert len(out) == 2 * n
        alone = gradients(model, out.square().mean())
        shared = gradients(model, ranked(x).square().mean())
        torch.save((n, alone, shared), folder / f"{step}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_of_one_and_four_samples_do_not_stall_and_agree(
    run_ranks: Callable[[str, Path, int], None], tmp_path: Path
) -> None:
    run_ranks(__file__, tmp_path, 2)
    for step in range(3):
        both = [torch.load(tmp_path / f"{step}-{rank}.pt", weights_only=True) for rank in range(2)]
        for key in both[0][1]:
            average = (both[0][1][key] + both[1][1][key]) / 2
            for n, alone, shared in both:
                assert torch.equal(shared[key], both[0][2][key]), f"ranks differ in {key}"
                torch.testing.assert_close(shared[key], average)
                if n == 1 and ".batchformer." in key:
                    assert not alone[key].any(), "one sample has nothing to say of attention"


if __name__ == "__main__":
    train_as(int(sys.argv[2]), Path(sys.argv[1]))
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
