"""The page's theme, light and dark, and its style sheet: a grid without layout shifts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

THEME: Mapping[str, str] = {
    "theme.font": "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'Noto Sans CJK JP', sans-serif",
    "theme.baseRadius": "8px",
    "theme.light.primaryColor": "#2f5d62",
    "theme.light.backgroundColor": "#fcfcfb",
    "theme.light.secondaryBackgroundColor": "#f1f1ee",
    "theme.light.textColor": "#1d1f1f",
    "theme.light.borderColor": "#dddcd7",
    "theme.dark.primaryColor": "#3d8b84",
    "theme.dark.backgroundColor": "#121414",
    "theme.dark.secondaryBackgroundColor": "#1d2020",
    "theme.dark.textColor": "#e6e6e3",
    "theme.dark.borderColor": "#34393a",
}

NARROWEST, WIDEST, STEP = 65, 190, 5  # aspect ratios of tiles, width / height in percent


def ratio_bucket(width: int, height: int) -> int:
    """The tile shape for an image, in percent; very wide and very tall images are cropped."""
    percent = 100 * max(width, 1) / max(height, 1)
    return min(max(STEP * round(percent / STEP), NARROWEST), WIDEST)


def buckets() -> Iterable[int]:
    """All tile shapes."""
    return range(NARROWEST, WIDEST + 1, STEP)


# Rows have a fixed height and tiles the aspect ratio of their image, which is known before it
# has loaded: rows fill the page edge to edge and nothing moves when images arrive.
_GRID = """
[class*="st-key-grid"] { display: flex; flex-flow: row wrap; gap: 14px; --row: 215px }
[class*="st-key-grid"]::after { content: ""; flex: 1000 0 0 }
[class*="st-key-grid_strip"] { --row: 96px; gap: 8px }
[class*="st-key-grid"] > div:has(> [class*="st-key-tile"]) {
  min-width: 0; max-width: 100%; width: auto }
[class*="st-key-tile"] { position: relative; gap: 3px; width: 100% }
[class*="st-key-tile"] [data-testid="stElementContainer"],
[class*="st-key-tile"] [data-testid="stText"] { width: 100%; min-width: 0 }
[class*="st-key-tile"] > [data-testid="stElementContainer"]:first-child {
  aspect-ratio: var(--ratio); overflow: hidden }
[class*="st-key-tile"] [data-testid="stFullScreenFrame"],
[class*="st-key-tile"] div:has(> [data-testid="stImage"]), [class*="st-key-tile"] .stImage,
[class*="st-key-tile"] [data-testid="stImageContainer"] { width: 100% !important; margin: 0 }
[class*="st-key-tile"] img, [class*="st-key-gone"] {
  width: 100% !important; max-width: none; aspect-ratio: var(--ratio); object-fit: cover;
  border-radius: 8px; background: #8882; display: block }
[class*="st-key-gone"] { display: grid; place-items: center; opacity: .7 }
[class*="st-key-tile"] [data-testid="stElementToolbar"] { display: none }
[class*="st-key-tile"] [data-testid="stText"] span {
  font-size: .76rem; line-height: 1.35; opacity: .68; font-variant-numeric: tabular-nums;
  overflow: hidden; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2;
  overflow-wrap: anywhere }
[class*="st-key-tile"][class*="_captioned"] > :nth-child(3) [data-testid="stText"] span {
  font-size: .86rem; opacity: 1 }
/* The button covers the image: all of it is clickable and reachable with the tab key. */
[class*="st-key-tile"] [class*="st-key-open"] { position: absolute; inset: 0 0 auto 0;
  aspect-ratio: var(--ratio); z-index: 1; height: auto }
[class*="st-key-open"] div, [class*="st-key-open"] button { width: 100%; height: 100% }
[class*="st-key-open"] button { background: transparent !important; color: transparent !important;
  border-color: transparent; min-height: 0; padding: 0; cursor: zoom-in }
[class*="st-key-open"] button:hover { box-shadow: inset 0 0 0 2px #fff9 }
[class*="st-key-open"] button:focus-visible {
  box-shadow: inset 0 0 0 3px #fff, 0 0 0 3px #2f5d62 }
"""

_PAGE = """
[data-testid="stMainBlockContainer"] { padding: 1.6rem clamp(12px, 3vw, 44px) 4rem;
  max-width: 1680px }
[data-testid="stHeader"] { background: transparent; height: 0; min-height: 0 }
.st-key-search_row [data-testid="stColumn"] > div { min-height: 3rem }
[data-testid="stElementContainer"]:has(style) { display: none }
.st-key-search_row [data-testid="stTextInputRootElement"] { height: 3rem; font-size: 1.1rem }
.st-key-search_row input { font-size: 1.1rem }
.st-key-wordmark [data-testid="stText"] { font-size: 1.25rem; font-weight: 650;
  letter-spacing: -.01em }
.st-key-search_row [data-testid="stFileUploaderDropzone"] { min-height: 3rem; height: 3rem;
  padding: 0 6px; justify-content: center; align-items: center; border-style: dashed }
/* Empty: one button with our label. Filled: only the file and its remove button. */
[data-testid="stFileUploaderDropzoneInstructions"] { display: none }
.st-key-search_row section > span:has(> button) { width: 100%; display: flex }
.st-key-search_row section > span > button { border: 0; width: 100%; min-height: 2.4rem;
  background: transparent; justify-content: center }
.st-key-search_row section > span > button * { flex: none; width: auto }
.st-key-search_row section > span > button p { font-size: 0 }
.st-key-search_row section > span > button::after { content: var(--drop-label);
  font-size: .92rem; font-weight: 400 }
.st-key-search_row [data-testid="stFileChips"] > button { display: none }
.st-key-search_row section > div:has([data-testid="stFileChips"]) { width: 100% }
[class*="st-key-quiet"] [data-testid="stText"], [class*="st-key-quiet"] p {
  opacity: .68; font-size: .85rem }
[data-testid="stDialog"] [data-testid="stText"] { white-space: pre-wrap; overflow-wrap: anywhere }
[data-testid="stDialog"] [role="dialog"] h1, [data-testid="stDialog"] [role="dialog"] h2 {
  font-size: 1.05rem }
.st-key-large [data-testid="stElementContainer"], .st-key-large [data-testid="stFullScreenFrame"],
.st-key-large div:has(> [data-testid="stImage"]), .st-key-large .stImage,
.st-key-large [data-testid="stImageContainer"] { width: 100% !important }
.st-key-large img { max-height: 68vh; width: 100% !important; object-fit: contain;
  border-radius: 8px; background: #8881 }
.st-key-facts [data-testid="stCaptionContainer"] { margin-top: .55rem }
.st-key-facts [data-testid="stText"] { font-size: .95rem; font-variant-numeric: tabular-nums }
[class*="st-key-review_"], .st-key-tags_of_image { gap: 6px; flex-wrap: wrap }
[class*="st-key-review_"] button, .st-key-tags_of_image button { min-height: 0;
  padding: 1px 8px }
[class*="st-key-review_"] button p, .st-key-tags_of_image button p { font-size: .8rem }
.st-key-facts [class*="st-key-quiet"] [data-testid="stText"] { font-size: .8rem }
@media (max-width: 640px) {
  [class*="st-key-grid"] { gap: 10px; --row: 115px }
  div:has(> .st-key-quiet_tagline) { display: none }
  .st-key-header, .st-key-toolbar { gap: 8px }
  div:has(> .st-key-wordmark) { flex: 1 1 auto }
  [class*="st-key-grid_strip"] { --row: 78px }
  [data-testid="stMainBlockContainer"] { padding-top: .9rem }
}
"""


def stylesheet(drop_label: str) -> str:
    """The page's CSS. Nothing in it comes from an image, a caption or a URL.

    `drop_label` labels the upload field, which Streamlit labels in English only.
    """
    shapes = "\n".join(_shape(percent) for percent in buckets())
    label = f'.st-key-search_row {{ --drop-label: "{drop_label}" }}'
    return f"<style>{_GRID}{shapes}{_PAGE}{label}</style>"


def _shape(percent: int) -> str:
    ratio = percent / 100
    tile = f'[class*="st-key-tile"][class*="_r{percent:03}"]'
    return (
        f"{tile} {{ --ratio: {ratio} }} "
        f"div:has(> {tile}) {{ flex: {ratio} 1 calc({ratio} * var(--row)) }}"
    )
