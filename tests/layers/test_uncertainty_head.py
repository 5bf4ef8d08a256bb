"""The head for u: its size, its range, and a start that is saved with the weights."""

import pytest
import torch

from nescio.layers.uncertainty_head import UncertaintyHead


@pytest.mark.parametrize(("d", "millions"), [(2048, 4.2), (512, 2.6)])
def test_uncertainty_head__it_has_the_papers_parameters(d, millions):
    """URL, table 1: 4.2 million on a ResNet-50, 2.6 on a ViT-Medium."""
    assert sum(weight.numel() for weight in UncertaintyHead(d).parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_uncertainty_head__it_starts_where_it_should_and_the_scale_is_saved():
    torch.manual_seed(0)
    head, embeddings = UncertaintyHead(16), torch.randn(32, 16)
    assert head(embeddings).mean().item() == pytest.approx(0.69, abs=0.1)
    head.start_at(1000.0, embeddings)
    assert head(embeddings).mean().item() == pytest.approx(1000.0, rel=1e-4)
    other = UncertaintyHead(16)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(embeddings), head(embeddings))


def test_uncertainty_head__u_stays_above_zero():
    head = UncertaintyHead(4)
    torch.nn.init.constant_(head.layers[-1].bias, -200.0)
    assert (head(torch.zeros(2, 4)) == 1e-6).all()
