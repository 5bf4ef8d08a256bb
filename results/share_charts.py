"""Move the chart library out of the pages of the results into charts.js, which all of them load.

Run it after a page was written again: python results/share_charts.py
"""

import re
from pathlib import Path

RESULTS = Path(__file__).parent
LIBRARY = re.compile(r"<script>(?=.{100000})(.*?)</script>", re.DOTALL)
SOURCES = "script-src 'unsafe-inline'"  # of the page's content security policy


def share_charts() -> None:
    """Replace the library in every page that still contains it by a link."""
    for page in RESULTS.rglob("index.html"):
        text = page.read_text("utf-8")
        if library := LIBRARY.search(text):
            (RESULTS / "charts.js").write_text(library[1] + "\n", "utf-8")
            up = "../" * len(page.parent.relative_to(RESULTS).parts)
            text = text.replace(library[0], f'<script src="{up}charts.js"></script>')
            page.write_text(text.replace(SOURCES, "script-src 'self' file: 'unsafe-inline'"), "utf-8")


if __name__ == "__main__":
    share_charts()
