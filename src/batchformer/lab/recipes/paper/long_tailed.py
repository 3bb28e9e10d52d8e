"""Long tails: T1 CIFAR-100-LT, T2 ImageNet-LT, T3 iNaturalist, T4 Places-LT, and ablations.

Where a note says what the shots imply, that is their mean weighted by the number of classes
(many, medium, few): CIFAR-100-LT 35, 35, 30 at r=100 and 30, 31, 39 at r=200; ImageNet-LT 385,
479, 136; iNaturalist 842, 4076, 3224; Places-LT 131, 163, 71.
"""

from __future__ import annotations

from batchformer.lab.recipes.paper.row import read_rows

SHOTS = "all many medium few"

ROWS = read_rows(
    "long_tailed",
    """
= T1 | CIFAR-100-LT r=100 | ResNet-32
RIDE, 3 experts | cifar100_lt_ride
  48.0 68.1 49.2 23.9
  # printed 48.0, its own shots imply 48.2
Balanced Softmax | cifar100_lt_balanced_softmax
  50.7 68.0 49.7 31.9
  + 51.7 68.4 49.3 34.3
  # printed 51.7, its own shots imply 51.5
PaCo | cifar100_lt_paco
  51.9 63.9 53.0 36.5
  + 52.4 68.4 52.1 34.0
= T1 | CIFAR-100-LT r=200 | ResNet-32
Balanced Softmax | cifar100_lt_balanced_softmax_r200
  46.4 70.0 51.5 24.3
  + 47.5 70.2 53.3 25.5
PaCo | cifar100_lt_paco_r200
  47.1 68.1 51.5 27.5
  + 47.8 68.1 53.0 28.2
= T2 | ImageNet-LT | ResNet-10
OLTR | imagenet_lt_oltr
  35.6 43.2 35.1 18.5
  # printed 35.6, its own shots imply 36.0
LFME | imagenet_lt_lfme
  38.8 47.0 37.9 19.2
Balanced Softmax | imagenet_lt_balanced_softmax_resnet10
  41.0 52.6 38.3 18.0
  + 43.2 52.8 40.7 24.9
  # medium 40.4 and few 25.6 in the table of layers
RIDE, 3 experts | imagenet_lt_ride_resnet10
  44.7 57.0 40.3 25.5
  + 45.7 56.3 42.1 28.3
RIDE, 3 experts, two stages | imagenet_lt_ride_resnet10_distilled
  45.9 57.6 41.7 28.0
  # RIDE's own second stage, distilled from 6 experts, as its authors print it
RIDE, 3 experts, two stages | imagenet_lt_ride_resnet10_two_stage
  + 47.6 55.3 45.5 33.3
  # started from a trained RIDE and not distilled, unlike the row above it
= T2 | ImageNet-LT | ResNet-50
Balanced Softmax | imagenet_lt_balanced_softmax_resnet50
  50.1 61.1 47.5 27.6
  + 51.1 61.4 47.8 33.6
  # few gains 6.0 here, 5 in the text; 50.9, 60.7, 47.7, 34.1 in the table of the shared
  # classifier
RIDE, 3 experts | imagenet_lt_ride_resnet50
  53.6 64.9 50.4 33.2
  + 54.1 64.3 51.4 35.1
PaCo | imagenet_lt_paco
  57.0 64.8 55.9 39.1
  + 57.4 62.7 56.7 42.1
  # printed 57.4, its own shots imply 57.0, no gain over PaCo alone
RIDE, 3 experts, two stages | imagenet_lt_ride_resnet50_distilled
  54.9 66.2 51.7 34.9
  # RIDE's own second stage, distilled from 6 experts, as its authors print it
RIDE, 3 experts, two stages | imagenet_lt_ride_resnet50_two_stage
  + 55.7 64.6 53.4 39.0
  # started from a trained RIDE and not distilled, unlike the row above it
= T3 | iNaturalist 2018 | ResNet-50
BBN | inaturalist18_bbn
  66.3 49.4 70.8 65.3
  # printed 66.3, its own shots imply 66.4
cRT | inaturalist18_crt
  65.2 69.0 66.0 63.2
RIDE, 3 experts (published)
  72.2 70.2 72.2 72.7
  # as its authors report it; the pair below is the same method trained again
PaCo | inaturalist18_paco
  73.2 - - -
RIDE, 3 experts | inaturalist18_ride
  72.5 68.1 72.7 73.2
  + 74.1 65.5 74.5 75.8
= T4 | Places-LT | ResNet-152
OLTR | places_lt_oltr
  35.9 44.7 37.0 25.3
  # printed 35.9, its own shots imply 37.5
tau-normalized | places_lt_tau_norm
  37.9 37.8 40.7 31.8
BALMS | places_lt_balms
  37.8 41.4 38.8 29.1
  + 38.2 39.5 38.3 35.7
PaCo | places_lt_paco
  41.2 37.5 47.2 33.9
  + 41.6 44.0 43.1 33.7
""",
    SHOTS,
)

# Batch size, shared classifier, layers (ImageNet-LT), and PaCo without its loss. A recipe named
# SWEEP/LEVEL is a level of a sweep.
ABLATIONS = read_rows(
    "ablation",
    """
= Batch size | ImageNet-LT | ResNet-10
Balanced Softmax, batch 16 | imagenet_lt_batch_size/16
  + 43.2 53.8 40.2 23.9
Balanced Softmax, batch 32 | imagenet_lt_batch_size/32
  + 43.6 53.7 40.7 24.9
Balanced Softmax, batch 64 | imagenet_lt_batch_size/64
  + 43.3 52.9 40.8 25.3
Balanced Softmax, batch 128 | imagenet_lt_batch_size/128
  + 43.2 52.8 40.7 24.9
  # the same row as in T2
Balanced Softmax, batch 256 | imagenet_lt_batch_size/256
  + 42.4 52.2 39.5 25.2
Balanced Softmax, batch 512 | imagenet_lt_batch_size/512
  + 42.5 52.0 39.6 25.8
= Shared classifier | ImageNet-LT | ResNet-50
Balanced Softmax | imagenet_lt_shared_classifier/shared
  + 50.9 60.7 47.7 34.1
  # 51.1, 61.4, 47.8, 33.6 in T2
Balanced Softmax, no shared classifier | imagenet_lt_shared_classifier/mixed_only
  + 42.4 41.3 43.3 42.2
= Layers | ImageNet-LT | ResNet-10
Balanced Softmax, 1 layer | imagenet_lt_layers/1
  + 43.2 52.8 40.4 25.6
  # medium 40.7 and few 24.9 in T2
Balanced Softmax, 2 layers | imagenet_lt_layers/2
  + 43.2 52.8 40.3 26.0
Balanced Softmax, 4 layers | imagenet_lt_layers/4
  + 42.7 52.1 40.1 25.4
Balanced Softmax, 8 layers | imagenet_lt_layers/8
  + 43.3 53.3 40.2 26.1
Balanced Softmax, 16 layers | imagenet_lt_layers/16
  + 43.1 52.9 40.0 26.6
= Without PaCo loss | CIFAR-100-LT r=100 | ResNet-32
PaCo without PaCo loss | cifar100_lt_without_paco_loss
  52.0 68.1 53.2 31.6
  # above PaCo itself in T1 (51.9), as the text remarks
  + 52.6 68.7 53.2 33.1
= Without PaCo loss | CIFAR-100-LT r=200 | ResNet-32
PaCo without PaCo loss | cifar100_lt_without_paco_loss_r200
  47.31 67.8 52.6 27.3
  # above PaCo itself in T1 (47.1), as the text remarks
  + 48.13 68.9 53.1 28.2
""",
    SHOTS,
)
