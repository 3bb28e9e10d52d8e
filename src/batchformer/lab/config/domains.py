"""Which data of several domains a task uses; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import require

#: The target that stands for every domain, left out one after the other.
EACH = "each"


@dataclass(frozen=True, kw_only=True)
class DomainConfig:
    """Data of several domains."""

    name: Literal[
        "pacs", "vlcs", "office_home", "terra_incognita", "visda", "rotated_digits", "tree"
    ] = "pacs"
    """Which images; "tree" is your own, in folders DOMAIN/CLASS/IMAGE."""
    root: str | None = None
    """Folder of the domains; by default $BATCHFORMER_DATA, else ~/.cache/batchformer, and in it the
    data set's usual name."""
    lists: bool = False
    """Read the lists of images in ROOT/image_list instead of the folders."""
    target: str = EACH
    """The domain that is left out and scored; "each": one run for every domain, and their mean."""
    source: str = ""
    """The one domain that is trained on. Empty: all but the target."""
    size: int = 224
    """Side of the squares that images are cut to."""
    held_out: float = 0.2
    """Share of each domain that is held out for validation, drawn by the seed of the run."""
    scored_on: Literal["all", "in"] = "all"
    """All images of the target, or those not held out, as in the code of SWAD and DomainBed."""
    sampler: Literal["shuffle", "domains"] = "shuffle"
    """Every image of the sources once an epoch, or the same number of each domain in a batch, one
    domain after the other."""
    domains_in_batch: int = 0
    """Sampler of domains: how many a batch has, drawn anew for each; 0: all sources."""
    epoch: int = 0
    """Sampler of domains: updates that are counted as an epoch; 0: as the largest source needs."""
    adapt: bool = False
    """Images of the target, without their labels, in every batch: domain adaptation."""
    augment: Literal["domain", "scale", "centre", "shift"] = "domain"
    """Resized crop, flip, jitter and grey; the same without grey; the middle of the image and a
    flip (VisDA); a shift by a pixel (the digits)."""
    memory: bool = False
    """Read all images once and keep them on the device; they must be squares of one size."""

    @property
    def of_files(self) -> bool:
        """Whether images are read from files."""
        return self.name != "rotated_digits"

    def __post_init__(self) -> None:
        require(self.size >= 1, f"data.size is {self.size}, below 1")
        require(0 <= self.held_out < 1, f"data.held-out is {self.held_out}, outside [0, 1)")
        require(self.domains_in_batch >= 0, "data.domains-in-batch is below 0")
        require(self.epoch >= 0, f"data.epoch is {self.epoch}, below 0")
        by_domain = self.sampler == "domains"
        require(
            by_domain or not (self.domains_in_batch or self.epoch),
            "data.domains-in-batch and data.epoch are for data.sampler domains",
        )
        require(
            not self.adapt or self.target != EACH,
            "adaptation is to one domain; name it by data.target",
        )
        require(
            not self.source or self.target != EACH,
            f"data.source {self.source} is trained on alone, so it is not left out in its turn; "
            "name the domain that is scored by --data.target",
        )
        if self.name == "rotated_digits":
            require(self.root is None, "data.root is for files; the digits are embedded")
            require(self.augment == "shift", "the digits have data.augment shift")
        else:
            require(self.augment != "shift", "data.augment shift is for the digits")
