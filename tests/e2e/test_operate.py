"""Operating a server: whether it is ready, what it says when it starts, and what it does when something is short or lost."""
import os
import re
import resource


import serving
import shim
import spaces
import support


def serve(*flags, preexec=None):
    """A server that is expected not to start: (status, stderr)."""
    done = support.workcell("serve", "--python", support.bare_python(), "--pool", "0", "--listen", "127.0.0.1:0",
                            "--auth-token-file", serving.token_file(serving.TOKENS), *flags, preexec_fn=preexec)
    return done.status, done.err


class Server(serving.Server):
    """With a change in the child, before exec."""

    def __init__(self, *flags, preexec, **options):
        plain = support.popen

        def popen(argv, **more):
            return plain(argv, preexec_fn=preexec, **more)
        support.popen = popen
        try:
            super().__init__(*flags, **options)
        finally:
            support.popen = plain


# ---- readiness ----

def test_ready_and_the_summary(tmp_path):
    server = serving.Server("--base", tmp_path, "--executor", "subprocess", "--max-sessions", "10000", "--max-runs", "2000",
                            "--max-queue", "20000")
    answer = server.ask("GET", "/ready", token=None)
    assert (answer.status, answer.json) == (200, {"status": "ready", "executor": True, "storage": True}), answer
    before = server.text().split("listening on")[0]
    assert "executor subprocess, level process; artifacts in %s" % tmp_path in before, before
    limits = r"limits: 10000 sessions that expire after 3600 s, 2000 cells at once, 20000 waiting, 4096 connections, \d+ descriptors"
    assert re.search(limits, before), before
    # Machines ask every few seconds: no line.
    server.ask("GET", "/health", headers={"X-Request-ID": "health-1"})
    server.ask("GET", "/ready", headers={"X-Request-ID": "ready-1"})
    server.ask("GET", "/info", headers={"X-Request-ID": "info-1"})
    support.wait_until(lambda: "info-1" in server.text(), server.text)
    assert "health-1" not in server.text() and "ready-1" not in server.text()
    server.close()


def test_a_config_file_with_more_than_1000(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text("max-sessions: 10000\nmax_runs: 1024\nmax-queue: 5000\nmax-connections: 20000\nlisten: 127.0.0.1:0\n"
                      "auth-token-file: %s\n" % serving.token_file(serving.TOKENS))
    done = support.workcell("serve", "--config", config, "--check-config")
    assert done.status == 0, done
    done = support.workcell("serve", "--config", config, "--check-config", "--max-sessions", "99999999999")
    assert done.status == 2 and "--max-sessions must be at most" in done.err, done
    done = support.workcell("run", "--pool", "65", "-e", "1")
    assert done.status == 2 and "--pool must be at most 64" in done.err, done


def test_no_server_where_no_session_can_be_opened(tmp_path):
    # As in an image without user namespaces: the sandbox has a level, but not the one that the policy asks for.
    status, text = serve("--executor", "sandbox", preexec=lambda: shim.take_away("userns", "EPERM"))
    assert status == 125 and "executor_unavailable: no session can be opened with the executor sandbox: " in text, text
    assert "user namespaces" in text and "listening" not in text, text
    # With a policy of that level there is one.
    policy = tmp_path / "policy.yaml"
    policy.write_text("preset: untrusted\nlevel: no-userns\nfilesystem: {unprotect: [\"*\"]}\nlimits: {pids: none}\n")
    server = Server("--executor", "sandbox", "--sandbox-policy", policy, preexec=lambda: shim.take_away("userns", "EPERM"))
    assert "executor sandbox, level no-userns; no storage" in server.text(), server.text()
    assert server.ask("GET", "/ready", token=None).status == 200
    server.close()


def test_doctor_names_the_level():
    levels = {}
    for name, preexec in (("full", None), ("no-userns", lambda: shim.take_away("userns", "EPERM"))):
        done = support.workcell("doctor", "--json", "--python", support.bare_python(), preexec_fn=preexec)
        levels[name] = {each["name"]: each["level"] for each in support.json.loads(done.out)["executors"]}
        text = support.workcell("doctor", "--python", support.bare_python(), preexec_fn=preexec).out
        assert re.search(r"^  sandbox +ok  isolation: \w+, level %s$" % name, text, re.M), text
    assert levels["full"]["sandbox"] == "full" and levels["no-userns"]["sandbox"] == "no-userns"
    assert levels["full"]["subprocess"] == ""


def test_a_folder_that_goes_away_and_comes_back(tmp_path):
    base = tmp_path / "base"
    server = serving.Server("--base", base, "--executor", "subprocess")
    os.rename(base, tmp_path / "away")
    support.wait_until(lambda: server.ask("GET", "/ready", token=None).status == 503, server.text)
    answer = server.ask("GET", "/ready", token=None)
    assert answer.json == {"status": "not ready", "executor": True, "storage": False}
    assert str(base) not in answer.body.decode(), "nobody without a token learns about paths"
    assert "the storage does not answer: write to the storage %s" % base in server.text(), server.text()
    assert server.ask("GET", "/health", token=None).status == 200, "it is up all the same"
    os.rename(tmp_path / "away", base)
    support.wait_until(lambda: server.ask("GET", "/ready", token=None).status == 200, server.text)
    assert re.search(r"the storage answers again, after \d", server.text()), server.text()
    server.close()


def test_loss_and_return_of_redis_are_logged():
    redis = spaces.Redis()
    server = serving.Server("--storage", redis.url("ready"), "--executor", "subprocess")
    assert server.ask("GET", "/ready", token=None).status == 200
    redis.close()
    support.wait_until(lambda: "the storage does not answer: Redis at" in server.text(), server.text)
    assert server.ask("GET", "/ready", token=None).status == 503
    redis.start()
    support.wait_until(lambda: "the storage answers again, after" in server.text(), server.text)
    assert server.text().count("the storage does not answer") == 1, "once, however often it is asked"
    assert server.ask("GET", "/ready", token=None).status == 200
    server.close()
    redis.close()


# ---- descriptors ----

def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))


def test_too_few_descriptors_are_said_and_answered_503():
    server = Server("--executor", "subprocess", "--max-connections", "64", "--max-sessions", "500", preexec=few_descriptors)
    found = re.search(r"warning 400 descriptors suffice for about (\d+) sessions beside 64 connections, not for 500", server.text())
    assert found and int(found.group(1)) == (400 - 128 - 64) // 3, server.text()
    opened, refusal = 0, None
    for _ in range(200):
        answer = server.ask("POST", "/v1/sessions")
        if answer.status != 201:
            refusal = answer
            break
        opened += 1
    assert opened >= int(found.group(1)), (opened, found.group(0))
    assert refusal is not None and (refusal.status, refusal.code) == (503, "busy"), (opened, refusal)
    assert refusal.headers["Retry-After"] == "5" and "open files" in refusal.json["detail"], refusal
    assert server.ask("GET", "/ready", token=None).status == 503, "no session can be opened now"
    for each in server.ask("GET", "/v1/sessions?all=true").json["sessions"]:
        server.ask("DELETE", "/v1/sessions/" + each["session_id"])
    support.wait_until(lambda: server.ask("POST", "/v1/sessions").status == 201, server.text)
    assert server.ask("GET", "/ready", token=None).status == 200
    server.close()


def test_the_soft_limit_is_raised_to_the_hard_one():
    server = Server("--executor", "subprocess", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 6000)))
    with open("/proc/%d/limits" % server.pid, encoding="utf-8") as file:
        assert re.search(r"^Max open files +6000 +6000", file.read(), re.M)
    assert ", 6000 descriptors" in server.text(), server.text()
    server.close()
