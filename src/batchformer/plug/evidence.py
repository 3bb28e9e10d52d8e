"""What the training passes of ``check`` showed; the tests of its questions share it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from batchformer.nn.module import BatchFormer
from batchformer.plug.batches import replaced_index
from batchformer.plug.observe import Experiment, Pass, moved

#: A smaller effect counts as none. In new encoders the effect is 0.03 to 1.
NEGLIGIBLE = 1e-3


def row_orders(n: int) -> dict[str, tuple[list[int], list[int]]]:
    """Rows of the plain and of the mixed stream, in every order that models are known to use."""
    first, second = list(range(n)), list(range(n, 2 * n))
    even, odd = list(range(0, 2 * n, 2)), list(range(1, 2 * n, 2))
    return {
        "plain, mixed": (first, second),
        "mixed, plain": (second, first),
        "plain and mixed in turn": (even, odd),
        "mixed and plain in turn": (odd, even),
    }


@dataclass(eq=False, repr=False)
class Picker:
    """The outputs to judge together.

    Attributes:
        views: for each, the number of one output, or the numbers of two outputs that are joined:
            the plain and the mixed stream.
        further: numbers of the other outputs that have one row for each sample.
    """

    views: list[tuple[int, ...]]
    further: list[int] = field(default_factory=list)

    @property
    def paired(self) -> bool:
        return len(self.views[0]) == 2

    def __call__(self, seen: Pass) -> list[Tensor]:
        return [self.rows(seen, view) for view in self.views]

    @staticmethod
    def rows(seen: Pass, view: tuple[int, ...]) -> Tensor:
        parts = [seen.rows[number] for number in view]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Evidence:
    """What the training passes showed, and the pass ``base`` that others are compared with.

    In the pass ``after``, the first sample is replaced.
    """

    # Which outputs are judged.

    #: The outputs have N or 2N rows and are finite.
    judged: bool = True
    #: All outputs are finite.
    finite: bool = True
    #: There are two streams: an output of 2N rows, or two outputs of N rows.
    doubled: bool = False
    #: The streams are two outputs.
    two_outputs: bool = False
    #: How the model orders its rows: "plain, mixed" is right; None is not known.
    order: str | None = None

    # Noise.

    #: Outputs change from pass to pass, with random numbers that cannot be seeded.
    unsteady: bool = False
    #: The number of random draws in a pass depends on the samples, and so do all rows.
    uneven: bool = False
    #: Samples have almost the same rows, so replacing one shows next to nothing.
    alike: bool = False
    #: Rows of two passes can be compared.
    comparable: bool = True
    #: The first module that drops its whole input in training.
    dropout: str | None = None

    # Do samples attend to each other?

    #: More than the first sample had to be replaced to see it.
    replaced_all: bool = False
    #: The encoder's own rows moved when the first sample was replaced.
    in_encoder: bool = False
    #: How far a replaced sample moves other mixed rows, relative to its own; None: not measured.
    effect: float | None = None
    #: What is wrong in a larger batch, if rows there do not depend on the first sample.
    unreached: str | None = None
    #: The place where no sample attends to another, or only to some, if there is one.
    idle: str | None = None
    #: What is wrong in a later training step, if it differs from this one.
    later: str | None = None

    # The rows of the streams.

    #: Plain rows depend on the encoder's weights.
    plain_encoded: bool = False
    #: Rows of a stream are not in the order of the samples.
    misplaced: bool = False
    #: The mixed rows of different samples are all equal.
    same_mixed: bool = False
    #: Mixed rows of equal samples are equal; None is not known.
    equal: bool | None = None

    # Weights.

    #: Why gradients could not be computed.
    no_gradients: str | None = None
    #: Mixed rows depend on weights that are not among the model's parameters.
    stray: bool = False
    #: A parameter that acts on mixed rows only and gets no gradient from them.
    cut_off: str | None = None
    #: A weight of the classifier that acts on one stream only.
    unshared: str | None = None
    #: A weight, or the backbone, that acts on mixed rows but gets no gradient there.
    untrained: str | None = None
    #: The same for plain rows.
    plain_untrained: str | None = None
    #: Layers with weights follow the encoder. If not, it may stand after the classifier.
    followed: bool = True
    #: How far one sample can change another's loss; None: not measured.
    influence: float | None = None
    #: The warning, if weight decay has shrunk the encoder to nothing.
    decayed: str | None = None

    # Not a dataclass: with so many fields, it would be slow to import.
    def __init__(self, experiment: Experiment, base: Pass, after: Pass, frozen: set[int]) -> None:
        self.experiment, self.base, self.after = experiment, base, after
        n = self.samples = experiment.batch.rows
        #: Ids of the parameters that the user has frozen.
        self.frozen = frozen
        #: Notes on weights of zero that were filled for the experiments.
        self.zeros: list[str] = []
        #: Rows of the output for N samples.
        self.rows = base.count(n)
        #: The outputs that are judged together, and the rows of each stream in them.
        self.pick = Picker([])
        self.plain, self.mixed = list[int](), list(range(n))
        #: What is wrong with one output of several, by the question that it answers with no.
        self.faults: dict[str, str] = {}
        #: The passes ``base`` and ``after``, and the same with other random numbers.
        self.passes = [(base, after)]
        #: (rows,) whether a row depends on the first sample.
        self.shifts = torch.zeros(0, dtype=torch.bool, device="cpu")
        #: (rows, N) which rows depend on which samples by gradients, if passes showed too little.
        self.depends: Tensor | None = None
        #: Encoders that are called, or whose weights take part in the outputs.
        self.used: list[BatchFormer] = []
        #: (N,) whether a mixed row, other than the first, depends on another sample.
        self.attending = torch.zeros(n, dtype=torch.bool, device="cpu")
        #: (N,) whether a plain row moved when the first sample was replaced.
        self.plain_moved = self.attending
        #: The encoder's weights, or, without a BatchFormer, those that act on mixed rows only.
        self.own_weights: list[tuple[str, Tensor]] = []
        #: Which of them get a gradient from the mixed rows.
        self.receives_gradient: list[bool] = []
        self._second: Pass | None = None

    def second(self) -> Pass:
        """The pass in which the second sample, not the first, is replaced; it runs once."""
        if self._second is None:
            self._second = self.experiment.run_again(replaced_index(self.samples, 1, source=0))
        return self._second

    @property
    def replaced(self) -> list[Pass]:
        """The batch, and the same with one sample replaced, as far as these passes were run."""
        return [self.base, self.after, *([] if self._second is None else [self._second])]

    def plain_rows(self, outputs: Pass) -> list[Tensor]:
        """The plain stream of each output that is judged, (N, features)."""
        return [t[self.plain] for t in self.pick(outputs)]

    def moved(self, before: Pass, after: Pass) -> Tensor:
        """Which rows of the judged outputs differ between two passes, (rows,)."""
        return moved(self.pick(before), self.pick(after))

    def mixed_rows(self, outputs: Pass) -> list[Tensor]:
        return [t[self.mixed] for t in self.pick(outputs)]

    @property
    def noisy(self) -> bool:
        """Whether passes draw random numbers."""
        return self.base.noisy or self.after.noisy

    @property
    def noise(self) -> str:
        """Why passes cannot be compared."""
        if self.uneven:
            return "how many random numbers the model draws depends on the samples"
        return "the outputs change from pass to pass, with noise that cannot be held fixed"

    @property
    def control(self) -> bool:
        return bool(self.used) and all(encoder.attend == "self" for encoder in self.used)

    @property
    def negligible(self) -> bool:
        """Whether mixed rows depend on other samples by next to nothing."""
        return self.effect is not None and self.effect < NEGLIGIBLE and not self.control

    @property
    def attends(self) -> bool:
        """Whether all mixed rows in every output depend on other samples, or it is the control."""
        apart = self.unreached or self.negligible or self.idle or "attend" in self.faults
        return self.control or (bool(self.attending[1:].all()) and not apart)
