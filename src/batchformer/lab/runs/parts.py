"""The trainings that a run consists of: most often itself, sometimes several."""

from __future__ import annotations

from batchformer.lab.config.data import FeatureConfig
from batchformer.lab.engine.distributed.rank_zero import first_says
from batchformer.lab.runs import chosen_epoch, targets
from batchformer.lab.runs.run import Run


def parts_of(run: Run) -> tuple[Run, ...]:
    """Itself; one for every target that is left out; or one that chooses and one that is scored."""
    data = run.trained.data
    if isinstance(data, FeatureConfig) and data.choose:
        return chosen_epoch.parts_of(run)
    return targets.parts_of(run)


def combine(run: Run) -> bool:
    """Write the result of a run of several trainings, if all of them have finished.

    Returns:
        Whether it was written.
    """
    return first_says(lambda: _combine(run))


def _combine(run: Run) -> bool:
    if isinstance(run.trained.data, FeatureConfig):
        return chosen_epoch.combine(run, parts_of(run))
    return targets.combine(run, parts_of(run))
