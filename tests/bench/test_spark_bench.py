"""Equal rows on Spark and in one process, and what further steps cost, told by `make scale-bench`.

The bar for time is printed, not asserted, since docs/scale.md says that it is missed for detection alone.
"""

from __future__ import annotations

import pytest


@pytest.mark.bench
@pytest.mark.parametrize("kind", ["detection", "line"])
def test_spark_makes_the_rows_of_one_process(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark", reason="run `make scale-bench`, whose environment has it", exc_type=ImportError)
    import spark_bench

    spark_bench.main(kind, {"detection": (250_000, 1_000_000), "line": (20_000, 60_000)}[kind])
    told = capsys.readouterr().out
    with capsys.disabled():
        print(told)
    assert told.count("rows equal") == 2
