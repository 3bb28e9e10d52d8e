"""
Fine-tuning a timm model
========================

BatchFormer in a usual timm loop: an optimizer and a scheduler of timm, mixup with soft targets.
The network is tiny and starts from random weights, so that nothing is downloaded. For a real run
choose another model and set ``pretrained=True``.
"""

# %%
# The data: handwritten digits, enlarged to 32 pixels.

import matplotlib.pyplot as plt
import numpy as np
import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.utils.data import DataLoader, TensorDataset

import batchformer as bf

torch.manual_seed(0)
np.random.seed(0)  # noqa: NPY002 - timm's mixup uses it
digits = load_digits()
x = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
x = F.interpolate(x, (32, 32), mode="bilinear")
y = torch.as_tensor(digits.target)
train, test = train_test_split(torch.arange(len(y)), test_size=0.4, stratify=y, random_state=0)
loader = DataLoader(TensorDataset(x[train], y[train]), 64, shuffle=True, drop_last=True)

# %%
# Model and optimizer as without BatchFormer. ``attach`` adds the encoder to both. Create the
# scheduler afterwards, because it reads the optimizer's groups.

model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05)
bf.attach(model, optimizer=optimizer)
scheduler = CosineLRScheduler(optimizer, t_initial=6, lr_min=1e-5)

# %%
# ``check`` proves on a batch that BatchFormer acts in training, and only there.

print(bf.check(model, next(iter(loader)), optimizer))

# %%
# The loop. Only one line differs: ``match`` doubles the soft targets. Where mixup mixes a batch
# strongly, its loss is larger.

mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=10)
criterion = SoftTargetCrossEntropy()
losses = []
for epoch in range(6):
    model.train()
    for images, labels in loader:
        inputs, targets = mixup(images, labels)  # targets: (N, K), soft
        logits = model(inputs)  # (2N, K)
        loss = criterion(logits, bf.match(logits, targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step(epoch + 1)
    if epoch % 3 == 2:
        print(f"epoch {epoch + 1}: training loss {np.mean(losses[-len(loader) :]):.3f}")

figure, axis = plt.subplots(figsize=(6, 2.4))
axis.plot(losses)
axis.set(xlabel="update", ylabel="loss of both streams")
plt.show()

# %%
# ``export`` returns the plain timm model.

plain = bf.export(model)
with torch.no_grad():
    accuracy = (plain(x[test]).argmax(1) == y[test]).float().mean()
print(f"accuracy {100 * accuracy:.1f}% with {type(plain).__name__}, BatchFormer removed")
