"""The executor kubernetes: pods claimed from a pool, at an API server that is scripted for faults. The pods are real session servers."""
import base64
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import cluster
import serving
import support


@pytest.fixture
def made(tmp_path, request):
    with cluster.running(tmp_path, **getattr(request, "param", {})) as found:
        yield found


def run(found, *more, **options):
    return support.workcell("run", "--json", *found.flags, *more, **options)


def test_a_session_gets_a_pod_and_gives_it_up(made):
    done = run(made, "-e", "import os; open('f', 'w').write('x'); x = 20", "-e", "[x + 1, open('f').read()]")
    assert done.status == 0, done
    first, second = done.results
    assert second["value"] == [21, "x"]
    receipt = first["isolation"]
    assert receipt["executor"] == "kubernetes" and receipt["level"] == "pod" and receipt["pod"] == "pool-2" and receipt["node"] == "node-1"
    assert receipt["seccomp_profile"] == "RuntimeDefault" and receipt["runtime_class"] is None and receipt["server"]["executor"] == "subprocess"
    # The pod and the lease are gone with the program.
    assert made.count("pods") == 0 and made.count("leases") == 0
    assert not [path for method, path in made.requests if cluster.TOKEN in path or cluster.KEY in path]


def test_the_claim_makes_it_ours(made):
    driver = support.Driver(*made.flags[2:], executor="kubernetes")
    assert driver.run("1")["value"] == 1
    pod, = made.objects["pods"].values()
    lease, = made.objects["leases"].values()
    owner, = pod["metadata"]["ownerReferences"]
    assert pod["metadata"]["labels"]["workcell.state"] == "claimed" and pod["metadata"]["labels"]["workcell.owner"] == lease["metadata"]["name"]
    assert owner["kind"] == "Lease" and owner["uid"] == lease["metadata"]["uid"] and owner["controller"] is True
    assert lease["spec"]["leaseDurationSeconds"] == 30 and lease["metadata"]["labels"] == {"workcell.owner": "lease"}
    driver.close()
    assert made.count("pods") == 0


@pytest.mark.parametrize("made", [{"pods": 2}], indirect=True)
def test_two_programs_never_get_the_same_pod(made):
    """Both see the same list: the patch of one of them comes too late."""
    barrier = threading.Barrier(2)
    lists = []

    def lie(method, path, status, answer):
        if method == "GET" and "idle" in path and len(lists) < 2:
            lists.append(1)
            answer["items"] = answer["items"][:1]
            barrier.wait(support.DEADLINE)
            return status, answer
        return None

    made.lie = lie
    found = [None, None]

    def one(at):
        found[at] = run(made, "-e", "1")

    threads = [threading.Thread(target=one, args=(at,)) for at in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(done.result["isolation"]["pod"] for done in found) == ["pool-2", "pool-3"]


def test_sessions_of_a_workspace_share_a_pod_others_do_not(made):
    made.add_pod()
    code = "import os; os.path.exists('mark') or open('mark', 'w').write('1')"
    first = support.Driver(*made.flags[2:], "--workspace", "w", executor="kubernetes")
    assert first.run(code)["error"] is None
    assert made.states() == ["claimed", "idle"]
    # Another program has another pod, also for the same workspace: pods belong to one program.
    done = run(made, "--workspace", "w", "-e", "import os; os.path.exists('mark')")
    assert done.result["value"] is False
    first.close()


def test_no_idle_pod(made):
    made.set_pod("pool-2", lambda pod: pod["status"]["conditions"][0].update(status="False"))
    done = run(made, "--startup-timeout", "1", "-e", "1")
    assert done.status == 1 and done.error_code == "busy" and 'no idle pod of the pool "workcell"' in done.error_message
    assert made.states() == ["idle"] and made.count("leases") == 0


def test_a_pod_that_becomes_ready_later(made):
    made.set_pod("pool-2", lambda pod: pod["status"]["conditions"][0].update(status="False"))
    lists = []

    def lie(method, path, status, answer):
        if "idle" in path:
            lists.append(1)
            if len(lists) == 3:
                made.set_pod("pool-2", lambda pod: pod["status"]["conditions"][0].update(status="True"))
        return None

    made.lie = lie
    assert run(made, "-e", "1").result["value"] == 1


def _first(pod):
    return pod["spec"]["containers"][0]


LESS = {
    "host network": lambda pod: pod["spec"].update(hostNetwork=True),
    "host pids": lambda pod: pod["spec"].update(hostPID=True),
    "token of the API server": lambda pod: pod["spec"].pop("automountServiceAccountToken"),
    "privileged": lambda pod: _first(pod)["securityContext"].update(privileged=True),
    "escalation": lambda pod: _first(pod)["securityContext"].pop("allowPrivilegeEscalation"),
    "capabilities": lambda pod: _first(pod)["securityContext"].update(capabilities={"drop": ["NET_RAW"]}),
    "added capability": lambda pod: _first(pod)["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    "root": lambda pod: pod["spec"]["securityContext"].pop("runAsNonRoot"),
    "root by the container": lambda pod: _first(pod)["securityContext"].update(runAsNonRoot=False),
    "writable root": lambda pod: _first(pod)["securityContext"].update(readOnlyRootFilesystem=False),
    "no seccomp": lambda pod: pod["spec"]["securityContext"].pop("seccompProfile"),
    "unconfined": lambda pod: _first(pod)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    "key of the pool": lambda pod: _first(pod)["volumeMounts"].append({"name": "key", "mountPath": "/key"}),
    "folder of the node": lambda pod: pod["spec"]["volumes"][0].update(hostPath={"path": "/"}),
    "unknown volume": lambda pod: _first(pod)["volumeMounts"].append({"name": "other", "mountPath": "/o"}),
    "second container": lambda pod: pod["spec"]["containers"].append({"name": "more"}),
    "no container": lambda pod: pod["spec"].update(containers=[]),
    "debugger": lambda pod: pod["spec"].update(ephemeralContainers=[{"name": "shell"}]),
}


def test_pods_that_confine_less_are_refused(made):
    pristine = json.dumps(made.objects["pods"]["pool-2"]["spec"])
    for name, change in LESS.items():
        made.set_pod("pool-2", lambda pod: pod.update(spec=json.loads(pristine)))
        made.set_pod("pool-2", change)
        done = run(made, "-e", "1")
        assert done.status == 125 and done.error_code == "executor_unavailable" and "the pool's template has to say otherwise" in done.error_message, (name, done)
        assert made.states() == ["idle"]
    made.set_pod("pool-2", lambda pod: pod.update(spec=json.loads(pristine)))
    for flags in (["--memory", "256M"], ["--cpus", "0.25"], ["--runtime-class", "gvisor"]):
        done = run(made, *flags, "-e", "1")
        assert done.status == 125 and done.error_code == "executor_unavailable", (flags, done)
    assert run(made, "--memory", "512M", "--cpus", "0.5", "-e", "1").result["value"] == 1


def test_an_address_that_no_pod_has(made):
    """More of them: tests/unit/test_kubernetes.c."""
    made.set_pod("pool-2", lambda pod: pod["status"].update(podIP="169.254.169.254"))
    done = run(made, "-e", "1")
    assert done.status == 125 and done.error_code == "protocol" and "address" in done.error_message, done


def test_another_server_at_the_pods_address(made):
    """A pod that has died, and another that got its address: it knows neither our token, nor do we run code in it."""
    made.add_pod()
    made.set_pod("pool-2", lambda pod: pod["status"].update(podIP="127.0.0.3"))
    made.set_pod("pool-3", lambda pod: pod["status"]["conditions"][0].update(status="False"))
    done = run(made, "-e", "open('was-here', 'w')")
    assert done.status == 1 and done.error_code == "unauthorized", done


def test_the_end_of_a_pod_ends_its_run_at_once(made):
    made.add_pod()
    driver = support.Driver(*made.flags[2:], executor="kubernetes")
    assert driver.run("x = 1")["error"] is None
    name, = [each for each, pod in made.objects["pods"].items() if pod["metadata"]["labels"]["workcell.state"] == "claimed"]
    driver.start("print('on', flush=True)\nimport time\nwhile True: time.sleep(0.01)")
    driver.next_event(lambda event: event["event"] == "chunk")
    # Its server still runs: only the API server says so.
    made.set_pod(name, lambda pod: pod["status"]["containerStatuses"][0].update(
        state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
    result = driver.answer()
    assert result["error"]["code"] == "kernel_died" and "OOMKilled" in result["error"]["message"] and result["state"] == "lost"
    assert driver.run("'x' in globals()")["value"] is False
    support.wait_until(lambda: name not in made.objects["pods"], "the dead pod to be deleted")
    driver.close()


def test_a_pod_that_is_deleted(made):
    made.add_pod()
    driver = support.Driver(*made.flags[2:], executor="kubernetes")
    driver.start("print('on', flush=True)\nimport time\nwhile True: time.sleep(0.01)")
    driver.next_event(lambda event: event["event"] == "chunk")
    with made.lock:
        name, = [each for each, pod in made.objects["pods"].items() if pod["metadata"]["labels"]["workcell.state"] == "claimed"]
        made.drop("pods", name)
    assert driver.answer()["error"]["code"] == "kernel_died"
    assert driver.run("1")["value"] == 1
    driver.close()


@pytest.mark.parametrize("made", [{"pods": 2, "replace": True}], indirect=True)
def test_cells_at_the_end_of_a_pod(made, tmp_path):
    """A cell may begin when its kernel has failed and is not gone yet. All have a result, and the server lives: memory that it uses too late is filled."""
    server = serving.Server(*made.flags, cwd=str(tmp_path), env={"MALLOC_PERTURB_": "165"})
    session = server.session()
    pods = [server.events(session, "1")[-1][2]["isolation"]["pod"]]
    stop = threading.Event()

    def cells():
        while not stop.is_set():
            kind, result = server.events(session, "1")[-1][1:]
            assert kind == "result" and (result["error"] is None or result["error"]["code"] == "kernel_died"), result
            if result["error"] is None and result["isolation"]["pod"] != pods[-1]:
                pods.append(result["isolation"]["pod"])

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(cells) for _ in range(3)]
        try:
            for n in range(1, 4):
                with made.lock:
                    made.drop("pods", pods[-1])
                support.wait_until(lambda n=n: len(pods) > n or any(client.done() for client in clients), "the session has another pod")
        finally:
            stop.set()
        for client in clients:
            client.result(support.DEADLINE)
    support.wait_until(lambda: made.states().count("idle") == 2, made.states)
    server.close()


def test_a_killed_program_leaves_its_pods_to_its_lease(made):
    driver = support.Driver(*made.flags[2:], executor="kubernetes")
    assert driver.run("1")["value"] == 1
    driver.process.send_signal(signal.SIGKILL)
    driver.process.wait(support.DEADLINE)
    lease, = made.objects["leases"]
    assert made.states() == ["claimed"]
    # Whoever removes the lease, removes the pod: scripts/test_kubernetes.py waits for another program to do it.
    with made.lock:
        made.drop("leases", lease)
    assert made.count("pods") == 0


def test_the_token_rotates(made):
    driver = support.Driver(*made.flags[2:], executor="kubernetes")
    assert driver.run("1")["value"] == 1
    made.tokens = {"another-token"}
    made.token_file.write_text("another-token")
    driver.close()  # deletes pod and lease: with the token that it read last, or by the lease's end
    made.add_pod()
    assert run(made, "-e", "1").result["value"] == 1


def test_a_wrong_token(made):
    made.token_file.write_text("wrong")
    done = run(made, "-e", "1")
    assert done.status == 1 and done.error_code == "unauthorized" and "wrong" not in done.err


def test_a_certificate_of_another_authority(made, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    ca, _ = cluster.certificates(other)
    at = made.flags.index("--kubernetes-ca") + 1
    flags = [*made.flags[:at], ca, *made.flags[at + 1:]]
    done = support.workcell("run", *flags, "-e", "1")
    assert done.status == 125 and "certificate" in done.error_message, done
    assert not made.requests  # the token was not sent


def config_of(made, **cluster_more):
    ca = made.ca.read_text()
    return {"apiVersion": "v1", "kind": "Config", "current-context": "it", "contexts": [
        {"name": "it", "context": {"cluster": "c", "user": "u", "namespace": "agents"}}],
        "clusters": [{"name": "c", "cluster": {"server": made.url, "certificate-authority-data": base64.b64encode(ca.encode()).decode(), **cluster_more}}],
        "users": [{"name": "u", "user": {"token": cluster.TOKEN}}]}


def test_a_kubeconfig(made, tmp_path):
    path = tmp_path / "config"
    more = ["--executor", "kubernetes", "--pool-key-file", made.key_file, "--pod-port", made.port_of_pods, "-e", "1"]
    path.write_text(json.dumps(config_of(made)))
    assert support.workcell("run", "--json", "--kubeconfig", path, *more).result["value"] == 1
    for change, words in (({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"), ({"proxy-url": "http://x"}, "proxy-url"),
                          ({"server": "http://10.0.0.1"}, "http://")):
        path.write_text(json.dumps(config_of(made, **change)))
        done = support.workcell("run", "--kubeconfig", path, *more)
        assert done.status in (1, 2) and words in done.error_message, done
    broken = config_of(made)
    broken["users"][0]["user"] = {"exec": {"command": "evil"}}
    path.write_text(json.dumps(broken))
    assert "exec" in support.workcell("run", "--kubeconfig", path, *more).error_message
    path.write_text("]")
    assert support.workcell("run", "--kubeconfig", path, *more).error_code == "invalid"


def _claimed(change):
    return lambda method, path, status, answer: (200, {**answer, "metadata": {**answer["metadata"], **change}}) if method == "PATCH" else None


LIES = {
    "not JSON": (lambda method, path, status, answer: (200, b"<html>"), "protocol"),
    "a list": (lambda method, path, status, answer: (200, []), "protocol"),
    "another pod than the claimed one": (_claimed({"name": "../../secrets/x"}), "protocol"),
    "a pod that nobody claimed": (_claimed({"labels": {}}), "protocol"),
    "a pod of another owner": (_claimed({"labels": {"workcell.state": "claimed", "workcell.owner": "x"}}), "protocol"),
    "items with odd names": (lambda method, path, status, answer: (
        (200, {"items": [{**each, "metadata": {**each["metadata"], "name": "a/../b?x=1\r\n"}} for each in answer["items"]]}) if "idle" in path else None), "busy"),
    "a pod without a version": (lambda method, path, status, answer: (
        (200, {"items": [{**each, "metadata": {**each["metadata"], "resourceVersion": ""}} for each in answer["items"]]}) if "idle" in path else None), "protocol"),
    "a lease without a uid": (lambda method, path, status, answer: (
        (201, {"metadata": {"name": answer["metadata"]["name"]}}) if method == "POST" else None), "protocol"),
    "words for a terminal": (lambda method, path, status, answer: (500, {"message": "\x1b]0;owned\x07 \x1b[2J"}) if method == "POST" else None, "io"),
    "a redirect": (lambda method, path, status, answer: (302, {}), "io"),
}


def test_an_api_server_that_lies(made):
    for name, (lie, code) in LIES.items():
        made.lie = lie
        done = support.workcell("run", *made.flags, "--startup-timeout", "0.5", "-e", "1")
        assert done.status in (1, 125) and done.error_code == code, (name, done)
        assert "\x1b" not in done.err
        assert not [path for _, path in made.requests if "secrets" in path or "/../" in path]
        made.lie = None
        if made.states() != ["idle"]:  # it went with the lease
            assert made.states() == []
            made.add_pod()


def test_a_sandbox_claim(made):
    done = run(made, "--sandbox-warm-pool", "agents", "-e", "6 * 7")
    assert done.result["value"] == 42 and done.result["isolation"]["pod"] == "pool-2", done
    assert made.count("sandboxclaims") == 0 and made.count("pods") == 0
    methods = [each for each in made.requests if "sandboxclaims" in each[1]]
    assert methods[0][0] == "POST" and methods[-1][0] == "DELETE"


def test_reset_keeps_the_pod(made):
    driver = support.Driver(*made.flags[2:], executor="kubernetes")
    assert driver.run("open('f', 'w').write('kept'); x = 1")["error"] is None
    driver.reset()
    assert driver.run("[open('f').read(), 'x' in globals()]")["value"] == ["kept", False]
    driver.close()


@pytest.mark.parametrize("flags, words", [
    (["--pod-pool", "a b"], "label"), (["--pod-pool", "x,workcell.state=claimed"], "label"), (["--pod-namespace", "../kube-system"], "namespace"),
    (["--sandbox-warm-pool", "A"], "warm pool"), (["--isolation", "executor"], "--isolation"), (["--pids", "100"], "--pids"),
    (["--storage", "/tmp/x"], "pods"), (["--pod-port", "70000"], "port"), (["--network", "none"], "--network"),
])
def test_options_that_are_refused(made, flags, words):
    done = support.workcell("run", *made.flags, *flags, "-e", "1")
    assert done.status == 2 and words in done.error_message, done
    assert not made.requests


def test_flags_are_the_executors():
    done = support.workcell("run", "--pool-key-file", "/x", "-e", "1")
    assert done.status == 2 and "requires --executor kubernetes" in done.error_message


def test_the_token_of_a_pod(tmp_path):
    key, token = tmp_path / "key", tmp_path / "token"
    key.write_text("k" * 31)

    def ask(uid):
        return subprocess.run([sys.executable, "-I", cluster.POD_TOKEN, key, token], env={"POD_UID": uid}, capture_output=True, check=False)

    assert b"at least 32" in ask("a-b").stderr
    key.write_text("k" * 32 + "\n")
    assert b"POD_UID" in ask("../x").stderr and ask("a-b").returncode == 0
    assert len(token.read_text()) == 64 and os.stat(token).st_mode & 0o777 == 0o600
    assert ask("a-b").returncode != 0  # a container that starts once more gets no token
