"""InfoNCE: by hand, against stored values, and NT-Xent as its other form."""

import math

import pytest
import torch

from nescio.layers.contrastive import info_nce, nt_xent, unit
from tests.support.reference import load, note


def by_hand(z, t):
    """Equation (1), image by image: neither a view itself nor its partner is in a sum."""
    b, found = len(z) // 2, []
    for first in range(b):
        second = first + b
        rest = [row for row in range(2 * b) if row not in (first, second)]
        sums = [math.log(sum(math.exp(t * float(z[view] @ z[row])) for row in rest)) for view in (first, second)]
        found.append(-t * float(z[first] @ z[second]) + sum(sums))
    return found


@pytest.mark.parametrize("t", [1.0, 10.0, 40.0])
def test_info_nce_is_its_equation(t):
    z = unit(torch.randn(12, 5, generator=torch.Generator().manual_seed(0))).double()
    assert info_nce(z, t).tolist() == pytest.approx(by_hand(z, t))
    stacked = torch.stack([z, z.flip(1), -z])
    assert torch.allclose(info_nce(stacked, t), torch.stack([info_nce(each, t) for each in stacked]))


def test_nt_xent__with_partners_it_is_twice_nt_xent():
    z = unit(torch.randn(12, 5, generator=torch.Generator().manual_seed(0)))
    assert float(info_nce(z, 4.0, partners=True).mean()) == pytest.approx(2 * float(nt_xent(z, 0.25)), rel=1e-5)


def test_info_nce__stored_values_without_the_leaked_diagonal():
    stored = load("url_infonce")
    z = torch.nn.functional.normalize(torch.tensor(stored["features"]), dim=1)
    z = torch.cat([z[::2], z[1::2]])  # the pairs are (0, 1), (2, 3) …
    check = note("url_infonce")["cross_check"]["sup0"]
    positive = 10 * float((z[:8] * z[8:]).sum(1).mean())
    # the stored value has one sum and one numerator for every view; equation (1) two sums for one numerator
    one_sided = (float(info_nce(z, 10.0).mean()) - positive) / 2
    assert one_sided == pytest.approx(check["numpy_masked_without_plus1"], rel=1e-9)
    assert one_sided != pytest.approx(check["repo"], rel=1e-3)
    whole = float(info_nce(z, 10.0, partners=True).mean()) / 2
    assert whole == pytest.approx(check["standard_infonce_pos_in_denominator"], rel=1e-9)
