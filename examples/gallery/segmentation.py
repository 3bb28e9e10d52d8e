"""
Segmentation: attention at every position
=========================================

BatchFormer can stand inside a network. On a feature map, each position attends to the same position
of the other images. Here a small network with a skip connection says of every pixel whether it
belongs to a round digit (0, 6, 8, 9), to another digit, or to none.
"""

# %%
# Images of 32 x 32 pixels with two digits each; masks with three classes.

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import batchformer as bf

digits = load_digits()
pictures = F.interpolate(
    torch.as_tensor(digits.images, dtype=torch.float32)[:, None] / 16, (16, 16)
)
labels = torch.as_tensor(digits.target)
round_digits = torch.isin(labels, torch.tensor([0, 6, 8, 9]))


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (count, 1, 32, 32) and masks (count, 32, 32)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(labels), (count, 2), generator=generator)
    corners = torch.randint(17, (count, 2), generator=generator)
    x, masks = torch.zeros(count, 1, 32, 32), torch.zeros(count, 32, 32, dtype=torch.long)
    for row in range(count):
        for half, one in enumerate(chosen[row].tolist()):
            across, down = 16 * half, int(corners[row, half])
            area = (slice(down, down + 16), slice(across, across + 16))
            x[row, 0][area] = pictures[one, 0]
            masks[row][area] = (pictures[one, 0] > 0.3) * (1 if round_digits[one] else 2)
    return x, masks


x, masks = draw(640, seed=0)
x_test, masks_test = draw(64, seed=1)

# %%
# The network. BatchFormer is put before ``middle``. In training the features then have 2N rows and
# the skip connection has N, so it must be doubled too. ``bf.match`` doubles any tensor to fit the
# rows of another.


class SmallUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        )
        self.middle = nn.Conv2d(64, 64, 3, padding=1)
        self.up = nn.ConvTranspose2d(64, 16, 4, stride=4)
        self.classify = nn.Conv2d(32, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        y = self.up(self.middle(self.deep(skip)).relu())  # 2N rows in training
        return self.classify(torch.cat((y, bf.match(y, skip)), 1))


torch.manual_seed(0)
model = SmallUNet()
bf.attach(model, at="middle", example=x[:2])
print(bf.check(model, x[:8]))

# %%
# The loop of any segmentation network; ``match`` doubles the masks.

optimizer = torch.optim.AdamW(bf.param_groups(model, lr=3e-3))
for epoch in range(8):
    for rows in torch.randperm(len(x)).split(32):
        logits = model(x[rows])
        loss = F.cross_entropy(logits, bf.match(logits, masks[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 4 == 3:
        print(f"epoch {epoch + 1}: loss {loss:.3f}")

# %%
# At test the plain network is left.

plain = bf.export(model, x[:2])
with torch.no_grad():
    predicted = plain(x_test).argmax(1)
covered = masks_test > 0
right = (predicted == masks_test)[covered].float().mean()
print(f"{100 * right:.1f}% of the digits' pixels are right")
figure, axes = plt.subplots(3, 6, figsize=(8, 4))
for column in range(6):
    for axis, picture in zip(
        axes[:, column], (x_test[column, 0], masks_test[column], predicted[column]), strict=True
    ):
        axis.imshow(picture, cmap="viridis" if picture.dtype == torch.long else "gray_r")
        axis.set(xticks=[], yticks=[])
for axis, name in zip(axes[:, 0], ("image", "mask", "predicted"), strict=True):
    axis.set_ylabel(name)
plt.show()
