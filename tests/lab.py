"""JupyterLab on a free port, with Workcell's kernel installed."""
import contextlib
import re
import subprocess
import sys

import support
from support import popen, workcell

TOKEN = "t0ken"


@contextlib.contextmanager
def running(folder, *install, **variables):
    """JupyterLab in the folder `work` below this one, which has to be there; its URL. install: flags of `workcell jupyter install`."""
    data, work = folder / "data", folder / "work"
    environment = support.host_environment(JUPYTER_DATA_DIR=str(data), JUPYTER_RUNTIME_DIR=str(data / "runtime"), JUPYTER_CONFIG_DIR=str(data / "config"),
                                           IPYTHONDIR=str(data / "ipython"), HOME=str(folder), **variables)
    done = workcell("jupyter", "install", "--executor", "sandbox", "--python", sys.executable, "--workspace-mode", "rw", *install, env=environment)
    assert done.status == 0, done
    log = open(folder / "log", "w+")
    process = popen([sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--ServerApp.root_dir=%s" % work,
                     "--IdentityProvider.token=" + TOKEN], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=work)

    def url():
        log.seek(0)
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read())
        return found and found.group()

    try:
        yield support.wait_until(url, "JupyterLab's address")
    finally:
        process.terminate()
        process.wait(support.DEADLINE)
        log.close()
