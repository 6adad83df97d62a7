"""Tests of signals pass where the shell has told them to ignore signals: in a background job, and under `nohup`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STOPPING = "test_a_signal_ends_a_stream_under_way_with_a_terminal_event_and_the_process_with_success"
TESTS = (
    "tests/cli/test_serve_command.py::test_an_interrupt_while_it_starts_ends_it_quietly",
    f"tests/e2e/test_stopping_the_server.py::{STOPPING}",
    "tests/cli/test_hangup.py::test_sighup_reloads_keys_and_says_what_needs_a_restart",
)


def test_tests_of_signals_pass_where_their_parent_ignores_them() -> None:
    ignoring = 'trap "" INT HUP; exec "$0" "$@"'
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    ended = subprocess.run(["sh", "-c", ignoring, *pytest], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout
    assert "4 passed" in ended.stdout


def test_the_parent_does_ignore_them_there() -> None:
    """So that the test above shows something."""
    asking = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    command = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c", asking]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
