"""
Your own folder of images
=========================

You have images in folders, one folder for each class, and some classes have few images. This
example makes such a folder from the handwritten digits of scikit-learn. Then it trains a network
with and without BatchFormer, from the same seeds, and compares the two.
"""

# %%
# The folder: ``photos/train/CLASS/*.png`` and ``photos/test/CLASS/*.png``. Digit 0 has 100 training
# images, digit 9 has 10.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from batchformer.cli.main import main

digits = load_digits()
folder = Path(tempfile.mkdtemp())
photos = folder / "photos"
for digit in range(10):
    images = digits.images[digits.target == digit]
    for number, image in enumerate(images[: 140 - 10 * digit]):
        part = "test" if number < 40 else "train"
        path = photos / part / f"digit_{digit}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).convert("RGB").resize((32, 32)).save(path)

figure, axes = plt.subplots(1, 10, figsize=(9, 1.5))
for digit, axis in enumerate(axes):
    files = sorted((photos / "train" / f"digit_{digit}").iterdir())
    axis.imshow(Image.open(files[0]))
    axis.set_title(f"{len(files)} images", fontsize=8)
    axis.axis("off")
plt.show()

# %%
# One command compares. In a shell it would be ``batchformer compare my_folder --data.root photos``.
# We shorten the training and use a small network, so that it takes seconds. With real photos leave
# these options out and add ``--weights timm`` to start from ImageNet weights.

command = f"compare my_folder --data.root {photos} --runs {folder / 'runs'} --quiet"
short = "--model test_resnet --data.size 32 --train.workers 0"
short += " --train.updates 60 --train.batch-size 32 --optim.lr 0.1 --schedule.warmup 5"
main(f"{command} {short} --seeds 3".split())

# %%
# The answer stands first. Here it says that three short trainings cannot tell: that is the usual
# answer on small data, and the interval says how large an effect could have been missed. The page
# that the last line names shows the same with figures.
