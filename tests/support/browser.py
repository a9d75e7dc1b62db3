"""The browser of the page tests: Debian's Chromium, driven by Playwright."""

import shutil


def chromium() -> str | None:
    """Path of the installed Chromium, or None. For Playwright's `launch(executable_path=...)`.

    In a container Chromium needs `args=["--no-sandbox"]` as well.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    return None
