"""Where the files that ship with the package are: in the installed package, else in the checkout.

A room of its own because a wheel carries `sql/` and `data/sample/` inside the package and a checkout does not.
"""

from __future__ import annotations

from pathlib import Path


def resource(name: str) -> Path:
    """Folder `sql` or `data/sample`, as installed or in the checkout."""
    here = Path(__file__).resolve().parent
    inside = here / name
    return inside if inside.exists() else here.parents[1] / name
