"""Training on several ranks is training in one process, in outputs and in every gradient.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from batchformer import BatchFormer, attach, check, split, stream_loss
from batchformer.nn import exchange
from batchformer.nn.attention import attention_across
from batchformer.nn.exchange import AllRows, KeyedDropout

SEED = 11
BUCKET_BYTES = 2048
CLASSES = 5


@dataclass(frozen=True)
class Case:
    """One way to train, and how closely ranks and one process have to agree.

    Attributes:
        sizes: rows of each rank, for each of the parts whose gradients are accumulated.
        wrong: a mistake to be made, which must be seen.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    model: str = "mlp"
    dtype: torch.dtype = torch.float32
    tolerance: float = 1e-5
    layers: int = 1
    dropout: float = 0.0
    attend: str = "batch"
    autocast: bool = False
    compiled: bool = False
    steps: int = 1
    wrong: str = ""


def exact(name: str, *sizes: tuple[int, ...], **options: Any) -> Case:
    return Case(name, sizes, dtype=torch.float64, tolerance=1e-10, **options)


CASES = {
    2: (
        Case("equal", ((4, 4),)),
        Case("3 and 5", ((3, 5),)),
        Case("0 and 4", ((0, 4),)),
        Case("1 and 2, two layers, dropout", ((1, 2),), layers=2, dropout=0.5),
        exact("float64, equal, two layers", (4, 4), layers=2),
        exact("float64, 3 and 5", (3, 5)),
        exact("float64, 4 and 0", (4, 0)),
        exact("float64, dropout 0.5, two layers", (3, 5), dropout=0.5, layers=2),
        exact("float64, three steps, dropout", (3, 5), dropout=0.5, steps=3),
        exact("two parts accumulated", (3, 5), (4, 1), dropout=0.5),
        exact("one module at two places", (3, 5), model="twice", dropout=0.5),
        exact("attend='self'", (3, 1), dropout=0.5, attend="self"),
        exact("tokens (L, N, C)", (3, 5), model="tokens", dropout=0.5, layers=2),
        exact("images (N, C, H, W)", (0, 3), model="images", dropout=0.3),
        exact("one row in all", (0, 1)),
        Case("CNN with GroupNorm", ((3, 5),), model="cnn", dropout=0.5),
        exact("CNN, float64, 0 and 4, three steps", (0, 4), model="cnn", dropout=0.5, steps=3),
        # Sums are of other parts, each rounded to 8 bits.
        Case("bf16 autocast", ((3, 5),), dropout=0.5, autocast=True, tolerance=2e-2),
        exact("compiled", (3, 5), dropout=0.5, compiled=True),
        exact("mean in the backward pass", (4, 4), wrong="backward mean"),
        exact("plain mean as the loss", (3, 5), wrong="plain loss"),
    ),
    3: (
        exact("three equal ranks", (3, 3, 3), dropout=0.5, layers=2),
        exact("5, 1 and 3", (5, 1, 3)),
        exact("0, 6 and 2, CNN", (0, 6, 2), model="cnn", dropout=0.5),
    ),
}
ALL = [case for cases in CASES.values() for case in cases]


class Tokens(nn.Module):
    """Features (L, N, C), read by BatchFormer in the model's own code."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 3 * 16), nn.Linear(16, CLASSES)
        self.batchformer = BatchFormer(16, batch_axis=1, **options)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).view(len(x), 3, 16).transpose(0, 1)
        both = torch.cat((h, self.batchformer(h)), dim=1)
        out: Tensor = self.head(both.mean(0))
        return out


class Images(nn.Module):
    """Features (N, C, H, W)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8 * 6), nn.Linear(8, CLASSES)
        self.batchformer = BatchFormer(8, **options)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).view(len(x), 8, 2, 3)
        out: Tensor = self.head(torch.cat((h, self.batchformer(h))).mean((2, 3)))
        return out


def build(case: Case, *, across: bool) -> nn.Module:
    torch.manual_seed(0)
    options: dict[str, Any] = {"layers": case.layers, "dropout": case.dropout}
    options |= {"exchange": across, "attend": case.attend}
    if case.model in ("tokens", "images"):
        return (Tokens if case.model == "tokens" else Images)(**options).to(case.dtype)
    if case.model == "cnn":
        model = nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )
    else:
        model = nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
        )
    places: Any = {"at": ["2", "4"], "share": True} if case.model == "twice" else {}
    example = torch.randn(3, 6).to(case.dtype)
    model = model.to(case.dtype)
    return attach(model, **places, **options, example=example, verbose=False)


def rows_of(case: Case, part: int) -> tuple[Tensor, Tensor]:
    """The rows of all ranks."""
    draw = torch.Generator().manual_seed(part)
    count = sum(case.sizes[part])
    x = torch.randn(count, 6, generator=draw, dtype=torch.float64).to(case.dtype)
    return x, torch.randint(CLASSES, (count,), generator=draw)


def train(case: Case, rank: int | None) -> dict[str, Any]:
    """Outputs of the last step, and gradients: of one rank, or of one process with all rows.

    Without dropout the one process attends within its batch, as it does without exchange.
    """
    model = build(case, across=rank is not None or case.dropout > 0)
    run: nn.Module = model
    if rank is not None:
        # One compiled rank: if its collectives came in another order, the other one would show it.
        run = torch.compile(model, backend="aot_eager") if case.compiled and not rank else model
        # From the second step on there are several buckets, whose averages and the exchange's sums
        # take turns in the backward pass.
        run = DistributedDataParallel(run, bucket_cap_mb=BUCKET_BYTES / 2**20)
    torch.manual_seed(SEED + (rank or 0))  # rank 0's generator is the one that counts
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs: list[Tensor] = []
    for _ in range(case.steps):
        optimizer.zero_grad()
        outputs.clear()
        for part, sizes in enumerate(case.sizes):
            x, y = rows_of(case, part)
            if rank is not None:
                own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
                x, y = x[own], y[own]
            last = part == len(case.sizes) - 1
            with nullcontext() if rank is None or last else run.no_sync():  # type: ignore[operator]
                with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
                    logits = run(x)
                apart = case.wrong == "plain loss"
                loss = stream_loss(F.cross_entropy, logits.to(case.dtype), y, exchange=not apart)
                (loss / len(case.sizes)).backward()
            outputs.append(logits.detach())
        if case.steps > 1:
            optimizer.step()
    return {
        "outputs": outputs,
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "compiled frames": torch._dynamo.utils.counters["frames"]["ok"],
    }


@contextmanager
def mistakes(case: Case) -> Iterator[None]:
    kept = exchange._summed_own_rows
    if case.wrong == "backward mean":
        exchange._summed_own_rows = lambda x, *rest: kept(x, *rest) / dist.get_world_size()
    try:
        yield
    finally:
        exchange._summed_own_rows = kept


def looks(rank: int) -> dict[str, Any]:
    """What else a rank can see: weights, losses, and that nobody waits for it."""
    case = exact("looks", (2, 3))
    x, _ = rows_of(case, 0)
    own = slice(0, 2) if rank == 0 else slice(2, 5)
    found: dict[str, Any] = {}
    if rank == 0:  # no other rank takes part
        model: Any = build(case, across=True)
        found["check"] = bool(check(model, x))
        found["mixed in eval"] = model[-1].batchformer.eval().mix(torch.ones(2, 16).double())
    for attend in ("batch", "self"):
        torch.manual_seed(1)
        module = BatchFormer(16, layers=2, attend=attend, exchange=True, dtype=torch.float64)
        features = torch.randn(5, 3, 16, dtype=torch.float64)
        found[attend] = module.mix(features[own], return_weights=True)
    try:
        module(torch.randn(2, 3 + rank, 16, dtype=torch.float64))
    except ValueError as error:
        found["refusal"] = str(error)
    return found


def work(rank: int, ranks: int, folder: str) -> None:
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found: dict[str, Any] = {}
    for case in CASES[ranks]:
        with mistakes(case):
            found[case.name] = train(case, rank)
    if ranks == 2:
        found["looks"] = looks(rank)
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(
    run_ranks: Callable[[str, Path, int], None], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[dict[str, Any]]]:
    """What every rank saved, started once: that takes longer than all they do."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(__file__, folder, max(CASES))
    return {
        count: [
            torch.load(folder / f"{rank}of{count}.pt", weights_only=True) for rank in range(count)
        ]
        for count in CASES
    }


def differences(case: Case, by_rank: list[dict[str, Any]]) -> tuple[float, float]:
    """The largest in outputs, and the largest in gradients on any rank."""
    with mistakes(case):
        one = train(case, None)
    outputs = 0.0
    for part, expected in enumerate(one["outputs"]):
        halves = [split(found[case.name]["outputs"][part]) for found in by_rank]
        together = torch.cat([h.plain for h in halves] + [h.mixed for h in halves])
        assert together.shape == expected.shape
        outputs = max(outputs, float((together - expected).abs().max()))
    gradients = 0.0
    for name, expected in one["gradients"].items():
        for found in by_rank:
            got = found[case.name]["gradients"][name]
            assert got is not None, name
            gradients = max(gradients, float((got - expected).abs().max()))
    return outputs, gradients


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_ranks_are_one_process(case: Case, ranks: dict[int, list[dict[str, Any]]]) -> None:
    outputs, gradients = differences(case, ranks[len(case.sizes[0])])
    if case.wrong:
        assert outputs < 1e-10, "the mistake is in the gradients"
        assert gradients > 1e-3
        return
    assert outputs < case.tolerance
    assert gradients < case.tolerance


def test_compilation_left_something_to_compile(ranks: dict[int, list[dict[str, Any]]]) -> None:
    assert [found["compiled"]["compiled frames"] > 1 for found in ranks[2]] == [True, False]


def test_samples_of_other_ranks_matter(ranks: dict[int, list[dict[str, Any]]]) -> None:
    case = next(case for case in ALL if case.name == "float64, 3 and 5")
    x, _ = rows_of(case, 0)
    alone = split(build(case, across=False)(x[:3])).mixed
    gathered = split(ranks[2][0][case.name]["outputs"][0]).mixed
    assert (alone - gathered).abs().max() > 1e-3


def test_weights_are_over_the_samples_of_all(ranks: dict[int, list[dict[str, Any]]]) -> None:
    for attend in ("batch", "self"):
        torch.manual_seed(1)
        module = BatchFormer(16, layers=2, attend=attend, dtype=torch.float64)  # type: ignore[arg-type]
        features = torch.randn(5, 3, 16, dtype=torch.float64)
        mixed, weights = module.mix(features, return_weights=True)
        found = [of_rank["looks"][attend] for of_rank in ranks[2]]
        torch.testing.assert_close(torch.cat([f[0] for f in found]), mixed)
        torch.testing.assert_close(torch.cat([f[1] for f in found], dim=-2), weights)
        assert found[0][1].shape == (2, 3, 4, 2, 5)


def test_one_rank_may_check_and_look(ranks: dict[int, list[dict[str, Any]]]) -> None:
    assert ranks[2][0]["looks"]["check"]
    assert ranks[2][0]["looks"]["mixed in eval"].shape == (2, 16)


def test_ranks_with_other_positions_are_refused(ranks: dict[int, list[dict[str, Any]]]) -> None:
    for found in ranks[2]:
        words = found["looks"]["refusal"]
        assert "samples have [3, 4] positions" in words and "exchange=False" in words


@pytest.mark.parametrize("attend", ["batch", "self"])
@pytest.mark.parametrize("shape", [(5, 8), (5, 3, 8), (2, 8, 2, 3)])
def test_one_process_without_dropout_is_as_without_exchange(
    attend: Any, shape: tuple[int, ...]
) -> None:
    plain = BatchFormer(8, layers=2, dropout=0.0, attend=attend, dtype=torch.float64)
    module = BatchFormer(8, layers=2, dropout=0.0, attend=attend, exchange=True).double()
    module.load_state_dict(plain.state_dict())
    x = torch.randn(shape, dtype=torch.float64)
    state = torch.get_rng_state()
    torch.testing.assert_close(module(x), plain(x))
    assert torch.equal(torch.get_rng_state(), state)
    assert module.eval()(x) is x


def test_blocks_and_fused_kernels_are_the_explicit_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with blocks, whose masks are drawn again in the backward pass."""
    rows = AllRows([7], slice(0, 7), torch.tensor(5))
    for probability in (0.0, 0.4):
        dropout = KeyedDropout(probability, rows.seed)
        found = []
        for budget in (2**26, 2 * 4 * 7 * 4 * 2):
            monkeypatch.setattr("batchformer.nn.attention.BLOCK_BUDGET", budget)
            monkeypatch.setattr("batchformer.nn.attention.EXPLICIT_BUDGET", budget)
            torch.manual_seed(0)
            qkv = torch.randn(2, 7, 24, dtype=torch.float64, requires_grad=True)
            mixed, _ = attention_across(qkv, 2, rows, dropout)
            found.append((mixed, *torch.autograd.grad(mixed.square().sum(), qkv)))
        for explicit, other in zip(*found, strict=True):
            torch.testing.assert_close(explicit, other)


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES  # type: ignore[attr-defined]
    for group in sorted(CASES, reverse=True):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
