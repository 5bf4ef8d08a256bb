"""Findings of the READMEs: study → query of test_findings.py → sentence with the names of the query's numbers.

Sentences of one kind are built by one template.
"""

from __future__ import annotations

CONTROL = "([control](augmented/README.md))"
SOFTMAX = "plain softmax"


# ---- templates


def listing(*names: str, digits: int = 3) -> str:
    """Method names with the values of their keys, as in "`mir` 0.727 and `ddu` 0.706"."""
    items = [f"`{name}` {number(name.replace('-', '_'), digits)}" for name in names]
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def number(key: str, digits: int = 3) -> str:
    return f"{{{key}:.{digits}f}}"


def span(low: str = "low", high: str = "high", digits: int = 3) -> str:
    """A range of values."""
    return f"{number(low, digits)} to {number(high, digits)}"


def best(task: str, first: str, others: str) -> str:
    """The highest value, and those that follow it."""
    return f"{task}: {first} is best, followed by {others}."


def higher_in_every_run(first: str, second: str, metric: str = "rAULC") -> str:
    return f"{first} has a higher {metric} than {second} in every run"


def not_different(names: str, reference: str, verb: str = "are") -> str:
    return f"{names} {verb} not significantly different from {reference}"


def correlation(key: str, p: str = "", p_format: str = ".3f") -> str:
    """Spearman's ρ, with its p-value if it is named."""
    return f"{{{key}:.2f}}" + (f", p = {{{p}:{p_format}}}" if p else "")


def share(count: str, total: str, noun: str) -> str:
    return f"in {count} of {total} {noun}"


def native_below_entropy(values: str) -> str:
    """Native scores against the entropy of the same networks."""
    return f"Every native score has a lower rAULC than the entropy of the same networks in every run. {values}"


def costs(names: str) -> str:
    return f"More regularisation lowers clean accuracy for {names}"


# ---- findings

MUTUAL_INFORMATION = "Mutual information has {erm:.3f} for ensembles and {mc_dropout:.3f} for `mc-dropout`"
DEMPSTER_SHAFER = "The Dempster–Shafer score of `sngp` has {sngp:.3f}"

SENTENCES = {
    "uimnet": {
        "order_of_measures": (
            best(
                "OOD detection, mean AUROC over all methods and settings",
                "entropy ({entropy:.3f})",
                "test-time augmentation ({tta:.3f}), MSP ({msp:.3f}), gap ({gap:.3f}), class Gaussians ({gmm:.3f}) "
                "and native scores ({native:.3f})",
            )
            + " The Jacobian ({jacobian:.3f}) is below chance. The paper also ranks entropy first, but ranks test-time "
            "augmentation among the worst measures."
        ),
        "first_of_methods": (
            "No method exceeds the AUROC of `erm` by more than the sum of their spreads over data seeds: "
            + listing("oc", "erm", "rnd", digits=1).replace("}", "} %")
            + ". The oracle, which is trained with OOD images too, has {oracle:.1f} %."
        ),
        "learning_rates": (
            "Methods differ mostly by their learning rates. `erm`, `rnd`, `oc` and `deep-ae` train the same backbone. "
            "After their searches, which draw separate learning rates, their accuracies are {erm:.1f}, {rnd:.1f}, "
            "{oc:.1f} and {deep_ae:.1f} %. With default hyper-parameters they are {low:.1f} to {high:.1f} %."
        ),
        "calibration_of_single_networks": (
            "Calibration lowers the mean ECE of single networks from {raw:.3f} to {calibrated:.3f}."
        ),
        "ablations": (
            "Calibration changes the AUROC by {calibrated_auc:+.1f} %, and a spectral norm of 5 by {spectral_auc:+.1f} "
            "%. Ensembles of all three trials, weak draws included, raise the ECE by {ensemble_ece:.0f} % and change "
            "the AUROC by {ensemble_auc:+.1f} %."
        ),
        "density_threshold": (
            "The threshold of the class Gaussians misses its nominal 95 %: {inside:.1f} % of in-distribution images "
            "are below it, and {outside:.1f} % of OOD images are above it. Version 2 fitted it on half of the rows; "
            "now every row is left out once."
        ),
        "least_accurate": (
            "Three methods are undertrained after 16 epochs, with accuracies of {rbf:.1f} % (`rbf`), {due:.1f} % "
            "(`due`) and {dropout:.1f} % (`mc-dropout`)."
        ),
    },
    "reliability": {
        "signs_of_nc_and_fv": (
            "Neighbourhood consistency (NC) correlates positively with reliability for every method in both settings: "
            f"τ {span('nc_low', 'nc_high')} for the Brier score, and above 0 for the entropy. Feature variance "
            f"correlates negatively in all cases ({span('fv_low', 'fv_high')}): networks differ *more* on images that "
            "they predict correctly. In the paper, too, NC is above 0 everywhere, and feature variance is low or "
            "negative."
        ),
        "norm_against_nc": (
            "NC is not the best score. The norm of the representation has a higher τ "
            + share("{ahead}", "{cases}", "cases")
            + ", and a lower one for SimCLR on CIFAR-10. In the paper, with ten networks, NC is the best in most cases."
        ),
        "density": (
            f"LL by von Mises–Fisher mixtures of 20 components hardly correlates with reliability ({span()}). For "
            "SimCLR in transfer the correlation is negative."
        ),
        "ranking_of_methods": (
            "NC does not identify the best of the three methods (Table 3). On CIFAR-10 it ranks more pairs wrongly "
            "than correctly (τ {cifar10_brier:.3f} by the Brier score, {cifar10_entropy:.3f} by the entropy). In "
            "transfer the two losses disagree ({transfer_brier:.3f} and {transfer_entropy:.3f})."
        ),
        "best_downstream": (
            "SimCLR has the lowest downstream Brier score in both settings ({cifar10:.3f} and {transfer:.3f}). But it "
            "averages five networks where the other methods average three, which lowers the Brier score."
        ),
        "best_k": "NC has its highest τ between k = {low} and k = {high}.",
        "more_networks": (
            "NC of all networks has a higher τ than NC of two " + share("{gains}", "{cases}", "cases") + "."
        ),
        "variance_of_answers": (
            "Against the variance of the members' predictions, which Theorem 2 bounds, NC has a higher τ than Norm in "
            f"all {{cases}} cases ({span()})."
        ),
    },
    "shift": {
        "trained_enough": (
            f"CIFAR-10, clean accuracy: `erm` {{plain:.3f}}, ensembles of five {{five:.3f}}, other methods {span()} "
            "except `dcu` and `postnet`. These methods predict at least {least:.3f} of the training images correctly. "
            "`duq` has {duq:.3f}, in the paper 0.860. `dcu` has {dcu:.3f} (at least {dcu_least:.3f} of the training "
            "images), the lowest of all; in the paper, with a longer contrastive pretraining, it has 0.945, the "
            "highest of all. `postnet` has {postnet:.3f} (at least {postnet_least:.3f}), in the paper 0.882."
        ),
        "ensembles_lead": (
            "CIFAR-10: deep ensembles, ranked by entropy, have a rAULC of {five:.3f}. In every run this is above all "
            "other lines of the table except the entropy of `dcu` ({dcu:.3f}), which is higher in every run. Plain "
            "softmax has {plain:.3f}."
        ),
        "views_of_ten": (
            "The augmentations of `dcu` explain a part of its gain. Plain training with the same augmentations "
            f"{CONTROL} has {{same:.3f}}, above {SOFTMAX} ({{plain:.3f}}) and below `dcu` ({{dcu:.3f}}) in every run. "
            "Within one severity, where detecting the stronger corruption does not help, it has {inside_same:.3f} "
            f"({SOFTMAX} {{inside_plain:.3f}}, `dcu` {{inside_dcu:.3f}}). The control is undertrained "
            f"({span()} of the training images, `dcu` {span('its_low', 'its_high')}), and `dcu` uses two views "
            "of every image. The effect of its contrastive loss therefore remains open. Both lower clean accuracy, "
            "from {accurate:.3f} to {clean:.3f} and {costly:.3f}. At severity 5 both raise it, from {worst_plain:.3f} "
            "to {worst_same:.3f} and {worst_dcu:.3f}."
        ),
        "near_corruptions": (
            "These augmentations change colours and blur, as some corruptions do. At severity 5 of contrast, the "
            "accuracy is {contrast_dcu:.3f} for `dcu`, {contrast_same:.3f} for the control and {contrast_plain:.3f} "
            "for `erm`; for defocus blur it is {blur_dcu:.3f}, {blur_same:.3f} and {blur_plain:.3f}. On clean images "
            "the entropy of `dcu` has a lower rAULC than that of `erm` in every run ({clean_dcu:.3f} and "
            "{clean_plain:.3f}). For OOD images of CIFAR-100 it has a lower AUROC ({out_dcu:.3f} and {out_plain:.3f})."
        ),
        "dropout_and_sngp": (
            "CIFAR-10, by entropy: neither `mc-dropout` ({dropout:.3f}, higher "
            + share("{dropout_ahead}", "3", "runs")
            + ") nor `sngp` ({sngp:.3f}, higher in {sngp_ahead}) has a higher rAULC than "
            f"{SOFTMAX} ({{plain:.3f}}, {span()}) in every run. In the paper both do; its published code runs "
            "MC-dropout in training mode, so that batch-norm adapts to every batch of corrupted images."
        ),
        "own_scores": (
            "CIFAR-10. "
            + native_below_entropy(
                f"{MUTUAL_INFORMATION}. {DEMPSTER_SHAFER}. The distances of `dcs` and `duq` to their centroids have "
                "{dcs:.3f} and {duq:.3f}, and the evidence of `postnet` has {postnet:.3f}."
            )
        ),
        "densities_are_last": (
            "Feature densities have a far lower rAULC: "
            + listing("ddu", "mir", "dcu")
            + ", the lowest of the three in every run. In the paper `ddu` is the lowest (0.441); `dcu` (0.706) and "
            "`mir` (0.697) are close to plain softmax (0.708)."
        ),
        "variance_of_due": (
            "The predictive variance of `due`, its score in UIMNET, ranks in the wrong direction (rAULC {raulc:.3f}). "
            "Its entropy ({entropy:.3f}) is as good as those of the other methods."
        ),
        "other_classes": (
            "OOD detection with 10,000 images of CIFAR-100 gives another order. "
            + best(
                "AUROC",
                "the entropy of ensembles ({five:.3f})",
                "the native score of `sngp` ({own:.3f})",
            )
            + " In every run the latter is above its entropy ({entropy:.3f}), plain softmax ({plain:.3f}) and all "
            "other native scores. These are "
            + listing("dcs", "duq", "postnet")
            + "; the densities of `mir` {mir:.3f}, `ddu` {ddu:.3f} and `dcu` {dcu:.3f}. The variance of `due` "
            "({due:.3f}) ranks in the wrong direction here too."
        ),
        "strengths_of_ten": (
            "CIFAR-10: the lowest validation loss of three strengths (earlier networks, see above) chose a bound of "
            "{sngp:.3g} for `sngp`, {due:.3g} for `due` and {ddu:g} for `ddu`. It chose a weight of {mir:g} for `mir` "
            "and {dcs:g} for `dcs`, and a penalty of {duq:g} for `duq`. Only for `postnet` it chose the strongest, "
            "{postnet:g}; its three losses differ by {spread:.3f}. With a bound of 0.5 none of `sngp`, `due` and `ddu` "
            "learns (one network each): their validation loss is at chance, {dead:.2f}."
        ),
        "bounds_of_ten": (
            "CIFAR-10: these bounds constrain {low:.1f} to {high:.1f} % of the layers of `sngp` and `due`, and no "
            "layer of `ddu`. The density of `ddu` is therefore one of unregularised features."
        ),
        "undertrained": (
            "CIFAR-100: clean accuracy is {plain:.3f} for plain training and {five:.3f} for ensembles. Five methods "
            "reach a training accuracy of at least {least:.3f}. The other five are undertrained with this budget, "
            f"which was tuned for `erm`: `due` ({span('due_low', 'due_high')}), "
            f"`sngp` ({span('sngp_low', 'sngp_high')}), `dcu` ({span('dcu_low', 'dcu_high')}), "
            f"`postnet` ({span('postnet_low', 'postnet_high')}) and `duq` ({span('duq_low', 'duq_high')}; it did not "
            "converge in the paper). Their rows are marked and support no finding."
        ),
        "centroids_of_hundred": (
            "CIFAR-100: of the trained methods, one line has a higher rAULC than deep ensembles ({five:.3f}; plain "
            "softmax {plain:.3f}) in every run. It is the entropy of `dcs` ({dcs:.3f}, p = {p:.2f}; its native score "
            "{own:.3f}). Clean accuracy is {clean:.3f} for `dcs`, {five_clean:.3f} for ensembles and "
            "{plain_clean:.3f} for `erm`."
        ),
        "few_images_of_many_classes": (
            f"CIFAR-100: the entropies of `mc-dropout`, `ddu` and `mir` ({span()}) are close to {SOFTMAX} "
            "({plain:.3f}). Their native scores are below their entropies in every run (mutual information "
            "{mc_dropout:.3f}, densities {ddu:.3f} and {mir:.3f})."
        ),
    },
    "shift/augmented": {
        "views_of_ten": (
            "By entropy, `dcu` has a rAULC of {dcu:.3f}, plain training with its augmentations {same:.3f}, and plain "
            "training on cropped and mirrored images {plain:.3f}. The order is the same in every run. Clean accuracy "
            "is {costly:.3f}, {clean:.3f} and {accurate:.3f}. With the augmentations, training accuracy is "
            f"{span()} (`dcu` {span('its_low', 'its_high')}). `erm` is therefore marked as undertrained here, and a "
            "longer budget may reduce its distance to `dcu`."
        ),
    },
    "shift/digits": {
        "every_method_trains": (
            f"All ten methods train: training accuracy is at least {{least:.3f}} (`duq` {{duq:.3f}}), clean accuracy "
            f"{span()}."
        ),
        "weak_or_middle": (
            "The lowest validation loss of three strengths is at the weakest one for {weakest} of eight methods, at "
            "the middle one for {middle}, and at the strongest one for `dcs` only."
        ),
        "own_scores_of_digits": (
            f"Some native scores have a higher rAULC than {SOFTMAX} ({{plain:.3f}}) in all three runs: mutual "
            "information of ensembles of five {five:.3f} (p = {five_p:.2f}), `dcs` {dcs:.3f} (p = {dcs_p:.2f}), "
            "`sngp` {sngp:.3f} (p = {sngp_p:.2f}; its entropy {sngp_entropy:.3f}) and `duq` {duq:.3f} "
            "(p = {duq_p:.2f}). `ddu` has {ddu:.3f}, higher " + share("{ddu_ahead}", "3", "runs") + ". Three runs "
            "give little power (paired t-tests, not corrected). On CIFAR-10 plain softmax is above all of these in "
            "every run."
        ),
        "bounds_of_digits": (
            "The bounds that validation loss chooses for `sngp` ({sngp:g}), `due` ({due:g}) and `ddu` ({ddu:g}) "
            "constrain no layer of any trained network. These methods use unregularised features here."
        ),
        "views_of_digits": (
            "The entropy of `dcu` has a rAULC of {dcu:.3f}, the highest mean of all lines. But only `dcu` has "
            f"augmentations of its own; plain training with them has {{same:.3f}} {CONTROL}."
        ),
    },
    "shift/digits/augmented": {
        "views_of_digits": (
            "By entropy, plain training with the augmentations of `dcu` has a rAULC of {same:.3f} (ensembles of five "
            "{five:.3f}), `dcu` {dcu:.3f}, and plain training on moved images {plain:.3f}. The gain of `dcu` thus "
            "needs no contrastive loss. The augmentations lower clean accuracy from {accurate:.3f} to {likewise:.3f} "
            "(plain training) and {costly:.3f} (`dcu`)."
        ),
    },
    "scenes": {
        "worse_with_every_level": (
            "Darkness, fog and rain lower the mIoU with every severity. That of `erm` falls from {clean:.3f} to "
            "{after_darkness:.3f}, {after_fog:.3f} and {after_rain:.3f} at the highest severity."
        ),
        "pixels_by_entropy": (
            "By entropy, "
            + not_different("all lines", f"{SOFTMAX} (rAULC {{plain:.3f}}, {span()}) in six runs")
            + ". `mir` has {mir:.3f} (higher in {mir_ahead} runs, p = {p:.2f}), `mc-dropout` {mc_dropout:.3f} "
            "({mc_dropout_ahead}), ensembles of three {three:.3f} ({three_ahead}), `ddu` "
            "{ddu:.3f} ({ddu_ahead}) and `sngp` {sngp:.3f} ({sngp_ahead}). In the paper's table of "
            "CARLA plain softmax is the best."
        ),
        "own_scores_of_pixels": native_below_entropy(
            f"{MUTUAL_INFORMATION}. {DEMPSTER_SHAFER}. The densities of `mir` ({{mir:.3f}}) and `ddu` ({{ddu:.3f}}) "
            "are far below."
        ),
        "bounds_of_pixels": (
            "The spectral norms have hardly any effect. The bound of {sngp:.3g} of `sngp` constrains no layer of any "
            "network; that of {ddu:.3g} of `ddu` constrains {most:.0f} % of the layers in {some} of six networks. "
            "Both methods therefore use nearly unregularised features here."
        ),
    },
    "scenes/full": {
        "large_networks_learn": (
            "All lines learn (training accuracy at least {least:.3f}). Clean mIoU is {plain:.3f} for `erm`, "
            f"{span()} for the other methods and {{three:.3f}} for ensembles of three. At the highest severity of "
            "darkness, fog and rain, `erm` has {darkness:.3f}, {fog:.3f} and {rain:.3f}."
        ),
        "large_by_entropy": (
            f"By entropy, ensembles of three (rAULC {{three:.3f}}) are above {SOFTMAX} ({{plain:.3f}}) in both runs, "
            "and `sngp` ({sngp:.3f}) is below it in both. The two runs disagree about `mc-dropout` "
            "({mc_dropout:.3f}), `ddu` ({ddu:.3f}) and `mir` ({mir:.3f})."
        ),
        "large_own_scores": native_below_entropy(
            f"{MUTUAL_INFORMATION}. {DEMPSTER_SHAFER}, the densities of `ddu` {{ddu:.3f}} and of `mir` {{mir:.3f}}."
        ),
    },
    "sensitivity": {
        "mir_alone": (
            "Of the networks that learnt, only those of `mir` have a higher rAULC of their native score with more "
            f"regularisation, as in the paper (Spearman's ρ {correlation('mir', 'p')}; {span(digits=2)} in the five "
            "runs). This p-value assumes independent networks within a run; with four tests it would have to be below "
            "0.0125. "
            + not_different("For `duq` ({duq:.2f}) and `ddu` ({ddu:.2f}) the correlations", "0")
            + ", and for `sngp` ({sngp:.2f}) it is negative."
        ),
        "with_collapsed": (
            "{lost} networks at the highest strengths did not learn (clean accuracy below 0.5), {lost_of_mir} of `mir` "
            "among them. If these are included, no rAULC rises significantly: "
            + listing("mir", "duq", "ddu", "sngp", digits=2)
            + "."
        ),
        "by_auroc": (
            "By AUROC, for the same networks, the correlations of the native scores of `ddu` "
            f"({correlation('ddu', 'ddu_p', '.4f')}) and `duq` ({correlation('duq', 'duq_p')}) have p-values below "
            f"that limit; that of `mir` ({correlation('mir', 'mir_p', '.2f')}) has not. That only `mir` "
            f"rises holds for rAULC only. With all networks `ddu` has {correlation('rho', 'p', '.2f')}. The "
            "class Gaussians of `ddu` and `mir` are fitted on {few:.2f} training images per feature and are nearly "
            "singular."
        ),
        "hump_of_ddu": (
            "Half of the bounds have no effect, but all count in the correlations. Those down to {last:.2f} constrain "
            "no layer of any network of `ddu`; five of eight constrain none of `sngp`. For `ddu` the correlation hides "
            f"a maximum. These loose bounds have a rAULC of {span()}. The best bound, {{bound:.2f}}, has {{best:.3f}} "
            "and is above each of them in five of five runs; the tightest has {worst:.3f}."
        ),
        "price": costs("all four methods") + f" (ρ {span(digits=2)}).",
    },
    "sensitivity/mnist": {
        "learnt_of_mnist": (
            f"Clean accuracy is {span()} at the lowest strengths (training accuracy at least {{learnt:.3f}}), and "
            "{least:.3f} or more in all networks."
        ),
        "digits_of_mnist": (
            "No method's native score has a higher rAULC with more regularisation. For `mir`, the paper's only case, "
            f"the correlation is negative (Spearman's ρ {correlation('mir', 'p')}). Only the two highest weights cause "
            "this (a cut made after seeing them): up to {last:.1f} "
            + not_different("ρ ({weak:.2f})", "0", "is")
            + ". For `duq` ({duq:.2f}) it is negative too. "
            + not_different("Those of `ddu` ({ddu:.2f}) and `sngp` ({sngp:.2f})", "0")
            + "."
        ),
    },
    "sensitivity/fashion-mnist": {
        "learnt_of_clothes": (
            f"Clean accuracy is {span()} at the lowest strengths (training accuracy at least {{learnt:.3f}}). At its "
            "highest weight one network of `mir` diverged (NaN loss) and has no rows, and three of the other four did "
            "not learn. All others have {least:.3f} or more."
        ),
        "clothes": (
            "No method's native score has a higher rAULC with more regularisation over the whole range. "
            + not_different(
                "The correlations of `mir` ({mir:.2f}; {learnt:.2f} for the networks that learnt), `ddu` ({ddu:.2f}) "
                "and `sngp` ({sngp:.2f})",
                "0",
            )
            + ", and that of `duq` ({duq:.2f}) is negative."
        ),
        "weak_clothes": (
            "For `mir`, the paper's only case, the rAULC first rises, from {first:.3f} to {most:.3f}, and then falls "
            "to {then:.3f} at the second highest weight. Up to a weight of {last:.1f}, Spearman's ρ is "
            f"{correlation('weak', 'weak_p', '.1g')} (positive "
            + share("{rising}", "five", "runs")
            + "; this limit was chosen after seeing the curve)."
        ),
        "price_of_clothes": (
            costs("`duq` ({duq:.2f}), `mir` ({mir:.2f}) and `ddu` ({ddu:.2f}). ")
            + not_different("The correlation of `sngp` ({sngp:.2f})", "0", "is")
            + "."
        ),
    },
    "posthoc": {
        "five_networks": (
            "Accuracy is {plain:.3f} for a ResNet-18 and {five:.3f} for an ensemble of five. It is {repvgg:.3f} for a "
            "RepVGG-A0, whose strides suit larger images, and {vit:.3f} for a small transformer without pretraining."
        ),
        "mistakes_need_little": (
            "Misclassification detection: no score is significantly better than MSP on four of five networks. On the "
            "transformer, which is overconfident, a temperature fitted on validation images is enough (AUROC "
            "{msp_tuned:.3f}, MSP {msp:.3f})."
        ),
        "near_by_logits": (
            "Near-OOD detection (CIFAR-100): energy, which needs logits only, has the highest mean AUROC "
            "({energy:.3f}; `gen` {gen:.3f}, nearest neighbours {knn:.3f}, MSP {msp:.3f}). It exceeds "
            "MSP on every network. MSP is significantly worse than the best score on every network."
        ),
        "far_by_neighbours": (
            "Far-OOD detection (MNIST, Fashion-MNIST, birds): the distance to the nearest training image has the "
            "highest mean AUROC ({knn:.3f}; MSP {msp:.3f}). It exceeds MSP by at least {least:.3f} on every network."
        ),
        "length_one": (
            "Mahalanobis distances are better with features of length one on every network. Mean AUROC rises from "
            "{near_plain:.3f} to {near:.3f} for near-OOD and from {far_plain:.3f} to {far:.3f} for far-OOD images."
        ),
        "claims_elsewhere": (
            "Results of other papers: pNorm does not repair the only network whose MSP is not among the best scores "
            "(NAURC {pnorm:.3f}, MSP {plain:.3f}; lower is better). Activation shaping collapses "
            + share("{collapsed}", "{cases}", "cases")
            + ", each time `ash`. Mahalanobis++ is not the best score on the transformer (rank {near} of {of} for "
            "near-OOD, {far} for far-OOD images)."
        ),
    },
    "lite": {
        "lite_networks": (
            "Accuracy on these images is {lite0:.3f} for EfficientNet-Lite0 and {lite1:.3f} for EfficientNet-Lite1."
        ),
        "pnorm_on_lite1": (
            "pNorm repairs a broken confidence. Lite1 is the more accurate network, but its MSP has a lower AUROC of "
            "misclassification detection than that of Lite0 ({lite1_msp:.3f} and {lite0_msp:.3f}). With `pnorm`, which "
            "needs neither labels nor validation images, it is higher ({lite1_pnorm:.3f} and {lite0_pnorm:.3f})."
        ),
        "far_from_imagenet": (
            "OOD detection (MNIST, Fashion-MNIST): `gen` has the highest AUROC ({lite0_gen:.3f} and {lite1_gen:.3f}; "
            "MSP {lite0_msp:.3f} and {lite1_msp:.3f}). `gradnorm` collapses on both networks ({lite0_gradnorm:.3f} and "
            "{lite1_gradnorm:.3f})."
        ),
    },
    "url": {
        "upstream_accuracy": (
            f"Accuracy on the upstream test images is {{erm:.3f}} for `erm` and {span()} for all methods that predict "
            "classes."
        ),
        "learning_on_costs_neighbours": (
            "With this budget, fine-tuning lowers R@1 (mean of both sets). It is {frozen:.3f} for `losspred-order`, "
            f"which keeps the pretrained backbone, and {span('least', 'best')} for all methods that change it (`erm` "
            "{erm:.3f})."
        ),
        "predicted_loss_leads": (
            best(
                "R-AUROC by native scores",
                "`losspred-order` ({losspred_order:.3f})",
                "`losspred` ({losspred:.3f})",
            )
            + " Lower are the entropy of `erm` ({erm:.3f}) and the disagreement of `heads` ({heads:.3f}). "
            + not_different(
                "With two seeds, `infonce` ({infonce:.3f}), `sngp` ({sngp:.3f}), `mc-infonce` ({mc_infonce:.3f}), "
                "`mc-dropout` ({mc_dropout:.3f}), `het-xl` ({het_xl:.3f}) and `elk` ({elk:.3f})",
                "the best",
            )
            + ". In the paper `losspred` and `mc-infonce` are the best."
        ),
        "entropy_by_set": (
            "Entropy has a R-AUROC near chance on birds ({cub:.3f}; {low:.3f} and {high:.3f} for the two networks) and "
            "a slightly higher one on CIFAR-100 ({cifar100:.3f})."
        ),
        "kappa": (
            "R-AUROC of 1/κ: "
            + listing("mc-infonce", "elk", "nivmf", "hib")
            + ". The last two are below chance: with hyper-parameters that were not searched, more confident "
            "embeddings are more often wrong here."
        ),
        "the_rule_chooses": (
            "Scores relative to a gallery: on birds `gallery_uncertainty` has {birds:.3f} and {again:.3f} with two "
            "networks of `erm`, entropy {birds_entropy:.3f} and {again_entropy:.3f}. R@1 is {birds_recall:.3f} and "
            "{again_recall:.3f}, since the weights are of other epochs than those of the rows. With a network of "
            "CIFAR-10 on CIFAR-100, `gallery_uncertainty` has {hundred:.3f} and entropy {hundred_entropy:.3f}. On that "
            "network's own test images, `gallery_uncertainty` has {own_gallery:.3f} and entropy {own:.3f}. The rule "
            "without labels chooses the better score each time, on networks that it was not developed on."
        ),
    },
    "url/scratch": {
        "new_weights_learn": (
            f"Accuracy on CIFAR-10's test images is {{erm:.3f}} for `erm` and {span()} for all methods that predict "
            "classes."
        ),
        "one_network_cannot_tell": (
            "On CIFAR-100, `het-xl` by log det Σ has the highest R-AUROC ({first:.3f}). "
            + not_different("Eight of twelve methods", "the best")
            + ", the entropy of `erm` ({erm:.3f}) among them. Significantly worse are `sngp` ({sngp:.3f}), and 1/κ of "
            "`hib` ({hib:.3f}), `nivmf` ({nivmf:.3f}) and `mc-infonce` ({mc_infonce:.3f})."
        ),
        "hib_hardly_retrieves": (
            "`hib` has an R@1 of {hib:.3f} on validation classes, the lowest of all. Today `--min-recall` excludes "
            "such networks, as the paper does."
        ),
        "human_votes": (
            "Entropy correlates with the entropy of human votes (rank correlation {erm:.3f} for `erm`, at least "
            "{low:.3f}). The predicted loss of `losspred` does so too ({losspred:.3f}). Far lower are 1/κ "
            f"({span('kappa_low', 'kappa_high')}) and the norm of `infonce`, which is trained without labels "
            "({infonce:.3f})."
        ),
        "other_classes_again": (
            "OOD detection of CIFAR-100 against CIFAR-10: the Dempster–Shafer score of `sngp` has the highest AUROC "
            "({own:.3f}; entropy of `erm` {erm:.3f}). There is one network of each, so the difference is not tested."
        ),
    },
}
