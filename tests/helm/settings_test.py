"""The chart says nothing that the program does not know: settings, subcommands and flags, as in the sources."""

import copy
import re
import tomllib
import unittest

import yaml
import helm_python as helm

from chart import CHART, ROOT, SETS, render_objects, templates, values
from tally import counted

# Where the flags of a subcommand stand.
SOURCES = {
    "serve": ["src/config/*.rs"],
    "migrate": ["src/cli/migrate.rs"],
    "reconcile": ["src/cli/reconcile.rs", "src/cli/client.rs"],
}

# Settings that are not for the chart's users: it sets them itself, or has no use for a file of settings.
OF_THE_CHART = {"store", "listen", "http", "policy", "config"}

EXAMPLE = (ROOT / "examples/intent-ledger.toml").read_text()


def defaults():
    """Every key of the example file with its default, or with its example where that is commented out."""
    return tomllib.loads(re.sub(r"^# (?=[a-z_]+ = )", "", EXAMPLE, flags=re.MULTILINE))


def options(text):
    """Every `#[arg(long …)]` of a source: its name, and its variable or None."""
    found = {}
    for attribute, name in re.findall(r"#\[arg\((.*?)\)\]\s*(?:pub(?:\([^)]*\))?\s+)?(\w+):", text, re.DOTALL):
        if re.search(r"\blong\b", attribute):
            env = re.search(r'\benv = "(\w+)"', attribute)
            found[name] = env and env[1]
    return found


def command_options(command):
    found = {}
    for pattern in SOURCES[command]:
        for path in sorted(ROOT.glob(pattern)):
            found |= options(path.read_text())
    return found


def container_problems(container, foreign):
    """What the program would not understand, or, worse, overlook."""
    command, *args = container["args"]
    if command not in SOURCES:
        return [f"no subcommand {command}"]
    known = command_options(command)
    flags = {"--" + name.replace("_", "-") for name in known}
    variables = set(known.values())
    found = [f"{command} knows no {arg}" for arg in args if arg.split("=", 1)[0] not in flags]
    for variable in container.get("env", []):
        name = variable["name"]
        if name not in (variables if name.startswith("INTENT_LEDGER_") else foreign):
            found.append(f"{command} knows no {name}")
    return found


class Settings(unittest.TestCase):
    def setUp(self):
        with helm.Chart.load(CHART) as chart:
            self.config = chart.schema["properties"]["config"]["properties"]

    def test_the_sources_are_understood(self):
        serve = counted("settings of serve", command_options("serve").items())
        for name, variable in serve:
            self.assertEqual(f"INTENT_LEDGER_{name.upper()}", variable)
        self.assertEqual(set(defaults()) | {"config"}, {name for name, _ in serve})
        self.assertEqual({"store": "INTENT_LEDGER_STORE"}, command_options("migrate"))
        self.assertLessEqual({"server", "tool", "limit", "dry_run"}, set(command_options("reconcile")))
        commands = (ROOT / "src/cli/mod.rs").read_text()
        for command in SOURCES:
            self.assertRegex(commands, rf"(?m)^mod {command};$")

    def test_config_has_every_setting_of_the_server_but_those_of_the_chart(self):
        known = set(command_options("serve"))
        self.assertLessEqual(OF_THE_CHART, known)
        self.assertEqual(known - OF_THE_CHART, set(counted("settings in config", self.config)))

    def test_a_setting_has_the_type_that_it_has_in_the_file(self):
        names = {bool: "boolean", int: "integer", str: "string"}
        for name, default in counted("types of settings", defaults().items()):
            if name not in OF_THE_CHART:
                schema = self.config[name]
                self.assertEqual(names[type(default)], schema.get("type", "string" if "enum" in schema else None), name)

    def test_the_defaults_that_values_yaml_tells_are_those_of_the_server(self):
        section = re.search(r"^config:\n(.*?)\n\n", (CHART / "values.yaml").read_text(), re.MULTILINE | re.DOTALL)[1]
        told = re.findall(r"^  # ([a-z_]+: \S+)$", section, re.MULTILINE)
        known = defaults()
        for line in counted("defaults told", told):
            [(name, value)] = yaml.safe_load(line).items()
            self.assertEqual(known[name], value, name)
        said = {line.split(":")[0] for line in told} | set(yaml.safe_load("config:\n" + section)["config"])
        self.assertEqual(set(self.config), said)

    def test_the_program_knows_everything_that_a_pod_tells_it(self):
        for name in SETS:
            tree = values(name)
            foreign = {entry["name"] for entry in tree.get("secretEnv", [])}
            for pod in counted("pods compared with the sources", templates(render_objects(tree))):
                for container in pod["spec"]["containers"]:
                    self.assertEqual([], container_problems(container, foreign))

    def test_something_that_the_program_does_not_know_is_found(self):
        good = {"args": ["serve"], "env": [{"name": "INTENT_LEDGER_QUEUE_MAX", "value": "1"}]}
        self.assertEqual([], container_problems(good, set()))
        plants = [
            ("args", "--behind-poolers"),
            ("args", "--server=http://x:1"),
            ("env", {"name": "INTENT_LEDGER_QUEUEMAX", "value": "1"}),
            ("env", {"name": "INTENT_LEDGER_SERVER", "value": "1"}),
            ("env", {"name": "SOME_TOKEN", "value": "1"}),
        ]
        for key, plant in counted("settings planted", plants):
            bad = copy.deepcopy(good)
            bad[key].append(plant)
            self.assertEqual(1, len(container_problems(bad, set())), plant)
        self.assertTrue(container_problems({"args": ["server"]}, set()))

    def test_numbers_arrive_as_numbers(self):
        [pod] = [
            pod
            for pod in templates(render_objects(values("all-options")))
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "server"
        ]
        env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        for name, value in counted("settings that arrive", values("all-options")["config"].items()):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self.assertEqual(text, env[f"INTENT_LEDGER_{name.upper()}"])
