"""Which images of attributes and objects a task uses; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import require


@dataclass(frozen=True, kw_only=True)
class PairConfig:
    """Images that show an attribute and an object; some pairs of them are never trained on."""

    name: Literal["mit_states", "ut_zappos", "c_gqa", "table"] = "mit_states"
    """Which images; "table" is your own, by a .csv of image, attribute, object and split."""
    root: str | None = None
    """Folder of the set, by default in $BATCHFORMER_DATA, else in ~/.cache/batchformer; of your own
    images, the folder that the paths of the table start from."""
    table: str | None = None
    """Your own: the .csv, with the columns image, attribute, object and split (train, val, test).
    `batchformer data pairs` makes one of a tree DOMAIN/CLASS/IMAGE."""
    world: Literal["closed", "open"] = "closed"
    """Which pairs an image can be said to show: those of the set, or every attribute with every
    object."""
    mask: bool = False
    """Open world: leave out pairs whose feasibility is below a threshold chosen on validation."""
    vectors: tuple[str, ...] = ()
    """Files of word vectors (GloVe, word2vec or fastText, as text); several are put side by side.
    A relative path is also looked for in the folder of the data."""
    replacements: tuple[str, ...] = ()
    """Words for which another has a vector, as WORD=OTHER."""
    missing_words: Literal["raise", "random"] = "raise"
    """What to do about names of which no part has a vector: stop and list them, or draw one."""
    size: int = 224
    """Side of the squares that images are cut to; at test the middle of 8/7 of it."""
    augment: Literal["resized", "none"] = "resized"
    """Resized crop and flip, or as at test, which a frozen network sees once and for all."""
    memory: bool = False
    """Read all images once and keep them on the device; they must be of one size."""

    @property
    def of_files(self) -> bool:
        """Images are read from files."""
        return True

    def __post_init__(self) -> None:
        require(self.size >= 1, f"data.size is {self.size}, below 1")
        own = self.name == "table"
        require(not own or bool(self.table), "your own pairs are in a table; name it: data.table")
        require(own or self.table is None, f"data.table is for your own images, not {self.name}")
        require(self.world == "open" or not self.mask, "data.mask is for data.world open")
        for pair in self.replacements:
            require("=" in pair, f"data.replacements has {pair!r}, and needs WORD=OTHER")
