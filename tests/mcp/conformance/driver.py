"""The client of one scenario of the conformance suite: driver.py URL. A person who logs in at once and accepts every form as it is."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", ".."))
import support  # noqa: E402

POLICY = "default: allow\nrules:\n  - {decision: ask, tool: something-else}\n"
VALUES = {"number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}


def prepare(base, url, scenario, context):
    definition = {"name": "s", "type": "mcp", "url": url, "transport": "http"}
    if scenario.startswith("auth/"):
        definition["auth"] = "oauth"
        if context.get("client_id"):
            definition.update({key: context[key] for key in ("client_id", "client_secret") if context.get(key)})
        else:
            definition["client_metadata_url"] = "https://conformance-test.local/client-metadata.json"
    os.makedirs(base + "/tools")
    for name, text in (("tools/s.yaml", json.dumps(definition)), ("policy.yaml", POLICY),
                       ("browser", "#!/bin/sh\nexec %s -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1]).read()' \"$1\"\n" % sys.executable)):
        with open(os.path.join(base, name), "w") as file:
            file.write(text)
    os.chmod(base + "/browser", 0o755)


def run_cell(driver, code):
    """The result; forms are accepted with their defaults, and what they must have besides."""
    driver.send({"code": code})
    while True:
        got = driver.read()
        if got.get("event") == "approval":
            schema = got["args"].get("requestedSchema") or {}
            content = {name: VALUES.get(schema["properties"][name].get("type"), "x") for name in schema.get("required", ())
                       if "default" not in schema["properties"][name]}
            driver.send({"op": "answer", "id": got["id"], "accept": True, "content": content})
        elif "value" in got:
            return got


def main():
    url, scenario = sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as base:
        prepare(base, url, scenario, context)
        env = support.host_environment(XDG_STATE_HOME=base + "/state")

        def login(*flags):
            return subprocess.run([support.BIN, "tools", "login", "s", "--browser", base + "/browser", "--base", base, *flags], env=env,
                                  timeout=40).returncode
        if scenario.startswith("auth/") and login() != 0:
            return 1
        driver = support.Driver("--base", base, "--policy", base + "/policy.yaml", env=env)

        def run(code):
            """The result, after the logins that its error asks for."""
            for _ in range(2):  # a person who is asked again and again gives up
                result = run_cell(driver, code)
                wanted = re.search("log in (?:for the scope: (.*)|at this server)", result["error"]["message"]) if result["error"] else None
                if not wanted or login(*(["--scope", wanted.group(1).strip()] if wanted.group(1) else [])) != 0:
                    break
                # A server that could not be reached is given a second before it is tried again.
                again = time.monotonic() + 10
                while not wanted.group(1) and result["error"] and time.monotonic() < again:
                    result = run_cell(driver, code)
            return result
        calls = context.get("toolCalls")
        if not calls:
            listed = run("tools.s.list()")
            if listed["error"]:
                print(listed["error"], file=sys.stderr)
                return 1
            calls = [{"name": c["name"], "arguments": {p["name"]: VALUES.get(p["type"], "x") for p in c["parameters"] if p["required"]}}
                     for c in listed["value"] if not c["name"].startswith("json_schema_")]
            if scenario == "json-schema-2020-12-preservation":
                # It wants back what code can read of a tool's schema.
                run_cell(driver, "tools.s.json_schema_echo(schema=tools.s.json_schema_2020_12_tool.schema()['input'])")
        for call in calls:
            run("tools.s[%r](**%r)" % (call["name"], call.get("arguments") or {}))
        driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
