"""Shuffled keys on real groups of two and three ranks, for the momentum encoder, PaCo and MoCo.

Run as a script, this file is one of the ranks: it saves what it computed, and the tests check it.
The ranks start once for all tests, because starting them takes longer than what they do.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.losses.paco import paco
from batchformer.lab.methods import build_method
from batchformer.lab.methods.momentum import shuffle, unshuffle
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import seed_for
from helpers.lab_runs import digits_method


@pytest.fixture(scope="module")
def folder(
    run_ranks: Callable[[str, Path, int], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the ranks left."""
    made = tmp_path_factory.mktemp("ranks")
    for name in ("shuffle", "paco", "moco"):
        (made / name).mkdir()
    run_ranks(__file__, made, 3)
    return made


def work(rank: int, folder: Path) -> None:
    """Be a rank of groups of three and then, without the last rank, of two."""
    for ranks in (3, 2):
        if rank < ranks:
            store = f"file://{folder}/store{ranks}"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
            work_shuffle(rank, ranks, str(folder / "shuffle"))
            work_paco(rank, ranks, str(folder / "paco"))
            if ranks == 2:
                work_moco(rank, str(folder / "moco"))
            dist.barrier()
            dist.destroy_process_group()


# The shuffle.


#: Rows of each rank, by the number of ranks.
SIZES = {2: ((4, 4), (3, 5), (0, 4)), 3: ((4, 4, 4), (5, 1, 3), (0, 6, 2))}
SEEDS = (1, 2)


def images_of(rank: int, sizes: tuple[int, ...]) -> Tensor:
    """Images (N, 2, 3, 3), channels last, whose values name the rank and the row."""
    named = 100 * rank + torch.arange(float(sizes[rank])).view(-1, 1, 1, 1)
    pixels = torch.linspace(0, 0.5, 18).view(2, 3, 3)
    return (named + pixels).contiguous(memory_format=torch.channels_last)


def head(images: Tensor) -> Tensor:
    """What is made of the shuffled rows has another shape."""
    return images.flatten(1)[:, :5] * 2


def work_shuffle(rank: int, ranks: int, folder: str) -> None:
    """What one rank of a group does, for every list of sizes."""
    found: list[dict[str, Any]] = []
    for sizes in SIZES[ranks]:
        x = images_of(rank, sizes).requires_grad_()
        shuffles = [shuffle(x, seed) for seed in SEEDS]
        undone = [unshuffle(head(rows), shuffled) for rows, shuffled in shuffles]
        found.append({"shuffled": [rows for rows, _ in shuffles], "undone": undone})
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")


def left(folder: Path, ranks: int) -> list[Any]:
    """What the ranks of a group of this size saved."""
    files = [folder / f"{rank}of{ranks}.pt" for rank in range(ranks)]
    return [torch.load(file, weights_only=True) for file in files]


def test_a_shuffle_between_ranks(folder: Path) -> None:
    for ranks, all_sizes in SIZES.items():
        found = left(folder / "shuffle", ranks)
        for sizes, *by_rank in zip(all_sizes, *found, strict=True):
            assert_every_row_comes_once_and_to_other_ranks(sizes, by_rank)
            assert_undone_exactly(sizes, by_rank)


def assert_every_row_comes_once_and_to_other_ranks(
    sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    everyone = torch.cat([images_of(rank, sizes) for rank in range(len(sizes))])
    orders = []
    for number in range(len(SEEDS)):
        received = [found["shuffled"][number] for found in by_rank]
        assert [len(rows) for rows in received] == list(sizes)
        for rows in received:
            assert rows.is_contiguous(memory_format=torch.channels_last)
            assert not rows.requires_grad
        first = torch.cat(received)[:, 0, 0, 0]
        assert torch.equal(first.sort().values, everyone[:, 0, 0, 0])
        orders.append(first)
        if min(sizes) > 1:
            foreign = [(rows[:, 0, 0, 0] // 100 != r).any() for r, rows in enumerate(received)]
            assert all(foreign), "every rank has rows of another"
    assert not torch.equal(*orders), "another seed is another order"


def assert_undone_exactly(sizes: tuple[int, ...], by_rank: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(by_rank):
        expected = head(images_of(rank, sizes))
        assert all(torch.equal(rows, expected) for rows in found["undone"])


# PaCo.

COUNTS = torch.tensor([50, 20, 10, 5, 1])
HYPER = {"queue": 64, "dim": 4, "alpha": 0.1, "temperature": 0.2, "momentum": 0.9}
#: Rows of each rank, of the ten that one process has, by the number of ranks.
PACO_ROWS = {2: (4, 6), 3: (3, 5, 2)}
MODULES: dict[str, dict[str, Any]] = {"baseline": {"enabled": False}, "both streams": {}}
STEPS = 2


def in_double(module: dict[str, Any], **hyper: Any) -> Any:
    """PaCo in training without dropout, whose two encoders differ."""
    settings = MethodConfig(**{**HYPER, **hyper})  # type: ignore[arg-type]
    method = digits_method("paco", COUNTS, settings, dropout=0.0, **module)
    with torch.no_grad():
        for weight in [*method.key_network.parameters(), *method.key_projection.parameters()]:
            weight.mul_(0.9)
    return method.double().train()


def ten_samples() -> dict[str, Tensor]:
    """Two views of ten images, brighter from one to the next, so that parts differ."""
    draw = torch.Generator().manual_seed(1)
    views = torch.randn(2, 10, 1, 8, 8, generator=draw, dtype=torch.float64)
    views = views + 0.3 * torch.arange(10).view(10, 1, 1, 1)
    return {"x": views[0], "view2": views[1], "y": torch.arange(10) % 5}


def steps_of(method: Any, samples: dict[str, Tensor]) -> dict[str, Any]:
    """What steps leave; weights stay, and the order of the keys is another one in each."""
    losses = []
    for _ in range(STEPS):
        losses.append(method.step(samples)["loss"].detach())
        method.updates.add_(1)
    means = method.key_network.bn1.running_mean, method.key_projection.norm.running_mean
    queue = method.queue
    return {
        "losses": losses,
        "keys": queue.keys[queue.valid],
        "labels": queue.labels[queue.valid],
        "means": means,
    }


def loss_of(
    method: Any, queries: Tensor, keys: Tensor, held: Tensor, rows: Tensor, *labels: Tensor
) -> Tensor:
    """PaCo's loss of these queries, with the method's centres for their rows."""
    centres = method.network.fc(rows)
    options: dict[str, Any] = {"alpha": 0.1, "temperature": 0.2}
    full = torch.ones(len(held), dtype=torch.bool)
    return paco(queries, keys, held, centres, *labels, COUNTS, **options, queue_valid=full)


def work_paco(rank: int, ranks: int, folder: str) -> None:
    rows = slice(sum(PACO_ROWS[ranks][:rank]), sum(PACO_ROWS[ranks][: rank + 1]))
    own = {name: value[rows] for name, value in ten_samples().items()}
    found = {name: steps_of(in_double(module), own) for name, module in MODULES.items()}
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")


def keys_of_groups(method: Any, images: Tensor, order: Tensor, sizes: tuple[int, ...]) -> Any:
    """One process's keys (streams, 10, D), where each group of a shuffled batch is a batch.

    Also the means that the first and the last normalisation of each group kept.
    """
    found, means = [], []
    for encoders, group in zip(method.encoders, order.split(sizes), strict=True):
        method.key_network, method.key_projection = encoders
        made = method.keys(images[group])
        found.append(made.view(-1, len(group), made.shape[1]))
        means.append((encoders[0].bn1.running_mean, encoders[1].norm.running_mean))
    return torch.cat(found, 1)[:, order.argsort()], means


def assert_ranks_are_groups_of_one_batch(
    name: str, sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    method, samples = in_double(MODULES[name]), ten_samples()
    fast, slow = (method.network, method.projection), (method.key_network, method.key_projection)
    method.encoders = [copy.deepcopy(slow) for _ in sizes]
    own_fast = [copy.deepcopy(fast) for _ in sizes]
    held, held_labels = torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(seed_for(0, "order", step, 2))
        order = torch.randperm(10, generator=draw)
        keys, means = keys_of_groups(method, samples["view2"], order, sizes)
        parts = torch.arange(10).split(sizes)
        for rank, (part, found) in enumerate(zip(parts, by_rank, strict=True)):
            method.network, method.projection = own_fast[rank]
            rows = method.streams(method.features(samples["x"][part]))
            labels = samples["y"][part].repeat(len(keys))
            own = keys[:, part].flatten(0, 1)
            expected = loss_of(
                method, method.projection(rows), own, held, rows, labels, held_labels
            )
            torch.testing.assert_close(found["losses"][step], expected.detach())
        held = torch.cat([held, keys.flatten(0, 1)])
        held_labels = torch.cat([held_labels, samples["y"].repeat(len(keys))])
    for rank, found in enumerate(by_rank):
        torch.testing.assert_close(found["keys"], held)
        assert torch.equal(found["labels"], held_labels)
        torch.testing.assert_close(found["means"], means[rank])


def test_losses_queue_and_statistics_of_paco_are_those_of_one_process(folder: Path) -> None:
    for ranks, sizes in PACO_ROWS.items():
        got = left(folder / "paco", ranks)
        for name in MODULES:
            assert_ranks_are_groups_of_one_batch(name, sizes, [found[name] for found in got])


@pytest.mark.parametrize("name", MODULES)
def test_parts_on_one_device_are_what_a_loop_over_them_computes(name: str) -> None:
    method, plain = in_double(MODULES[name], norm_parts=2), in_double(MODULES[name])
    samples = ten_samples()
    torch.manual_seed(3)
    found = method.step(samples)["loss"]
    torch.manual_seed(3)
    order = torch.rand(10).argsort()
    halves = torch.arange(10).split(5)
    features = torch.cat([plain.features(samples["x"][half]) for half in halves])
    rows = plain.streams(features).view(-1, 10, features.shape[1])
    made = [plain.projection(rows[:, half].flatten(0, 1)).view(-1, 5, 4) for half in halves]
    queries = torch.cat(made, 1)
    network: Any = plain.key_network
    features = torch.empty_like(features)
    for part in (order[0::2], order[1::2]):
        features[part] = network.forward_features(samples["view2"][part]).detach()
    slow_rows = plain.streams(features).view(-1, 10, features.shape[1])
    keys = torch.empty_like(queries)
    for part in (order[0::2], order[1::2]):
        keys[:, part] = plain.key_projection(slow_rows[:, part].flatten(0, 1)).view(-1, 5, 4)
    keys = keys.detach().flatten(0, 1)
    nothing = torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64)
    labels, queries = samples["y"].repeat(len(rows)), queries.flatten(0, 1)
    expected = loss_of(plain, queries, keys, nothing[0], rows.flatten(0, 1), labels, nothing[1])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(method.queue.keys[: len(keys)], keys)
    found.backward()
    expected.backward()  # type: ignore[no-untyped-call]
    wanted = dict(plain.named_parameters())
    for key, weight in method.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, wanted[key].grad, msg=key)


def test_arms_shuffle_alike() -> None:
    samples, taken = ten_samples(), []
    for module in MODULES.values():
        method = in_double(module, norm_parts=2)
        seen = method.keys

        def watch(x: Tensor, seen: Any = seen) -> Any:
            taken.append(x)
            return seen(x)

        method.keys = watch
        torch.manual_seed(5)
        method.step(samples)
    assert torch.equal(*taken) and not torch.equal(taken[0], samples["view2"])
    assert sorted(taken[0].sum((1, 2, 3)).tolist()) == pytest.approx(
        sorted(samples["view2"].sum((1, 2, 3)).tolist())
    )


# MoCo.

#: Rows of each rank, of the ten that one process has.
ROWS = (4, 6)
#: Without another sample's influence: alone, or each attending to itself.
ALONE: list[dict[str, Any]] = [{"enabled": False}, {"attend": "self", "dropout": 0.0}]
MOCO = ("moco_v2", "moco_v3")
MOCO_HYPER = {"queue": 32, "dim": 4, "temperature": 0.2, "momentum": 0.9, "projection_hidden": 16}


def moco(name: str, module: dict[str, Any], **hyper: Any) -> Any:
    torch.manual_seed(0)
    return build_method(
        name,
        network=build_model("digits_net", 5).double(),
        module=ModuleConfig(**module),
        seed=0,
        hyper=MethodConfig(**{**MOCO_HYPER, **hyper}),  # type: ignore[arg-type]
    ).double()


def without_statistics(module: nn.Module) -> None:
    for name, part in module.named_children():
        if isinstance(part, _BatchNorm):
            setattr(module, name, nn.Identity())
        else:
            without_statistics(part)


def two_steps(name: str, module: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Losses, a gradient and the queue after two steps on some of ten samples."""
    method = moco(name, module)
    without_statistics(method)
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(2, 2, 10, 1, 8, 8, generator=draw, dtype=torch.float64)
    losses = []
    for views in images:
        method.zero_grad()
        found = method.step({"x": views[0][rows], "view2": views[1][rows]})
        found["loss"].backward()
        losses.append(found["loss"].detach())
    found = {"losses": torch.stack(losses), "gradient": method.head[0].weight.grad}
    if name == "moco_v2":
        found["queue"] = method.queue.keys
    return found


def statistics(rows: slice) -> Tensor:
    """Of the first normalisation of the keys' encoder of MoCo-v2, after some of ten samples."""
    method = moco("moco_v2", {"enabled": False})
    images = torch.randn(10, 1, 8, 8).double() + torch.arange(10.0).view(10, 1, 1, 1)
    method.train().key_streams(images[rows])
    mean: Tensor = method.key_network.bn1.running_mean
    return mean


def in_four_parts(rows: slice) -> dict[str, Tensor]:
    """Features of MoCo-v2 for some of eight samples, normalised in four parts, and a gradient."""
    method = moco("moco_v2", {"enabled": False}, norm_parts=4)
    images = torch.randn(8, 1, 8, 8, dtype=torch.float64)
    features = method.train().features(images[rows])
    (features * torch.linspace(-1, 1, 8, dtype=torch.float64)[rows, None]).sum().backward()
    return {"features": features.detach(), "gradient": method.network.conv1.weight.grad}


def work_moco(rank: int, folder: str) -> None:
    rows = slice(sum(ROWS[:rank]), sum(ROWS[: rank + 1]))
    found = {f"{name} {i}": two_steps(name, m, rows) for name in MOCO for i, m in enumerate(ALONE)}
    parts = in_four_parts(slice(4 * rank, 4 * rank + 4))
    torch.save((found, statistics(rows), parts), f"{folder}/{rank}of2.pt")


def test_two_ranks_of_moco_are_one_batch(folder: Path) -> None:
    got, means, parts = zip(*left(folder / "moco", 2), strict=True)
    for name in MOCO:
        for i, module in enumerate(ALONE):
            one, ranks = two_steps(name, module, slice(0, 10)), [r[f"{name} {i}"] for r in got]
            for part in ("losses", "gradient"):
                mean = sum(n / 10 * r[part] for n, r in zip(ROWS, ranks, strict=True))
                torch.testing.assert_close(mean, one[part], msg=f"{part} of {name}, {module}")
            if name == "moco_v2":
                for found in ranks:
                    torch.testing.assert_close(found["queue"], one["queue"])
    one = in_four_parts(slice(0, 8))
    torch.testing.assert_close(torch.cat([rank["features"] for rank in parts]), one["features"])
    torch.testing.assert_close(sum(rank["gradient"] for rank in parts), one["gradient"])
    # Keys of a rank were normalised with samples of the other.
    assert not torch.isclose(means[0], statistics(slice(0, 4))).all()


if __name__ == "__main__":
    work(int(sys.argv[2]), Path(sys.argv[1]))
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
