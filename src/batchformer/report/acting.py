"""Whether BatchFormer still acts when training has ended."""

from __future__ import annotations

from batchformer.report.configuration import Group
from batchformer.report.influence_numbers import change_of_a_loss
from batchformer.report.influence_verdict import NEXT_TO_NOTHING, in_full

#: In this arm no sample is meant to reach another.
CONTROL = "batchformer_self"


def acting_notes(group: Group) -> list[str]:
    """Arms in which samples hardly reach one another any more, by the networks looked at."""
    arms = [arm for arm in group.arms if arm not in (CONTROL, group.reference)]
    found = {arm: change_of_a_loss(group, arm) for arm in arms}
    return [
        f"At the end of training samples hardly reach one another in {arm}: if the feature of one "
        f"other sample moved as far as two samples lie apart, a loss would change by at most about "
        f"{in_full(change)}. What {arm} gains or loses then does not come from relations between "
        f"samples at the end; weight decay may have taken them (optim.module-weight-decay)"
        for arm, change in found.items()
        if change is not None and change < NEXT_TO_NOTHING
    ]
