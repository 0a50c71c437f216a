#!/usr/bin/env python3
"""Compares the #include lines of src/, include/ and tests/oracle/ with the directions in which dependencies may point.

EDGES is the picture in docs/design.md as a table: a folder may include itself and what stands to its right. Folders are found
by longest prefix, so an engine's own folder is apart from src/engine, which holds what all engines share. What counts most:
a chain knows no engine, an engine knows no graph, a recipe knows neither, and the oracle knows nothing.
"""

import re
import sys
from pathlib import Path

EDGES = {
    "base": "",
    "numeric": "base",
    "cuda": "base",
    "graph": "base numeric",
    "chain": "base numeric graph",
    "recipe": "base numeric chain",
    "jit": "base cuda",
    "engine": "base numeric chain recipe",
    "engine/cpu": "base numeric chain recipe engine",
    "engine/sm90": "base numeric chain recipe engine jit cuda",
    "engine/cublaslt": "base numeric chain recipe engine cuda",
    "plan": "base numeric graph chain recipe engine",
    "ops": "base numeric graph chain recipe plan",
    "ffi": "base numeric graph chain recipe plan ops",
    "tool": "base numeric graph chain recipe plan ops engine engine/cpu jit cuda",
    "include": "",
    "oracle": "",
}
# Public headers above the words that all share (types, errors, tensors, streams, plans), which count as base.
PUBLIC = {"verglas/graph.hpp": "graph", "verglas/ops/": "ops", "verglas/verglas.hpp": "ops"}
# engine_list.cpp is the one file that names every engine.
# ahead.* is where a plan meets the file that it is kept in; measure.cpp times devices; tuning_record.cpp is in the cache folder.
EXTRA = {
    "src/engine/engine_list.cpp": "engine/cpu engine/sm90 engine/cublaslt jit cuda",
    "src/plan/ahead.hpp": "jit",
    "src/plan/ahead.cpp": "jit cuda",
    "src/plan/measure.cpp": "cuda",
    "src/plan/tuning_record.cpp": "jit cuda",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path):
    """The entry of EDGES that a path relative to src/ belongs to, or None."""
    return max((f for f in EDGES if path.startswith(f + "/")), key=len, default=None)


def refusal(file, kind, name):
    """Why `file` may not include `name`, or None."""
    if file.startswith("tests/oracle/"):
        return None if kind == "<" or name.startswith("oracle/") else "the oracle shares nothing with what it judges"
    if file.startswith("include/"):
        ok = name.startswith("verglas/") if kind == '"' else re.fullmatch(r"[a-z0-9_]+", name)
        return None if ok else "a public header needs only the standard library and public headers"
    if kind == "<":
        return None
    own = folder_of(file.removeprefix("src/"))
    if own is None:
        return f"no folder of the table holds {file}: add it to EDGES"
    if name.startswith("verglas/"):
        target = next((folder for prefix, folder in PUBLIC.items() if name.startswith(prefix)), "base")
    else:
        target = folder_of(name)
    if target is None:
        return f"{name} is in no folder of the table: write includes from src/ (folder/file.hpp)"
    allowed = {own, *EDGES[own].split(), *EXTRA.get(file, "").split()}
    return None if target in allowed else f"{own} may not include {target} (it may: {', '.join(sorted(allowed))})"


def main():
    root = Path(__file__).resolve().parent.parent
    wrong, files = [], 0
    for top in ("src", "include", "tests/oracle"):
        for path in sorted((root / top).rglob("*.[ch]pp")) if (root / top).is_dir() else []:
            file, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            files += 1
            for match in INCLUDE.finditer(text):
                if why := refusal(file, *match.groups()):
                    wrong.append(f"{file}:{text.count(chr(10), 0, match.start(2)) + 1}: includes {match.group(2)}: {why}")
    print("\n".join(wrong) or f"{files} files include only what they may")
    return 1 if wrong or not files else 0


def self_test():
    """One forbidden include a rule of the picture must be refused, and its nearest legal neighbour must pass."""
    cases = [  # file, what it may not include, what it may; <x> is a header of the system
        ("src/base/error.cpp", "recipe/recipe.hpp", "base/rules.hpp"),
        ("src/recipe/executor.cpp", "graph/graph.hpp", "chain/chain.hpp"),
        ("src/recipe/executor.cpp", "engine/engine.hpp", "base/rules.hpp"),
        ("src/chain/analyse.cpp", "engine/engine.hpp", "graph/graph.hpp"),
        ("src/graph/graph.cpp", "names.hpp", "graph/names.hpp"),
        ("src/jit/nvrtc.cpp", "engine/engine.hpp", "cuda/nvrtc_table.hpp"),
        ("src/engine/sm90/claim.cpp", "graph/graph.hpp", "chain/chain.hpp"),
        ("src/engine/cpu/claim.cpp", "verglas/graph.hpp", "verglas/dtype.hpp"),
        ("src/engine/cpu/claim.cpp", "engine/sm90/tile.hpp", "engine/engine.hpp"),
        ("src/engine/cpu/claim.cpp", "jit/compile.hpp", "engine/cpu/blocks.hpp"),
        ("src/plan/rank.cpp", "engine/sm90/claim.hpp", "engine/engine.hpp"),
        ("tests/oracle/gemm.cpp", "numeric/bf16.hpp", "oracle/gemm.hpp"),
        ("tests/oracle/gemm.cpp", "verglas/dtype.hpp", "<vector>"),
        ("include/verglas/graph.hpp", "base/rules.hpp", "verglas/dtype.hpp"),
        ("include/verglas/graph.hpp", "<fmt/format.h>", "<vector>"),
    ]
    cases += [("src/engine/claims.cpp", "engine/cpu/cpu.hpp", None), ("src/engine/engine_list.cpp", None, "engine/cpu/cpu.hpp")]
    wrong = 0
    for file, *names in cases:
        for name, legal in zip(names, (False, True), strict=True):
            if name and (refusal(file, "<" if name[0] == "<" else '"', name.strip("<>")) is None) != legal:
                print(f"{file} includes {name}: wrongly {'refused' if legal else 'passed'}")
                wrong += 1
    print(f"{len(cases)} pairs, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(self_test() if "--self-test" in sys.argv[1:] else main())
