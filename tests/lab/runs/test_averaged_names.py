"""Names of what a run with SWAD keeps: today's, and those of earlier versions."""

from __future__ import annotations

from batchformer.lab.report.results.names import LOWER_IS_BETTER
from batchformer.lab.runs.folder import todays_names


def test_todays_names_stay() -> None:
    single = {"photo": 94.0, "val": 97.0, "without_swad_photo": 91.0, "without_swad_val": 95.0}
    whole = {"average": 94.0, "photo": 94.0, "without_swad": 91.0, **single}
    for scores in (single, whole, {"all": 51.0, "few": None}, {}):
        assert todays_names(scores) == scores and list(todays_names(scores)) == list(scores)


def test_one_target_of_an_earlier_version() -> None:
    once = {"photo": 91.0, "val": 95.0, "val_loss": 0.4, "own": 1.0}
    once |= {"swad_photo": 94.0, "swad_val": 97.0, "swad_val_loss": 0.3}
    found = todays_names(once)
    assert next(iter(found)) == "photo", "the headline is the first"
    assert found == {
        "photo": 94.0,
        "val": 97.0,
        "val_loss": 0.3,
        "without_swad_photo": 91.0,
        "without_swad_val": 95.0,
        "without_swad_val_loss": 0.4,
        "own": 1.0,
    }
    assert {name for name in found if name.endswith("loss")} <= LOWER_IS_BETTER


def test_all_targets_of_an_earlier_version_had_the_val_of_the_other_network() -> None:
    once = {"average": 94.0, "photo": 94.0, "without_swad": 91.0, "without_swad_photo": 91.0}
    assert todays_names({**once, "val": 95.0}) == {**once, "without_swad_val": 95.0}
    assert todays_names(once) == once, "nothing was held out"
