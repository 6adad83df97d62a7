"""Write the tests that carry each requirement id into tests/conformance/requirements.toml."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "tests" / "conformance" / "requirements.toml"


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    from conformance.manifest import faults, read_manifest, read_marks, written

    proofs = read_marks(ROOT)
    MANIFEST.write_text(written(MANIFEST.read_text(encoding="utf-8"), proofs), encoding="utf-8")
    left = faults(read_manifest(MANIFEST), proofs)
    print("\n".join(left) if left else f"All ids of {MANIFEST.relative_to(ROOT)} are proven or put off.")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
