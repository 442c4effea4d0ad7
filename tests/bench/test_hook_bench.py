"""The hook's two promises about time, kept by `make bench`."""

from __future__ import annotations

import hook_bench
import pytest


@pytest.mark.bench
def test_a_call_is_quick_and_stays_so() -> None:
    verdict = hook_bench.main(hook_bench.PAIRS)
    if verdict == 3:
        pytest.skip("no node on this machine to compare with")
    assert verdict == 0
