"""Post-hoc scores of embeddings and logits: every one against a plain loop in float64."""

import math

import numpy as np
import pytest

from nescio import BadInput, Predictions, Undefined, measures, scorecard
from nescio.measures import recover_last_layer
from tests.support.linear_network import BIAS, FT, TEST, TRAIN, WEIGHT, YT, ZT, C, D, F, Z, lse, network


def softmax(z):
    return [math.exp(x) / sum(math.exp(y) for y in z) for x in z]


def unit(x):
    return x / math.sqrt(sum(v * v for v in x))


def mahalanobis_loop(f, train, labels, relative):
    means = {c: np.mean([x for x, y in zip(train, labels, strict=True) if y == c], axis=0) for c in set(labels)}
    within, whole, middle = np.zeros((D, D)), np.zeros((D, D)), train.mean(0)
    for x, y in zip(train, labels, strict=True):
        within += np.outer(x - means[y], x - means[y]) / len(train)
        whole += np.outer(x - middle, x - middle) / len(train)
    own = min((f - m) @ np.linalg.solve(within, f - m) for m in means.values())
    return own - ((f - middle) @ np.linalg.solve(whole, f - middle) if relative else 0)


@pytest.mark.parametrize(("name", "normal", "relative"), [
    ("mds", False, False), ("mds_plus", True, False), ("rmds", False, True), ("rmds_plus", True, True),
])  # fmt: skip
def test_feature_scores__distances_to_classes(name, normal, relative):
    train = np.array([unit(x) for x in FT]) if normal else FT
    rows = [unit(x) for x in F] if normal else F
    expected = [mahalanobis_loop(f, train, YT, relative) for f in rows]
    np.testing.assert_allclose(getattr(measures, name)(TRAIN)(TEST), expected, rtol=1e-7)


def residual_loop(dims):
    origin = -np.linalg.pinv(WEIGHT) @ BIAS
    values, axes = np.linalg.eigh(sum(np.outer(x - origin, x - origin) for x in FT))
    rest = axes[:, np.argsort(-values)[dims:]]
    return lambda f: math.sqrt(sum(((f - origin) @ rest) ** 2))


@pytest.mark.parametrize("dims", [2, 5])
def test_residual_and_vim(dims):
    of = residual_loop(dims)
    np.testing.assert_allclose(measures.residual(TRAIN, dims)(TEST), [of(f) for f in F], rtol=1e-6)
    alpha = np.mean([max(z) for z in ZT]) / np.mean([of(f) for f in FT])
    expected = [alpha * of(f) - lse(z) for f, z in zip(F, Z, strict=True)]
    np.testing.assert_allclose(measures.vim(TRAIN, dims)(TEST), expected, rtol=1e-6)


def test_fdbd():
    mean = FT.mean(0)
    expected = []
    for f, z in zip(F, Z, strict=True):
        top = max(range(C), key=lambda c: z[c])
        gaps = [(z[top] - z[c]) / np.linalg.norm(WEIGHT[top] - WEIGHT[c]) for c in range(C) if c != top]
        expected.append(-sum(gaps) / (C - 1) / np.linalg.norm(f - mean))
    np.testing.assert_allclose(measures.fdbd(TRAIN)(TEST), expected, rtol=1e-8)


def test_nci():
    mean = FT.mean(0)
    expected = [
        -(WEIGHT[np.argmax(z)] @ (f - mean) / np.linalg.norm(f - mean) + 0.01 * sum(abs(f)))
        for f, z in zip(F, Z, strict=True)
    ]
    np.testing.assert_allclose(measures.nci(TRAIN, alpha=0.01)(TEST), expected, rtol=1e-8)


def test_she_takes_right_rows_only():
    right = ZT.argmax(1) == YT
    assert not right.all()  # or the test would not see the difference
    patterns = [FT[right & (c == YT)].mean(0) for c in range(C)]
    expected = [-(f @ patterns[np.argmax(z)]) for f, z in zip(F, Z, strict=True)]
    np.testing.assert_allclose(measures.she(TRAIN)(TEST), expected, rtol=1e-12)


def test_kl_matching():
    templates = [np.mean([softmax(z) for z in ZT[ZT.argmax(1) == c]], axis=0) for c in range(C)]
    expected = [
        min(sum(p * math.log(p / q) for p, q in zip(softmax(z), template, strict=True)) for template in templates)
        for z in Z
    ]
    np.testing.assert_allclose(measures.kl_matching(TRAIN)(TEST), expected, rtol=1e-9, atol=1e-12)


def test_gradnorm_is_the_gradient_of_the_last_layer():
    """∂/∂W of the cross-entropy towards a uniform answer is (p − 1/c)·fᵀ: its entries, summed one by one."""
    expected = [-sum(abs((p - 1 / C) * v) for p in softmax(z) for v in f) for f, z in zip(F, Z, strict=True)]
    np.testing.assert_allclose(measures.gradnorm(TEST), expected, rtol=1e-10)


@pytest.mark.parametrize("k", [1, 7])
def test_knn(k):
    expected = [sorted(((unit(f) - unit(x)) ** 2).sum() for x in FT)[k - 1] for f in F]
    of = measures.knn(TRAIN, k)
    np.testing.assert_allclose(of(TEST), expected, rtol=1e-9)
    others = [sorted(((unit(f) - unit(x)) ** 2).sum() for x in FT)[k] for f in FT]
    np.testing.assert_allclose(of.leave_one_out(TRAIN), others, rtol=1e-6, atol=1e-12)


def test_nnguide():
    expected = []
    for f, z in zip(F, Z, strict=True):
        products = sorted(unit(f) @ unit(x) * lse(own) for x, own in zip(FT, ZT, strict=True))
        expected.append(-lse(z) * np.mean(products[-6:]))
    np.testing.assert_allclose(measures.nnguide(TRAIN, k=6)(TEST), expected, rtol=1e-9)


def test_nnguide_takes_a_share_of_many_rows(monkeypatch):
    from nescio.measures import feature_scores

    monkeypatch.setattr(feature_scores, "BANK_ROWS", 1)
    few, again, other = (measures.nnguide(TRAIN, k=2, share=0.1, seed=seed)(TEST) for seed in (0, 0, 1))
    np.testing.assert_array_equal(few, again)
    assert not np.allclose(few, other) and not np.allclose(few, measures.nnguide(TRAIN, k=2, share=1)(TEST))


def test_sirc():
    def familiar(f):
        return sum(abs(f))

    known = [familiar(f) for f in FT]
    a, b = np.mean(known) - 3 * np.std(known), 1 / np.std(known)
    expected = [
        math.log(1 - max(softmax(z))) + math.log(1 + math.exp(-b * (familiar(f) - a)))
        for f, z in zip(F, Z, strict=True)
    ]
    np.testing.assert_allclose(measures.sirc(TRAIN)(TEST), expected, rtol=1e-6)


# ---- the last layer


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-10), (np.float32, 1e-5), (np.float16, 0.05)])
def test_recover_last_layer__the_last_layer_is_recovered(dtype, error):
    dump = network(0, 600)
    found = recover_last_layer(dump.replace(embeddings=dump.embeddings.astype(dtype), logits=dump.logits.astype(dtype)))
    np.testing.assert_allclose(found.weight, WEIGHT, atol=error)
    np.testing.assert_allclose(found.bias, BIAS, atol=error)


def test_recover_last_layer__dead_features_have_no_weight():
    f = np.hstack([network(0).embeddings, np.zeros((60, 2))])
    found = recover_last_layer(TRAIN.replace(embeddings=f))
    np.testing.assert_allclose(found.weight, np.hstack([WEIGHT, np.zeros((C, 2))]), atol=1e-8)


def test_recover_last_layer__rows_of_unknown_classes_take_no_part():
    in_distribution = np.arange(60) < 50
    logits = TRAIN.logits + np.where(in_distribution, 0, 100.0)[:, None, None]
    found = recover_last_layer(TRAIN.replace(logits=logits, in_distribution=in_distribution))
    np.testing.assert_allclose(found.weight, WEIGHT, atol=1e-8)


@pytest.mark.parametrize("name", ["knn", "sirc", "vim", "react", "kl_matching", "nnguide", "fdbd", "rmds"])
def test_feature_scores__a_score_is_fitted_on_rows_of_known_classes_alone(name):
    in_distribution = np.arange(60) % 4 > 0
    f = np.where(in_distribution[:, None], FT, 3 * FT)
    mixed = TRAIN.replace(embeddings=f, logits=f @ WEIGHT.T + BIAS, in_distribution=in_distribution)
    fit = getattr(measures, name)
    options = {"k": 5} if name in ("knn", "nnguide") else {}
    expected = fit(TRAIN.take(in_distribution), **options)(TEST)
    np.testing.assert_allclose(fit(mixed, **options)(TEST), expected, rtol=1e-9)
    assert np.abs(fit(mixed.replace(in_distribution=None), **options)(TEST) - expected).max() > 1e-6
    with pytest.raises(Undefined, match="in_distribution = False"):
        fit(TRAIN.replace(in_distribution=np.zeros(60, bool)))


def test_fdbd__a_class_without_probability_has_no_decision_boundary():
    masked = TEST.logits.copy()
    masked[:, :, 2] = -np.inf
    far = np.linalg.norm(F - FT.mean(0), axis=1)
    two = np.abs(Z[:, 0] - Z[:, 1]) / np.linalg.norm(WEIGHT[0] - WEIGHT[1]) / far
    np.testing.assert_allclose(measures.fdbd(TRAIN)(TEST.replace(logits=masked)), -two, rtol=1e-7)


@pytest.mark.filterwarnings("error")
def test_recover_last_layer__a_masked_reference_has_no_last_layer():
    masked = TRAIN.logits.copy()
    masked[::3, :, 2] = -np.inf
    with pytest.raises(Undefined, match="are −inf"):
        recover_last_layer(TRAIN.replace(logits=masked))


@pytest.mark.parametrize("name", ["fdbd", "nci", "scale"])
def test_feature_scores__logits_of_other_classes_are_refused(name):
    other = Predictions(embeddings=F, logits=TEST.logits[..., :2])
    with pytest.raises(BadInput, match="2 classes, the reference has 3"):
        getattr(measures, name)(TRAIN)(other)


def test_feature_scores__another_layers_embedding_is_noticed_and_the_scores_are_left_out():
    wrong = TRAIN.replace(embeddings=TRAIN.embeddings**3)
    for name in ("vim", "residual", "fdbd", "nci", "react", "ash", "scale", "dice"):
        with pytest.raises(Undefined, match="last layer"):
            getattr(measures, name)(wrong)
    card = scorecard(TEST.replace(embeddings=F**3), train=wrong)
    shown = {row["measure"] for row in card.rows}
    assert "vim" not in shown and {"she", "rmds", "nnguide"} <= shown
    assert any(r["measure"] == "vim" and "last layer" in r["reason"] for r in card.reasons)


def test_recover_last_layer__too_few_rows_cannot_tell_the_last_layer():
    with pytest.raises(Undefined, match="give more rows"):
        recover_last_layer(TRAIN.take(np.arange(D)))


def test_vim__probabilities_have_no_last_layer():
    p = np.exp(ZT) / np.exp(ZT).sum(1, keepdims=True)
    with pytest.raises(Undefined, match="logits"):
        measures.vim(TRAIN.replace(probs=p))
    with pytest.raises(Undefined, match="logits"):
        measures.fdbd(TRAIN)(TEST.replace(probs=np.full((25, C), 1 / C)))


# ---- shared work, members


def test_feature_scores__work_is_shared(monkeypatch):
    from nescio.measures import classifier, gaussians

    train, calls = network(0), []
    for module, name in ((classifier, "_products"), (gaussians, "scatter_within"), (gaussians, "whiteners_of")):
        make = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, make=make, name=name: calls.append(name) or make(*args))
    for name in ("mds", "rmds", "vim", "residual", "fdbd", "nci", "scale", "dice"):
        getattr(measures, name)(train)
    assert sorted(calls) == ["_products", "scatter_within", "whiteners_of"]


@pytest.mark.parametrize("name", ["mds_plus", "vim", "knn", "ash", "gradnorm"])
def test_over_members__a_member_is_scored_by_itself_and_members_are_averaged(name):
    trains, tests = [network(0), network(2)], [network(1, 25), network(3, 25)]
    u = measures.over_members(name, trains, tests)
    part = measures.registry[name]
    own = [part.function(test) if part.kind == "plain" else part.function(train)(test)
           for train, test in zip(trains, tests, strict=True)]  # fmt: skip
    np.testing.assert_array_equal(u, (own[0] + own[1]) / 2)
    with pytest.raises(BadInput, match="one of each"):
        measures.over_members(name, trains, tests[:1])


def test_recover_last_layer__draws_that_share_an_embedding_are_averaged_as_logits():
    noise = np.random.default_rng(0).normal(size=(60, 1, C))
    draws = np.concatenate([TRAIN.logits + noise, TRAIN.logits - noise], axis=1)
    np.testing.assert_allclose(recover_last_layer(TRAIN.replace(logits=draws)).weight, WEIGHT, atol=1e-8)


def test_feature_scores__blocks_change_nothing(monkeypatch):
    from nescio.measures import row_tools

    names = ("rmds_plus", "vim", "fdbd", "nnguide", "she", "scale", "ash")
    whole = {name: getattr(measures, name)(network(0))(network(1, 25)) for name in names}
    monkeypatch.setattr(row_tools, "BLOCK_BYTES", 8 * D * 4)
    monkeypatch.setattr(row_tools, "MIN_BLOCK_ROWS", 1)
    for name in names:
        np.testing.assert_allclose(getattr(measures, name)(network(0))(network(1, 25)), whole[name], rtol=1e-9)


def test_scorecard__all_of_them_stand_on_a_scorecard():
    names = (
        "pnorm gen renyi tsallis mds_plus rmds rmds_plus vim residual nnguide fdbd nci she kl_matching gradnorm react "
        "scale ash dice knn sirc"
    )
    card = scorecard(TEST, train=TRAIN, ood={"far": network(5, 30, 0)})
    shown = {row["measure"] for row in card.rows if row["metric"] == "auroc" and row["split"] == "far"}
    assert set(names.split()) <= shown


@pytest.mark.parametrize("name", ["residual", "vim", "nnguide", "react", "ash", "dice", "mds", "rmds_plus"])
def test_feature_scores__embeddings_in_single_precision_lose_no_more_than_their_own_rounding(name):
    """Products are float32 where the embeddings are; float64 embeddings keep every digit (the loops above)."""
    train, test = (dump.replace(embeddings=dump.embeddings.astype(np.float32)) for dump in (TRAIN, TEST))
    exact = [dump.replace(embeddings=dump.embeddings.astype(np.float64)) for dump in (train, test)]
    options = {"dims": 4} if name in ("residual", "vim") else {}
    single, double = (getattr(measures, name)(a, **options)(b) for a, b in ((train, test), exact))
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-6 * np.abs(double).max())
