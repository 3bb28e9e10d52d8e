"""Read the description of a table in a published page: its lines, columns and rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batchformer.lab.report.results.names import metric_label

Lines = Mapping[str, Sequence[str]]  # the values of each key

#: The keys of each kind of table.
KEYS = {
    "arms": {"kind", "records", "arms", "metrics", "contrasts", "family", "paper", "intervals"},
    "rows": {"kind", "row", "columns", "metric", "family", "primary", "seeds", "intervals"},
    "bench": {"kind", "records", "part", "only"},
}
ARM = r"[\w.]+"
ITEM = re.compile(
    rf"(?P<what>paper |p |chance )?(?P<arm>{ARM})(?: - (?P<against>{ARM}))?"
    r"(?: on (?P<metrics>[\w ]+))?"
)
FOLDERS = r"\S+(?: [+&] \S+)*"
ROW = re.compile(
    rf"(?P<folders>{FOLDERS})(?: on (?P<metric>\w+))?(?: with (?P<arm>{ARM}))?"
    rf"(?: against (?P<others>{FOLDERS}))?"
)


@dataclass(frozen=True)
class Item:
    """What a column shows: an arm's mean, or the difference of two arms, on one metric."""

    # `paper`: the paper's number, `p`: the p-value, `chance`: the power to detect the paper's
    # difference, empty: the number itself
    what: str
    arm: str
    against: str
    metric: str
    label: str


def items_of(text: str, metric: str) -> list[Item]:
    """One column, or one for each metric if it names several."""
    item = item_of(text)
    metrics = item.metric.split() or [metric]
    if not all(metrics):
        raise ValueError(f"{text!r} names no metric: add ` on METRIC`, or a line `metric: METRIC`")
    if len(metrics) == 1:
        return [replace(item, metric=metrics[0])]
    return [replace(item, metric=name, label=metric_label(name)) for name in metrics]


def item_of(text: str) -> Item:
    """One column; its metric is empty, or several names, if the text has none or several.

    >>> item_of("p batchformer - baseline on many few = p").metric
    'many few'
    """
    body, _, label = (part.strip() for part in text.partition(" = "))
    match = ITEM.fullmatch(body)
    if match is None:
        raise ValueError(
            f"{text!r} is not understood; write ARM, ARM - ARM, paper ARM - ARM, p ARM - ARM or "
            "chance ARM - ARM, then ` on METRIC` and ` = LABEL` if needed"
        )
    what, arm, against = (match["what"] or "").strip(), match["arm"], match["against"] or ""
    return Item(what, arm, against, match["metrics"] or "", label or body)


def parts_of(text: str) -> list[str]:
    """The parts of a text between semicolons."""
    return [part.strip() for part in text.split(";") if part.strip()]


def one_value(lines: Lines, key: str, default: str | None = None) -> str:
    """The value of a key that occurs at most once, and exactly once if it has no default."""
    values = lines.get(key, ())
    if len(values) > 1 or (not values and default is None):
        raise ValueError(f"needs one line `{key}: ...`, has {len(values)}")
    return values[0] if values else default or ""


def one_of(lines: Lines, key: str, *known: str) -> str:
    """The value of a key that allows only these values; the first is the default."""
    value = one_value(lines, key, known[0])
    if value not in known:
        raise ValueError(f"{key} is {value!r}, but must be {' or '.join(filter(None, known))}")
    return value


def lines_of(text: str) -> dict[str, list[str]]:
    """The values of each key from lines ``key: value``; a key may come several times."""
    found: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"the line {line!r} is not `key: value`")
        found.setdefault(key.strip(), []).append(value.strip())
    return found
