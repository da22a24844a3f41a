"""packaging/kubernetes, packaging/prometheus, packaging/grafana: what the API's own schemas, PodSecurity, `workcell serve` and /metrics say of them."""
import functools
import json
import os
import re
import subprocess

import jsonschema
import pytest
import yaml

import serving
import support

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "packaging")
FILES = ("workcell.yaml", "workcell-scaled.yaml", "workcell-pods.yaml")


@functools.cache
def schemas():
    """kubernetes-schemas.py made it of the OpenAPI document of Kubernetes 1.31."""
    with open(os.path.join(ROOT, "tests", "data", "kubernetes.json"), encoding="utf-8") as file:
        return json.load(file)


def objects(name):
    with open(os.path.join(PACKAGING, "kubernetes", name), encoding="utf-8") as file:
        return [each for each in yaml.safe_load_all(file) if each]


def check(each):
    group, _, version = each["apiVersion"].rpartition("/")
    if group == "monitoring.coreos.com":
        return  # not one of the API's own
    wanted = "io.k8s.api.%s.%s.%s" % ((group or "core").split(".")[0], version, each["kind"])
    assert wanted in schemas()["definitions"], wanted
    schema = {"$ref": "#/definitions/" + wanted, "definitions": schemas()["definitions"]}
    jsonschema.Draft4Validator(schema).validate(each)


def pod_of(name):
    found, = [each for each in objects(name) if each["kind"] == "StatefulSet"]
    return found["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", FILES)
def test_the_schemas_of_the_api(name):
    found = objects(name)
    kinds = [each["kind"] for each in found]
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap", "ServiceAccount"} <= set(kinds)
    assert ("HorizontalPodAutoscaler" in kinds) == ("ServiceMonitor" in kinds) == (name == "workcell-scaled.yaml")
    for each in found:
        check(each)


@pytest.mark.parametrize("break_it", [
    lambda each: each["spec"]["template"]["spec"]["containers"][0].update(argz=[]),
    lambda each: each["spec"].update(replicas="three"),
    lambda each: each["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"].pop("port"),
    lambda each: each["spec"].pop("selector"),
])
def test_the_schemas_refuse_what_is_wrong(break_it):
    each, = [each for each in objects("workcell.yaml") if each["kind"] == "StatefulSet"]
    break_it(each)
    with pytest.raises(jsonschema.ValidationError):
        check(each)


@pytest.mark.parametrize("name", FILES)
def test_pod_security_restricted(name):
    """The rules of the level "restricted" (Pod Security Standards)."""
    pods = [each["spec"]["template"]["spec"] for each in objects(name) if each["kind"] in ("StatefulSet", "Deployment")]
    assert len(pods) == (2 if name == "workcell-pods.yaml" else 1)
    # Only servers that claim pods talk to the API server.
    assert [pod["automountServiceAccountToken"] for pod in pods] == ([False, True] if len(pods) == 2 else [False])
    for pod in pods:
        check_restricted(pod)


def check_restricted(pod):
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert {next(kind for kind in volume if kind != "name") for volume in pod["volumes"]} <= {"secret", "configMap", "persistentVolumeClaim", "emptyDir"}
    for container in pod["containers"] + pod.get("initContainers", []):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True and not any("hostPort" in port for port in container.get("ports", ()))


def test_the_pods_of_the_pool(tmp_path):
    """What the executor asks of a pod, the chart gives; code sees no key and no token of the API server."""
    deployment, = [each for each in objects("workcell-pods.yaml") if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["selector"]["matchLabels"] == {"workcell.pool": "workcell", "workcell.state": "idle"} == deployment["spec"]["template"]["metadata"]["labels"]
    server, = pod["containers"]
    init, = pod["initContainers"]
    assert "key" not in {mount["name"] for mount in server["volumeMounts"]} and "key" in {mount["name"] for mount in init["volumeMounts"]}
    key, token = tmp_path / "key", tmp_path / "token"
    key.write_text("k" * 40)
    argv = [{"/etc/workcell/pool/key": str(key), "/run/workcell/token": str(token), "/usr/local/lib/workcell/pod_token.py": os.path.join(PACKAGING, "pod_token.py")}
            .get(each, each) for each in init["command"]]
    subprocess.run(argv, env={"POD_UID": "a-b", "PATH": os.environ["PATH"]}, check=True)
    places = {"/run/workcell/token": str(token), "/workspace": str(tmp_path), "/workspace/.workcell": str(tmp_path / "storage"), "0.0.0.0:8080": "127.0.0.1:0"}
    argv = [places.get(each, each) for each in server["args"]]
    done = subprocess.run([support.BIN, *argv, "--check-config"], capture_output=True, text=True, timeout=support.DEADLINE, check=False,
                          env=support.host_environment())
    assert done.returncode == 0 and "valid" in done.stdout, done
    role, = [each for each in objects("workcell-pods.yaml") if each["kind"] == "Role"]
    assert {(verb, what) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]} == {
        *((verb, "pods") for verb in ("get", "list", "watch", "patch", "delete")), *((verb, "leases") for verb in ("list", "create", "patch", "delete"))}


@pytest.mark.parametrize("name", FILES)
def test_the_servers_arguments_are_accepted(name, tmp_path):
    """With their folders here."""
    pod = pod_of(name)
    server, = pod["containers"]
    (tmp_path / "tokens.yaml").write_text(serving.TOKENS)
    config, = [each for each in objects(name) if each["kind"] == "ConfigMap"]
    (tmp_path / "policy.yaml").write_text(config["data"]["policy.yaml"])
    (tmp_path / "key").write_text("k" * 40)
    places = {"/etc/workcell/pool/key": tmp_path / "key", "/etc/workcell/tokens/tokens.yaml": tmp_path / "tokens.yaml", "/etc/workcell/policy.yaml": tmp_path / "policy.yaml",
              "/var/lib/workcell/saved": tmp_path / "saved", "/var/lib/workcell/storage": tmp_path / "storage", "/workspace": tmp_path}
    argv = [str(places.get(each, each)).replace("$(POD_IP)", "10.0.0.1") for each in server["args"]]
    done = subprocess.run([support.BIN, *argv, "--check-config"], capture_output=True, text=True, timeout=support.DEADLINE, check=False,
                          env=support.host_environment(WORKCELL_REDIS="redis://127.0.0.1:1", KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443"))
    assert done.returncode == 0 and "valid" in done.stdout, done
    # It has the time that it needs to stop.
    seconds = [int(argv[argv.index(flag) + 1]) for flag in ("--drain-delay", "--drain")]
    assert pod["terminationGracePeriodSeconds"] >= sum(seconds) + 15
    # Readiness is lost within the delay.
    probe = server["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < seconds[0] and probe["httpGet"]["path"] == "/ready"
    assert server["startupProbe"]["httpGet"]["path"] == "/started" and server["livenessProbe"]["httpGet"]["path"] == "/health"
    mounts = {mount["name"] for mount in server["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", FILES)
def test_selectors_and_references_fit(name):
    found = objects(name)
    stateful, = [each for each in found if each["kind"] == "StatefulSet"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    services = {each["metadata"]["name"]: each for each in found if each["kind"] == "Service"}
    assert services[stateful["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
    for each in found:
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            assert spec["selector"] == labels and spec["ports"][0]["targetPort"] == "http"
        elif each["kind"] in ("StatefulSet", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"] == labels
        elif each["kind"] == "NetworkPolicy":
            pool = {"workcell.pool": "workcell"} if each["metadata"]["name"] == "workcell-pool" else labels
            assert spec["podSelector"]["matchLabels"] == pool and set(spec["policyTypes"]) == {"Ingress", "Egress"}
        elif each["kind"] == "HorizontalPodAutoscaler":
            assert spec["scaleTargetRef"]["name"] == stateful["metadata"]["name"] and "replicas" not in stateful["spec"]
        elif each["kind"] == "ServiceMonitor":
            chosen = [name for name, service in services.items() if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()]
            assert len(chosen) == 1  # each server is asked once


def names_in(expression):
    plain = re.sub(r'\{[^}]*\}|"[^"]*"|\[[^]]*\]', "", expression)
    return set(re.findall(r"\b(?:workcell|process)_[a-z_]+", plain))


def used_names():
    with open(os.path.join(PACKAGING, "prometheus", "alerts.yaml"), encoding="utf-8") as file:
        rules = [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]
    with open(os.path.join(PACKAGING, "grafana", "workcell.json"), encoding="utf-8") as file:
        board = json.load(file)
    with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as file:
        headings = {re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in file.read().splitlines() if line.startswith("#")}
    for rule in rules:
        page, anchor = rule["annotations"]["runbook"].split("#")
        assert page == "docs/operations.md" and anchor in headings, rule
    found = {rule["alert"]: names_in(rule["expr"]) for rule in rules}
    for panel in board["panels"]:
        found[panel["title"]] = set().union(*(names_in(target["expr"]) for target in panel["targets"]))
    for query in board["templating"]["list"]:
        if query["type"] == "query":
            found[query["name"]] = names_in(query["query"])
    for each in objects("workcell-scaled.yaml"):
        if each["kind"] == "HorizontalPodAutoscaler":
            found["HPA"] = {metric["pods"]["metric"]["name"] for metric in each["spec"]["metrics"]}
    return found


def test_dashboards_alerts_and_scaling_use_metrics_that_exist(tmp_path):
    with serving.shared("--executor", "subprocess", "--base", tmp_path / "base") as server:
        text = server.ask("GET", "/metrics").body.decode()
    there = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}
    used = used_names()
    assert used["HPA"] == {"workcell_sessions", "workcell_runs_waiting"} and len(used) > 20
    for what, names in used.items():
        assert names <= there, (what, names - there)
        assert names or what == "WorkcellServerDown", what
