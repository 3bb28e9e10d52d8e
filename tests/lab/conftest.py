from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchformer.lab.data.sets.digits import rotated_digits
from batchformer.lab.data.sets.domains import Domains
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.models import faster_rcnn, networks
from batchformer.lab.runs.build import load_task
from batchformer.lab.tasks import domains


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
