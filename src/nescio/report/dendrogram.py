"""Dendrograms as SVG, with leaves coloured and shaped by their side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nescio.report.charts import FONT, PAPER

ROW, WIDTH, MAX_NAME = 18, 460, 48  # pixels of a leaf, pixels of the tree, characters of a name
COLOURS, SHAPES = (PAPER["c1"], PAPER["c2"], PAPER["soft"]), ("circle", "square", "cross")  # not by colour alone


def dendrogram_svg(
    linkage: Any, names: Sequence[str], sides: Sequence[str], kinds: Sequence[str], title: str, note: str
) -> str:
    """Return the dendrogram of a SciPy linkage as SVG.

    sides  (n,) the side of each leaf, one of `kinds`; the last kind is that of branches that join two sides
    """
    import altair as alt
    import vl_convert
    from scipy.cluster.hierarchy import dendrogram

    inner = [*sides]
    for left, right in linkage[:, :2].astype(int):
        inner.append(inner[left] if inner[left] == inner[right] else kinds[-1])
    tree: Any = dendrogram(linkage, no_plot=True, link_color_func=inner.__getitem__)
    links = zip(tree["dcoord"], tree["icoord"], tree["color_list"], strict=True)
    branches = [
        {"branch": branch, "point": point, "height": height, "position": position, "side": side}
        for branch, (across, up, side) in enumerate(links)
        for point, (height, position) in enumerate(zip(across, (np.array(up) - 5) / 10, strict=True))
    ]
    leaves = [
        {"height": 0, "position": position, "side": sides[leaf], "name": _short(names[leaf])}
        for position, leaf in enumerate(tree["leaves"])
    ]
    used = [kind for kind in kinds if kind in inner]
    look = [(COLOURS[kinds.index(kind)], SHAPES[kinds.index(kind)]) for kind in used]
    x = alt.X("height:Q", title="height of a merge").scale(reverse=True, nice=False)
    y = alt.Y("position:Q", axis=None).scale(domain=[len(leaves) - 0.5, -0.5], nice=False)
    colour = alt.Color("side:N", title=None).scale(domain=used, range=[colour for colour, _ in look])
    shape = alt.Shape("side:N", title=None).scale(domain=used, range=[shape for _, shape in look])
    lines = alt.Chart(alt.InlineData(values=branches)).mark_line(strokeWidth=1.5, interpolate="linear")
    marks = alt.Chart(alt.InlineData(values=leaves))
    chart = alt.layer(
        lines.encode(x, y, colour.legend(None), alt.Order("point:Q"), alt.Detail("branch:N")),
        marks.mark_point(filled=True, size=45, xOffset=8, opacity=1).encode(x, y, colour, shape),
        marks.mark_text(align="left", dx=18).encode(x, y, colour.legend(None), alt.Text("name:N")),
    )
    heading = alt.TitleParams(title, subtitle=note, anchor="start", subtitleColor=PAPER["soft"], offset=12)
    chart = chart.properties(width=WIDTH, height=ROW * len(leaves), title=heading)
    chart = chart.configure(font=FONT, background=PAPER["ground"], view=alt.ViewConfig(stroke=None), padding=16)
    return str(vl_convert.vegalite_to_svg(chart.configure_legend(orient="top").to_dict()))


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"
