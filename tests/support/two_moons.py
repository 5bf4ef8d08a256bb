"""Methods that learn two moons, for tests. As a program it draws what they are unsure of:
python -m tests.support.two_moons docs/two-moons.png"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from sklearn.datasets import make_moons

from nescio.layers.spectral import set_exact_vectors
from nescio.methods import registry
from nescio.methods.base import NetworkSpec, Output

PANELS = ("sngp", "due", "ddu", "dcs", "duq", "mir", "dcu", "postnet", "erm")
SIZE, REACH, GAP = 220, 4.5, 26  # pixels of a panel, half of its width in deviations of the data, space for its name


def own_score(output: Output) -> torch.Tensor:
    """The method's own uncertainty, or the entropy of the softmax where it has none."""
    if output.scores:
        return next(iter(output.scores.values()))
    assert output.logits is not None
    return torch.distributions.Categorical(logits=output.logits[:, 0]).entropy()


def moons(name, steps=400, rate=0.1, seed=0, **fields):
    """The method, trained on two moons as images of 1 × 2 pixels; the moons; points on a ring far around them."""
    torch.manual_seed(seed)
    points, labels = make_moons(600, noise=0.1, random_state=seed)
    x = torch.tensor((points - points.mean(0)) / points.std(0), dtype=torch.float32).view(-1, 1, 1, 2)
    y = torch.from_numpy(labels)
    angle, radius = 2 * math.pi * torch.rand(300), 4 + 2 * torch.rand(300)
    ring = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).view(-1, 1, 1, 2)
    batches = list(zip(x.split(100), y.split(100), torch.arange(600).split(100), strict=True))
    kind = registry[name]
    spec = NetworkSpec("mlp", 1, (1, 2), 2, spectral=kind.spectral_default, rows=600)
    method = kind(kind.hparams_class(**fields), spec).eval()
    with torch.no_grad():
        method.prepare(batches)
    groups = [{"params": group["params"], "lr": rate * group["rate"]} for group in method.parameter_groups()]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def step(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    method.train()
    for number in range(steps):
        rows = torch.randint(len(x), (100,))
        views = [x[rows] + 0.1 * torch.randn(100, 1, 1, 2) for _ in range(method.views)]
        method.update(torch.stack(views) if method.views > 1 else x[rows], y[rows], step)
        method.after_step((number + 1) / steps)
    set_exact_vectors(method)
    method.eval().finalize(batches)
    return method, x, y, ring


def panel(name: str) -> np.ndarray:
    """(SIZE, SIZE) share of training points on which the method is surer, over the plane."""
    method, x, _, _ = moons(name, 800 if name == "erm" else 400)
    line = torch.linspace(-REACH, REACH, SIZE)
    plane = torch.stack(torch.meshgrid(line, -line, indexing="xy"), -1).view(-1, 1, 1, 2)
    with torch.no_grad():
        known = own_score(method(x)).sort().values
        score = torch.cat([own_score(method(part)) for part in plane.split(10_000)])
    return (torch.searchsorted(known, score) / len(known)).view(SIZE, SIZE).numpy()


def draw(path: str) -> None:
    from PIL import Image, ImageDraw

    rows = math.ceil(len(PANELS) / 3)
    sheet = Image.new("RGB", (3 * SIZE + 40, rows * (SIZE + GAP) + 10), "white")
    pen = ImageDraw.Draw(sheet)
    sure, unsure = np.array([33, 60, 120]), np.array([250, 214, 90])
    points, labels = make_moons(200, noise=0.1, random_state=0)
    points = (points - points.mean(0)) / points.std(0)
    for number, name in enumerate(PANELS):
        left, top = 10 + (number % 3) * (SIZE + 10), GAP + (number // 3) * (SIZE + GAP)
        share = panel(name)[..., None]
        sheet.paste(Image.fromarray(((1 - share) * sure + share * unsure).astype(np.uint8)), (left, top))
        pen.text((left, top - 16), f"{name}" + (", entropy of the softmax" if name == "erm" else ""), fill="black")
        for (a, b), label in zip(points, labels, strict=True):
            x, y = left + (a / REACH + 1) * SIZE / 2, top + (1 - b / REACH) * SIZE / 2
            pen.ellipse((x - 1.5, y - 1.5, x + 1.5, y + 1.5), fill=("white", "#ff6d4d")[int(label)])
    sheet.quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw(sys.argv[1])
