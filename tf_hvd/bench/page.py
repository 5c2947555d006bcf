"""What was measured, as a page."""

import pathlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tf_hvd.bench import plot, report
from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.measure import Measurement
from tf_hvd.bench.training import StepTimes
from tf_hvd.core import html_page

_TITLE = "tf_hvd bench"
# matplotlib's figures are drawn for paper.
_STYLE = """
figure.paper { background: #fff; border-radius: 4px; padding: .6rem; }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; }
code { font-size: .85rem; }
"""


def write(
    path: str,
    about: Mapping[str, Any],
    results: Sequence[Sequence[Measurement]],
    times: StepTimes | None,
    command: str,
) -> None:
    """Writes the page: what ran where, the pictures of `--plot`, the table, how it is repeated.

    Args:
      path: of the file, which is overwritten.
      about: the job, as `report.heading` takes it.
      results: of all peers, for each workload.
      times: of a training step, if it was measured.
      command: that measures all of this again.

    Raises:
      BenchError: matplotlib is not there, or the file cannot be written.
    """
    measured = [each for found in results for each in found]
    body = [f"<h1>{_TITLE}</h1>", f'<p class="faint">{escape(report.heading(about))}</p>']
    if measured:
        body += [f'<figure class="paper">{plot.svg(measured)}</figure>', _table(results)]
    if times:
        body += ["<h2>Training</h2>", f"<p>{escape(times.text())}</p>"]
    body += [f"<h2>Repeat</h2><p><code>{escape(command)}</code></p>"]
    try:
        pathlib.Path(path).write_text(html_page.page(_TITLE, "\n".join(body), _STYLE))
    except OSError as error:
        raise BenchError(f"--html {path}: {error.strerror}") from error


def _table(results: Sequence[Sequence[Measurement]]) -> str:
    rows = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for found in results
        for row in report.rows(found)
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name in report.HEADINGS)
    return f'<div class="wide"><table><tr>{head}</tr>\n' + "\n".join(rows) + "</table></div>"
