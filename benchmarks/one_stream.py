"""Does dropout in the only stream do what a second stream does?

It reads the files of ``few_images`` and ``long_tail_features`` in the current folder. Arms, seeds
and tests are fixed in ``docs/preregistered.md``, row 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Table
from benchmarks import few_images, long_tail_features
from benchmarks.few_images import ARMS as EARLIER_ARMS
from benchmarks.few_images import BEST, Arm, Source, add_arms, percent, right, some_of_each
from benchmarks.frozen_features import read

SEEDS = range(120, 140)
DROPOUT = "none; dropout 0.5 in the one stream"
ARMS = {
    "without": Arm(),
    BEST: EARLIER_ARMS[BEST],
    DROPOUT: Arm(dropout=0.5),
    "none; dropout 0.2 in the one stream": Arm(dropout=0.2),
    "none; dropout 0.5, rows normalised, also at test": Arm(dropout=0.5, normalised=True),
}
#: The first is the primary test; Holm's correction is over the rest.
CONTRASTS = (
    (BEST, DROPOUT),
    *((arm, "without") for arm in list(ARMS)[1:]),
    *((BEST, arm) for arm in list(ARMS)[3:]),
)


def measure(
    settings: BenchSettings,
    few: Sequence[Source] = few_images.SOURCES,
    long_tails: Sequence[Source] = long_tail_features.SOURCES,
) -> Table:
    """Accuracy in percent, and differences with 95% intervals."""
    seeds = SEEDS[: settings.repeats]
    table = Table(
        "one_stream",
        "A second stream without an encoder against dropout in the only stream",
        ("features of", "second stream", "accuracy, %", "difference, 95% interval", "p"),
        settings.environment("float32"),
        notes=[
            f"Networks and trainings of few_images (mean over sizes) and of long_tail_features, "
            f"seeds {seeds[0]} to {seeds[-1]}",
            "p of the first difference of each set is its primary test; the other p-values are "
            "corrected together, by Holm's method",
        ],
    )
    scorers = [(f"{source.title}, few images", _few(source)) for source in few]
    scorers += [(f"{source.title}, long tail", _long_tail(source)) for source in long_tails]
    for title, score in scorers:
        tested = {name: [score(arm, seed) for seed in seeds] for name, arm in ARMS.items()}
        add_arms(table, title, {name: [tested[name]] for name in ARMS}, tested, CONTRASTS)
    return table


def _few(source: Source) -> Callable[[Arm, int], float]:
    """The score of an arm and seed as in row 9: the mean over sizes."""
    train, test = read(source.file)

    def score(arm: Arm, seed: int) -> float:
        parts = [some_of_each(train, count, seed) for count in few_images.PER_CLASS]
        updates = few_images.UPDATES
        return fmean(percent(right(part, test, arm, seed, source.rate, updates)) for part in parts)

    return score


def _long_tail(source: Source) -> Callable[[Arm, int], float]:
    """The score of an arm and seed as in row 10, which trains with Balanced Softmax."""
    train, test = read(source.file)

    def score(arm: Arm, seed: int) -> float:
        arm = arm._replace(balanced=True)
        return percent(right(train, test, arm, seed, source.rate, long_tail_features.UPDATES))

    return score
