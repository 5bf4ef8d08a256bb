"""Pictures side by side that lie in the page itself."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Gallery:
    """Pictures in order: a PNG, what it is called, and a figure to stand below it."""

    pictures: tuple[tuple[bytes, str, str], ...]

    def html(self) -> str:
        """Small pictures are shown by their pixels, without smoothing."""
        cells = "".join(
            f'<li style="width:6rem"><img style="{PICTURE}" loading="lazy" alt="{escape(name)}, {escape(figure)}" '
            f'src="data:image/png;base64,{b64encode(png).decode()}"><div style="{WORDS}">{escape(name)}<br>'
            f'<span style="color:var(--soft)">{escape(figure)}</span></div></li>'
            for png, name, figure in self.pictures
        )
        return f'<ul class="gallery" style="{ROW}">{cells}</ul>'


ROW = "display:flex;flex-wrap:wrap;gap:1rem;list-style:none;margin:1rem 0;padding:0"
PICTURE = "width:6rem;height:6rem;object-fit:contain;image-rendering:pixelated;background:var(--panel)"
WORDS = "font-size:.8rem;line-height:1.3;overflow-wrap:anywhere"
