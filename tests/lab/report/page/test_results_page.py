"""Tables of published pages, made from records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from batchformer.cli.main import main
from batchformer.insight.intervals import summary as mean_and_interval
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.metrics.intervals import paired
from batchformer.lab.report.page.results_page import make_page
from batchformer.lab.report.results.evidence import Contrast, Mean, load
from batchformer.lab.report.results.records import Record, save

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "results"
PAGES = [
    *(ROOT / name for name in ("RESULTS.md", "README.md", "docs/should-i-use-it.md")),
    *sorted((ROOT / "docs/results").glob("*.md")),
]
BASELINE = {0: 50.0, 1: 51.0, 2: 50.4, 3: 50.2}
OTHER = {0: 51.5, 1: 51.8, 2: 51.9, 3: 51.1}


def put(
    root: Path,
    variant: str,
    scores: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    recipe: str = "my_folder",
) -> None:
    """Write records of a recipe; scores by arm, seed and metric."""
    save(
        [
            Record(recipe, variant, arm, seed, {}, {}, [], metrics)
            for arm, by_seed in scores.items()
            for seed, metrics in by_seed.items()
        ],
        root,
    )


def of_all(by_seed: Mapping[int, float]) -> dict[int, dict[str, float | None]]:
    return {seed: {"all": value} for seed, value in by_seed.items()}


BOTH = {"baseline": of_all(BASELINE), "batchformer": of_all(OTHER)}


def table(root: Path, *lines: str) -> list[list[str]]:
    """The rows of one table."""
    text = "before\n<!-- table one\n" + "\n".join(lines) + "\n-->\nold\n<!-- /table -->\nafter\n"
    made = make_page(text, root)
    head, _, rest = made.partition("-->\n")
    body, _, tail = rest.partition("\n<!-- /table -->")
    assert head == text.partition("-->\n")[0] and tail == "\nafter\n", "words stay as they are"
    assert make_page(made, root) == made
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in body.splitlines()]
    return [row for row in rows if set("".join(row)) != set("-:")]


def test_rows_have_means_and_the_paired_difference(tmp_path: Path) -> None:
    put(tmp_path, "five", BOTH)
    header, row = table(
        tmp_path,
        "kind: rows",
        "metric: all",
        "columns: baseline; batchformer = + BatchFormer; batchformer - baseline = difference; "
        "p batchformer - baseline = p",
        "row: my_folder/five = 5 images a class",
    )
    assert header[1:] == ["baseline", "+ BatchFormer", "difference", "p"]
    found = paired([*BASELINE.values()], [*OTHER.values()])
    assert row == [
        "5 images a class, 4 seeds",
        f"{statistics.mean(BASELINE.values()):.2f}",
        f"{statistics.mean(OTHER.values()):.2f}",
        f"**{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]**",
        f"{found.p_value:.3f}",
    ]


def test_means_of_rows_have_intervals_if_the_table_asks_for_them(tmp_path: Path) -> None:
    scores = {seed: {"rarity": -0.9 - value / 1000} for seed, value in enumerate((0, 20, 60, 99))}
    put(tmp_path, "five", {"batchformer": scores})
    lines = ("kind: rows", "columns: batchformer on rarity", "row: my_folder/five = five")
    found = mean_and_interval([one["rarity"] for one in scores.values()], within=(-1.0, 1.0))
    assert table(tmp_path, *lines)[1] == ["five, 4 seeds", f"{found.mean:.2f}"]
    with_interval = f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"
    assert table(tmp_path, *lines, "intervals: yes")[1] == ["five, 4 seeds", with_interval]
    assert found.low == -1.0, "no correlation is below -1"


def test_holm_is_over_the_family_of_a_row_and_not_over_its_primary_test(tmp_path: Path) -> None:
    control = {0: 50.9, 1: 51.0, 2: 51.2, 3: 50.3}
    put(
        tmp_path,
        "five",
        {
            "baseline": {s: {"all": v, "few": v - 20} for s, v in BASELINE.items()},
            "batchformer": {s: {"all": v, "few": v - 20.5 + s} for s, v in OTHER.items()},
            "batchformer_self": of_all(control),
        },
    )
    header, row = table(
        tmp_path,
        "kind: rows",
        "metric: all",
        "columns: batchformer - baseline = primary; batchformer - batchformer_self = control; "
        "batchformer - baseline on few = few",
        "family: batchformer - batchformer_self on all; batchformer - baseline on few",
        "row: my_folder/five",
    )
    assert header[1:] == ["primary", "control", "few"] and row[0] == "my_folder/five, 4 seeds"
    few = [OTHER[s] - 20.5 + s for s in OTHER], [v - 20 for v in BASELINE.values()]
    p = {
        "control": stats.ttest_rel([*OTHER.values()], [*control.values()]).pvalue,
        "few": stats.ttest_rel(*few).pvalue,
    }
    assert p["control"] < p["few"], "so Holm doubles the first and leaves the second"
    assert ", p " not in row[1]
    assert row[2].endswith(f", p {2 * p['control']:.3f}")
    assert row[3].endswith(f", p {max(p['few'], 2 * p['control']):.3f}")


def test_a_row_of_means_is_tested_first_and_the_rest_of_the_table_is_corrected(
    tmp_path: Path,
) -> None:
    more = {0: 53.0, 1: 52.1, 2: 53.4, 3: 52.2}
    put(tmp_path, "five", BOTH)
    put(tmp_path, "ten", {"baseline": of_all(BASELINE), "batchformer": of_all(more)})
    _, *rows = table(
        tmp_path,
        "kind: rows",
        "metric: all",
        "columns: batchformer; batchformer - baseline",
        "primary: first",
        "row: my_folder/five & my_folder/ten = mean",
        "row: my_folder/five",
        "row: my_folder/ten",
    )
    means = [(OTHER[s] + more[s]) / 2 for s in BASELINE]
    baseline = [*BASELINE.values()]
    found = paired(baseline, means)
    assert rows[0][1:] == [
        f"{statistics.mean(means):.2f}",
        f"**{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]**",
    ], "the primary test is not corrected"
    p = [stats.ttest_rel([*v.values()], baseline).pvalue for v in (OTHER, more)]
    for row, value, other in zip(rows[1:], p, p[::-1], strict=True):
        holm = 2 * value if value < other else max(value, 2 * other)
        assert row[2].endswith(f", p {holm:.3f}")


def test_one_comparison_by_arms_has_the_papers_rows_and_the_correction(tmp_path: Path) -> None:
    scores = {
        "baseline": {s: {"all": v, "few": v - 18} for s, v in BASELINE.items()},
        "batchformer": {s: {"all": v, "few": v - 19} for s, v in OTHER.items()},
    }
    put(tmp_path, "", scores, "cifar100_lt_balanced_softmax")
    rows = table(
        tmp_path,
        "kind: arms",
        "records: cifar100_lt_balanced_softmax",
        "arms: baseline = Baseline; batchformer = + BatchFormer",
        "contrasts: batchformer - baseline = difference",
        "metrics: all few",
        "paper: yes",
    )
    names = [row[0] for row in rows]
    assert names == ["", "Baseline, 4 seeds", "paper", "+ BatchFormer, 4 seeds", "paper",
                     "difference", "p (Holm over 2)"]  # fmt: skip
    assert rows[0][1:] == ["All", "Few"] and rows[2][1:] == ["50.7", "31.9"]
    few = [OTHER[s] - BASELINE[s] - 1 for s in BASELINE]
    p = stats.ttest_1samp(few, 0).pvalue
    assert rows[5][2].startswith(f"{statistics.mean(few):+.2f} [")
    assert rows[6][2] == f"{p:.2f} ({p:.2f})", "the larger of two is not raised by Holm"


def test_what_chose_the_evaluation_has_no_p_value_and_no_place_in_holms_count(
    tmp_path: Path,
) -> None:
    scores = {
        arm: {s: {"all": v, "val": v + 10} for s, v in by.items()}
        for arm, by in (("baseline", BASELINE), ("batchformer", OTHER))
    }
    put(tmp_path, "five", scores)
    p = stats.ttest_rel([*OTHER.values()], [*BASELINE.values()]).pvalue
    arms = ("kind: arms", "records: my_folder/five", "metrics: all val")
    *_, difference, below = table(tmp_path, *arms, "contrasts: batchformer - baseline")
    assert difference[1] == f"**{difference[2]}**", "the same numbers, one of them tested"
    assert below == ["p", f"{p:.3f}", ""], "one test needs no correction"
    rows = ("kind: rows", "columns: batchformer - baseline on all val", "row: my_folder/five")
    _, row = table(tmp_path, *rows, "family: batchformer - baseline on all val")
    assert row[1:] == [f"{difference[1]}, p {p:.3f}", difference[2]]
    known = {"difference": 10.0, "low": 9.0, "high": 11.0, "p": 0.01, "holm": 0.02}
    contrast = {"arm": "batchformer", "against": "baseline", "seeds": 5}
    typed = {"contrasts": [contrast | {"metrics": dict.fromkeys(("all", "few", "val"), known)}]}
    (tmp_path / "my_folder/five/summary.json").write_text(json.dumps(typed))
    arms = ("kind: arms", "records: my_folder/five", "metrics: all few val")
    *_, difference, below = table(tmp_path, *arms, "contrasts: batchformer - baseline")
    assert difference[1:] == [*["**+10.00 [+9.00, +11.00]**"] * 2, "+10.00 [+9.00, +11.00]"]
    assert below == ["p (Holm)", "0.010 (0.020)", "0.010 (0.020)", ""]


def test_a_score_that_is_missing_in_a_seed_is_told(tmp_path: Path) -> None:
    half = {0: {"all": 50.0, "few": None}, 1: {"all": 51.0, "few": 30.0}}
    put(tmp_path, "five", {"baseline": half})
    rows = table(tmp_path, "kind: arms", "records: my_folder/five", "metrics: all few")
    assert rows[1] == ["baseline, 2 seeds", "50.50", "30.00 (1 seed)"]


def test_the_interval_of_a_percentage_ends_at_100(tmp_path: Path) -> None:
    put(tmp_path, "five", {"baseline": of_all({0: 99.0, 1: 100.0, 2: 95.0})})
    _, row = table(tmp_path, "kind: arms", "records: my_folder/five", "metrics: all")
    assert row[1] == "98.00 [91.43, 100.00]"


def test_the_means_of_a_row_are_over_the_seeds_that_its_arms_share(tmp_path: Path) -> None:
    fewer = {seed: OTHER[seed] for seed in (0, 1, 2)}
    arms = {"baseline": of_all(BASELINE), "batchformer_frozen": of_all(fewer)}
    put(tmp_path, "five", {**arms, "batchformer": of_all(OTHER)})
    _, first, second = table(
        tmp_path,
        "kind: rows",
        "metric: all",
        "columns: baseline; batchformer; batchformer - baseline",
        "row: my_folder/five = trained",
        "row: my_folder/five with batchformer_frozen = untrained",
    )
    assert first[0] == "trained, 4 seeds" and second[0] == "untrained, 3 seeds"
    means = [statistics.mean(by[seed] for seed in fewer) for by in (BASELINE, OTHER)]
    assert second[1:3] == [f"{mean:.2f}" for mean in means]
    assert second[3].startswith(f"**{means[1] - means[0]:+.2f} ["), "as the two means say"


def test_several_comparisons_are_pooled_each_counting_once(tmp_path: Path) -> None:
    put(tmp_path, "five", BOTH)
    more = {seed: value + 0.1 for seed, value in BASELINE.items()}
    put(tmp_path, "ten", {"baseline": of_all(BASELINE), "batchformer": of_all({**more, 4: 99.0})})
    (_, row) = table(
        tmp_path,
        "kind: rows",
        "columns: baseline on all; batchformer - baseline on all",
        "row: my_folder/five + my_folder/ten = both",
    )
    first = statistics.mean(OTHER[seed] - BASELINE[seed] for seed in BASELINE)
    assert row[:2] == ["both, 8 seeds", ""], "a mean over both would mix them"
    assert row[2].startswith(f"{(first + 0.1) / 2:+.2f} [")


def test_an_arm_is_compared_with_the_baseline_of_another_comparison(tmp_path: Path) -> None:
    put(tmp_path, "plain", {"baseline": of_all(BASELINE), "batchformer": of_all({0: 1.0})})
    put(tmp_path, "cutmix", {"baseline": of_all({**OTHER, 9: 99.0})})
    lines = "kind: rows", "metric: all", "columns: baseline; batchformer; batchformer - baseline"
    (_, row) = table(
        tmp_path, *lines, "row: my_folder/cutmix with baseline against my_folder/plain = CutMix"
    )
    mean = statistics.mean(OTHER[seed] - BASELINE[seed] for seed in BASELINE)
    assert row[:3] == ["CutMix, 4 seeds", "50.40", "51.58"], "on the seeds that both have"
    assert row[3].strip("*").startswith(f"{mean:+.2f} [")
    with pytest.raises(
        ValueError, match="no record of batchformer, or the one after `against` none of baseline"
    ):
        table(tmp_path, *lines, "row: my_folder/cutmix against my_folder/plain")
    higher = {seed: value + 1 for seed, value in BASELINE.items()}
    put(tmp_path, "more", {"baseline": of_all(higher)})
    both = (
        "my_folder/cutmix & my_folder/cutmix with baseline against my_folder/plain & my_folder/more"
    )
    (_, row) = table(tmp_path, *lines, f"row: {both} = mean of both")
    assert row[3].strip("*").startswith(f"{mean - 0.5:+.2f} [")


def typed(root: Path) -> None:
    """The comparison of 5 images, and a summary with a metric that no record has."""
    put(root, "five", BOTH)
    known = {"difference": -0.5, "low": -1.5, "high": 0.5, "p": 0.21, "holm": 0.42}
    summary: dict[str, Any] = {
        "source": "typed from RESULTS.md",
        "recipe": "my_folder",
        "arms": {
            "baseline": {
                "seeds": 4,
                "metrics": {
                    "all": {"mean": 1.0, "low": 0.0, "high": 2.0},
                    "few": {"mean": 32.0, "low": 31.0, "high": 33.0},
                },
            }
        },
        "contrasts": [
            {
                "arm": "batchformer",
                "against": "baseline",
                "seeds": 4,
                "metrics": {"few": known, "all": {"difference": 9.0, "p": 0.5, "holm": "<0.001"}},
            }
        ],
    }
    (root / "my_folder/five/summary.json").write_text(json.dumps(summary))


def test_a_summary_of_several_comparisons_names_them(tmp_path: Path) -> None:
    put(tmp_path, "five", BOTH)
    put(tmp_path, "ten", BOTH)
    few = {"difference": 0.7, "low": 0.1, "high": 1.3, "p": 0.02}
    contrast = {"arm": "batchformer", "against": "baseline", "seeds": 8, "metrics": {"few": few}}
    summary = {"recipe": "pooled", "contrasts": [contrast]}
    (tmp_path / "pooled").mkdir()
    pools = {"pools": ["my_folder/five", "my_folder/ten"]}
    (tmp_path / "pooled/summary.json").write_text(json.dumps(summary | pools))
    columns = "columns: batchformer - baseline on all few"
    _, row = table(tmp_path, "kind: rows", columns, "row: pooled = both")
    mean = statistics.mean(OTHER[seed] - BASELINE[seed] for seed in BASELINE)
    assert row[0] == "both, 8 seeds" and row[1].lstrip("*").startswith(f"{mean:+.2f} [")
    assert row[2] == "+0.70 [+0.10, +1.30]", "as it was typed"


def test_typed_numbers_fill_in_where_no_seed_was_kept(tmp_path: Path) -> None:
    typed(tmp_path)
    rows = table(
        tmp_path,
        "kind: arms",
        "records: my_folder/five",
        "metrics: all few",
        "contrasts: batchformer - baseline",
    )
    assert rows[1][1:] == ["50.40 [49.71, 51.09]", "32.00 [31.00, 33.00]"], "seeds go first"
    assert rows[-2][2] == "-0.50 [-1.50, +0.50]"
    assert rows[-1][2] == "0.21 (0.42)"
    assert rows[-1][1].endswith("(<0.001)"), "the correction was over both, so both are as typed"


def test_the_chance_to_find_the_papers_effect_has_a_range(tmp_path: Path) -> None:
    put(tmp_path, "", BOTH, "cifar100_lt_balanced_softmax")
    (_, row) = table(
        tmp_path,
        "kind: rows",
        "metric: all",
        "columns: paper batchformer - baseline; chance batchformer - baseline",
        "row: cifar100_lt_balanced_softmax = CIFAR",
    )
    assert row[1] == "+1.0"
    sd = statistics.stdev(OTHER[seed] - BASELINE[seed] for seed in BASELINE)
    shift, critical = 1.0 / sd * 2, stats.t.ppf(0.975, 3)
    chance = stats.nct.sf(critical, 3, shift) + stats.nct.cdf(-critical, 3, shift)
    assert row[2].startswith(f"{100 * chance:.0f}% (")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["kind: rows", "row: my_folder/five"], "needs one line `columns: ...`"),
        (["kind: rows", "columns: baseline", "row: my_folder/five"], "names no metric"),
        (["kind: rows", "columns: base line - x on all"], "is not understood"),
        (["kind: arms", "records: nowhere"], "there are no records in .*nowhere"),
        (
            ["kind: rows", "metric: all", "columns: basline", "row: my_folder/five"],
            "no record has the arm 'basline'; the arms are baseline",
        ),
        (
            ["kind: arms", "records: my_folder/five", "metrics: all mnay"],
            "no record has the metric 'mnay'; the metrics are all",
        ),
        (
            ["kind: arms", "records: my_folder/five", "contrasts: batchformer - baseline"],
            "no record has the arm 'batchformer'",
        ),
        (["kind: bars"], "kind is 'bars', but must be arms or rows"),
        (
            ["kind: arms", "records: my_folder/five", "paper: true"],
            "paper is 'true', but must be no or yes",
        ),
        (
            ["kind: rows", "columns: baseline on all", "primary: all"],
            "primary is 'all', but must be first",
        ),
        (["kind: arms", "record: x"], "has no line record; its lines are"),
        (["nothing"], "is not `key: value`"),
    ],
)
def test_a_table_that_cannot_be_made_is_named(tmp_path: Path, lines: list[str], said: str) -> None:
    put(tmp_path, "five", {"baseline": of_all(BASELINE)})
    with pytest.raises(ValueError, match=f"the page, table one: .*{said}"):
        table(tmp_path, *lines)


def test_a_table_that_is_not_closed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="opens 1 tables, but only 0 can be read"):
        make_page("<!-- table one\nkind: arms\n-->\n", tmp_path)


def test_a_table_in_a_block_of_code_is_an_example(tmp_path: Path) -> None:
    text = "```text\n<!-- table one\nkind: arms\nrecords: nowhere\n-->\n<!-- /table -->\n```\n"
    assert make_page(text, tmp_path) == text


def test_the_command_makes_a_page_and_says_whether_it_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "results", "five", {"baseline": of_all(BASELINE)})
    page = tmp_path / "RESULTS.md"
    description = "<!-- table one\nkind: arms\nrecords: my_folder/five\n-->\n"
    page.write_text(f"Words.\n{description}<!-- /table -->\n")
    call = ["record", "--make", str(page), "--to", str(tmp_path / "results")]
    main(call)
    assert "tables made again" in capsys.readouterr().out
    assert "| baseline, 4 seeds | 50.40 [49.71, 51.09] |" in page.read_text()
    main(call)
    assert "its tables are up to date" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["record", "--make", str(tmp_path / "none.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_published_tables_are_those_of_the_records(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert make_page(text, RESULTS, page.name) == text, (
        f"the tables of {page.name} are not those of results/: make results"
    )


def test_results_stay_short_and_every_record_is_small() -> None:
    assert (ROOT / "RESULTS.md").stat().st_size <= 25 * 1024
    for path in RESULTS.rglob("*.json"):
        # A benchmark saves hundreds of timings with their quartiles in one file.
        assert path.stat().st_size < (60_000 if path.parent.name == "speed" else 10_000), path


def test_a_table_of_the_benchmark_shows_what_was_saved_of_it(tmp_path: Path) -> None:
    times = Table("layer", "One layer", ("N", "mode", "ms"), {})
    times.add(64, "eager", Spread(1.5, 1.25, 2.0, 5))
    times.add(64, "compiled", 0.5)
    (tmp_path / "h200.json").write_text(json.dumps({"tables": [times.as_json()]}))
    lines = ("kind: bench", "records: h200.json", "part: layer")
    header, eager, compiled = table(tmp_path, *lines)
    assert header == ["N", "mode", "ms"] and eager == ["64", "eager", "1.50 [1.25, 2.00]"]
    assert table(tmp_path, *lines, "only: mode = compiled; N = 64") == [header, compiled]
    for wrong, words in (
        ("only: size = 64", "no column 'size'; it has N, mode, ms"),
        ("only: mode = captured", "has no such row"),
    ):
        with pytest.raises(ValueError, match=words):
            table(tmp_path, *lines, wrong)
    with pytest.raises(ValueError, match="no part 'growth'; its parts are layer"):
        table(tmp_path, *lines[:2], "part: growth")
    with pytest.raises(ValueError, match=r"there is no file .*other\.json"):
        table(tmp_path, "kind: bench", "records: other.json", "part: layer")


@pytest.mark.parametrize(
    "path", sorted(RESULTS.rglob("summary.json")), ids=lambda path: path.parent.name
)
def test_what_was_typed_of_all_seeds_is_what_the_seeds_say(path: Path) -> None:
    found = load(RESULTS, path.parent.relative_to(RESULTS).as_posix())
    seeds = replace(found, typed={}, pooled=())
    compared: list[tuple[Mean | Contrast | None, int, str, dict[str, float]]] = [
        (seeds.mean(arm, metric), known["seeds"], "mean", shown)
        for arm, known in found.typed["arms"].items()
        for metric, shown in known["metrics"].items()
    ]
    compared += [
        (seeds.contrast(one["arm"], one["against"], metric), one["seeds"], "difference", shown)
        for one in found.typed["contrasts"]
        for metric, shown in one["metrics"].items()
    ]
    for own, count, middle, shown in compared:
        if own is not None and own.n == count:
            for name in (middle, "low", "high"):
                assert getattr(own, name) == pytest.approx(shown[name], abs=0.016), (own, shown)
