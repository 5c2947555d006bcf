"""Draws pages in Qt's Chromium, with no window anywhere, for pages.py.

Each line of standard input is an object: the `file`, the window's `width` and `height`, what is to
be run in the page (`look`, whose value is an object as JSON), and where the `picture` goes, if
anywhere. The answer is a line: that object, with what Chromium's console has `said` and what was
`fetched` from elsewhere.
"""

import json
import os
import sys

os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
from PyQt6.QtCore import QEvent, QEventLoop, QTimer, QUrl
from PyQt6.QtWebEngineCore import (
    QWebEnginePage,
    QWebEngineSettings,
    QWebEngineUrlRequestInterceptor,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

# Milliseconds: until a page that is loaded is painted, and until it is given up.
_PAINTED, _PATIENCE = 800, 60_000


class _Page(QWebEnginePage):
    """Notes what is said."""

    def __init__(self, view):
        super().__init__(view)
        self.said = []

    def javaScriptConsoleMessage(self, level, text, line, source):  # noqa: N802
        self.said.append(text)


class _Requests(QWebEngineUrlRequestInterceptor):
    """Notes what does not come from a file."""

    def __init__(self):
        super().__init__()
        self.fetched = []

    def interceptRequest(self, info):  # noqa: N802
        if info.requestUrl().scheme() not in ("file", "data"):
            self.fetched.append(info.requestUrl().toString())


def look(application, file, width, height, look, picture):
    """One page."""
    view, requests, loop, found = QWebEngineView(), _Requests(), QEventLoop(), []
    page = _Page(view)
    page.setUrlRequestInterceptor(requests)
    # What it would fetch is to be tried, so that it is seen.
    may_fetch = QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls
    page.settings().setAttribute(may_fetch, True)
    view.setPage(page)
    view.resize(width, height)

    def measured(text):
        found.append(text)
        if picture:
            view.grab().save(picture)
        loop.quit()

    def loaded(_):
        QTimer.singleShot(_PAINTED, lambda: page.runJavaScript(look, measured))

    view.loadFinished.connect(loaded)
    view.load(QUrl.fromLocalFile(file))
    view.show()
    QTimer.singleShot(_PATIENCE, loop.quit)
    loop.exec()
    said = page.said
    view.close()
    for one in (page, view):  # in this order; Python's own end is too late
        one.deleteLater()
        application.sendPostedEvents(one, QEvent.Type.DeferredDelete.value)
    return {**json.loads(found[0]), "said": said, "fetched": requests.fetched}


def main():
    """Answers until the input ends."""
    application = QApplication([sys.argv[0], "--no-sandbox"])
    for line in sys.stdin:
        print(json.dumps(look(application, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
