"""The Dockerfile, as far as it can be checked without Docker: linted, and compared with what the build reads."""

import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

from chart import ROOT
from tally import counted

DOCKERFILE = (ROOT / "Dockerfile").read_text()
HADOLINT = pathlib.Path(sys.executable).parent / "hadolint"

# Ways to read a file while compiling that are not followed here.
UNFOLLOWED = r"\binclude_dir!|\bembed_migrations!|\bRustEmbed\b|#\[template\(path|\binclude_(?:str|bytes)!\((?!\s*\")"


def lint(text):
    """What hadolint says, from an information upwards."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [HADOLINT, "--no-color", "--failure-threshold", "info", file.name], capture_output=True, text=True
        )
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    return done.stdout.splitlines() if done.returncode else []


def instructions(text):
    """(instruction, arguments) in order, with continued lines joined and comments left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [tuple(line.split(None, 1)) for line in re.sub(r"\\\n", " ", lines).splitlines() if line.strip()]


def context():
    """What of the repository a build may see: .dockerignore shuts everything out and lets some in again."""
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*" and rest and all(re.fullmatch(r"![\w.]+", line) for line in rest), "not such a list"
    return {line[1:] for line in rest}


def copied(text):
    """What the first stage copies from the repository to the same place; anything else is a problem."""
    sources, problems = set(), []
    stage = 0
    for instruction, arguments in instructions(text):
        stage += instruction == "FROM"
        if instruction == "ADD":
            problems.append(f"ADD {arguments}")
        if instruction != "COPY" or arguments.startswith("--from="):
            continue
        *paths, target = arguments.split()
        for path in paths:
            if not (ROOT / path).exists():
                problems.append(f"COPY {path}: is not there")
            if path.split("/")[0] not in context():
                problems.append(f"COPY {path}: .dockerignore keeps it out")
            if stage == 1:
                place = target + path if target.endswith("/") and (ROOT / path).is_file() else target
                if place.removeprefix("./") != path:
                    problems.append(f"COPY {path}: lands in {place}")
                sources.add(path)
    return sources, problems


@functools.cache
def inputs():
    """What `cargo build` reads of the repository, and why; and what could not be followed."""
    found = {("Cargo.toml", "cargo"), ("Cargo.lock", "--locked")}
    problems = []
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    if (ROOT / "build.rs").exists():
        found.add(("build.rs", "cargo"))
        text = (ROOT / "build.rs").read_text()
        include = re.search(r'const INCLUDE: &str = "(\w+)"', text)[1]
        for literal in re.findall(r'"([^"\n]+)"', text):
            literal = literal.replace("{INCLUDE}", include).removeprefix("cargo::rerun-if-changed=")
            for path in (literal, f"{include}/{literal}"):
                if re.fullmatch(r"\w[\w./]*", path) and (ROOT / path).exists():
                    found.add((path, "build.rs"))
    # Cargo refuses a manifest that names a target whose file is not there.
    for kind, directory in (("bench", "benches"), ("test", "tests"), ("example", "examples"), ("bin", "src/bin")):
        for target in cargo.get(kind, []):
            places = [target["path"]] if "path" in target else [
                f"{directory}/{target['name']}.rs", f"{directory}/{target['name']}/main.rs"
            ]
            there = [place for place in places if (ROOT / place).exists()]
            if there:
                found.add((there[0], f"[[{kind}]] of Cargo.toml"))
            else:
                problems.append(f"[[{kind}]] {target['name']}: no file found")
    for source in sorted((ROOT / "src").rglob("*.rs")):
        name = str(source.relative_to(ROOT))
        text = source.read_text()
        found.add((name, "cargo"))
        for path in re.findall(r'\binclude_(?:str|bytes)!\(\s*"([^"]+)"', text):
            target = (source.parent / path).resolve()
            if target.is_file():
                found.add((str(target.relative_to(ROOT)), name))
            else:
                problems.append(f"{name} includes {path}, which is not there")
        problems += [f"{name}: `{match}` is not followed" for match in re.findall(UNFOLLOWED, text)]
    return found, problems


def missing(text):
    """What the build reads and the Dockerfile does not copy."""
    sources, problems = copied(text)
    found, more = inputs()
    for path, why in sorted(found):
        if not any(path == source or path.startswith(source + "/") for source in sources):
            problems.append(f"{path} is not copied; {why} needs it")
    return problems + list(more)


class Image(unittest.TestCase):
    def test_hadolint_finds_nothing(self):
        self.assertEqual([], lint(DOCKERFILE))

    def test_hadolint_finds_a_planted_mistake(self):
        plants = [
            DOCKERFILE.replace("rust:1.95-slim-bookworm", "rust"),
            DOCKERFILE.replace("rust:1.95-slim-bookworm", "rust:latest"),
            DOCKERFILE.replace("WORKDIR /build", "WORKDIR build"),
            DOCKERFILE.replace('CMD ["serve"]', "CMD serve"),
            DOCKERFILE.replace('CMD ["serve"]', 'CMD ["serve"]\nCMD ["demo"]'),
        ]
        for plant in counted("mistakes planted for hadolint", plants):
            self.assertNotEqual(DOCKERFILE, plant)
            self.assertTrue(lint(plant), plant)

    def test_everything_that_the_build_reads_is_copied(self):
        found, _ = inputs()
        whys = {why for _, why in counted("files that the build reads", found)}
        self.assertLessEqual({"build.rs", "[[bench]] of Cargo.toml", "src/config/mod.rs"}, whys)
        self.assertTrue(any(path.startswith("migrations/postgres/") for path, _ in found))
        self.assertEqual([], missing(DOCKERFILE))

    def test_what_is_not_copied_is_found(self):
        lines = [line for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "LICENSE" not in line]
        plants = [(line, "") for line in lines if "--from=" not in line]
        plants += [("COPY proto proto", "COPY proto ."), ("COPY src src", "COPY source src"), ("COPY src src", "ADD src src")]
        plants += [("COPY src src", "COPY src src\nCOPY docs docs")]
        for good, bad in counted("mistakes planted in the COPYs", plants):
            self.assertIn(good, DOCKERFILE)
            self.assertTrue(missing(DOCKERFILE.replace(good, bad, 1)), (good, bad))

    def test_everything_that_the_context_lets_in_is_copied(self):
        named = {path for _, arguments in instructions(DOCKERFILE) for path in arguments.split()}
        self.assertEqual(set(), context() - named)

    def test_the_builder_is_the_oldest_rust_that_the_program_needs(self):
        wanted = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["rust-version"]
        images = [arguments.split()[0] for instruction, arguments in instructions(DOCKERFILE) if instruction == "FROM"]
        self.assertTrue(images[0].startswith(f"rust:{wanted}-"), images)
        self.assertIn("bookworm", images[0])
        self.assertIn("debian12", images[1])
        self.assertEqual(2, len(images))

    def test_the_image_runs_the_server_as_nobody_in_particular(self):
        last = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
        told = dict(item for item in instructions(last) if item[0] not in ("COPY", "FROM"))
        self.assertRegex(told["USER"], r"^[1-9]\d*:[1-9]\d*$")
        self.assertEqual((["intent-ledger"], ["serve"]), (json.loads(told["ENTRYPOINT"]), json.loads(told["CMD"])))
        self.assertEqual("7070 7071", told["EXPOSE"])
        # `serve` stops in good order on SIGTERM, which is the default.
        self.assertNotIn("STOPSIGNAL", told)
        self.assertNotIn("RUN", told)
