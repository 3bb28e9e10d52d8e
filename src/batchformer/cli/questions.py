"""Commands that answer questions: list, check, data, bench."""

from __future__ import annotations

from batchformer.cli.arguments import (
    UserError,
    leading_paths,
    parse,
    refuse_unknown_arms,
    with_recipe,
)
from batchformer.cli.options import (
    BenchOptions,
    CheckOptions,
    ConvertPairsOptions,
    DataOptions,
    ListOptions,
    LongTailOptions,
    PairsOptions,
)
from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.methods import without_batchformer
from batchformer.lab.runs.listing import ensure_data, print_data, print_listing, print_matching


def list_recipes(arguments: list[str]) -> None:
    split = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    parse(ListOptions, arguments[split:], "list [WORD...]")
    if words := arguments[:split]:
        print_matching(words)
    else:
        print_listing()


def check(arguments: list[str]) -> None:
    recipe, options = with_recipe(CheckOptions, arguments, "check")
    if without_batchformer(recipe.method):
        raise UserError(
            f"{recipe.name} has no BatchFormer to check: {recipe.method} works on the network of "
            f"another run. Check that one: batchformer check {recipe.start or 'RECIPE'}"
        )
    refuse_unknown_arms([options.arm])
    recipe = with_arm(recipe, options.arm)
    if not recipe.module.enabled:
        raise UserError(f"The arm {options.arm} has no BatchFormer to check.")
    ensure_data(recipe)
    from batchformer.lab.runs.build import build, load_task, pick_device
    from batchformer.lab.runs.run import explain_unfit_images
    from batchformer.lab.runs.sub_runs import targets_of
    from batchformer.plug.check import check as look

    device = pick_device(options.device)
    if targets := targets_of(recipe):
        recipe = recipe.changed(data={"target": targets[0]})
    task = load_task(recipe.data, device)
    method = build(recipe, 0, task).to(device)
    batch = task.feed(recipe.train, 0).batch(0)
    optimizer = method.optimizers(recipe.optim).get("main")  # a method may train nothing
    mixed_only = recipe.module.streams == "mixed_only"
    with explain_unfit_images():
        result = look(method, method.forward_inputs(batch), optimizer, mixed_only=mixed_only)
    print(result)
    if not result.passed:
        raise SystemExit(1)


def data(arguments: list[str]) -> None:
    name, *rest = arguments or [""]
    if name == "pairs":
        _make_pairs(parse(PairsOptions, rest, "data pairs"))
    elif name == "long-tail":
        _write_long_tail(parse(LongTailOptions, rest, "data long-tail"))
    elif name == "convert-pairs":
        from batchformer.lab.data.sets.known_pairs import METADATA, metadata_to_csv

        needed = f"a file, such as mit-states/{METADATA}"
        files, rest = leading_paths(rest, "data convert-pairs", "file", needed)
        options = parse(ConvertPairsOptions, rest, "data convert-pairs FILE.t7")
        if len(files) != 1 or not files[0].is_file():
            raise UserError(f"`data convert-pairs` takes one file, such as mit-states/{METADATA}.")
        written, skipped = metadata_to_csv(files[0], options.to, options.images)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        left_out = f"; left out {skipped.total():,}: {reasons}" if reasons else ""
        print(f"{options.to}: {written:,} images written{left_out}")
    else:
        parse(DataOptions, arguments, "data")
        print_data()


def _write_long_tail(options: LongTailOptions) -> None:
    from batchformer.insight.files import write_atomically
    from batchformer.lab.data.sets.cifar import official_labels
    from batchformer.lab.data.sets.images import long_tail_list

    labels = official_labels(options.name, options.root)
    kept, digest = long_tail_list(labels, options.ratio, seed=options.seed)
    lines = ["position,label", *(f"{row},{labels[row]}" for row in kept)]
    write_atomically(options.to, ("\n".join(lines) + "\n").encode())
    print(f"{options.to}: {len(kept):,} of {len(labels):,} images, SHA-256 of the list {digest}")


def _make_pairs(options: PairsOptions) -> None:
    from batchformer.lab.data.sets.pairs import write_pair_table
    from batchformer.lab.data.sets.pairs_from_tree import make_pairs

    numbers = (options.unseen_val, options.unseen_test, options.seed, options.fractions)
    images = make_pairs(options.root, *numbers)
    write_pair_table(options.to, images)
    seen = {image.pair for image in images if image.split == "train"}
    for phase in ("val", "test"):
        own = sorted({image.pair for image in images if image.split == phase} - seen)
        print(f"Unseen pairs of {phase}: {', '.join(' '.join(pair) for pair in own) or 'none'}")
    print(f"{options.to}: {len(images):,} images of {len({i.pair for i in images})} pairs")


def bench(arguments: list[str]) -> None:
    options = parse(BenchOptions, arguments, "bench")
    if options.repeats is not None and options.repeats < 1:
        raise UserError("bench needs at least one repeat.")
    from batchformer.lab.bench.measure import BenchSettings
    from batchformer.lab.bench.run import run as measure
    from batchformer.lab.runs.build import pick_device

    device = pick_device(options.device)
    settings = BenchSettings(device, options.full, options.repeats)
    tables = measure(settings, options.to, options.only)
    print(f"Tables: {options.to / 'bench.md'}, {options.to / 'bench.json'}")
    if failed := [table.part for table in tables if table.failed]:
        raise UserError(f"bench: not measured: {', '.join(failed)}; the tables say why.")
