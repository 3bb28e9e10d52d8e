"""Every arm is the recipe with one thing changed."""

from __future__ import annotations

import pytest

from batchformer.lab.config.arms import ARMS, usual_arms, with_arm
from batchformer.lab.config.methods import METHODS, find_method
from batchformer.lab.config.recipe import changed_settings
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import RECIPES, find_recipe

CHANGED = {
    "baseline": {"module.enabled": False},
    "batchformer": {},
    "batchformer_self": {"module.attend": "self"},
    "batchformer_frozen": {"module.trained": False},
    "batchformer_mixed_only": {"module.streams": "mixed_only"},
    "batchformer_identity": {"module.encoder": "none"},
    "batchformer_official_loss": {"module.loss_scale": "official"},
    "batchformer_official_grouping": {"hyper.irm_grouping": "official"},
    "batchformer_many": {"hyper.mixed_classes": "many"},
    "batchformer_not_many": {"hyper.mixed_classes": "not_many"},
    "class_context": {"module.context": "classes"},
    "class_context_self": {"module.context": "classes", "module.attend": "self"},
    "mates": {"data.sampler": "mates"},
    "attention_labels": {"module.mixed_labels": "attention"},
    "attention_labels_random": {"module.mixed_labels": "random"},
    "views": {"module.attend": "self", "module.views": 4},
    "dropout_stream": {"module.encoder": "dropout"},
    "norm_stream": {"module.encoder": "norm", "module.dropout": 0.0},
    "norm_dropout_stream": {"module.encoder": "norm"},
    "random_weights": {"module.enabled": False, "weights": ""},
    "baseline_loss1.5x": {"module.enabled": False, "train.loss_multiplier": 1.5},
    "baseline_loss3x": {"module.enabled": False, "train.loss_multiplier": 3.0},
    "baseline_batch2x": {"module.enabled": False, "train.batch_size": 128},
    "baseline_updates2x": {
        "module.enabled": False,
        "train.updates": 1_200,
        "train.eval_every": 200,
        "schedule.warmup": 100,
    },
    "baseline_mates": {"module.enabled": False, "data.sampler": "mates"},
    "baseline_dropout": {"module.enabled": False, "hyper.feature_dropout": 0.5},
    "baseline_norm": {"module.enabled": False, "hyper.feature_norm": True},
}
#: A recipe with places inside its network, which this arm needs.
INSIDE = "cifar100_lt_deit_balanced_softmax"


#: Arms that mean something for some methods alone.
OF_SOME = {arm for arm in ARMS if not all(map(ARMS[arm].fits, METHODS.values()))}


def fits(name: str, arm: str) -> bool:
    """Whether an arm means something for the method of a recipe."""
    return ARMS[arm].fits(find_method(find_recipe(name).method))


@pytest.mark.parametrize("arm", ARMS)
def test_what_an_arm_changes(arm: str) -> None:
    weights = "trained.pth" if arm == "random_weights" else ""
    name = INSIDE if arm == "batchformer_identity" else next(n for n in RECIPES if fits(n, arm))
    recipe = find_recipe(name).changed(weights=weights)
    changed = changed_settings(recipe, with_arm(recipe, arm))
    assert {key: new for key, (_, new) in changed.items()} == CHANGED[arm]


@pytest.mark.parametrize(
    "name", ["demo", "imagenet_deit_tiny", "cifar100_lt_paco", "visda_mdd", "cifar100_lt_bbn"]
)
def test_twice_the_work_is_done_at_the_same_rates(name: str) -> None:
    """At twice the update, or at the same one of epochs half as long."""
    recipe, per_epoch = find_recipe(name), 10
    longer = with_arm(recipe, "baseline_updates2x")
    arms = [(longer, 2, per_epoch)]
    if recipe.train.batch_size:
        arms.append((with_arm(recipe, "baseline_batch2x"), 1, per_epoch // 2))
    updates = recipe.train.in_updates(per_epoch).updates
    for arm, factor, epoch in arms:
        assert arm.train.in_updates(epoch).updates == factor * updates
        for time in range(0, updates, per_epoch):
            rate = lr_factor(recipe.schedule, time, updates, per_epoch)
            found = lr_factor(arm.schedule, factor * time, factor * updates, epoch)
            assert found == pytest.approx(rate)
    assert longer.train.batch_size == recipe.train.batch_size


@pytest.mark.parametrize("arm", ["baseline_batch2x", "baseline_updates2x"])
@pytest.mark.parametrize(
    ("name", "setting", "epochs"),
    [
        ("cifar100_lt_lfme", "curriculum_epochs", 200),
        ("inaturalist18_bbn", "cumulative_epochs", 200),
        ("cifar100_lt_bbn", "cumulative_epochs", 0),  # as many as the training has
        ("ut_zappos_compcos_open", "feasibility_epochs", 200),
    ],
)
def test_twice_the_work_takes_twice_the_epochs_of_the_method(
    name: str, setting: str, epochs: int, arm: str
) -> None:
    assert getattr(with_arm(find_recipe(name), arm).hyper, setting) == epochs


#: A recipe, an arm that makes no sense for it, and why.
REFUSED = [
    ("demo", "batchfromer", "there are baseline, batchformer"),
    ("demo", "batchformer_identity", "batchformer_identity.*name a place inside the network"),
    ("cub_eszsl", "batchformer", "--arms baseline"),
    ("imagenet_lt_ride_resnet10", "batchformer_mixed_only", "would be batchformer under another"),
    *(
        (name, arm, f"{arm} changes how long.*(reweight_epoch|penalty_from)")
        for name in ("cifar100_lt_ldam", "rotated_digits_irm")
        for arm in ("baseline_batch2x", "baseline_updates2x")
    ),
    *(
        (name, arm, f"{arm} puts.*stage of ride, not {find_recipe(name).method};.*--method ri")
        for name in ("demo", "cifar100_lt_paco", "cifar100_lt_ride_assignment")
        for arm in ("batchformer_many", "batchformer_not_many")
    ),
    *(
        (name, "batchformer_official_grouping", f"code of irm.*{find_recipe(name).method} has no")
        for name in ("demo", "pacs_coral", "rotated_digits_erm", "cifar100_lt_paco")
    ),
]


@pytest.mark.parametrize(("name", "arm", "words"), REFUSED)
def test_an_arm_that_is_none_of_a_recipe_is_refused(name: str, arm: str, words: str) -> None:
    recipe = find_recipe(name)
    with pytest.raises(ValueError, match=words):
        with_arm(recipe, arm)
    assert not with_arm(recipe, "baseline").module.enabled


@pytest.mark.parametrize("name", [n for n in RECIPES if find_recipe(n).method in ("ride", "paco")])
def test_an_arm_without_sense_is_refused_and_the_others_are_not(name: str) -> None:
    recipe = find_recipe(name)
    without = {"batchformer_official_loss", "random_weights", "batchformer_identity"}
    without |= {"baseline_batch2x", "baseline_updates2x"} if recipe.method == "ride" else set()
    without |= {"batchformer_mixed_only"} if recipe.module.streams == "mixed_only" else set()
    for arm in set(ARMS) - without:
        if fits(name, arm):
            with_arm(recipe, arm)
    with pytest.raises(ValueError, match="Not possible"):
        with_arm(recipe, "batchformer_official_loss")
    for arm in (
        "class_context",
        "mates",
        "views",
        "dropout_stream",
        "norm_stream",
        "baseline_dropout",
    ):
        words = rf"{arm} .*the loss of {recipe.method} is no mean.*--method cross_entropy or bal"
        with pytest.raises(ValueError, match=words):
            with_arm(recipe, arm)


@pytest.mark.parametrize("arm", ["mates", "baseline_mates"])
def test_mates_are_for_a_shuffled_order_and_for_even_batches(arm: str) -> None:
    recipe = find_recipe("demo")
    balanced = recipe.changed(data={"sampler": "class_balanced"})
    for other in (balanced, find_recipe("pacs_erm"), with_arm(recipe, arm)):
        words = rf"{arm} gives a mate.*{other.name} has data.sampler {other.data.sampler};"
        with pytest.raises(ValueError, match=words):
            with_arm(other, arm)
    odd = recipe.changed(train={"batch_size": 33})
    with pytest.raises(ValueError, match=r"puts pairs into a batch; set train\.batch-size to a"):
        with_arm(odd, arm)
    for name in ("cifar100_lt_balanced_softmax", "cifar100_lt_cross_entropy", "my_folder"):
        assert with_arm(find_recipe(name), arm).data.sampler == "mates"


def test_what_trains_nothing_needs_runs_with_batchformer_to_start_from() -> None:
    recipe = find_recipe("places_lt_tau_norm")
    assert not with_arm(recipe, "baseline").module.enabled
    for arm in ("batchformer", "batchformer_self"):
        with pytest.raises(ValueError, match=f"the arm {arm} would be the baseline.*--arms base"):
            with_arm(recipe, arm)
    assert with_arm(find_recipe("cifar100_lt_tau_norm"), "batchformer").module.enabled
    routed = find_recipe("cifar100_lt_ride_assignment")
    assert with_arm(routed, "batchformer").module.enabled
    named = routed.changed(start="cifar100_lt_ride/baseline")
    with pytest.raises(ValueError, match="the arm batchformer would be the baseline"):
        with_arm(named, "batchformer")
    assert with_arm(find_recipe("places_lt_balms"), "batchformer").module.enabled


@pytest.mark.parametrize(
    "begin", [{"weights": "trained.pth"}, {"start": "imagenet_moco_v3/baseline"}]
)
@pytest.mark.parametrize("name", ["my_voc", "voc_moco_v3", "digits_moco_v3_probe", "my_folder_knn"])
def test_where_all_arms_begin_alike_batchformer_is_none(name: str, begin: dict[str, str]) -> None:
    recipe = find_recipe(name).changed(**{"start": "", **begin})
    assert usual_arms(recipe) == ("baseline",)
    for arm in ("baseline", "random_weights"):
        with_arm(recipe, arm)
    for arm in ("batchformer", "batchformer_self", "batchformer_frozen"):
        words = f"no part in {recipe.method}, and {name} begins with the same.*the arm {arm} would"
        with pytest.raises(ValueError, match=words):
            with_arm(recipe, arm)
    started = recipe.changed(start="imagenet_moco_v3", weights="")
    assert usual_arms(started) == ("baseline", "batchformer")
    assert with_arm(started, "batchformer").start == "imagenet_moco_v3"


def test_arms_that_differ_are_compared_by_default() -> None:
    for name in ("demo", "cub_ce_gzsl", "places_lt_balms", "cifar100_lt_tau_norm", "voc_moco_v2"):
        assert usual_arms(find_recipe(name)) == ("baseline", "batchformer")
    for name in ("my_voc", "cub_eszsl"):
        assert usual_arms(find_recipe(name)) == ("baseline",)


@pytest.mark.parametrize("name", RECIPES)
def test_usual_arms_are_none_that_the_recipe_refuses(name: str) -> None:
    recipe = find_recipe(name)
    for arm in usual_arms(recipe):
        with_arm(recipe, arm)


@pytest.mark.parametrize("name", ["demo", "cifar100_lt_moco_v3", "digits_moco_v3", "my_voc"])
def test_random_weights_are_no_arm_of_what_begins_with_them(name: str) -> None:
    recipe = find_recipe(name)
    with pytest.raises(ValueError, match=f"{name} begins with random weights in every arm"):
        with_arm(recipe, "random_weights")
    with_arm(recipe.changed(weights="timm"), "random_weights")
    with_arm(recipe, "baseline")


@pytest.mark.parametrize("name", ["digits_moco_v3_probe", "digits_moco_v3_knn"])
def test_only_random_weights_are_measured_where_nothing_was_learnt(name: str) -> None:
    recipe = find_recipe(name).changed(start="")
    without = {"random_weights", "batchformer_official_loss", "batchformer_identity"}
    for arm in set(ARMS) - without - OF_SOME:
        with pytest.raises(ValueError, match=f"the arm {arm} would be an untrained network"):
            with_arm(recipe, arm)
    assert with_arm(recipe, "random_weights").start == ""
    with_arm(recipe.changed(weights="timm"), "baseline")


def test_an_arm_whose_module_is_switched_off_is_refused() -> None:
    """Its folder and its row would say BatchFormer, and the comparison that it does nothing."""
    off = find_recipe("demo").changed(module={"enabled": False})
    assert not with_arm(off, "baseline").module.enabled
    assert not with_arm(off, "baseline_mates").module.enabled
    for arm in ("batchformer", "batchformer_self", "mates"):
        with pytest.raises(ValueError, match=f"the arm {arm} would be the baseline under another"):
            with_arm(off, arm)
