"""The chart, what it renders, and what is wrong with that."""

import copy
import functools
import pathlib

import helm_python as helm
import kubernetes_validate
import yaml
from kubernetes_validate import utils

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/intent-ledger"
SETS = {path.name.removesuffix("-values.yaml"): path for path in sorted(CHART.glob("ci/*-values.yaml"))}

# Kinds without a schema in Kubernetes itself that the chart may render. None so far.
CUSTOM_KINDS = set()

# The validator reads its 20 MB of schemas again for every object.
utils.schema_contents = functools.cache(utils.schema_contents)


class StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML in which a key may stand once; of two, a parser silently keeps one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = {key for key in keys if keys.count(key) > 1}
        if doubled:
            raise yaml.constructor.ConstructorError(
                None, None, f"doubled keys: {sorted(doubled)}", node.start_mark
            )
        return super().construct_mapping(node, deep)


def values(name, **changes):
    """A set of values of ci/, with changes at the paths that `a__b` names; None takes one away."""
    tree = yaml.load(SETS[name].read_text(), StrictLoader)
    for path, value in changes.items():
        *parents, last = path.split("__")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = copy.deepcopy(value)
    return tree


def render(tree, path=CHART, name="try", namespace="ledger", **kind):
    """The files that the chart makes of the values, by name."""
    with helm.Chart.load(path) as chart:
        return chart.render(tree, name=name, namespace=namespace, **kind)


def objects(files):
    """What Kubernetes is given."""
    return [
        item
        for path, text in files.items()
        if path.endswith(".yaml")
        for item in yaml.load_all(text, StrictLoader)
        if item
    ]


def render_objects(tree, **kind):
    return objects(render(tree, **kind))


def one(items, kind, component="server"):
    """The only object of a kind."""
    found = [item for item in items if item["kind"] == kind]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    assert found[0]["metadata"]["labels"]["app.kubernetes.io/component"] == component, found[0]
    return found[0]


def template(item):
    """The pod template of an object, or None."""
    spec = item.get("spec", {})
    return spec.get("jobTemplate", {}).get("spec", spec).get("template")


def templates(items):
    return [found for item in items if (found := template(item))]


def lint_problems(path, tree):
    """What the linter finds, from a warning upwards; findings are data to it, never an error."""
    report = helm.lint(path, tree)
    found = [f"{message['path']}: {message['error']}" for message in report["messages"] if message["severity"] >= 2]
    if report["total_charts_linted"] != 1:
        found.append("the linter looked at no chart")
    return found + report["errors"]


def schema_problems(item, version):
    """Why Kubernetes of that version would refuse the object, or not know a field of it."""
    name = f"{item['kind']}/{item['metadata']['name']}"
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{name}: {'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [] if item["kind"] in CUSTOM_KINDS else [f"{name}: {error.message}"]
    return []


def pod_problems(pod):
    """What keeps a pod's spec from being as closed as it can be."""
    found = []

    def expect(what, is_so):
        if not is_so:
            found.append(what)

    context = pod.get("securityContext", {})
    expect("runAsNonRoot", context.get("runAsNonRoot") is True)
    expect("seccompProfile", context.get("seccompProfile") == {"type": "RuntimeDefault"})
    expect("automountServiceAccountToken", pod.get("automountServiceAccountToken") is False)
    expect("enableServiceLinks", pod.get("enableServiceLinks") is False)
    expect("host", not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")))
    expect("volumes", all("configMap" in volume for volume in pod.get("volumes", [])))
    expect("containers", len(pod["containers"]) == 1 and not pod.get("initContainers"))
    for container in pod["containers"]:
        context = container.get("securityContext", {})
        expect("allowPrivilegeEscalation", context.get("allowPrivilegeEscalation") is False)
        expect("readOnlyRootFilesystem", context.get("readOnlyRootFilesystem") is True)
        expect("capabilities", context.get("capabilities") == {"drop": ["ALL"]})
        expect("privileged", not context.get("privileged"))
        names = [variable["name"] for variable in container.get("env", [])]
        expect("doubled env", len(names) == len(set(names)))
    return found


def selects(selector, labels):
    return selector.items() <= labels.items()
