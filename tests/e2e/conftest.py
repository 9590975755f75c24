"""Fixtures: one server for each tiny model, shared by a whole run; and the closing line."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from server import Server  # noqa: E402


def shared(model, *flags):
    @pytest.fixture(scope="session", name=model.replace("-", "_"))
    def fixture():
        with Server(model, *flags) as server:
            yield server
    return fixture


tiny_abc = shared("tiny-abc")      # whatever the prompt: ABCDEF... for ever
tiny_rand = shared("tiny-rand")    # random weights whose text depends on every position
tiny_emoji = shared("tiny-emoji")  # U+1F600 for ever, four one-byte tokens each


def pytest_terminal_summary(terminalreporter):
    count = {k: len(terminalreporter.stats.get(k, ())) for k in
             ("passed", "failed", "error", "skipped")}
    for report in terminalreporter.stats.get("skipped", ()):
        terminalreporter.write_line(f"skipped {report.nodeid}: {report.longrepr[2]}")
    terminalreporter.write_line(
        f"{count['passed']} passed, {count['failed'] + count['error']} failed, "
        f"{count['skipped']} skipped")
