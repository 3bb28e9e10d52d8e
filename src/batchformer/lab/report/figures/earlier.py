"""Figures of what every run logs: training, accuracy by class, biases and probes, with words."""

from __future__ import annotations

from batchformer.lab.config.methods import without_batchformer
from batchformer.lab.metrics.intervals import FEWEST_SEEDS
from batchformer.lab.report.figures.per_class import ByClass, by_class, figure_of
from batchformer.lab.report.figures.shown import Numbers, Shown, Words
from batchformer.lab.report.figures.training import (
    NOTE,
    change_of_loss,
    convergence,
    convergence_figure,
    convergence_words,
    curve_over_seeds,
    lines_of,
    scales_of_losses,
    training_curves,
    valley_table,
)
from batchformer.lab.report.figures.zero_shot import bias_curves, bias_figure
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import in_words, metric_label
from batchformer.lab.report.results.words import number, seeds, signed


def training(group: RunGroup) -> Shown | None:
    """Training curves, where anything was logged."""
    lines = lines_of(group)
    if not lines:
        return None
    names = [f"evaluated {line.label}" if line.kind == "eval" else line.label for line in lines]
    what = " and ".join(names)
    counts = ", ".join(f"{arm} {len(group.of(arm))}" for arm in group.arms)
    note = (
        f"{what[0].upper()}{what[1:]} by update. Lines are means over seeds ({counts}); bands "
        f"run from the lowest to the highest seed."
    )
    if lines[0].kind == "train" and not without_batchformer(group.recipe.get("method")):
        note += (
            " The loss with BatchFormer covers both streams, so losses of different arms need not "
            "be comparable."
        )
    if lines[0].kind == "train":
        note += "".join(f" {said}" for said in (*scales_of_losses(group), *change_of_loss(group)))
    averaged = valley_table(group)
    if averaged is not None:
        note += NOTE
    rows = []
    for kind, value, label in lines:
        for arm in group.arms:
            curve = curve_over_seeds([run.series(kind, value) for run in group.of(arm)])
            at = zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
            # As many rows as a terminal shows: the ends and what lies evenly between.
            points = list(at)
            for i in sorted({round(k * (len(points) - 1) / 4) for k in range(5)} if points else ()):
                step, mean, low, high = points[i]
                bounds = f"{number(low)} to {number(high)}"
                rows.append((arm, label, f"{step:,.0f}", number(mean), bounds))
    table = Numbers("By update", ("arm", "value", "update", "mean", "seeds"), rows)
    return Shown(
        "Training",
        Words(note, f"Line plot. {note}"),
        lambda: training_curves(group.runs, group.reference),
        () if averaged is None else (averaged,),
        [table],
    )


def classes(group: RunGroup) -> Shown | None:
    """Accuracy by class, where it was kept."""
    data = by_class(group.runs, group.reference)
    if data is None:
        return None
    over = ", ".join(f"{arm} {n}" for arm, n in data.seeds.items())
    points = "class" if data.together == 1 else f"group of up to {data.together} classes"
    alone = ""
    if len(data.drawn) < len(data.accuracy):
        alone = f", drawn of {' and '.join(map(in_words, data.drawn))} alone"
    note = (
        f"{data.classes:,} classes from the most to the least training images, one point a "
        f"{points}: accuracy{alone}, mean over seeds ({over})"
    )
    if data.differences:
        note += f", and the difference to {in_words(group.reference)} on the same seeds"
        fewest = min(data.paired_seeds.values())
        if fewest < FEWEST_SEEDS:
            note += f", without intervals, since an arm shares only {seeds(fewest)} with it"
        else:
            chance = len(data.counts) / 20
            note += (
                f" with its 95% t interval. Each interval is for its point alone: by chance about "
                f"{chance:.0f} of {len(data.counts)} would miss 0"
                if chance >= 1
                else " with its 95% t interval, each for its point alone"
            )
    said = Words(f"{note}.", f"Dot plot. {note}.")
    return Shown("Accuracy by class", said, lambda: figure_of(data), (), [_by_class_table(data)])


def bias(group: RunGroup) -> Shown | None:
    """Seen against unseen pairs or classes, where a bias was swept."""
    curves = bias_curves(group.runs)
    if curves is None:
        return None
    over = ", ".join(f"{arm} {len(each)}" for arm, each in curves.by_arm.items())
    note = (
        f"A bias on the scores of unseen {curves.of} moves predictions from seen {curves.of} to "
        f"unseen ones. "
        f"Thin lines are seeds, thick ones their means ({over}); the area below is the AUC."
    )
    rows = []
    for arm in curves.by_arm:
        unseen, seen = curves.mean(arm)
        places = range(0, len(unseen), (len(unseen) - 1) // 5)
        rows += [(arm, number(float(unseen[i])), number(float(seen[i]))) for i in places]
    table = Numbers("Along the mean curve, %", ("arm", "unseen", "seen"), rows)
    return Shown(
        f"Seen and unseen {curves.of}",
        Words(note, f"Line plot. {note}"),
        lambda: bias_figure(curves),
        (),
        [table],
    )


def probe(group: RunGroup) -> Shown | None:
    """Scores of linear probes by epoch, where these runs are probes."""
    found = convergence(group)
    if found is None:
        return None
    note = convergence_words(found)
    rows = [
        (arm, f"{epoch:.0f}", number(mean))
        for arm, curve in found.curves.items()
        for epoch, mean in zip(curve.steps, curve.mean, strict=True)
    ]
    table = Numbers("By epoch", ("arm", "epoch", metric_label(found.metric)), rows)
    return Shown(
        "Convergence of the probe",
        Words(note, f"Line plot. {note}"),
        lambda: convergence_figure(found),
        (),
        [table],
    )


def _by_class_table(data: ByClass) -> Numbers:
    rows = []
    for i, count in enumerate(data.counts):
        name = data.names[i] if data.names else f"{data.places[i]:,.0f}"
        changes = [each[i] for each in data.differences.values()]
        rows.append(
            (
                name,
                f"{count:,.0f}",
                *(number(float(values[i]), 1) for values in data.accuracy.values()),
                *("" if change is None else signed(change.difference, 1) for change in changes),
            )
        )
    differences = (f"{arm} - {data.reference}" for arm in data.differences)
    columns = ("class" if data.names else "rank", "images", *data.accuracy, *differences)
    return Numbers("Accuracy by class, %", columns, rows)
