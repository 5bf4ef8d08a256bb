"""Transfer: R@1, R-AUROC and intervals are the metrics themselves; the choice of a score needs no labels."""

import numpy as np
import pytest

import nescio
from nescio import BadInput, Predictions, Undefined
from nescio.analysis.transfer import GALLERY, IMAGE, same_set_share, transfer
from nescio.metrics import r_auroc, recall_at_1
from nescio.report.frame import Frame
from nescio.report.transfers import transfer_story, transfer_tables
from nescio.report.verdicts import TRANSFER_TITLES, transfer_sentences

CENTRES = np.random.default_rng(9).normal(size=(24, 12))


def seen(classes, seed, n=240, spread=0.7):
    """A network's dump for images of some of 24 kinds; it learnt the first eight."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, n)
    embeddings = (CENTRES[labels] + spread * rng.normal(size=(n, 12))).astype(np.float32)
    return Predictions(embeddings=embeddings, logits=embeddings @ CENTRES[:8].T, labels=labels, in_distribution=False)


def moved(dump, seed):
    shift = np.random.default_rng(seed).normal(size=dump.embeddings.shape)
    return Predictions(embeddings=dump.embeddings + 0.3 * shift.astype(np.float32))


@pytest.fixture
def dump():
    own = seen(range(8, 24), 0)
    return own.replace(scores={"mine": np.random.default_rng(1).random(len(own))})


def test_transfer__rows_are_the_metrics_with_intervals_and_scores_stand_apart(dump):
    result = transfer(dump, [moved(dump, 1), moved(dump, 2)], resamples=200)
    frame = Frame(result.rows)
    assert frame.where(metric="recall_at_1").first("value") == recall_at_1(dump.embeddings, dump.labels)
    for row in frame.where(metric="r_auroc"):
        assert row["value"] == r_auroc(dump.embeddings, dump.labels, result.u[row["measure"]])
        assert row["low"] <= row["value"] <= row["high"]
    assert set(frame.where(score_input=GALLERY).unique("measure")) == {
        "gallery_margin", "gallery_consistency", "gallery_uncertainty",
    }  # fmt: skip
    assert {"entropy", "norm", "mine"} <= set(frame.where(score_input=IMAGE).unique("measure"))
    image, gallery = transfer_tables(result)
    assert "entropy" in str(image.rows) and "gallery" not in str(image.rows)
    assert len(gallery.rows) == 3


def test_transfer__the_entropy_is_used_where_images_cannot_be_told_from_what_was_learnt(dump):
    reference = seen(range(8), 5)
    at_home = seen(range(8), 6)
    choose = [transfer(rows, [moved(rows, 1)], reference=reference, resamples=0) for rows in (at_home, dump)]
    assert [each.recommended for each in choose] == ["entropy", "gallery_uncertainty"]
    assert (
        "differ from" in choose[1].recommendation_reason
        and "shift" in choose[1].recommendation_reason
        and "classes" not in choose[0].recommendation_reason
    )
    unlabelled = transfer(at_home.replace(labels=None), reference=reference, resamples=0)
    assert unlabelled.recommended == "entropy" and not unlabelled.rows  # labels had no part in it
    assert transfer(at_home, resamples=0).recommended == "gallery_margin"  # without a reference and without views


def test_transfer__a_small_gallery_keeps_the_scores_that_need_none(dump):
    """R@1 and image scores need neither k nor j."""
    few = dump.take(np.arange(30))
    result = transfer(few, [moved(dump, 1).take(np.arange(30))], resamples=0)
    frame = Frame(result.rows)
    assert frame.where(metric="recall_at_1").first("value") == recall_at_1(few.embeddings, few.labels)
    assert set(result.u) >= {"entropy", "norm", "gallery_consistency"} and "gallery_margin" not in result.u
    assert result.recommended == "gallery_consistency" and any("j is 50" in note for note in result.notes)
    tiny = transfer(few.take(np.arange(15)), resamples=0)
    assert tiny.recommended == "entropy" and set(tiny.reasons) >= {"gallery_margin", "gallery_uncertainty"}


def test_transfer__a_reference_that_cannot_be_compared_is_said_and_does_not_decide(dump):
    wide = Predictions(embeddings=np.zeros((240, 5), np.float32))
    one = seen(range(8), 5, n=1)
    for reference, number in ((wide, "5 features"), (one, "20 rows")):
        result = transfer(dump, [moved(dump, 1)], reference=reference, resamples=0)
        assert result.recommended == "gallery_uncertainty" and number in result.recommendation_reason


def test_transfer__a_reference_that_holds_the_images_themselves_is_said_to_overlap(dump):
    result = transfer(dump, [moved(dump, 1)], reference=dump, resamples=0)
    assert result.recommended == "entropy" and "overlap" in result.recommendation_reason


def test_transfer__the_sentences_say_what_ranks_higher_than_the_choice_and_what_is_below_chance(dump):
    result = transfer(dump, [moved(dump, 1)], resamples=0)
    higher = {row["measure"]: row["value"] for row in result.rows if row["metric"] == "r_auroc"}
    for row in result.rows:
        if row["measure"] == "gallery_margin":
            row["value"] = higher["gallery_uncertainty"] + 0.01
        elif row["score_input"] == IMAGE:
            row["value"] = 0.4
    words = " ".join(transfer_sentences(result))
    assert "gallery_margin" in words and "chance" in words
    for row in result.rows:
        row["value"] = 0.6 if row["measure"] != result.recommended else 0.7
    assert len(transfer_sentences(result)) == 2


def test_same_set_share__two_samples_of_one_set_cannot_be_told_apart(dump):
    assert 0.4 < same_set_share(seen(range(8), 3, 500), seen(range(8), 4, 300)) < 0.6
    assert same_set_share(seen(range(8), 3), dump) > 0.9
    with pytest.raises(Undefined, match="has none"):
        same_set_share(dump, Predictions(labels=[0]))


def test_transfer__without_logits_or_labels_it_says_what_it_can(dump):
    bare = Predictions(embeddings=dump.embeddings)
    result = transfer(bare)
    assert result.recommended == "gallery_margin" and not result.rows and "no labels" in result.notes[0]
    assert set(result.u) == {"norm", "gallery_margin"} and "entropy" in result.reasons
    assert "gallery_margin" in transfer_sentences(result)[0]
    with pytest.raises(BadInput, match="resamples is"):
        transfer(bare, resamples=-1)


def test_transfer__the_page_has_both_kinds_of_scores(dump):
    story = transfer_story(transfer(dump, [moved(dump, 1)], name="mine", resamples=0))
    titles = [section.title for section in story.sections]
    assert titles[:2] == [TRANSFER_TITLES[IMAGE], TRANSFER_TITLES[GALLERY]]
    assert "R@1" in story.lead[0]


def test_transfer__four_lines_of_python(dump):
    """What docs/transfer.md shows, after Algorithm 1 of the paper."""
    embeddings, labels, u = dump.embeddings, dump.labels, dump.scores["mine"]
    mine = nescio.Predictions(embeddings=embeddings, labels=labels, scores={"mine": u}, in_distribution=False)
    result = nescio.transfer(mine)
    by_score = {row["measure"]: row["value"] for row in result.rows}
    assert by_score["mine"] == r_auroc(embeddings, labels, u)
    assert by_score[None] == recall_at_1(embeddings, labels)
