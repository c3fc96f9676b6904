"""The chart is linted, rendered with every set of values, and what it renders validated."""

import copy
import os.path
import re
import shutil
import tempfile
import pathlib
import tomllib
import unittest

import helm_python as helm
import yaml
from kubernetes_validate import utils

from chart import (
    CHART,
    ROOT,
    SETS,
    StrictLoader,
    lint_problems,
    objects,
    one,
    pod_problems,
    render,
    render_objects,
    schema_problems,
    selects,
    template,
    templates,
    values,
)
from tally import counted, tally

METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())

# The oldest Kubernetes that the chart says it runs on, and the newest that the validator knows.
VERSIONS = (re.search(r"\d+\.\d+", METADATA["kubeVersion"])[0], utils.latest_version())

KINDS = {
    "all-options": "ConfigMap CronJob Deployment Job NetworkPolicy PodDisruptionBudget Service Service",
    "default": "ConfigMap CronJob Deployment Job NetworkPolicy PodDisruptionBudget Service Service",
    "existing-configmap": "CronJob Deployment Job NetworkPolicy PodDisruptionBudget Service Service",
    "minimal": "Deployment Service",
}

# A change to the default set, and a word of the complaint.
REFUSED = [
    (dict(replica=3), "replica"),
    (dict(image__name="x"), "name"),
    (dict(config__reconcile_intervall="5s"), "reconcile_intervall"),
    (dict(config__store="postgres://user:password@db/ledger"), "store"),
    (dict(config__listen="0.0.0.0:1"), "listen"),
    (dict(networkPolicy__clientLabel__matchLabels={}), "matchLabels"),
    (dict(store__url="postgres://user:password@db/ledger"), "url"),
    (dict(store=None), "missing property 'store'"),
    (dict(store__existingSecret=None), "missing property 'existingSecret'"),
    (dict(store__existingSecret__name=None), "missing property 'name'"),
    (dict(store__existingSecret__name=""), "/store/existingSecret/name"),
    (dict(store__existingSecret__name="postgres://user:password@db/ledger"), "/store/existingSecret/name"),
    (dict(image__repository=None), "missing property 'repository'"),
    (dict(image__repository=""), "/image/repository"),
    (dict(replicas="2"), "/replicas"),
    (dict(replicas=1.5), "/replicas"),
    (dict(replicas=-1), "/replicas"),
    (dict(config__behind_pooler="yes"), "/config/behind_pooler"),
    (dict(config__connections_max=3), "/config/connections_max"),
    (dict(config__queue_max="8192"), "/config/queue_max"),
    (dict(config__bytes_in_flight_max=1024), "/config/bytes_in_flight_max"),
    (dict(config__log_format="xml"), "/config/log_format"),
    (dict(config__shutdown_grace="1m"), "/config/shutdown_grace"),
    (dict(config__shutdown_grace=None), "shutdown_grace"),
    (dict(config__reconcile_interval="soon"), "/config/reconcile_interval"),
    (dict(policy=["version = 1"]), "/policy"),
    (dict(existingConfigMap__name="ours"), "/policy"),
    (dict(secretEnv=[dict(name="TOKEN", value="secret")]), "value"),
    (dict(secretEnv=[dict(name="INTENT_LEDGER_STORE", secretName="a", secretKey="b")]), "/secretEnv/0/name"),
    (dict(secretEnv=[dict(name="A-B", secretName="a", secretKey="b")]), "/secretEnv/0/name"),
    (dict(reconcile__schedule="every minute"), "/reconcile/schedule"),
    (dict(reconcile__concurrencyPolicy="Allow"), "concurrencyPolicy"),
    (dict(reconcile__failedJobsHistoryLimit=0), "/reconcile/failedJobsHistoryLimit"),
    (dict(service__type="LoadBalancer"), "type"),
    (dict(networkPolicy__clientLabel__value="no label"), "/networkPolicy/clientLabel/value"),
    (dict(networkPolicy__clientLabel__key="app.kubernetes.io/name"), "/networkPolicy/clientLabel/key"),
    (dict(podDisruptionBudget__maxUnavailable=0), "/podDisruptionBudget/maxUnavailable"),
    (dict(preStopSleepSeconds=0), "/preStopSleepSeconds"),
    (dict(resources__limits__memory="lots"), "/resources/limits/memory"),
    (dict(bindAddress="127.0.0.1"), "/bindAddress"),
]


def schema_paths(schema, definitions, path=()):
    """Every value that can be set, but for what Kubernetes itself defines."""
    if "$ref" in schema:
        return schema_paths(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, path)
    below = [
        found
        for name, child in schema.get("properties", {}).items()
        for found in schema_paths(child, definitions, (*path, name))
    ]
    return below or [path]


def value_paths(tree, path=()):
    if not isinstance(tree, dict):
        return [path]
    return [path] + [found for key, child in tree.items() for found in value_paths(child, (*path, key))]


def subschemas(schema):
    if isinstance(schema, dict):
        yield schema
        for child in schema.values():
            yield from subschemas(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from subschemas(child)


class Values(unittest.TestCase):
    def setUp(self):
        with helm.Chart.load(CHART) as chart:
            self.schema = chart.schema

    def test_bad_values_are_refused_and_named(self):
        render(values("default"))
        for changes, word in counted("bad values refused", REFUSED):
            with self.subTest(changes):
                with self.assertRaises(helm.HelmValuesError) as refusal:
                    render(values("default", **changes))
                self.assertIn(word, str(refusal.exception))

    def test_without_values_the_chart_asks_for_the_image_and_the_secret_of_the_store(self):
        with self.assertRaises(helm.HelmValuesError) as refusal:
            render({})
        for path in ("/image/repository", "/store/existingSecret/name"):
            self.assertIn(path, str(refusal.exception))

    def test_the_schema_knows_every_object_whole_and_needs_no_network(self):
        for schema in counted("parts of values.schema.json", subschemas(self.schema)):
            if schema.get("type") == "object" and "properties" in schema:
                self.assertIs(schema.get("additionalProperties"), False, schema)
            reference = schema.get("$ref", "#/")
            self.assertTrue(isinstance(reference, dict) or reference.startswith("#/"), reference)

    def test_every_value_is_set_by_one_of_the_sets(self):
        paths = set(schema_paths(self.schema, self.schema["definitions"])) - {("global",)}
        said = {path for name in SETS for path in value_paths(values(name))}
        self.assertEqual(set(), set(counted("values that can be set", paths)) - said)

    def test_values_yaml_shows_every_value_and_no_other(self):
        with helm.Chart.load(CHART) as chart:
            shown = set(chart.values)
        self.assertEqual(set(self.schema["properties"]) - {"global"}, shown)

    def test_the_readme_has_a_row_for_every_value(self):
        rows = re.findall(r"^\| `([^`]+)`", (CHART / "README.md").read_text(), re.MULTILINE)
        with helm.Chart.load(CHART) as chart:
            shown = chart.values
        self.assertEqual(set(shown), {row.split(".")[0] for row in counted("rows of the chart's README", rows)})
        allowed = schema_paths(self.schema, self.schema["definitions"])
        for row in rows:
            path = tuple(row.split("."))
            self.assertTrue(any(found[: len(path)] == path for found in allowed), row)


class Lint(unittest.TestCase):
    def test_the_linter_finds_nothing(self):
        for name in counted("sets of values linted", SETS):
            with self.subTest(name):
                self.assertEqual([], lint_problems(CHART, values(name)))

    def test_the_linter_finds_a_planted_mistake(self):
        plants = [
            ("Chart.yaml", "version: 0.1.0\n", "version: one\n"),
            ("templates/service.yaml", "{{- if .Values.service.headless }}", "{{- if .Values.service.headles"),
            ("templates/service.yaml", "metadata:\n", "metadata: [\n"),
            ("values.yaml", "replicas: 2\n", "replicas: two\n"),
        ]
        for file, good, bad in counted("mistakes planted for the linter", plants):
            with self.subTest(file=file), tempfile.TemporaryDirectory() as directory:
                copied = shutil.copytree(CHART, f"{directory}/intent-ledger")
                text = (CHART / file).read_text()
                self.assertIn(good, text)
                pathlib.Path(copied, file).write_text(text.replace(good, bad, 1))
                self.assertTrue(lint_problems(copied, values("default")))


class Rendered(unittest.TestCase):
    def test_every_set_renders_the_objects_that_it_should(self):
        self.assertEqual(set(KINDS), set(SETS))
        for name in SETS:
            for kind in (dict(is_install=True), dict(is_upgrade=True, revision=2)):
                kinds = sorted(item["kind"] for item in render_objects(values(name), **kind))
                self.assertEqual(KINDS[name].split(), kinds, name)

    def test_kubernetes_knows_every_field(self):
        self.assertEqual(2, len(set(VERSIONS)))
        for version in VERSIONS:
            for name in SETS:
                for item in counted(f"objects valid in Kubernetes {version}", render_objects(values(name))):
                    self.assertEqual([], schema_problems(item, version))

    def test_the_validator_finds_a_planted_mistake(self):
        deployment = one(render_objects(values("default")), "Deployment")

        def plant(change):
            bad = copy.deepcopy(deployment)
            change(bad)
            return bad

        container = lambda item: item["spec"]["template"]["spec"]["containers"][0]
        plants = [
            plant(lambda item: item["spec"].update(replcas=2)),
            plant(lambda item: item["spec"].update(replicas="2")),
            plant(lambda item: container(item)["readinessProbe"]["grpc"].update(port="grpc")),
            plant(lambda item: container(item)["env"].append({"value": "nameless"})),
            # Not known to Kubernetes: the validator only warns.
            plant(lambda item: item.update(kind="Deploiment")),
            plant(lambda item: item.update(apiVersion="apps/v1beta9")),
            {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "x"}},
        ]
        for version in VERSIONS:
            for bad in counted("mistakes planted for the validator", plants):
                self.assertTrue(schema_problems(bad, version), bad)

    def test_no_key_stands_twice(self):
        for name in SETS:
            render_objects(values(name))
        with self.assertRaises(yaml.YAMLError):
            objects({"planted.yaml": "metadata: {name: a, name: b}\n"})

    def test_the_chart_renders_within_another_chart(self):
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(CHART, f"{directory}/charts/intent-ledger")
            pathlib.Path(directory, "Chart.yaml").write_text("apiVersion: v2\nname: around\nversion: 1.0.0\n")
            tree = {"global": {"region": "eu"}, "intent-ledger": values("default")}
            items = objects(render(tree, path=directory))
            self.assertEqual(KINDS["default"].split(), sorted(item["kind"] for item in items))
            with self.assertRaises(helm.HelmValuesError):
                render({"intent-ledger": values("default", replica=3)}, path=directory)

    def test_the_longest_name_of_a_release_is_cut_to_fit(self):
        # Some have the chart's name in them, and then stand alone. Some are cut among dashes.
        names = ["a.release" + "x" * 44, "a.release".ljust(52, "-") + "x"]
        names += [f"intent-ledger.{name}"[:52] + "x" for name in names]
        for name in names:
            items = render_objects(values("all-options"), name=name)
            for item in counted("objects of a long release", items):
                longest = 52 if item["kind"] == "CronJob" else 63
                self.assertRegex(item["metadata"]["name"], rf"^[a-z0-9]([a-z0-9-]{{0,{longest - 2}}}[a-z0-9])$")
                self.assertNotIn("--", item["metadata"]["name"])
                for label in item["metadata"]["labels"].values():
                    self.assertRegex(label, r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")

    def test_two_releases_share_no_name_and_select_no_pod_of_each_other(self):
        one_release = render_objects(values("default"), name="blue")
        another = render_objects(values("default"), name="green")
        name = lambda item: (item["kind"], item["metadata"]["name"])
        self.assertEqual(set(), {name(item) for item in one_release} & {name(item) for item in another})
        selector = one(one_release, "Deployment")["spec"]["selector"]["matchLabels"]
        for pod in templates(another):
            self.assertFalse(selects(selector, pod["metadata"]["labels"]))


class Promises(unittest.TestCase):
    """What a schema cannot say of the objects."""

    @classmethod
    def setUpClass(cls):
        cls.sets = {name: render_objects(values(name)) for name in SETS}

    def servers(self):
        return counted("Deployments", [one(items, "Deployment") for items in self.sets.values()])

    def test_every_pod_is_closed(self):
        pods = [pod for items in self.sets.values() for pod in templates(items)]
        for pod in counted("pods", pods):
            self.assertEqual([], pod_problems(pod["spec"]))
            self.assertEqual("intent-ledger", pod["metadata"]["labels"]["app.kubernetes.io/name"])

    def test_a_pod_that_is_open_is_found(self):
        good = one(self.sets["default"], "Deployment")["spec"]["template"]["spec"]
        paths = [
            ("automountServiceAccountToken",),
            ("enableServiceLinks",),
            ("securityContext", "runAsNonRoot"),
            ("securityContext", "seccompProfile"),
            ("containers", 0, "securityContext", "allowPrivilegeEscalation"),
            ("containers", 0, "securityContext", "readOnlyRootFilesystem"),
            ("containers", 0, "securityContext", "capabilities"),
        ]
        for path in counted("locks taken off a pod", paths):
            bad = branch = copy.deepcopy(good)
            for key in path[:-1]:
                branch = branch[key]
            del branch[path[-1]]
            self.assertEqual([path[-1]], pod_problems(bad))

    def test_the_url_of_the_store_comes_from_the_secret_alone(self):
        self.assertFalse([item for items in self.sets.values() for item in items if item["kind"] == "Secret"])
        for name, items in self.sets.items():
            wanted = {"key": "url", **values(name)["store"]["existingSecret"]}
            for pod in templates(items):
                env = {entry["name"]: entry for entry in pod["spec"]["containers"][0].get("env", [])}
                if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "reconcile":
                    self.assertEqual({}, env)
                else:
                    reference = {"name": "INTENT_LEDGER_STORE", "valueFrom": {"secretKeyRef": wanted}}
                    self.assertEqual(reference, env["INTENT_LEDGER_STORE"])

    def test_ready_follows_the_store_and_alive_does_not(self):
        for server in self.servers():
            container = server["spec"]["template"]["spec"]["containers"][0]
            self.assertEqual({"grpc": 7070, "http": 7071}, {p["name"]: p["containerPort"] for p in container["ports"]})
            env = {entry["name"]: entry.get("value") for entry in container["env"]}
            self.assertRegex(env["INTENT_LEDGER_LISTEN"], r"^(0\.0\.0\.0|\[::\]):7070$")
            self.assertRegex(env["INTENT_LEDGER_HTTP"], r"^(0\.0\.0\.0|\[::\]):7071$")
            self.assertEqual({"port": 7070}, container["startupProbe"]["grpc"])
            self.assertEqual({"port": 7070}, container["readinessProbe"]["grpc"])
            self.assertEqual({"path": "/healthz", "port": "http"}, container["livenessProbe"]["httpGet"])

    def test_a_stop_has_the_time_that_it_may_take(self):
        for server in self.servers():
            pod = server["spec"]["template"]["spec"]
            container = pod["containers"][0]
            env = {entry["name"]: entry.get("value") for entry in container["env"]}
            grace = int(env["INTENT_LEDGER_SHUTDOWN_GRACE"].removesuffix("s"))
            sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            # gRPC and HTTP are stopped one after the other, then the writers drain.
            self.assertGreater(pod["terminationGracePeriodSeconds"], sleep + 2 * grace)

    def test_services_budget_and_network_policy_select_the_servers_and_nothing_else(self):
        for items in self.sets.values():
            for item in items:
                match item["kind"]:
                    case "Service":
                        selector = item["spec"]["selector"]
                    case "NetworkPolicy":
                        selector = item["spec"]["podSelector"]["matchLabels"]
                    case "PodDisruptionBudget" | "Deployment":
                        selector = item["spec"]["selector"]["matchLabels"]
                    case _:
                        continue
                tally["selectors"] += 1
                chosen = [pod for pod in templates(items) if selects(selector, pod["metadata"]["labels"])]
                self.assertEqual([one(items, "Deployment")["spec"]["template"]], chosen, item["kind"])
        self.assertGreaterEqual(tally["selectors"], 14)

    def test_the_network_policy_admits_the_labelled_and_the_reconciler_carries_the_label(self):
        for name in ("default", "all-options"):
            items = self.sets[name]
            policy = one(items, "NetworkPolicy")["spec"]
            self.assertEqual(["Ingress"], policy["policyTypes"])
            grpc, *metrics = policy["ingress"]
            self.assertEqual([{"port": "grpc"}], grpc["ports"])
            labels = [peer["podSelector"]["matchLabels"] for peer in grpc["from"]]
            for label in counted("peers that may call", labels):
                self.assertEqual(1, len(label))
                for pod in templates(items):
                    is_reconciler = pod["metadata"]["labels"]["app.kubernetes.io/component"] == "reconcile"
                    self.assertEqual(is_reconciler, selects(label, pod["metadata"]["labels"]))
            self.assertNotIn("namespaceSelector", grpc["from"][0])
            for rule in metrics:
                self.assertEqual([{"port": "http"}], rule["ports"])
        self.assertEqual(2, len(one(self.sets["all-options"], "NetworkPolicy")["spec"]["ingress"]))
        self.assertEqual(1, len(one(self.sets["default"], "NetworkPolicy")["spec"]["ingress"]))

    def test_the_migration_runs_before_everything_else_and_needs_nothing_of_the_chart(self):
        for name in ("default", "all-options"):
            hooks = [item for item in self.sets[name] if "helm.sh/hook" in item["metadata"].get("annotations", {})]
            self.assertEqual([one(self.sets[name], "Job", "migration")], hooks)
            annotations = hooks[0]["metadata"]["annotations"]
            self.assertEqual("pre-install,pre-upgrade", annotations["helm.sh/hook"])
            self.assertGreater(int(annotations["helm.sh/hook-weight"]), 0)
            migration, server = template(hooks[0])["spec"], template(one(self.sets[name], "Deployment"))["spec"]
            self.assertEqual(["migrate"], migration["containers"][0]["args"])
            self.assertNotIn("volumes", migration)
            self.assertEqual(server["containers"][0]["image"], migration["containers"][0]["image"])

    def test_a_reconcile_that_needs_a_person_fails_at_once_and_never_meets_itself(self):
        for name in ("default", "all-options"):
            spec = one(self.sets[name], "CronJob", "reconcile")["spec"]
            job = spec["jobTemplate"]["spec"]
            self.assertEqual("Forbid", spec["concurrencyPolicy"])
            self.assertEqual(0, job["backoffLimit"])
            self.assertEqual("Never", job["template"]["spec"]["restartPolicy"])
            self.assertGreater(job["activeDeadlineSeconds"], 0)
            self.assertGreater(spec["failedJobsHistoryLimit"], 0)
            args = job["template"]["spec"]["containers"][0]["args"]
            service = one([item for item in self.sets[name] if "headless" not in item["metadata"]["name"]], "Service")
            self.assertIn(f"--server=http://{service['metadata']['name']}:7070", args)
        self.assertEqual(["--tool=send_email", "--limit=1000000", "--dry-run"], args[2:] if name == "all-options" else [])

    def test_the_policy_arrives_as_it_was_written_and_follows_the_config_map(self):
        for name in ("default", "all-options", "existing-configmap"):
            tree, items = values(name), self.sets[name]
            pod = template(one(items, "Deployment"))["spec"]
            [mount], [volume] = pod["containers"][0]["volumeMounts"], pod["volumes"]
            env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
            self.assertEqual(os.path.dirname(env["INTENT_LEDGER_POLICY"]), mount["mountPath"])
            self.assertNotIn("subPath", mount)
            [item] = volume["configMap"]["items"]
            self.assertEqual(os.path.basename(env["INTENT_LEDGER_POLICY"]), item["path"])
            if name == "existing-configmap":
                self.assertEqual(("our-policies", "ledger.toml"), (volume["configMap"]["name"], item["key"]))
                continue
            config_map = one(items, "ConfigMap", "policy")
            self.assertEqual(config_map["metadata"]["name"], volume["configMap"]["name"])
            self.assertEqual({item["key"]: tree["policy"]}, config_map["data"])
        pod = template(one(self.sets["minimal"], "Deployment"))["spec"]
        self.assertNotIn("volumes", pod)
        self.assertNotIn("INTENT_LEDGER_POLICY", [entry["name"] for entry in pod["containers"][0]["env"]])

    def test_awkward_policies_arrive_too(self):
        policies = ["  indented = 1\n", "a = '''\n\n  x\t\n'''", "# é – 日本\n\n\n", "- list\n", "null", "1", "a = \"\\u0001\"\r\n"]
        for policy in counted("awkward policies", policies):
            config_map = one(render_objects(values("default", policy=policy)), "ConfigMap", "policy")
            self.assertEqual(policy, config_map["data"]["policy.toml"])

    def test_awkward_tools_arrive_too(self):
        for tool in counted("awkward tools", ["--dry-run", "a b", "\"'{{ x }}'\"", "émail – 日本", "yes", "1", "\\"]):
            cron_job = one(render_objects(values("default", reconcile__tool=tool)), "CronJob", "reconcile")
            args = template(cron_job)["spec"]["containers"][0]["args"]
            self.assertEqual([f"--tool={tool}"], args[2:])

    def test_the_notes_say_who_may_settle(self):
        for name in counted("NOTES.txt", SETS):
            [notes] = [text for path, text in render(values(name)).items() if path.endswith("NOTES.txt")]
            self.assertIn("whoever reaches port 7070 may begin, settle and resolve", " ".join(notes.split()))
            self.assertEqual(name == "minimal", "EVERY POD OF THE CLUSTER" in notes)
        for interval in ("0", "0s", "5s"):
            tree = values("minimal", config__reconcile_interval=interval)
            [notes] = [text for path, text in render(tree).items() if path.endswith("NOTES.txt")]
            self.assertEqual(interval != "5s", "NOBODY reconciles" in notes)

    def test_the_chart_is_of_the_version_of_the_program(self):
        cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
        self.assertEqual(cargo["package"]["version"], METADATA["appVersion"])
