#!/usr/bin/env python3
"""Adds up JUnit files (ctest --output-junit, pytest --junitxml) and prints each skip reason once, then one line of totals.

usage: count_tests.py [--also-passed N] [--also-failed NAME]... [--status S] FILE...
A status other than 0 of the run itself, where no file says what failed, counts as one failure.
Exit status 1 when something failed, or nothing ran.
"""

import argparse
import re
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def skip_reason(case, skipped):
    """ctest knows only that a pattern matched: GoogleTest's words are in the output, after the line that says Skipped."""
    output = case.findtext("system-out") or ""
    if match := re.search(r"^.*: Skipped\n(.*?)\n*(?=^\[|^\S+:\d+: |\Z)", output, re.MULTILINE | re.DOTALL):
        return " ".join(match[1].split())
    # pytest's, of a whole module: the words are the last of a tuple in the text.
    if match := re.search(r"Skipped: (.*?)['\"]\)\s*$", skipped.text or "", re.DOTALL):
        return " ".join(match[1].split())
    return " ".join((skipped.get("message") or skipped.text or "no reason given").split())


def count(files):
    """(passed, failed names, skip reasons with their numbers) over all test cases of the files."""
    passed, failed, skips = 0, [], Counter()
    for file in files:
        try:
            root = ET.parse(file).getroot()
        except (OSError, ET.ParseError) as error:
            failed.append(f"{file}: not a JUnit file: {error}")
            continue
        for case in root.iter("testcase"):
            name = ".".join(dict.fromkeys(filter(None, (case.get("classname"), case.get("name")))))
            skipped = case.find("skipped")
            # For ctest a program that it could not find or start is "not run" too, beside those that chose to skip: a failure.
            chose = skipped is not None and skipped.get("message", "").startswith("SKIP_")
            if (
                case.find("failure") is not None
                or case.find("error") is not None
                or (case.get("status") == "notrun" and not chose)
            ):
                failed.append(name)
            elif skipped is not None or case.get("status") == "disabled":
                skips[skip_reason(case, skipped if skipped is not None else case)] += 1
            else:
                passed += 1
    return passed, failed, skips


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--also-passed", type=int, default=0)
    parser.add_argument("--also-failed", action="append", default=[], metavar="NAME")
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args(argv)
    passed, failed, skips = count(args.files)
    failed += args.also_failed
    passed, failures = passed + args.also_passed, len(failed) or int(args.status != 0)
    for name in failed:
        print(f"failed: {name}")
    for reason, number in sorted(skips.items()):
        print(f"skipped {number}: {reason}")
    print(f"{passed} passed, {failures} failed, {skips.total()} skipped")
    return 1 if failures or not passed else 0


CTEST = """<testsuite name="x" tests="4"><testcase name="A.Passes" classname="A.Passes" status="run"/>
<testcase name="A.Fails" classname="A.Fails" status="fail"><failure message=""/></testcase>
<testcase name="Gpu.One" classname="Gpu.One" status="notrun"><skipped
message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[ RUN      ] Gpu.One
/x/gpu_test.cpp:12: Skipped
no device: libcuda.so.1 was not found

[  SKIPPED ] Gpu.One (0 ms)</system-out></testcase>
<testcase name="Gone" classname="Gone" status="notrun"><skipped message="Unable to find executable"/></testcase></testsuite>"""
PYTEST = """<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b"><skipped type="pytest.skip"
message="no device: libcuda.so.1 was not found"/></testcase><testcase classname="t" name="c"><error message="e"/></testcase>
</testsuite></testsuites>"""


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("ctest.xml", "pytest.xml", "broken.xml")]
        for file, text in zip(files, (CTEST, PYTEST, "<testsuite><testcase"), strict=True):
            file.write_text(text, encoding="utf-8")
        passed, failed, skips = count(files)
    assert passed == 2, passed
    assert failed[:3] == ["A.Fails", "Gone", "t.c"] and len(failed) == 4, failed
    assert skips == {"no device: libcuda.so.1 was not found": 2}, skips
    print("2 passed, 4 failed and 2 skipped were counted as such")
    return 0


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else main(sys.argv[1:]))
