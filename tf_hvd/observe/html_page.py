"""Pages for people: one file of HTML, without scripts, that needs no network; pure."""

from html import escape

_STYLE = """
:root { --back: #fff; --text: #1d2329; --faint: #69737d; --line: #d8dee4; --track: #eef1f4;
  --compute: #4c78a8; --transfer: #e8a33d; --waiting: #d1495b; }
@media (prefers-color-scheme: dark) {
  :root { --back: #15191e; --text: #e4e8ec; --faint: #98a3ad; --line: #333b44; --track: #232a31;
    --compute: #6b9bd1; --transfer: #efb65c; --waiting: #ee7183; }
}
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; max-width: 46rem; } .faint, figcaption { color: var(--faint); }
.advice { border-left: 4px solid var(--transfer); padding: .4rem .8rem; background: var(--track); }
figure { margin: .5rem 0; } svg { display: block; width: 100%; }
.wide { overflow-x: auto; max-height: 32rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: var(--back); font-weight: 600; }
"""
"""Of all pages. Colours follow the browser's choice of light or dark."""


def page(title: str, body: str, style: str = "") -> str:
    """A whole page.

    Args:
      title: as text.
      body: as HTML.
      style: CSS of this page's own.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )
