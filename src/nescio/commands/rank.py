"""Score the reliability of representations without labels, and rank candidates by it.

A CANDIDATE is a set of networks that differ in the seed alone (siblings), written NAME=MEMBER,MEMBER,…. A MEMBER is one
of these:
  REFERENCES:TESTS   two files of embeddings (n, d), of the references and of the rows to score
  FILE               one file of embeddings; some of its rows are the references (see --split-references)
  store:KEY          a network of `nescio train`
  siblings:KEY       that network and all others of the store that differ in the init seed alone
  a timm name, torchvision:NAME   a pretrained classifier; its embedding is the input of the last layer
Files are .npz, .npy, .safetensors, .parquet, .csv or folders. Networks predict on --training-data and --reference.

Candidates are ranked by neighbourhood consistency, NC (Park et al. 2024, section 4.3): the agreement of siblings on the
nearest references of each row, from 0 to 1. A paired bootstrap over the rows gives intervals. A single model has no NC.
It gets Dist (distance to the nearest references), Norm (length) and LL (log-likelihood of a mixture). These compare
rows of one candidate, not candidates. NC compares candidates if all have the same references. A warning names
candidates of different widths or backbones.

One candidate gets the quantiles of its scores over the rows and its least reliable rows. --row-scores FILE has, for
each candidate and row, nc (higher is more reliable) and u_nc, u_dist, u_norm, u_ll and u_fv (higher is less reliable).

With labels, the ranking is compared with the accuracy of downstream heads. Labels come from FILEs with `labels`, from
--reference and --data if they are one set, or from --head-data.

examples:
  nescio rank simclr=s0.npz,s1.npz,s2.npz byol=b0.npz,b1.npz,b2.npz
  nescio rank simclr=train0.npz:test0.npz,train1.npz:test1.npz moco=m0r.npz:m0.npz,m1r.npz:m1.npz --output out
  nescio rank simclr=siblings:3f2a moco=siblings:77b0 resnet50 --reference cifar10 --data photos/
  nescio rank a=siblings:3f2a b=siblings:77b0 --reference tiny-imagenet --data cifar10 --head-data cifar10
  nescio rank mine=a.npz,b.npz --row-scores scores.parquet --output out --thumbnails photos/
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.rank import RankOptions, RepresentationRanking, rank
from nescio.commands._output import PageOptions
from nescio.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions, RankOptions):
    pass


def run(options: Options) -> RepresentationRanking:
    if options.thumbnails and options.output is None:
        raise BadInput("--thumbnails are shown on the page: name its folder with --output.")
    return rank(options)
