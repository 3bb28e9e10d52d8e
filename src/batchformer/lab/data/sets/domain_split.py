"""Which images of each domain are trained on and which are held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from batchformer.lab.data.sets.images import exact_floor, split_hash
from batchformer.nn.randomness import generator


def split_domain(
    count: int, fraction: float, seed: int, domain_number: int
) -> tuple[Tensor, Tensor]:
    """Rows of a domain that are kept and rows that are held out, both sorted int64.

    ``floor(fraction * count)`` rows are held out, drawn from (seed, domain number) alone, so the
    split of a domain does not depend on the others.

    Args:
        domain_number: place of the domain among all of its set.

    >>> kept, held = split_domain(count=10, fraction=0.2, seed=0, domain_number=1)
    >>> len(kept), len(held)
    (8, 2)
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be at least 0 and less than 1, got {fraction}")
    order = torch.randperm(count, generator=generator(seed, "split", domain_number))
    held = exact_floor(fraction * count)
    return order[held:].sort().values, order[:held].sort().values


@dataclass(frozen=True)
class DomainSplit:
    """Rows of the source domains for training and for model selection, and of the target domain.

    >>> split = DomainSplit({"a": 10, "b": 20, "c": 30}, ("a", "b"), target="c", seed=0)
    >>> {domain: len(rows) for domain, rows in split.train.items()}, len(split.target_in)
    ({'a': 8, 'b': 16}, 24)
    """

    sizes: Mapping[str, int]  # images of every domain; sorted, their place is their number
    sources: tuple[str, ...]
    target: str
    seed: int
    fraction: float = 0.2  # part of each domain to hold out

    def __post_init__(self) -> None:
        named = (*self.sources, self.target)
        unknown = [domain for domain in named if domain not in self.sizes]
        if unknown:
            raise ValueError(
                f"there is no domain {', '.join(unknown)}; choose of {', '.join(self.sizes)}"
            )
        if not self.sources or len(set(named)) < len(named):
            raise ValueError(
                "sources must be one or more domains, each once, and not the target: got "
                f"{', '.join(self.sources) or 'none'} and the target {self.target}"
            )
        if self.fraction:
            for domain, rows in self.val.items():
                if not len(rows):
                    raise ValueError(
                        f"{domain} has {self.sizes[domain]} images, too few to hold out "
                        f"{self.fraction:g} of them: hold out a larger part, or nothing (0)"
                    )

    @cached_property
    def _rows(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Rows kept and held of each source, then of the target."""
        numbers = {domain: number for number, domain in enumerate(sorted(self.sizes))}
        return {
            domain: split_domain(self.sizes[domain], self.fraction, self.seed, numbers[domain])
            for domain in (*self.sources, self.target)
        }

    @property
    def train(self) -> dict[str, Tensor]:
        """Rows of each source domain to train on."""
        return {domain: self._rows[domain][0] for domain in self.sources}

    @property
    def val(self) -> dict[str, Tensor]:
        """Rows of each source domain that are held out for model selection."""
        return {domain: self._rows[domain][1] for domain in self.sources}

    @property
    def target_in(self) -> Tensor:
        """Rows of the target domain that are not held out."""
        return self._rows[self.target][0]

    @property
    def target_all(self) -> Tensor:
        """All rows of the target domain."""
        return torch.arange(self.sizes[self.target])

    @property
    def split_sha256(self) -> str:
        """Hash of all rows.

        It covers, for each source and then the target: its position among all domains, the number
        of kept rows and these rows, the number of held-out rows and these rows.
        """
        places = sorted(self.sizes)
        words: list[int] = []
        for domain, (kept, held) in self._rows.items():
            words += [places.index(domain), len(kept), *kept.tolist(), len(held), *held.tolist()]
        return split_hash(words)
