"""Make the tables of published pages, such as ``RESULTS.md``, from records.

Each table stands between two comments; the first says what the table shows. ``batchformer record
--make PAGE`` makes the tables again and leaves the rest of the page as it is::

    <!-- table fine_tuning
    kind: rows
    metric: all
    columns: baseline; batchformer; batchformer - baseline = difference
    row: my_folder/caltech_5 = 5 images a class
    row: my_folder/caltech_10 = 10 images a class
    -->
    <!-- /table -->

``kind: arms`` shows one comparison with a column for each metric. ``kind: rows`` has a row for each
comparison. ``kind: bench`` shows a table of ``batchformer bench``. ``docs/results/README.md``
explains every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batchformer.insight.figures.text import interval, number, seeds, signed
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.bench.table import read_tables
from batchformer.lab.config.arms import MAIN
from batchformer.lab.metrics.intervals import chance_of_finding
from batchformer.lab.report.page.descriptions import (
    KEYS,
    ROW,
    Item,
    Lines,
    item_of,
    items_of,
    lines_of,
    one_of,
    one_value,
    parts_of,
)
from batchformer.lab.report.results.comparison import ALPHA
from batchformer.lab.report.results.evidence import (
    ComparisonEvidence,
    Contrast,
    Mean,
    P,
    Test,
    against_baseline_of,
    holm_but_first,
    holm_over,
    load,
    mean_over_settings,
)
from batchformer.lab.report.results.names import (
    UNTESTED,
    metric_label,
    sorted_arms,
    sorted_metrics,
)
from batchformer.lab.report.results.words import p_value

TABLE = re.compile(
    r"^(?P<head><!-- table (?P<name>\S+)\n(?P<lines>.*?)-->\n).*?(?P<tail>^<!-- /table -->)",
    re.S | re.M,
)
CODE = re.compile(r"(^```.*?^```$)", re.S | re.M)
"""A block of code; tables inside it are examples and stay as they are."""
Family = Sequence[Test]  # tests that are corrected together
Adjusted = Mapping[Test, P | None]  # Holm's p-value of each test in the family


def make_pages(pages: Sequence[Path], root: Path) -> list[tuple[Path, bool]]:
    """Make the tables of these pages again. Returns each page and whether it changed.

    If one page cannot be made, none is written.
    """
    made = {page: make_page(page.read_text(encoding="utf-8"), root, str(page)) for page in pages}
    changed = [(page, text != page.read_text(encoding="utf-8")) for page, text in made.items()]
    for page, differs in changed:
        if differs:
            page.write_text(made[page], encoding="utf-8")
    return changed


def make_page(text: str, root: Path, called: str = "the page") -> str:
    """Make every table of a page from the records below ``root``."""
    blocks = CODE.split(text)
    words = "".join(blocks[::2])
    opened, found = words.count("<!-- table "), len(TABLE.findall(words))
    if found != opened:
        raise ValueError(
            f"{called} opens {opened} tables, but only {found} can be read. A table begins with "
            "a line `<!-- table NAME`, has its description up to a line `-->`, and ends with the "
            "line `<!-- /table -->`."
        )

    def made(match: re.Match[str]) -> str:
        try:
            table = make_table(lines_of(match["lines"]), root)
        except ValueError as error:
            raise ValueError(f"{called}, table {match['name']}: {error}") from error
        return f"{match['head']}{table}\n{match['tail']}"

    blocks[::2] = [TABLE.sub(made, block) for block in blocks[::2]]
    return "".join(blocks)


def make_table(lines: Lines, root: Path) -> str:
    """One table as Markdown; ``lines`` is its description, each key with its values."""
    kind = one_value(lines, "kind")
    makers: dict[str, Callable[[Lines, Path], list[list[str]]]] = {
        "arms": _arms_table,
        "rows": _rows_table,
        "bench": _bench_table,
    }
    if kind not in makers:
        raise ValueError(f"kind is {kind!r}, but must be {' or '.join(makers)}")
    if unknown := lines.keys() - KEYS[kind]:
        raise ValueError(
            f"kind {kind} has no line {', '.join(sorted(unknown))}; its lines are "
            f"{', '.join(sorted(KEYS[kind]))}"
        )
    header, *rows = makers[kind](lines, root)
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def _arms_table(lines: Lines, root: Path) -> list[list[str]]:
    """One comparison: a row for each arm, then two for each difference and its p-values."""
    found = load(root, one_value(lines, "records"))
    metrics = one_value(lines, "metrics", "").split() or sorted_metrics(found.metrics)
    items = [item_of(part) for part in parts_of(one_value(lines, "arms", ""))]
    arms = {item.arm: item.label for item in items} or {a: a for a in sorted_arms(found.arms)}
    contrasts = [item_of(text) for text in parts_of(one_value(lines, "contrasts", ""))]
    found.require([*arms, *(arm for item in contrasts for arm in (item.arm, item.against))])
    with_intervals = one_of(lines, "intervals", "yes", "no") == "yes"
    with_paper = one_of(lines, "paper", "no", "yes") == "yes"
    rows = [["", *map(metric_label, metrics)]]
    for arm, label in arms.items():
        means = [found.mean(arm, metric) for metric in metrics]
        count = max((mean.n for mean in means if mean is not None), default=0)
        cells = [_mean(mean, with_intervals, count) for mean in means]
        rows.append([f"{label}, {seeds(count)}", *cells])
        numbers = [found.paper(arm, metric) for metric in metrics]
        if with_paper and any(value is not None for value in numbers):
            rows.append(["paper", *("" if v is None else number(v, 1) for v in numbers)])
    shown = [(item.arm, item.against, metric) for item in contrasts for metric in metrics]
    family = _family(lines, shown, "")
    adjusted = holm_over(found, family)
    tests = [found.contrast(*test) for test in family]
    how = "Holm"
    if all(test is None or test.computed for test in tests):
        how += f" over {sum(test is not None and test.p is not None for test in tests)}"
    for item in contrasts:
        own = [(item.arm, item.against, metric) for metric in metrics]
        pairs = [(test, found.contrast(*test)) for test in own]
        rows.append([item.label, *(_difference(d, _significant(t, d, adjusted)) for t, d in pairs)])
        p_values = [_p(test, difference, adjusted) for test, difference in pairs]
        if any(p_values):
            corrected = any(adjusted.get(test) is not None for test in own)
            rows.append([f"p ({how})" if corrected else "p", *p_values])
    for column, metric in enumerate(metrics, 1):
        if not any(row[column] for row in rows[1:]):
            known = ", ".join(sorted_metrics(found.metrics))
            raise ValueError(f"no record has the metric {metric!r}; the metrics are {known}")
    return rows


def _rows_table(lines: Lines, root: Path) -> list[list[str]]:
    """A row for each comparison, for several that are pooled, or for the mean of several."""
    metric = one_value(lines, "metric", "")
    texts = parts_of(one_value(lines, "columns"))
    rows = [["", *(item.label for text in texts for item in items_of(text, metric or "?"))]]
    read = [_read_row(row, texts, metric, root) for row in lines.get("row", ())]
    each: list[Adjusted]
    if first_is_primary := one_of(lines, "primary", "", "first") == "first":
        tests = [(row.found, test) for row in read for test in row.tests]
        corrected = iter(holm_but_first(tests))
        # The primary test has no entry, so it keeps its own p-value.
        each = [
            {test: p for test in row.tests if (p := next(corrected)) is not None} for row in read
        ]
    else:
        each = [holm_over(row.found, _family(lines, row.tests, row.metric)) for row in read]
    with_p = "family" in lines or first_is_primary
    spread = one_of(lines, "intervals", "no", "yes") == "yes"
    counted = one_of(lines, "seeds", "yes", "no") == "yes"
    for row, adjusted in zip(read, each, strict=True):
        items = row.items
        means = row.found.on_shared_seeds([i.arm for i in items if not i.against and not i.what])
        cells = [_cell(item, row.found, means, adjusted, with_p, spread) for item in items]
        label = row.label
        if counted:
            label += f", {_counted(items, row.found, means)}"
        rows.append([label, *cells])
    return rows


def _bench_table(lines: Lines, root: Path) -> list[list[str]]:
    """A table that ``batchformer bench`` saved, or those of its rows that ``only`` asks for."""
    path, part = root / one_value(lines, "records"), one_value(lines, "part")
    if not path.is_file():
        raise ValueError(f"there is no file {path}; `batchformer bench` writes one")
    tables = {table.part: table for table in read_tables(path)}
    if part not in tables:
        raise ValueError(
            f"{path} has no part {part!r}; its parts are {', '.join(tables) or 'none'}"
        )
    columns, rows = tables[part].columns, tables[part].texts()
    for condition in parts_of(one_value(lines, "only", "")):
        column, _, value = (text.strip() for text in condition.partition(" = "))
        if column not in columns:
            raise ValueError(f"{part} has no column {column!r}; it has {', '.join(columns)}")
        rows = [row for row in rows if row[columns.index(column)] == value]
    if not rows:
        raise ValueError(f"{part} in {path} has no such row")
    # A bench rounds every number to three digits, which is too precise for a p-value.
    shown = [
        [p_value(float(text)) if column == "p" and text else text for column, text in cells]
        for cells in (zip(columns, row, strict=True) for row in rows)
    ]
    return [list(columns), *shown]


@dataclass(frozen=True)
class Row:
    """A row as its line describes it, with its evidence."""

    label: str
    metric: str
    items: Sequence[Item]
    found: ComparisonEvidence

    @property
    def tests(self) -> list[Test]:
        """The differences that the row shows, each once."""
        shown = [i for i in self.items if i.against and i.what in ("", "p")]
        return [*dict.fromkeys((i.arm, i.against, i.metric) for i in shown)]


def _read_row(line: str, columns: Sequence[str], metric: str, root: Path) -> Row:
    where, _, label = (part.strip() for part in line.partition(" = "))
    match = ROW.fullmatch(where)
    if match is None or (" + " in where and " & " in where):
        raise ValueError(
            f"row {where!r} is not understood; write FOLDER on METRIC with ARM against FOLDER. "
            "Join several folders by + to pool them, or by & for their mean"
        )
    found = _load_joined(root, match["folders"])
    own = match["metric"] or metric
    items = [item for text in columns for item in items_of(text, own)]
    if match["others"]:
        others = _load_joined(root, match["others"])
        found = against_baseline_of(found, match["arm"] or MAIN, others)
    elif match["arm"]:
        # The arm that a row names stands in the columns of the main arm.
        items = [replace(i, arm=match["arm"]) if i.arm == MAIN else i for i in items]
    measured = [item for item in items if item.what != "paper"]
    found.require(arm for item in measured for arm in (item.arm, item.against) if arm)
    return Row(label or where, own, items, found)


def _load_joined(root: Path, folders: str) -> ComparisonEvidence:
    if " & " in folders:
        return mean_over_settings([load(root, folder) for folder in folders.split(" & ")])
    return load(root, *folders.split(" + "))


def _cell(
    item: Item,
    found: ComparisonEvidence,
    means: ComparisonEvidence,
    adjusted: Adjusted,
    with_p: bool,
    with_interval: bool,
) -> str:
    """One cell. ``with_p`` adds the corrected p-value to a difference, ``with_interval`` the
    interval to a mean.

    ``means`` has only the seeds that all arms of the row share.
    """
    test = (item.arm, item.against, item.metric)
    if item.what == "paper":
        value = found.paper(item.arm, item.metric, item.against)
        return "" if value is None else (signed if item.against else number)(value, 1)
    if not item.against:
        return _mean(means.mean(item.arm, item.metric), with_interval)
    difference = found.contrast(*test)
    if item.what == "p":
        return _p(test, difference, adjusted)
    if item.what == "chance":
        return _chance(difference, found.paper(item.arm, item.metric, item.against))
    text = _difference(difference, _significant(test, difference, adjusted))
    known = with_p and adjusted.get(test) is not None
    return f"{text}, p {_written(adjusted[test])}" if known else text


def _counted(items: Sequence[Item], found: ComparisonEvidence, means: ComparisonEvidence) -> str:
    """How many seeds a row has; pooled comparisons count all their paired seeds."""
    contrasts = [found.contrast(i.arm, i.against, i.metric) for i in items if i.against]
    scores = [means.mean(i.arm, i.metric) for i in items if not i.against and not i.what]
    return seeds(max((each.n for each in [*contrasts, *scores] if each is not None), default=0))


def _mean(mean: Mean | None, with_interval: bool, expected: int | None = None) -> str:
    """The mean; if others of the row have more seeds, also its number of seeds."""
    if mean is None:
        return ""
    text = number(mean.mean, mean.decimals)
    if with_interval and mean.low is not None:
        text += f" {interval(mean.low, mean.high, decimals=mean.decimals)}"
    return text if expected in (None, mean.n) else f"{text} ({seeds(mean.n)})"


def _difference(found: Contrast | None, significant: bool) -> str:
    if found is None:
        return ""
    text = signed(found.difference, found.decimals)
    if found.low is not None:
        text += f" {interval(found.low, found.high, sign=True, decimals=found.decimals)}"
    return f"**{text}**" if significant else text


def _p(test: Test, found: Contrast | None, adjusted: Adjusted) -> str:
    """The p-value; if it was corrected, Holm's in brackets."""
    if found is None:
        return ""
    own = [] if found.p is None else [_written(found.p)]
    corrected = [] if adjusted.get(test) is None else [f"({_written(adjusted[test])})"]
    return " ".join(own + corrected)


def _written(p: P | None) -> str:
    return p_value(p) if isinstance(p, float) else str(p)


def _significant(test: Test, found: Contrast | None, adjusted: Adjusted) -> bool:
    """Whether a difference is significant: by Holm's p-value if it was corrected."""
    p = adjusted.get(test) if test in adjusted else (found.p if found is not None else None)
    return p is not None and (p < ALPHA if isinstance(p, float) else str(p).startswith("<"))


def _chance(found: Contrast | None, effect: float | None) -> str:
    """The power in percent, and its range given the uncertainty of the spread."""
    if found is None or not effect or not found.sd or found.n < FEWEST_SEEDS:
        return ""
    at, low, high = (f"{100 * value:.0f}" for value in chance_of_finding(effect, found.sd, found.n))
    return f"{at}% ({low} to {high})"


def _family(lines: Lines, shown: Family, metric: str) -> Family:
    """The tests that are corrected together: those of ``family``, by default all that are shown.

    Untested metrics count in no family.
    """
    items = [
        item for text in parts_of(one_value(lines, "family", "")) for item in items_of(text, metric)
    ]
    named = [(item.arm, item.against, item.metric) for item in items]
    tested = [test for test in named or shown if test[-1] not in UNTESTED]
    return tested if named or len(tested) > 1 else []
