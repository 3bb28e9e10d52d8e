from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from batchformer.lab.data.sets.digits import rotated_digits
from batchformer.lab.data.sets.domains import Domains
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.models import faster_rcnn, networks
from batchformer.lab.recipes.paper import ROWS, PaperRow
from batchformer.lab.runs.build import load_task
from batchformer.lab.tasks import domains


def find(table: str, data: str, model: str, method: str, arm: str) -> PaperRow:
    wanted = (table, data, model, method, arm)
    found = [r for r in ROWS if (r.table, r.data, r.model, r.method, r.arm) == wanted]
    assert len(found) == 1, wanted
    return found[0]


@pytest.fixture(scope="session")
def find_row() -> Callable[[str, str, str, str, str], PaperRow]:
    """The one row of the paper with this table, data set, network, method and arm."""
    return find


def three_of_the_angles() -> Domains:
    """60 of the rotated digits at 0, 45 and 75 degrees."""
    whole = rotated_digits()
    names = ("r0", "r45", "r75")
    kept = [whole.parts[whole.domains.index(name)] for name in names]
    parts = tuple(ImageSplit(part.x[:60], part.labels[:60]) for part in kept)
    return Domains(whole.name, names, whole.classes, parts)


@pytest.fixture(scope="module")
def three_angles() -> Iterator[None]:
    """Rotated digits with fewer angles and images, for runs over every target."""
    caches = (domains.read_domains, load_task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domains, "rotated_digits", three_of_the_angles)
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNets for CIFAR with one block in each stage, of the usual five."""
    stage = networks._stage
    monkeypatch.setattr(networks, "_stage", lambda a, b, blocks, stride: stage(a, b, 1, stride))


@pytest.fixture
def few_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow detectors that look at a few of the regions that they propose."""
    for name, value in {"REGIONS": 8, "PYRAMID": 16, "HIDDEN": 32}.items():
        monkeypatch.setattr(faster_rcnn, name, value)
    few = {"training": (100, 50), "testing": (100, 12)}
    monkeypatch.setattr(faster_rcnn, "PROPOSALS", {"c4": few, "fpn": few})


#: What gives weights their first values.
FIRST_VALUES = (
    *("uniform_", "normal_", "trunc_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_"),
)


@contextmanager
def without_first_values() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in FIRST_VALUES:
            patch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield


@pytest.fixture(scope="session")
def only_built() -> Callable[[], AbstractContextManager[None]]:
    """Within it networks have no values: drawing them takes longer than all else of a build."""
    return without_first_values
