"""examples/agents/anthropic_worker.sh, with a worker that shows what it is given."""
import os
import subprocess

from conftest import BUILD, ROOT

SCRIPT = os.path.join(ROOT, "examples", "agents", "anthropic_worker.sh")


def work(tmp_path, session, **more):
    environment = {"PATH": "%s:%s" % (BUILD, os.environ["PATH"]), "HOME": str(tmp_path), "ANTHROPIC_SESSION_ID": session, "ANTHROPIC_WORK_ID": "w1",
                   "SECRET_OF_THE_HOST": "x", "WORKCELL_WORK": str(tmp_path / "sessions"), **more}
    return subprocess.run([SCRIPT], env=environment, input="{\"id\": \"w1\"}", capture_output=True, text=True, timeout=60)


def test_work_is_confined(tmp_path):
    (tmp_path / "beside").write_text("of the host")
    tmp_path.chmod(0o755)
    script = tmp_path / "sessions" / "sess_1" / "worker.sh"
    script.parent.mkdir(parents=True)
    script.write_text("cat; env; pwd; cat %s/beside; touch made; ls /root\n" % tmp_path)
    done = work(tmp_path, "sess_1", WORKCELL_WORKER="sh worker.sh")
    assert '{"id": "w1"}' in done.stdout and "ANTHROPIC_WORK_ID=w1" in done.stdout and "SECRET_OF_THE_HOST" not in done.stdout
    assert "of the host" not in done.stdout and (tmp_path / "sessions" / "sess_1" / "made").exists()


def test_ids_are_names(tmp_path):
    for bad in ("../x", "a/b", "a b", "$(touch x)", "-rf"):
        done = work(tmp_path, bad, WORKCELL_WORKER="true")
        assert done.returncode == 2 and "not a session id" in done.stderr
    assert not (tmp_path / "x").exists()
