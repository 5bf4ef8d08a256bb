"""`nescio choose` on a store with predictions of several sets."""

from types import SimpleNamespace

from nescio.cli import main


def test_choose__a_store_with_two_sets_lists_them_with_commands(monkeypatch, capsys):
    models = [SimpleNamespace(data=data) for data in ("digits", "npz:my images.npz")]
    monkeypatch.setattr("nescio.predictions.model_predictions.collect_predictions", lambda *_: models)
    monkeypatch.setattr("nescio.networks.published.with_facts", lambda models, _: models)
    assert main(["choose", "--accuracy", "0.9"]) == 2
    err = capsys.readouterr().err
    assert "`nescio choose --accuracy 0.9 --data digits`" in err and "--data 'npz:my images.npz'`" in err
