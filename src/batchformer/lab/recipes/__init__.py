"""Experiments by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import cifar_lt as decoupled
from batchformer.lab.recipes import cifar_lt as ldam
from batchformer.lab.recipes import cifar_lt as long_tailed
from batchformer.lab.recipes import cifar_lt as paco
from batchformer.lab.recipes import cifar_lt as ride
from batchformer.lab.recipes import (
    contrastive,
    contrastive_small,
    detection,
    domains,
    imagenet_lt,
    recognition,
)
from batchformer.lab.recipes import domains as adaptation
from batchformer.lab.recipes import image_lists_lt as inaturalist
from batchformer.lab.recipes import image_lists_lt as places_lt
from batchformer.lab.recipes import small as demo
from batchformer.lab.recipes import small as my_folder
from batchformer.lab.recipes import small as rotated_digits
from batchformer.lab.recipes import zero_shot as compositional
from batchformer.lab.recipes import zero_shot as generalized

RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo.demo,
    "my_folder": my_folder.my_folder,
    "cifar100_lt_balanced_softmax": long_tailed.cifar100_lt_balanced_softmax,
    "cifar100_lt_balanced_softmax_r200": long_tailed.cifar100_lt_balanced_softmax_r200,
    "cifar100_lt_balanced_softmax_released": long_tailed.cifar100_lt_balanced_softmax_released,
    "cifar100_lt_balanced_softmax_cutmix": long_tailed.cifar100_lt_balanced_softmax_cutmix,
    "cifar100_lt_cross_entropy": long_tailed.cifar100_lt_cross_entropy,
    "cifar10_lt_balanced_softmax": long_tailed.cifar10_lt_balanced_softmax,
    "cifar10_lt_balanced_softmax_r200": long_tailed.cifar10_lt_balanced_softmax_r200,
    "cifar100_lt_ldam": ldam.cifar100_lt_ldam,
    "cifar100_lt_ride": ride.cifar100_lt_ride,
    "cifar100_lt_ride_6experts": ride.cifar100_lt_ride_6experts,
    "cifar100_lt_ride_two_stage": ride.cifar100_lt_ride_two_stage,
    "cifar100_lt_ride_distilled": ride.cifar100_lt_ride_distilled,
    "cifar100_lt_ride_assignment": ride.cifar100_lt_ride_assignment,
    "cifar100_lt_paco": paco.cifar100_lt_paco,
    "cifar100_lt_paco_r200": paco.cifar100_lt_paco_r200,
    "cifar100_lt_without_paco_loss": paco.cifar100_lt_without_paco_loss,
    "cifar100_lt_without_paco_loss_r200": paco.cifar100_lt_without_paco_loss_r200,
    "cifar100_lt_crt": decoupled.cifar100_lt_crt,
    "cifar100_lt_tau_norm": decoupled.cifar100_lt_tau_norm,
    "cifar100_lt_lws": decoupled.cifar100_lt_lws,
    "cifar100_lt_balms": decoupled.cifar100_lt_balms,
    "imagenet_lt_balanced_softmax_resnet10": imagenet_lt.imagenet_lt_balanced_softmax_resnet10,
    "imagenet_lt_balanced_softmax_resnet50": imagenet_lt.imagenet_lt_balanced_softmax_resnet50,
    "imagenet_lt_ride_resnet10": imagenet_lt.imagenet_lt_ride_resnet10,
    "imagenet_lt_ride_resnet50": imagenet_lt.imagenet_lt_ride_resnet50,
    "imagenet_lt_ride_resnext50": imagenet_lt.imagenet_lt_ride_resnext50,
    "imagenet_lt_ride_resnet10_two_stage": imagenet_lt.imagenet_lt_ride_resnet10_two_stage,
    "imagenet_lt_ride_resnet50_two_stage": imagenet_lt.imagenet_lt_ride_resnet50_two_stage,
    "imagenet_lt_ride_resnet10_6experts": imagenet_lt.imagenet_lt_ride_resnet10_6experts,
    "imagenet_lt_ride_resnet50_6experts": imagenet_lt.imagenet_lt_ride_resnet50_6experts,
    "imagenet_lt_ride_resnet10_distilled": imagenet_lt.imagenet_lt_ride_resnet10_distilled,
    "imagenet_lt_ride_resnet50_distilled": imagenet_lt.imagenet_lt_ride_resnet50_distilled,
    "imagenet_lt_paco": imagenet_lt.imagenet_lt_paco,
    "inaturalist18_ride": inaturalist.inaturalist18_ride,
    "inaturalist18_cross_entropy": inaturalist.inaturalist18_cross_entropy,
    "inaturalist18_crt": inaturalist.inaturalist18_crt,
    "inaturalist18_paco": inaturalist.inaturalist18_paco,
    "places_lt_balms": places_lt.places_lt_balms,
    "places_lt_tau_norm": places_lt.places_lt_tau_norm,
    "places_lt_paco": places_lt.places_lt_paco,
    "my_domains": domains.my_domains,
    "pacs_baseline": domains.pacs_baseline,
    "pacs_erm": domains.pacs_erm,
    "pacs_coral": domains.pacs_coral,
    "pacs_irm": domains.pacs_irm,
    "pacs_vrex": domains.pacs_vrex,
    "pacs_mixstyle": domains.pacs_mixstyle,
    "pacs_irm_resnet50": domains.pacs_irm_resnet50,
    "pacs_vrex_resnet50": domains.pacs_vrex_resnet50,
    "pacs_swad": domains.pacs_swad,
    "pacs_swad_resnet50": domains.pacs_swad_resnet50,
    "vlcs_swad": domains.vlcs_swad,
    "office_home_irm_resnet50": domains.office_home_irm_resnet50,
    "office_home_swad": domains.office_home_swad,
    "office_home_swad_resnet50": domains.office_home_swad_resnet50,
    "terra_incognita_swad": domains.terra_incognita_swad,
    "visda_mdd": adaptation.visda_mdd,
    "pacs_mdd": adaptation.pacs_mdd,
    "rotated_digits_erm": rotated_digits.rotated_digits_erm,
    "rotated_digits_coral": rotated_digits.rotated_digits_coral,
    "rotated_digits_irm": rotated_digits.rotated_digits_irm,
    "rotated_digits_vrex": rotated_digits.rotated_digits_vrex,
    "rotated_digits_mixstyle": rotated_digits.rotated_digits_mixstyle,
    "rotated_digits_mdd": rotated_digits.rotated_digits_mdd,
    "mit_states_cge": compositional.mit_states_cge,
    "mit_states_compcos": compositional.mit_states_compcos,
    "mit_states_compcos_open": compositional.mit_states_compcos_open,
    "ut_zappos_cge": compositional.ut_zappos_cge,
    "ut_zappos_compcos": compositional.ut_zappos_compcos,
    "ut_zappos_compcos_open": compositional.ut_zappos_compcos_open,
    "c_gqa_cge": compositional.c_gqa_cge,
    "c_gqa_compcos": compositional.c_gqa_compcos,
    "my_pairs_cge": compositional.my_pairs_cge,
    "my_pairs_compcos": compositional.my_pairs_compcos,
    "cub_ce_gzsl": generalized.cub_ce_gzsl,
    "cub_eszsl": generalized.cub_eszsl,
    "my_features_ce_gzsl": generalized.my_features_ce_gzsl,
    "imagenet_resnet50": recognition.imagenet_resnet50,
    "imagenet_deit_tiny": recognition.imagenet_deit_tiny,
    "imagenet_deit_small": recognition.imagenet_deit_small,
    "imagenet_deit_base": recognition.imagenet_deit_base,
    "imagenet_vit_small": recognition.imagenet_vit_small,
    "digits_recognition": recognition.digits_recognition,
    "imagenet_moco_v2": contrastive.imagenet_moco_v2,
    "imagenet_moco_v2_probe": contrastive.imagenet_moco_v2_probe,
    "imagenet_moco_v2_knn": contrastive.imagenet_moco_v2_knn,
    "imagenet_moco_v3": contrastive.imagenet_moco_v3,
    "imagenet_moco_v3_probe": contrastive.imagenet_moco_v3_probe,
    "imagenet_moco_v3_knn": contrastive.imagenet_moco_v3_knn,
    "imagenet_moco_v3_vit_small": contrastive.imagenet_moco_v3_vit_small,
    "cifar100_lt_moco_v2": contrastive_small.cifar100_lt_moco_v2,
    "cifar100_lt_moco_v2_probe": contrastive_small.cifar100_lt_moco_v2_probe,
    "cifar100_lt_moco_v2_knn": contrastive_small.cifar100_lt_moco_v2_knn,
    "cifar100_lt_moco_v3": contrastive_small.cifar100_lt_moco_v3,
    "cifar100_lt_moco_v3_probe": contrastive_small.cifar100_lt_moco_v3_probe,
    "cifar100_lt_moco_v3_knn": contrastive_small.cifar100_lt_moco_v3_knn,
    "digits_moco_v3": contrastive_small.digits_moco_v3,
    "digits_moco_v3_probe": contrastive_small.digits_moco_v3_probe,
    "digits_moco_v3_knn": contrastive_small.digits_moco_v3_knn,
    "my_folder_moco_v3": contrastive_small.my_folder_moco_v3,
    "my_folder_probe": contrastive_small.my_folder_probe,
    "my_folder_knn": contrastive_small.my_folder_knn,
    "my_voc": detection.my_voc,
    "voc_moco_v2": detection.voc_moco_v2,
    "voc_moco_v3": detection.voc_moco_v3,
    "voc_fpn": detection.voc_fpn,
}


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; an unknown one is answered with the nearest."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(near)}?" if near else "`batchformer list` shows them all."
        )
        raise ValueError(f"There is no recipe {name!r}. {hint}")
    return RECIPES[name]()
