"""The learned order of losses."""

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, measures
from nescio.measures import loss_ranking
from nescio.metrics import spearman


def rows_of(seed, n=400):
    """Losses that the first feature decides, and the logits do not show."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(n, 4))
    labels = rng.integers(3, size=n)
    hard = rng.random(n) < 1 / (1 + np.exp(-3 * embeddings[:, 0]))
    said = np.where(hard, (labels + 1) % 3, labels)
    return Predictions(labels=labels, embeddings=embeddings, logits=2 * np.eye(3)[said] + rng.normal(size=(n, 3)) / 9)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(loss_ranking, "WIDTH", 32)


@pytest.fixture
def fitted():
    return measures.loss_order(rows_of(0), steps=60)


def test_msp__it_learns_where_losses_are_large():
    test = rows_of(1, 1000)
    fitted = measures.loss_order(rows_of(0, 1000), steps=400)
    assert spearman(fitted(test), test.embeddings[:, 0]) > 0.8
    assert abs(spearman(measures.msp(test), test.embeddings[:, 0])) < 0.1  # which the softmax does not know


def test_loss_ranking__it_has_two_hidden_layers_of_512_and_gives_positive_numbers(monkeypatch):
    monkeypatch.setattr(loss_ranking, "WIDTH", 512)
    head = measures.loss_order(rows_of(0), steps=1)
    assert [layer.shape for layer in head.layers] == [(4, 512), (512,), (512, 512), (512,), (512, 1), (1,)]
    assert (head(rows_of(1)) > 0).all()


def test_loss_ranking__the_same_seed_gives_the_same_head_and_files_hold_it(fitted, tmp_path):
    test = rows_of(1)
    np.testing.assert_array_equal(measures.loss_order(rows_of(0), steps=60)(test), fitted(test))
    assert not np.allclose(measures.loss_order(rows_of(0), steps=60, seed=1)(test), fitted(test))
    again = measures.LossOrder.load(fitted.save(tmp_path / "head.npz"))
    np.testing.assert_array_equal(again(test), fitted(test))
    np.savez(tmp_path / "other.npz", a=[1])
    with pytest.raises(BadInput, match="loss order"):
        measures.LossOrder.load(tmp_path / "other.npz")
    with pytest.raises(BadInput, match="npz"):
        fitted.save(tmp_path / "head.pt")


def test_cost__the_gradient_is_that_of_the_cost():
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=shape) for shape in ((4, 5), (5,), (5, 6), (6,), (6, 1), (1,))]
    x, losses = rng.normal(size=(8, 4)), rng.normal(size=8)

    def cost():
        u = loss_ranking._forward(layers, x)[-1]
        return np.mean([
            max(0, 0.1 - (1 if losses[i] > losses[i + 1] else -1) * (u[i] - u[i + 1])) for i in range(0, 8, 2)
        ])  # fmt: skip

    assert loss_ranking._cost(loss_ranking._forward(layers, x)[-1], losses)[0] == pytest.approx(cost())
    for layer, gradient in zip(layers, loss_ranking._gradients(layers, x, losses), strict=True):
        at = tuple(0 for _ in layer.shape)
        layer[at] += 1e-6
        high = cost()
        layer[at] -= 2e-6
        low = cost()
        layer[at] += 1e-6
        assert gradient[at] == pytest.approx((high - low) / 2e-6, abs=1e-6)


def test_learn__only_the_order_of_the_losses_matters():
    x, losses = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32), np.linspace(-1, 1, 200)
    heads = [
        loss_ranking._learn(x, values, 5, 64, 1e-3, np.random.default_rng(0)) for values in (losses, np.exp(9 * losses))
    ]
    for one, other in zip(*heads, strict=True):
        np.testing.assert_array_equal(one, other)


def test_loss_order__rows_whose_loss_was_trained_to_zero_are_refused():
    rows = rows_of(0)
    learnt = rows.replace(logits=20 * np.eye(3)[rows.labels])
    with pytest.raises(Undefined, match="loss_order"):
        measures.loss_order(learnt)
    with pytest.raises(Undefined, match=r"100 .*50"):
        measures.loss_order(rows.take(np.arange(50)))
    with pytest.raises(BadInput, match="steps"):
        measures.loss_order(rows, steps=0)


def test_loss_ranking__embeddings_of_another_network_are_refused(fitted):
    with pytest.raises(BadInput, match="features"):
        fitted(Predictions(embeddings=np.ones((2, 7))))
