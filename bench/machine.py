"""What every result file says about where it comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, object]:
    cpu = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    return {"processor": cpu, "processors": len(os.sched_getaffinity(0)), "system": f"{platform.system()} {platform.release()}"}


def commit() -> str:
    """The commit that was measured, and whether the tree differed from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    # Results, and pages that are made from them, say nothing about what was measured.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results", ":!*.md")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with changes" if changed else "")
