"""The site in a browser, from files alone: it asks nobody, and its search finds."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from built_site import build

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

# It has some questions of its own, whatever is switched off.
_OF_THE_BROWSER = re.compile(
    r"https?://(?!fonts)[\w.-]+\.(google|googleapis|gvt1)\.com/"
)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_pages_ask_nobody_and_the_search_finds(tmp_path: Path) -> None:
    site = build(tmp_path / "site")
    for page, expected in (
        ("index.html?q=circle", "md-search-result__item"),
        ("checks/dd108.html", "Good code"),
        ("proofs.html", "left_the_loop.svg"),
        ("api.html", "assert_well"),
    ):
        log = tmp_path / "net.json"
        assert BROWSER
        done = subprocess.run(
            [
                *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--no-first-run", "--disable-sync", "--disable-extensions"),
                *("--enable-logging=stderr", f"--log-net-log={log}"),
                *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
                *("--virtual-time-budget=8000", f"file://{site}/{page}"),
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert expected in done.stdout, page
        assert ":CONSOLE" not in done.stderr, done.stderr
        asked = {
            event["params"]["url"]
            for event in json.loads(log.read_text())["events"]
            if "url" in event.get("params", {})
        }
        others = [url for url in asked if re.match(r"https?:", url)]
        assert [url for url in others if not _OF_THE_BROWSER.match(url)] == [], page
