"""`python -m antwort`."""

from antwort.cli import main

raise SystemExit(main())
