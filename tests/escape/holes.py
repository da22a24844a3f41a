"""Leaves out one layer of the sandbox after another and sees the tests go red: holes.py [--layers | HOLE...]

--layers: only those of the sandbox itself, which attempts.py notices.

One program made for this serves all (workcell-holes): $WORKCELL_PLANTED_HOLE names the layer that its plans lack. A suite that
stays green without a layer does not test it. Exits 1 when a hole goes unnoticed, or when there are failures without one.
"""
import concurrent.futures
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build")
# What attempts.py notices ...
ATTEMPTS = ["seccomp", "landlock", "caps", "bounds", "detach", "seal", "read-only", "fds", "mask", "rlimits", "nnp", "guard",
            "net", "ipc", "cgroup", "setuid", "leases", "watch", "subset", "nsfs", "splice", "merging", "options", "urgent", "protocols",
            "pairs", "cached"]
# Where the guard of protected names is, it refuses what this layer would: it is tried with a policy that allows every name, and so without a guard.
UNGUARDED = ["landlock"]
# ... and what other tests do.
ASKING = "escape/test_host_asking.py"
TESTS = {
    "dumpable": ("escape/test_protected.py", "dumpable"),
    "type-ahead": (ASKING, "keys_typed_before or half_a_line"),
    "deaf": (ASKING, "keys_on_their_way"),
    "swapped": (ASKING, "in_the_place_of_another"),
    "stream": (ASKING, "control_sequences"),
    "shown": (ASKING, "mcp_names_of_tools"),
    "markup": (ASKING, "mcp_markup"),
    "cut-notice": (ASKING, "cut_in_the_middle or mcp_long"),
    "policy-url": (ASKING, "only_looks_like"),
    "edited": ("escape/test_host_more.py", "edited"),
    "policy-query": ("escape/test_host_more.py", "query"),
    "mounts": ("escape/test_host_more.py", "mounted"),
    "zygote-owner": (ASKING, "share_neither"),
    "tree": ("escape/test_host_removal.py", "goes_with_it"),
    "deps-trust": ("escape/test_host_deps.py", "recorded_apart"),
    "deps-confine": ("escape/test_host_deps.py", "installer_writes or reaches_no_other or secrets_of"),
    "deps-book": ("escape/test_host_deps.py", "recorded_apart"),
    "deps-hashes": ("escape/test_host_deps.py", "other_bytes and uv"),
    "deps-lock": ("escape/test_host_deps.py", "sees_and_locks"),
    "deps-record": ("escape/test_host_deps.py", "uv_s_record and options"),
    "deps-touched": ("escape/test_host_deps.py", "exchanged_while_uv_works"),
    "deps-temp": ("escape/test_host_deps.py", "installers_lock_is_not_shown"),
    "limits": ("escape/test_host_options.py", "sandbox_keeps"),
    "guests": ("escape/test_host_network.py", "slow_heads"),
    "lockout": ("escape/test_host_network.py", "lock_no_good_client_out"),
    "workspaces": ("escape/test_host_network.py", "bound_workspace or bound_later"),
    "smuggling": ("escape/test_host_network.py", "smuggled_in_a_body"),
    "mcp-owner": ("escape/test_host_network.py", "another_token_finds_no"),
    "mcp-approve": ("escape/test_host_network.py", "asked_only_with"),
    "mcp-unread": ("escape/test_host_network.py", "answers_that_nobody_reads"),
    "self-approval": ("escape/test_host_network.py", "approve_itself or hosts_network"),
    "tools": ("escape/test_host_programs.py", "link_leads or git_in"),
    "servers": ("escape/test_host_programs.py", "server_is_confined"),
    "lower-network": ("escape/test_host_programs.py", "no_network and userns"),
    "lower-sockets": ("escape/test_host_programs.py", "sockets_of_the_host"),
    "host-cwd": ("escape/test_host_programs.py", "git_on_the_host or cwd_on"),
    "program-place": ("escape/test_host_programs.py", "program_in_the_workspace"),
    "path-links": ("escape/test_host_programs.py", "path_parameters or path_to_write"),
    "path-kind": ("escape/test_host_programs.py", "path_parameters"),
    "zygote": ("escape/test_host_zygote.py", "reaches_nothing"),
    "uid": ("escape/test_host_uid.py", "nobody or others or of_root"),
    "subuid": ("escape/test_host_subuid.py", "subordinate or outside"),
    "places": ("escape/test_host_places.py", "refused"),
    "homes": ("escape/test_host_places.py", "home"),
    "links": ("escape/test_host_places.py", "link"),
    "hidden": ("escape/test_host_places.py", "hidden"),
    "sitecheck": ("escape/test_host_places.py", "pth"),
    "user-site": ("escape/test_host_places.py", "isolated"),
    "budget": ("escape/test_host_budgets.py", "nobody_reads or parked_calls"),
    "json-tree": ("escape/test_host_budgets.py", "huge_tree_is_refused"),
    "storage": ("escape/test_host_budgets.py", "metadata_does_not or filled_as_far"),
    "workspace": ("escape/test_host_budgets.py", "over_its_limit and (many or links)"),
    "audit-pace": ("escape/test_host_budgets.py", "calls_fill_the_audit_log and (calls or unknown or withdrawn)"),
    "workspace-write": ("escape/test_host_budgets.py", "folders_of_a_policy"),
    "call-clients": ("escape/test_host_calls.py", "under_deny or past_the_gate"),
    "call-kinds": ("escape/test_host_calls.py", "removals_pass"),
    "workflow-mark": ("escape/test_host_calls.py", "not_run_unconfined"),
    "shared": ("escape/test_host_containers.py", "vouched_for or lists_are or journal"),
    "call-who": ("escape/test_host_calls.py", "code_does_not_register or what_is_codes"),
    "call-nul": ("escape/test_host_calls.py", "end_early"),
    "call-approve": ("escape/test_host_calls.py", "run_token"),
}


def attempts_that_notice(hole):
    """Names of attempts that were not denied."""
    import test_escape

    os.environ["WORKCELL_PLANTED_HOLE"] = hole
    how = dict(test_escape.modes()[0][1])
    guarded = hole not in UNGUARDED
    host = test_escape.Host(how["uid"] if how["uid"] is not None else os.getuid())
    if not guarded:
        policy = os.path.join(host.folder, "unguarded.yaml")
        with open(policy, "w", encoding="utf-8") as file:
            file.write("preset: untrusted\nfilesystem: {unprotect: ['*']}\n")
        how["flags"] = ("--sandbox-policy", policy)
    try:
        with test_escape.start(host, **how) as sibling, test_escape.start(host, **how) as driver:
            host.facts["sibling_port"] = sibling.value(test_escape.SIBLING % host.facts)
            missed = test_escape.run_all(host, driver, lambda attempt: guarded or attempt.layer != "guard")
            return [line.split(":")[0] for line in missed]
    except AssertionError as problem:
        if "sandbox_failed" not in str(problem):
            raise
        return ["no session is opened"]
    finally:
        host.close()


def tests_that_notice(hole):
    """Names of tests that fail."""
    path, chosen = TESTS[hole]
    # What a program with a hole leaves behind goes with its folder.
    folder = tempfile.mkdtemp(prefix="workcell-hole-")
    os.chmod(folder, 0o755)  # or tests as another user would fail whatever the hole
    try:
        # One red test is enough.
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen,
                               os.path.join(ROOT, "tests", path)],
                              env=dict(os.environ, WORKCELL_PLANTED_HOLE=hole, TMPDIR=folder), capture_output=True, text=True)
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
    if done.returncode not in (0, 1):
        raise RuntimeError("pytest ended with %d: %s" % (done.returncode, done.stdout[-500:]))
    return [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]


def main():
    subprocess.run(["ninja", "-C", BUILD, "workcell-holes"], check=True, stdout=subprocess.DEVNULL)
    os.environ["WORKCELL_BIN"] = os.path.join(BUILD, "workcell-holes")
    sys.path[:0] = [HERE, os.path.dirname(HERE)]
    wanted = ATTEMPTS if sys.argv[1:] == ["--layers"] else sys.argv[1:] or ATTEMPTS + sorted(TESTS)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor((os.cpu_count() or 1) + 2) as pool:
        under_way = {hole: pool.submit(tests_that_notice, hole) for hole in wanted if hole in TESTS}
        for hole in [""] + wanted:
            try:
                noticed = under_way[hole].result() if hole in TESTS else attempts_that_notice(hole)
            except RuntimeError as problem:
                bad += 1
                print("%-13s NOT TRIED: %s" % (hole, problem), flush=True)
                continue
            bad += bool(noticed) == (hole == "")
            more = " and %d more" % (len(noticed) - 4) if len(noticed) > 4 else ""
            print("%-13s %s" % (hole or "(none)", ", ".join(noticed[:4]) + more or ("all is denied" if not hole else "NOT NOTICED")), flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
