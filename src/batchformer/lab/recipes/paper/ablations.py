"""Ablations: batch size, shared classifier, layers (ImageNet-LT), and PaCo without its loss.

A recipe named ``SWEEP/LEVEL`` is a level of a sweep.
"""

from __future__ import annotations

from batchformer.lab.recipes.paper.row import Block


def _block(table: str, data: str, model: str) -> Block:
    return Block(
        table=table,
        task="ablation",
        data=data,
        model=model,
        columns="all many medium few",
        headline="all",
    )


_SIZES = _block("Batch size", "ImageNet-LT", "ResNet-10")
_SHARED = _block("Shared classifier", "ImageNet-LT", "ResNet-50")
_LAYERS = _block("Layers", "ImageNet-LT", "ResNet-10")
_PACO_R100 = _block("Without PaCo loss", "CIFAR-100-LT r=100", "ResNet-32")
_PACO_R200 = _block("Without PaCo loss", "CIFAR-100-LT r=200", "ResNet-32")

#: By sweep and level: the row's name, its numbers, and a note.
_LEVELS = {
    "imagenet_lt_batch_size": {
        "16": (_SIZES, "batch 16", "43.2 53.8 40.2 23.9", ""),
        "32": (_SIZES, "batch 32", "43.6 53.7 40.7 24.9", ""),
        "64": (_SIZES, "batch 64", "43.3 52.9 40.8 25.3", ""),
        "128": (_SIZES, "batch 128", "43.2 52.8 40.7 24.9", "the same row as in T2"),
        "256": (_SIZES, "batch 256", "42.4 52.2 39.5 25.2", ""),
        "512": (_SIZES, "batch 512", "42.5 52.0 39.6 25.8", ""),
    },
    "imagenet_lt_shared_classifier": {
        "shared": (_SHARED, "", "50.9 60.7 47.7 34.1", "51.1, 61.4, 47.8, 33.6 in T2"),
        "mixed_only": (_SHARED, "no shared classifier", "42.4 41.3 43.3 42.2", ""),
    },
    "imagenet_lt_layers": {
        "1": (_LAYERS, "1 layer", "43.2 52.8 40.4 25.6", "medium 40.7 and few 24.9 in T2"),
        "2": (_LAYERS, "2 layers", "43.2 52.8 40.3 26.0", ""),
        "4": (_LAYERS, "4 layers", "42.7 52.1 40.1 25.4", ""),
        "8": (_LAYERS, "8 layers", "43.3 53.3 40.2 26.1", ""),
        "16": (_LAYERS, "16 layers", "43.1 52.9 40.0 26.6", ""),
    },
}

ROWS = (
    *(
        block.alone(
            f"Balanced Softmax, {name}" if name else "Balanced Softmax",
            cells,
            arm="batchformer",
            recipe=f"{sweep}/{level}",
            note=note,
        )
        for sweep, levels in _LEVELS.items()
        for level, (block, name, cells, note) in levels.items()
    ),
    *_PACO_R100.pair(
        "PaCo without PaCo loss",
        "52.0 68.1 53.2 31.6",
        "52.6 68.7 53.2 33.1",
        recipe="cifar100_lt_without_paco_loss",
        note="above PaCo itself in T1 (51.9), as the text remarks",
    ),
    *_PACO_R200.pair(
        "PaCo without PaCo loss",
        "47.31 67.8 52.6 27.3",
        "48.13 68.9 53.1 28.2",
        recipe="cifar100_lt_without_paco_loss_r200",
        note="above PaCo itself in T1 (47.1), as the text remarks",
    ),
)
