"""Fetch the demo model where `antwort serve`, called with the same arguments, would run it and has it not.

What is wrong with the arguments or the settings, the server says itself.
"""

from __future__ import annotations

import sys

from antwort.cli.model import pull
from antwort.cli.parser import parse
from antwort.config.checks import runs_a_model
from antwort.config.loading import read
from antwort.config.problems import CannotStart
from antwort.local.demo import demo_path, is_there


def main(arguments: list[str]) -> int:
    _, given = parse(["serve", *arguments])
    try:
        settings = read(given).settings
        is_wanted = settings.local.model is None and runs_a_model(settings)
        if not is_wanted or is_there(demo_path(settings.data_folder())):
            return 0
    except CannotStart:
        return 0
    return pull(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
