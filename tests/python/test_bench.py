"""The benchmark in Python runs, and what it compares agrees; nothing here looks at the clock."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench" / folder) for folder in ("", "cpu")]

import numpy_fused  # noqa: E402
import report  # noqa: E402


@pytest.mark.parametrize("case", numpy_fused.CASES)
def test_fused_graph_and_numpy_compute_the_same(case):
    ours, rival = numpy_fused.CASES[case](np.random.default_rng(3), 6, 20, 9)
    for got, want in zip(ours(), rival(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_measured_row_can_be_reported():
    row = numpy_fused.measure("swiglu", (2, 8, 4), rounds=1)
    assert report.row_of(row, "at_most" in row).startswith("| swiglu | 2 \N{MULTIPLICATION SIGN} 8 \N{MULTIPLICATION SIGN} 4 | ")


def test_a_block_says_when_nothing_was_measured():
    text = "a\n<!-- bench no_such_result -->\nold\n<!-- end bench -->\nb\n"
    assert report.rewritten(text).splitlines()[2] == "*Not measured yet: there is no bench/results/no_such_result.json.*"
    assert report.rewritten(report.rewritten(text)) == report.rewritten(text)
