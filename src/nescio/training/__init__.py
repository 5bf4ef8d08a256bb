"""Training: a Trial in, weights in the store out."""

from nescio.training.initial import WEIGHTS, build, start_key, take_weights, weights_of
from nescio.training.loop import Diverged, fit, initial_method
from nescio.training.optimizers import check_compiled, optimizer_of, rate_at
from nescio.training.steps import facts_of, load_method, members_facts, named_trial, pace, title_of, train, train_step
from nescio.training.streams import FEATURES, check_batch, check_views, usual_batch

__all__ = [
    "FEATURES",
    "WEIGHTS",
    "Diverged",
    "build",
    "check_batch",
    "check_compiled",
    "check_views",
    "facts_of",
    "fit",
    "initial_method",
    "load_method",
    "members_facts",
    "named_trial",
    "optimizer_of",
    "pace",
    "rate_at",
    "start_key",
    "take_weights",
    "title_of",
    "train",
    "train_step",
    "usual_batch",
    "weights_of",
]
