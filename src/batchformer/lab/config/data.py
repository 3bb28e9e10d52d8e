"""Which data a task uses, by the family of experiments; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from batchformer.lab.config.training import at_least, below_one, require, require_limits

#: Data sets that are read from image files.
FILES = ("imagenet", "imagenet_lt", "inaturalist18", "places_lt", "folder")
#: Those that are published with a third list, for choosing settings.
WITH_VAL_LIST = ("imagenet_lt", "places_lt")
#: Augmentations of image files.
OF_FILES = ("jitter", "resized", "paco", "simclr", "deit")
DomainSet = Literal[
    "pacs", "vlcs", "office_home", "terra_incognita", "visda", "rotated_digits", "tree"
]
PairSet = Literal["mit_states", "ut_zappos", "c_gqa", "table"]
SamplerName = Literal["shuffle", "class_balanced", "repeated", "mates"]
#: The target that stands for every domain, left out one after the other.
EACH = "each"


class _Data:
    """What the laboratory asks of data of any kind; each kind overrides what differs."""

    name: str
    #: ``FILE:CLASS`` in ``batchformer.lab.tasks``, which reads the data and scores networks on it.
    loader: ClassVar[str]
    #: Whether these are labelled images of one domain.
    long_tailed: ClassVar[bool] = False

    @property
    def of_files(self) -> bool:
        """Whether the data is read from files when it is needed; else it is in memory."""
        return True

    @property
    def parts(self) -> Literal["", "epochs", "domains"]:
        """Why a run consists of several trainings, if it does."""
        return ""

    def images(self) -> Any:
        """The labelled data; for data without labels, the same images with labels to score it."""
        return self

    def words(self) -> str:
        """The data in a few words."""
        return self.name

    def idle(self) -> set[str]:
        """Settings of this kind of data that have no effect on this data set."""
        return set()


@dataclass(frozen=True, kw_only=True)
class LongTailConfig(_Data):
    """Long-tailed data."""

    long_tailed = True

    name: Literal[
        "cifar10",
        "cifar100",
        "digits",
        "imagenet",
        "imagenet_lt",
        "inaturalist18",
        "places_lt",
        "folder",
    ] = "cifar100"
    """Which images; "folder" is your own, in folders of classes or by lists."""
    ratio: float = at_least(1, 100.0)
    """Images of the largest class over those of the smallest, where the tail is drawn here."""
    profile: Literal["exponential", "step"] = "exponential"
    """How class sizes fall."""
    seed: int = at_least(0, 0)
    """Seed by which images are drawn; the same for all runs, so that arms and seeds share one
    training set."""
    root: str | None = None
    """Folder or .npz file; by default $BATCHFORMER_DATA, else ~/.cache/batchformer. It has your own
    images in train/<class>/ and test/<class>/ (or val/<class>/); or in <class>/ alone, and a fifth
    of each class is held out as the test set, drawn by data.seed."""
    train_list: str | None = None
    """Image files: list of the training images, one `path label` a line, or a .csv with these
    columns; paths are relative to data.root."""
    test_list: str | None = None
    """Image files: list of the test images."""
    per_class: int = at_least(0, 0)
    """Image files: train on at most this many images of each class. They are the first of an order
    drawn by data.seed, so that a smaller set is contained in a larger one. 0: all images."""
    min_images: int = at_least(0, 0)
    """Train and score only classes with at least this many training images. The remaining
    classes keep their order and are numbered from 0. Each expert of lfme has such a part."""
    max_images: int = 0
    """The same for classes with at most this many; 0: no bound."""
    size: int = at_least(1, 224)
    """Image files: side of the square crop; at test the centre of an image of 8/7 that side."""
    scored_on: Literal["test", "val"] = "test"
    """imagenet_lt, places_lt: which of the published lists is scored."""
    shots: Literal["counts", "thirds"] = "counts"
    """Many (> 100 training images), medium, few (< 20), or thirds of the classes by count."""
    augment: Literal[
        "autoaugment", "standard", "rotation", "paco", "jitter", "resized", "simclr", "deit"
    ] = "autoaugment"
    """Augmentation of training images. CIFAR: autoaugment is crop, flip, AutoAugment and Cutout;
    standard is crop and flip; rotation is crop, flip and rotation (RIDE). Image files: jitter is
    resized crop, flip and colour jitter; resized is resized crop and flip; simclr is two views as
    SimCLR's; deit is resized crop, flip, RandAugment and erasing. Both: paco is two views, the
    second as SimCLR's. The digits have an augmentation of their own."""
    sampler: SamplerName = "shuffle"
    """shuffle: every image once an epoch; class_balanced: every class equally often; repeated: a
    third of the images three times (DeiT); mates: half of the images of shuffle, each followed by
    another image of its class, and every image twice in two epochs."""
    per_turn: int = at_least(1, 1)
    """data.sampler class_balanced: images that a class gives one after the other; with 4, a batch
    of 128 has 32 classes (OLTR, LFME)."""
    scores: Literal["shots", "top", "both"] = "shots"
    """Accuracy by shots, among the highest answers (top1, top5), or both."""
    views: Literal["none", "moco_v2", "byol"] = "none"
    """knn: the two views of test images that alignment is measured on, beside uniformity and
    feature_std; choose data.views of the run that learnt the features."""
    meta_batch: int = at_least(0, 0)
    """balms: samples of the second, class-balanced batch of each update; 0: none."""
    meta_from: Literal["train", "val"] = "train"
    """balms: where the second batch comes from. lfme: images on which the student's accuracy is
    measured. "val" is a list of imagenet_lt and places_lt."""
    paired: Literal["none", "reversed"] = "none"
    """bbn: the image beside each image of a batch; "reversed" draws its class by the inverse of the
    class's size, so that rare classes come most often."""

    @property
    def loader(self) -> str:  # type: ignore[override]
        return "image_files:ImageFileTask" if self.of_files else "long_tailed:LongTailedTask"

    @property
    def of_files(self) -> bool:
        return self.name in FILES

    def words(self) -> str:
        named = self.name if self.of_files else f"{self.name} r={self.ratio:g}"
        least, most = max(self.min_images, 1), self.max_images
        bounds = f"{least}-{most}" if most else f"{least}+"
        return named if bounds == "1+" else f"{named}, {bounds}"

    def idle(self) -> set[str]:
        idle = {"ratio", "profile"} if self.of_files else {"train_list", "test_list", "per_class"}
        if not self.of_files:
            idle.add("size")
        if self.sampler != "class_balanced":
            idle.add("per_turn")
        if self.name not in WITH_VAL_LIST:
            idle |= {"scored_on", "meta_from"}
        if self.name == "digits":
            idle |= {"root", "profile", "augment"}
        return idle

    def __post_init__(self) -> None:
        require_limits(self, "data")
        require(
            not self.meta_batch or self.paired == "none",
            "data.meta-batch and data.paired are two kinds of a second batch; set one of them",
        )
        require(
            self.max_images == 0 or self.max_images >= max(self.min_images, 1),
            f"data.max-images is {self.max_images}, below data.min-images {self.min_images}",
        )
        require(
            self.per_turn == 1 or self.sampler == "class_balanced",
            f"data.per-turn {self.per_turn} is for data.sampler class_balanced, and it is "
            f"{self.sampler}",
        )
        require(
            self.of_files or not self.per_class,
            f"data.per-class is for image files; {self.name} is shortened by data.ratio",
        )
        no_lists = self.train_list is None and self.test_list is None
        if self.name == "digits":
            require(self.root is None, "data.root is for files; the digits are embedded")
            require(self.profile == "exponential", "the digits have the exponential profile only")
            own = self.augment in ("autoaugment", "paco")
            require(own, "the digits have their own augmentation; leave data.augment autoaugment")
        elif self.of_files:
            known = ", ".join(OF_FILES)
            right = self.augment in OF_FILES
            require(right, f"{self.name} has data.augment {known}, not {self.augment}")
        else:
            right = self.augment not in OF_FILES or self.augment == "paco"
            require(right, f"data.augment {self.augment} is for image files, not {self.name}")
            require(no_lists, f"{self.name} has no lists; data.train-list is for image files")
        require(no_lists or self.name != "imagenet", "imagenet has no lists; use the name folder")
        val = "val" in (self.scored_on, self.meta_from)
        require(
            self.name in WITH_VAL_LIST or not val,
            f"{self.name} has no list val; leave data.scored-on test and data.meta-from train",
        )
        require(
            (self.scored_on, self.meta_from) != ("val", "val"),
            "images of the list val would be scored and also teach (data.meta-from val); set "
            "data.scored-on test, or data.meta-from train",
        )


@dataclass(frozen=True, kw_only=True)
class ContrastConfig(_Data):
    """Images in two views, without their labels; labels are used only to score features."""

    loader = "contrastive:ContrastiveTask"

    name: Literal["cifar10", "cifar100", "digits", "imagenet", "imagenet_lt", "folder"] = "cifar100"
    """Which images; "folder" is your own, in folders of classes or by lists."""
    ratio: float = at_least(1, 100.0)
    """Images of the largest class over those of the smallest, where the tail is drawn here; 1: all
    images."""
    seed: int = at_least(0, 0)
    """Seed by which images are drawn; the same for all runs."""
    root: str | None = None
    """Folder or .npz file; by default $BATCHFORMER_DATA, else ~/.cache/batchformer."""
    train_list: str | None = None
    """Image files: list of the training images, one `path label` a line, or a .csv with these
    columns; paths are relative to data.root."""
    test_list: str | None = None
    """Image files: list of the test images."""
    size: int = at_least(1, 224)
    """Image files: side of the square crop."""
    views: Literal["moco_v2", "byol"] = "moco_v2"
    """moco_v2: both views by the same augmentation; byol (MoCo-v3): the first is always blurred,
    the second rarely blurred and sometimes solarised. CIFAR is not blurred; the digits are
    shifted."""

    def __post_init__(self) -> None:
        require_limits(self, "data")
        self.images()

    def words(self) -> str:
        return self.images().words()

    def idle(self) -> set[str]:
        return self.images().idle()

    def images(self, **changes: Any) -> LongTailConfig:
        """The same images with their labels, for scoring.

        Args:
            changes: settings of the labelled data that differ.
        """
        shared = {name: value for name, value in vars(self).items() if name != "views"}
        augment = "resized" if self.name in FILES else "autoaugment"
        return LongTailConfig(**{**shared, "augment": augment, **changes})


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(_Data):
    """Images with boxes, in the folders of Pascal VOC or of COCO."""

    loader = "detection:DetectionTask"

    name: Literal["voc", "coco"] = "voc"
    """Layout of the folders."""
    root: str | None = None
    """voc: folder VOCdevkit, with VOC2007 and others in it; coco: folder with annotations/ and
    folders of images; by default in $BATCHFORMER_DATA, else ~/.cache/batchformer."""
    trained_on: tuple[str, ...] = ("2007/trainval", "2012/trainval")
    """Training images. voc: each as year/list, VOC<year>/ImageSets/Main/<list>.txt; coco: each as a
    list such as train2017, annotations/instances_<list>.json with images in <list>/."""
    scored_on: tuple[str, ...] = ("2007/test",)
    """Images that are scored, written in the same way."""
    shorter: tuple[int, ...] = tuple(range(480, 801, 32))
    """Lengths of the shorter side in training, one drawn for each image."""
    shorter_at_test: int = 800
    """Length of the shorter side at test."""
    longest: int = 1333
    """Largest length of the longer side."""
    difficult: bool = True
    """Train on objects that are marked as difficult; they are never scored."""
    precise_norm: int = at_least(0, 0)
    """Training batches over which batch-norm statistics are measured again before every scoring
    (detectron2's precise-BN); 0: keep the running statistics."""

    def idle(self) -> set[str]:
        return {"difficult"} if self.name == "coco" else set()

    def __post_init__(self) -> None:
        require_limits(self, "data")
        require(bool(self.trained_on) and bool(self.scored_on), "data names no list of images")
        example, parts = ("2007/trainval", 2) if self.name == "voc" else ("train2017", 1)
        for name in (*self.trained_on, *self.scored_on):
            right = len(name.split("/")) == parts and all(name.split("/"))
            require(right, f"{name!r} is no list of images; write it as {example}")
        sides = (*self.shorter, self.shorter_at_test)
        require(bool(self.shorter) and min(sides) >= 1, "data.shorter has no length of a side")
        most = "shorter-at-test" if self.shorter_at_test == max(sides) else "shorter"
        require(
            self.longest >= max(sides),
            f"data.longest is {self.longest}, below data.{most}, {max(sides)}",
        )


@dataclass(frozen=True, kw_only=True)
class DomainConfig(_Data):
    """Data of several domains."""

    loader = "domains:DomainTask"

    name: DomainSet = "pacs"
    """Which images; "tree" is your own, in folders DOMAIN/CLASS/IMAGE."""
    root: str | None = None
    """Folder of the domains; by default the data set's usual name in $BATCHFORMER_DATA, else in
    ~/.cache/batchformer."""
    lists: bool = False
    """Read the lists of images in ROOT/image_list instead of the folders."""
    target: str = EACH
    """The domain that is left out and scored; "each": one run for every domain, and their mean."""
    source: str = ""
    """The one domain that is trained on. Empty: all but the target."""
    size: int = at_least(1, 224)
    """Side of the square crop."""
    held_out: float = below_one(0.2)
    """Share of each domain that is held out for validation, drawn by the seed of the run."""
    scored_on: Literal["all", "in"] = "all"
    """All images of the target, or those not held out, as in the code of SWAD and DomainBed."""
    sampler: Literal["shuffle", "domains"] = "shuffle"
    """shuffle: every image of the sources once an epoch; domains: the same number of each domain in
    a batch, one domain after the other."""
    domains_in_batch: int = at_least(0, 0)
    """data.sampler domains: how many domains a batch has, drawn for each batch; 0: all sources."""
    epoch: int = at_least(0, 0)
    """data.sampler domains: updates of an epoch; 0: one pass over the largest source."""
    adapt: bool = False
    """mdd: add images of the target, without their labels, to every batch: domain adaptation."""
    augment: Literal["domain", "scale", "centre", "shift"] = "domain"
    """domain: resized crop, flip, jitter and grey; scale: the same without grey; centre: centre
    crop and flip (VisDA); shift: a shift by a pixel (the digits)."""
    memory: bool = False
    """Read all images once and store them on the device; they must be squares of one size."""

    @property
    def of_files(self) -> bool:
        return self.name != "rotated_digits"

    @property
    def parts(self) -> Literal["", "domains"]:
        return "domains" if self.target == EACH else ""

    def words(self) -> str:
        return f"{self.name} {self.source} to {self.target}" if self.adapt else self.name

    def idle(self) -> set[str]:
        return set() if self.of_files else {"root", "lists", "memory"}

    def __post_init__(self) -> None:
        require_limits(self, "data")
        require(
            self.sampler == "domains" or not (self.domains_in_batch or self.epoch),
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


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(_Data):
    """Features of images, and attributes of classes, some of which are never trained on."""

    loader = "generalized:GeneralizedTask"

    name: Literal["cub", "awa1", "awa2", "sun", "apy", "flo", "npz"] = "cub"
    """Which features: the benchmark's .mat files, or an .npz of the same arrays."""
    root: str | None = None
    """Folder of the set, or the .npz; by default in $BATCHFORMER_DATA, else in
    ~/.cache/batchformer."""
    unseen: Literal["test", "val"] = "test"
    """Which classes are not trained on: test's, or validation's with test's left out altogether."""
    choose: bool = True
    """Train twice: first with the validation classes left out, to find the best epoch, then on all
    seen classes up to that epoch."""
    batches: int = at_least(1, 5)
    """Random batches of an update, one for each step of the critic."""

    @property
    def parts(self) -> Literal["", "epochs"]:
        return "epochs" if self.choose else ""

    def __post_init__(self) -> None:
        require_limits(self, "data")
        both = self.unseen == "val" and self.choose
        require(not both, "data.choose trains with the classes of validation unseen by itself")


@dataclass(frozen=True, kw_only=True)
class PairConfig(_Data):
    """Images that show an attribute and an object; some pairs of them are never trained on."""

    loader = "compositional:CompositionalTask"

    name: PairSet = "mit_states"
    """Which images; "table" is your own, by a .csv of image, attribute, object and split."""
    root: str | None = None
    """Folder of the set, by default in $BATCHFORMER_DATA, else in ~/.cache/batchformer. For your
    own images, the folder that paths in the table are relative to."""
    table: str | None = None
    """Your own: the .csv, with the columns image, attribute, object and split (train, val, test).
    `batchformer data pairs` makes one of a tree DOMAIN/CLASS/IMAGE."""
    world: Literal["closed", "open"] = "closed"
    """Pairs that an image can be assigned to. closed: the pairs of the set; open: every attribute
    with every object."""
    mask: bool = False
    """compcos, open world: leave out pairs less feasible than a threshold chosen on validation."""
    vectors: tuple[str, ...] = ()
    """Files of word vectors (GloVe, word2vec or fastText, as text); vectors of several files are
    concatenated. A relative path is also looked for in the folder of the data."""
    replacements: tuple[str, ...] = ()
    """Words that take the vector of another word, as WORD=OTHER."""
    missing_words: Literal["raise", "random"] = "raise"
    """For names of which no part has a vector. raise: stop and list them; random: draw a vector."""
    size: int = at_least(1, 224)
    """Side of the square crop; at test the centre of an image of 8/7 that side."""
    augment: Literal["resized", "none"] = "resized"
    """resized: resized crop and flip; none: as at test, so that a frozen network runs only once."""
    memory: bool = False
    """Read all images once and store them on the device; they must be of one size."""

    def words(self) -> str:
        return f"{self.name}, open world" if self.world == "open" else self.name

    def idle(self) -> set[str]:
        return set() if self.name == "table" else {"table"}

    def __post_init__(self) -> None:
        require_limits(self, "data")
        own = self.name == "table"
        require(not own or bool(self.table), "your own pairs are in a table; name it: data.table")
        require(own or self.table is None, f"data.table is for your own images, not {self.name}")
        require(self.world == "open" or not self.mask, "data.mask is for data.world open")
        for pair in self.replacements:
            require("=" in pair, f"data.replacements has {pair!r}, and needs WORD=OTHER")


DataConfig = (
    LongTailConfig | DomainConfig | PairConfig | FeatureConfig | ContrastConfig | DetectionConfig
)

#: What configures the data, by the family of experiments.
BY_TASK: dict[str, type[Any]] = {
    "long_tailed": LongTailConfig,
    "ablation": LongTailConfig,
    "domains": DomainConfig,
    "compositional": PairConfig,
    "generalized": FeatureConfig,
    "contrastive": ContrastConfig,
    "recognition": LongTailConfig,
    "detection": DetectionConfig,
}
