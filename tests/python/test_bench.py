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


def test_a_part_of_a_run_becomes_a_table_of_ratios():
    def record(regime, rival, ratio):
        plan = "sm90[CONSUMERS=2,PINGPONG=1,PROGRAMMATIC=0,SPLIT_K=2,TILE_M=128,TILE_N=192]"
        r = {"suite": f"products.{regime}", "case": "bf16 16x32x64", "rival": rival, "ours_us": 2.0, "rival_us": 2 * ratio}
        return r | {"ratio": ratio, "plan": plan, "util_percent": 50.0, "sm_mhz": 1500.0}

    records = [record("steady", "itself", 1.01), record("steady", "cublaslt", 1.5), record("short", "cublaslt", 1.25)]
    facts = {"device": "d", "driver": "1", "nvrtc": "n", "cublaslt": 2, "torch": "t", "command": "c", "commit": "x"}
    lines = report.kernels_of(facts | {"records": records}, "products-bf16").splitlines()
    assert lines[0] == "| case | µs | util % | SM MHz | cuBLASLt | cuBLASLt, short run | itself | kernel |"
    shape = " \N{MULTIPLICATION SIGN} ".join(["16", "32", "64"])
    assert lines[2] == f"| {shape} | 2.0 | 50 | 1500 | **1.50** | **1.25** | 1.01 | 128x192, ping-pong, split k 2 |"
    assert report.kernels_of(facts | {"records": records}, "flavors").startswith("*Not measured yet")


def test_what_is_below_its_goal_is_listed():
    def record(case, ratio):
        r = {"suite": "products.steady", "case": case, "rival": "cublaslt", "ratio": ratio, "plan": "sm90[TILE_M=64,TILE_N=8]"}
        return r | dict.fromkeys(("util_percent", "rival_util_percent", "sm_mhz", "rival_sm_mhz", "tb_s"), 1.0)

    records = [record("bf16 16x64x64", 1.29), record("bf16 256x64x64", 0.98), record("bf16 64x256x64x64", 0.5)]
    facts = {"device": "d", "driver": "1", "nvrtc": "n", "cublaslt": 2, "torch": "t", "command": "c", "commit": "x"}
    rows = report.open_of(facts | {"records": records}).splitlines()[2:-2]
    assert [row.split("|")[4].strip() for row in rows] == ["0.97", "1.30"]
