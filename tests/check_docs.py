#!/usr/bin/env python3
"""What the documentation names exists, and what it shows is what the files hold.

In docs/**/*.md and the pages at the root, in backticks: paths of the tree, ids of rules, symbols with `::` or `()`, and
environment variables VERGLAS_… must exist; links must lead to files. A code block after `<!-- from PATH -->` must be a run of
lines of that file (indentation as a whole aside); every block of C++ is one. Every pointwise mode and reduction has its row in
docs/numerics.md, the directions in docs/design.md are those that are checked, and docs/tool.md has every environment variable.
"""

import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

from check_includes import EDGES

ROOT = Path(__file__).resolve().parent.parent
# What is here but not (only) in the tree: made by the build, installed, or a name in somebody else's tree.
ELSEWHERE = re.compile(r"^(build|\.venv|~|/|\$|nvidia/|lib(64)?/|GRAPH|bench/results)")
# Words that look like symbols and belong to other software.
FOREIGN = {"find_package", "resolve_conj", "resolve_neg", "size"}
TOP = ("src", "include", "tests", "docs", "examples", "bench", "scripts", "python", "cmake", ".ci")
SUFFIX = re.compile(r"\.(cpp|hpp|cuh|c|h|def|in|py|pyi|md|sh|cmake|json|toml|svg)$")
RULE = re.compile(r"^(graph|chain|plan|call|pack|op|file|tool|engine|sm90|driver|nvrtc|cublaslt|jit)\.([a-z_0-9]*\*?)$")
SYMBOL = re.compile(r"^[A-Za-z_]\w*(::~?[A-Za-z_]\w*)+(\(\))?$|^[A-Za-z_]\w*\(\)$")
VARIABLE = re.compile(r"^VERGLAS_[A-Z_]+$")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r"^<!-- from (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@cache
def files():
    """Every file of the tree, tracked or about to be, and every folder above one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    ).stdout.decode()
    names = {n for n in listed.split("\0") if n and (ROOT / n).is_file()}
    if not names:  # an unpacked archive
        names = {p.relative_to(ROOT).as_posix() for top in TOP for p in (ROOT / top).rglob("*") if p.is_file()}
        names |= {p.name for p in ROOT.iterdir() if p.is_file()}
    return names | {parent.as_posix() for n in names for parent in Path(n).parents}


@cache
def sources():
    text = (".md", ".json", ".svg", "check_docs.py")  # what names, not what has
    wanted = [n for n in files() if SUFFIX.search(n) and not n.endswith(text) and (ROOT / n).is_file()] + ["CMakeLists.txt"]
    return "\n".join((ROOT / n).read_text(encoding="utf-8", errors="replace") for n in sorted(wanted))


@cache
def words():
    return set(re.findall(r"\w+", sources()))


@cache
def rules():
    return set(re.findall(r'VERGLAS_RULE\(\w+, "([^"]+)"', (ROOT / "src/base/rules.def").read_text(encoding="utf-8")))


def path_exists(token):
    """A path from the root, or the end of one where the page says the folder in words."""
    for one in alternatives(token.rstrip("/")):
        pattern = re.compile(r"(^|/)" + re.escape(one).replace(r"\*", "[^/]*") + "$")
        if not any(pattern.search(name) for name in files()):
            return False
    return True


def alternatives(token):
    """a.{b,c} is a.b and a.c, as in a shell."""
    match = re.search(r"\{([^{}]*)\}", token)
    if not match:
        return [token]
    return [a for part in match[1].split(",") for a in alternatives(token[: match.start()] + part + token[match.end() :])]


def complaint(token):
    """Why a token in backticks is wrong, or None."""
    if token in rules():
        return None
    if RULE.match(token) and not SUFFIX.search(token):
        known = token.endswith("*") and any(r.startswith(token[:-1]) for r in rules())
        return None if known else "no such rule in src/base/rules.def"
    if VARIABLE.match(token):
        return None if token in words() else "no source reads or sets it"
    if SYMBOL.match(token):
        names = re.findall(r"\w+", token)
        missing = [n for n in names if n not in words() and n not in FOREIGN]
        return f"no source has {', '.join(missing)}" if missing else None
    if re.search(r"[^\w./*{},+-]", token) or ELSEWHERE.match(token) or token.startswith("-"):
        return None
    if token.startswith(tuple(f"{t}/" for t in TOP)) or (SUFFIX.search(token) and not token.startswith((".", "*"))):
        return None if path_exists(token) else "no such file or folder"
    return None


def check_page(name, text):
    """Complaints about one page."""
    wrong = []
    at = lambda position: f"{name}:{text.count(chr(10), 0, position) + 1}"  # noqa: E731
    prose = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for match in re.finditer(r"`([^`\n]+)`", prose):
        if why := complaint(match[1].strip()):
            wrong.append(f"{at(match.start())}: `{match[1]}`: {why}")
    for match in re.finditer(r"\]\(([^)#\s]+)(#[^)]*)?\)", prose):
        if "://" not in match[1] and not (ROOT / Path(name).parent / match[1]).exists():
            wrong.append(f"{at(match.start())}: link to {match[1]}: no such file")
    for fence in FENCE.finditer(text):
        for match in re.finditer(r"\[([a-z0-9]+\.[a-z_0-9]+)\]", fence[0]):
            if RULE.match(match[1]) and complaint(match[1]):
                wrong.append(f"{at(fence.start())}: [{match[1]}]: no such rule")
        for match in re.finditer(r"(?<![\w/.])((?:examples|scripts|bench|tests|docs)/[\w./-]*\w)", fence[0]):
            if not match[1].startswith("bench/results") and not path_exists(match[1]):
                wrong.append(f"{at(fence.start())}: {match[1]} in a code block: no such file")
    for match in INCLUDED.finditer(text):
        source = ROOT / match[1]
        if not source.is_file():
            wrong.append(f"{at(match.start())}: from {match[1]}: no such file")
        elif not is_run_of(match[2], source.read_text(encoding="utf-8")):
            wrong.append(f"{at(match.start())}: this block is not what {match[1]} holds")
    if text.count("<!-- from ") != len(INCLUDED.findall(text)):
        wrong.append(f"{name}: a <!-- from … --> without a code block right below it")
    for match in re.finditer(r"(?<!-->)\n```cpp\n", text):
        wrong.append(f"{at(match.start())}: C++ that is of no file, so that nothing compiles it: <!-- from PATH --> above it")
    return wrong


def is_run_of(block, text):
    """Whether the lines of block stand in text one after another, all shifted alike."""
    wanted, lines = block.splitlines(), text.splitlines()
    return bool(wanted) and any(
        textwrap.dedent("\n".join(lines[i : i + len(wanted)])).splitlines() == wanted for i in range(len(lines))
    )


def check_modes():
    """Every mode and reduction of the library stands in the first column of a table of docs/numerics.md."""
    table = (ROOT / "src/base/pointwise.cpp").read_text(encoding="utf-8")
    modes = re.findall(r'\{"(\w+)", \d\}', table)
    modes += re.findall(r'"(\w+)"', table.split("kReductions", 1)[1].split("};", 1)[0])
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "docs/numerics.md").read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    missing = [f"docs/numerics.md: no row for {name}" for name in modes if name not in shown]
    return missing if len(modes) > 50 else [*missing, "src/base/pointwise.cpp: the names of the modes were not found"]


def check_directions():
    """The table of directions in docs/design.md is that of check_includes.py, for the folders that exist."""
    text = (
        (ROOT / "docs/design.md").read_text(encoding="utf-8").split("## Which way dependencies point", 1)[-1].split("\n## ", 1)[0]
    )
    shown = {m[1]: m[2].replace("`", "").split() for m in re.finditer(r"^\| `([\w/]+)` \|([^|]*)\|$", text, re.MULTILINE)}
    wanted = {folder: edges.split() for folder, edges in EDGES.items() if f"src/{folder}" in files()}
    differ = [f for f in {**wanted, **shown} if wanted.get(f) != shown.get(f)]
    return [f"docs/design.md: {f}: {shown.get(f)}, in check_includes.py {wanted.get(f)}" for f in differ]


def check_environment():
    """The table of variables in docs/tool.md is the list that the library reads."""
    text = (ROOT / "src/base/environment.def").read_text(encoding="utf-8")
    quoted = r'"((?:[^"\\]|\\.)*)"'
    listed = re.findall(rf"VERGLAS_VARIABLE\({quoted}, \w+, {quoted}, {quoted}\)", text)
    page = (ROOT / "docs/tool.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {meaning} | {otherwise} |".replace('\\"', '"') for name, otherwise, meaning in listed]
    wrong = [f"docs/tool.md: wanted the row {row}" for row in rows if row not in page]
    return wrong if rows else ["src/base/environment.def: no variable was found"]


def main():
    pages = sorted([*(ROOT / "docs").glob("**/*.md"), *ROOT.glob("*.md")])
    wrong = check_modes() + check_directions() + check_environment()
    for page in pages:
        wrong += check_page(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
    print("\n".join(wrong) or f"{len(pages)} pages name only what exists")
    return 1 if wrong or not pages else 0


def self_test():
    """Each kind of slip is seen, and its nearest truth passes."""
    pairs = [
        ("`src/recipe/exekutor.cpp`", "`src/recipe/executor.cpp`"),
        ("`examples/09_first.{cpp,py}`", "`examples/01_first_matmul.{cpp,py}`"),
        ("`executor.hpp`", "`executor.cpp`"),
        ("`tests/units/`", "`tests/unit/`"),
        ("`call.overlaps`", "`call.overlap`"),
        ("`plan.no_such_*`", "`plan.*`"),
        ("`sm90.no_such_rule`", "`sm90.types`"),
        ("`CompiledPlan::execute_all`", "`CompiledPlan::execute`"),
        ("`no_such_function()`", "`operands()`"),
        ("`VERGLAS_NO_SUCH`", "`VERGLAS_NUM_THREADS`"),
        ("[x](docs/no.md)", "[x](docs/numerics.md)"),
        ("```\nverglas run examples/no.json\n```", "```\nverglas run examples/01_first_matmul.json\n```"),
        ("```\nx [call.no_rule] y\n```", "```\nx [call.overlap] y\n```"),
        (
            "<!-- from examples/05_swiglu.py -->\n```py\nimport sys\nimport no\n```",
            "<!-- from examples/05_swiglu.py -->\n```py\nimport sys\nfrom pathlib import Path\n```",
        ),
        (
            "\n```cpp\n#include <vector>\n```",
            "\n<!-- from examples/01_first_matmul.cpp -->\n```cpp\n#include <vector>\n```",
        ),
    ]
    wrong = 0
    for slip, truth in pairs:
        for text, legal in ((slip, False), (truth, True)):
            if (not check_page("page.md", text)) != legal:
                print(f"{text!r}: wrongly {'refused' if legal else 'passed'}")
                wrong += 1
    print(f"{len(pairs)} pairs, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(self_test() if "--self-test" in sys.argv[1:] else main())
