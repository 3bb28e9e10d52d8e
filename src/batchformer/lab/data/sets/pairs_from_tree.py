"""A table of pairs from images of several domains: domain and class are attribute and object."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from batchformer.lab.data.sets.domains import domain_tree
from batchformer.lab.data.sets.images import exact_floor
from batchformer.lab.data.sets.pairs import Pair, PairImage, Phase
from batchformer.nn.randomness import generator

Fractions = tuple[float, float, float]


def make_pairs(
    root: str | Path,
    unseen_val: int,
    unseen_test: int,
    seed: int,
    fractions: Fractions = (0.6, 0.2, 0.2),
) -> list[PairImage]:
    """Images of a tree ``<domain>/<class>/<image>``, split into three parts and sorted by path.

    All images of an unseen pair go to validation, or all go to the test. Those of a seen pair are
    split over the three parts by `fractions`, at least one for training. Every domain and every
    class stays in a seen pair, and in two as far as the number of unseen pairs allows. The same
    tree and seed give the same parts.
    """
    _check_fractions(fractions)
    if min(unseen_val, unseen_test) < 0:
        raise ValueError(
            f"numbers of unseen pairs must be 0 or more, got {unseen_val} and {unseen_test}"
        )
    found = domain_tree(root)
    members: dict[Pair, list[str]] = {}
    for domain, part in zip(found.domains, found.parts, strict=True):
        for path, label in zip(part.paths, part.labels.tolist(), strict=True):
            members.setdefault((domain, found.classes[label]), []).append(path)
    pairs = sorted(members)
    unseen = draw_unseen(pairs, unseen_val + unseen_test, seed)
    phases: dict[Pair, Phase] = {
        pair: "val" if place < unseen_val else "test" for place, pair in enumerate(unseen)
    }
    images: list[PairImage] = []
    for number, pair in enumerate(pairs):
        paths = sorted(members[pair])
        phase = phases.get(pair)
        if phase is None:
            split = split_images(len(paths), fractions, seed, number)
        else:
            split = [phase] * len(paths)
        images += [PairImage(path, *pair, part) for path, part in zip(paths, split, strict=True)]
    return sorted(images)


def draw_unseen(pairs: Sequence[Pair], count: int, seed: int) -> list[Pair]:
    """Draw unseen pairs, in random order, so that every word stays in a seen pair.

    Pairs are taken in a random order if their attribute and their object keep two seen pairs each.
    If these are too few, pairs whose words keep one seen pair follow.

    >>> square = [(a, o) for a in ("old", "wet") for o in ("cat", "dog")]
    >>> unseen = draw_unseen(square, 2, seed=0)
    >>> len({a for a, _ in unseen}), len({o for _, o in unseen})
    (2, 2)
    """
    draw = generator(seed, "split")
    order = [pairs[place] for place in torch.randperm(len(pairs), generator=draw).tolist()]
    seen = Counter(word for pair in pairs for word in enumerate(pair))
    taken: list[Pair] = []
    for kept in (2, 1):
        for pair in order:
            words = list(enumerate(pair))
            if len(taken) < count and pair not in taken and min(seen[w] for w in words) > kept:
                taken.append(pair)
                seen.subtract(words)
    if len(taken) < count:
        raise ValueError(
            f"{count} unseen pairs are wanted, and this seed finds {len(taken)} of {len(pairs)} "
            "that leave every attribute and object in a seen pair: ask for fewer "
            "(--unseen-val and --unseen-test), or try another --seed"
        )
    return [taken[place] for place in torch.randperm(count, generator=draw).tolist()]


def split_images(count: int, fractions: Fractions, seed: int, number: int) -> list[Phase]:
    """The part of each image of one seen pair; the remainder goes to training.

    The number of the pair gives each pair its own draw.

    >>> sorted(split_images(10, (0.6, 0.2, 0.2), seed=0, number=3))
    ['test', 'test', 'train', 'train', 'train', 'train', 'train', 'train', 'val', 'val']
    """
    val, test = (exact_floor(fraction * count) for fraction in fractions[1:])
    val = min(val, count - 1)
    test = min(test, count - 1 - val)
    phases: list[Phase] = ["train"] * (count - val - test)
    phases += ["val"] * val
    phases += ["test"] * test
    order = torch.randperm(count, generator=generator(seed, "split", number))
    return [phases[place] for place in order.tolist()]


def _check_fractions(fractions: Fractions) -> None:
    train, val, test = fractions
    if not (train > 0 and min(val, test) >= 0 and math.isclose(sum(fractions), 1, abs_tol=1e-6)):
        raise ValueError(
            "fractions are those of training, validation and test: the first more than 0, the "
            f"others 0 or more, 1 together; got {', '.join(map(str, fractions))}"
        )
