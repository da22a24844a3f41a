"""Agents of frameworks on Workcell and on the frameworks' own executors: agents.py BUILD [smolagents|rlm|all] [INTERPRETERS]

Needs the frameworks: run it with build/frameworks-venv/bin/python (scripts/setup.sh frameworks). Rows:

  smolagents  an agent of ten steps with a scripted model: on WorkcellExecutor (sandbox, subprocess) and on smolagents' LocalPythonExecutor, and on its
              DockerExecutor where SMOLAGENTS_DOCKER=1 and an engine answers (SMOLAGENTS_DOCKER_IMAGE: with this image). Milliseconds
              from the executor's start to the answer, and until it has ended; medians of five.
  rlm         dspy: INTERPRETERS (50) live interpreters that have run one cell each: forks of one session (WorkcellInterpreters), against dspy's own
              PythonInterpreter (Deno and Pyodide, where `deno` is found) and LocalInterpreter. Seconds until all have answered, and memory: the
              proportional set size of all processes that were started, from /proc/PID/smaps_rollup. Ends with 1 if Workcell takes more than a
              twentieth of PythonInterpreter's memory for each interpreter. OWN (5) of dspy's are started, which is enough to divide.
"""
import atexit
import glob
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
WHAT = sys.argv[2] if len(sys.argv) > 2 else "all"
COUNT = int(sys.argv[3]) if len(sys.argv) > 3 else 50
OWN = int(os.environ.get("OWN", "5"))
LIMIT = 20
sys.path[0] = os.path.join(BUILD, "python-site")  # not this folder: a framework is called `agents` too
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", DSPY_CACHEDIR=os.path.join(BUILD, "dspy-cache"))
#: The one of the executor `deno`, which scripts/setup.sh test has put there.
DENO = shutil.which("deno") or next(iter(glob.glob(os.path.expanduser("~/.cache/workcell/deno-*/node_modules/@deno/linux-*/deno"))), None)
#: dspy's runner takes one function from deno.land, which not every machine reaches: the same in a file, and a deno that is told where it is.
READ_LINES = """export async function* readLines(reader) {
  const decoder = new TextDecoder(), piece = new Uint8Array(65536);
  let text = "";
  for (let size; (size = await reader.read(piece)) !== null;) {
    const lines = (text + decoder.decode(piece.subarray(0, size), { stream: true })).split("\\n");
    text = lines.pop();
    yield* lines;
  }
  if (text) yield text;
}
"""


def put_deno_on_path():
    folder = tempfile.mkdtemp(prefix="workcell-bench-")
    atexit.register(shutil.rmtree, folder, True)
    with open(folder + "/io.js", "w") as file:
        file.write(READ_LINES)
    with open(folder + "/map.json", "w") as file:
        json.dump({"imports": {"https://deno.land/std@0.186.0/io/mod.ts": "file://%s/io.js" % folder}}, file)
    with open(folder + "/deno", "w") as file:
        file.write('#!/bin/sh\nif [ "$1" = run ]; then shift; exec "%s" run --import-map=%s/map.json "$@"; fi\nexec "%s" "$@"\n' % (DENO, folder, DENO))
    os.chmod(folder + "/deno", 0o755)
    os.environ["PATH"] = folder + ":" + os.environ["PATH"]


if DENO:
    put_deno_on_path()
os.chdir("/tmp")


# ---- smolagents

STEPS = ["total = 0"] + ["total += price('tea') * %d\nprint(total)" % n for n in range(8)] + ["final_answer(total)"]


def agent_seconds(make):
    import smolagents
    from smolagents import tool

    class Replay(smolagents.Model):
        def __init__(self):
            super().__init__()
            self.left = list(STEPS)

        def generate(self, messages, **kwargs):
            return smolagents.ChatMessage(role="assistant", content="<code>\n%s\n</code>" % self.left.pop(0))

    @tool  # the Docker executor sends the source of the function, and knows the decorator by this name only
    def price(item: str) -> float:
        """The price of an item.

        Args:
            item: what
        """
        return 4.5

    times = []
    for _ in range(5):
        begin = time.perf_counter()
        options, close = make()
        agent = smolagents.CodeAgent(tools=[price], model=Replay(), max_steps=12, verbosity_level=smolagents.LogLevel.OFF, **options)
        answer = agent.run("go")
        answered = time.perf_counter() - begin
        close()
        times.append((answered, time.perf_counter() - begin))
        assert answer == 126.0, answer
    return [statistics.median(each) for each in zip(*times)]


def docker_executor():
    """With SMOLAGENTS_DOCKER_IMAGE: an image with Jupyter's kernel gateway that is there. Else smolagents builds its own at each start, from
    python:3.12-bullseye and pip."""
    import smolagents.remote_executors as remote

    image = os.environ.get("SMOLAGENTS_DOCKER_IMAGE")
    more = {"image_name": image, "build_new_image": False} if image else {}
    made = remote.DockerExecutor([], smolagents_logger(), **more)
    return {"executor": made}, made.cleanup


def smolagents_logger():
    from smolagents.monitoring import AgentLogger, LogLevel

    return AgentLogger(level=LogLevel.OFF)


def smolagents_rows():
    from workcell.integrations.smolagents import WorkcellExecutor

    def ours(executor):
        def make():
            made = WorkcellExecutor(executor=executor)
            return {"executor": made}, made.cleanup

        return make

    rows = {"Workcell, sandbox": ours(None), "Workcell, subprocess": ours("subprocess"), "smolagents' local executor (no isolation)": lambda: ({}, lambda: None)}
    if os.environ.get("SMOLAGENTS_DOCKER") == "1":
        rows["smolagents' Docker executor"] = docker_executor
    for name, make in rows.items():
        answered, ended = agent_seconds(make)
        print("smolagents, ten steps   %-44s %8.1f ms to the answer %8.1f ms to the end" % (name, answered * 1e3, ended * 1e3), flush=True)


# ---- dspy


def processes():
    """{pid: (parent, name)}"""
    found = {}
    for each in os.listdir("/proc"):
        if each.isdigit():
            try:
                with open("/proc/%s/stat" % each) as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
                found[int(each)] = int(rest.split()[1]), name
            except OSError:
                pass
    return found


def descendants(root):
    """Processes below root, by their parents."""
    known = processes()
    found, more = set(), {root}
    while more:
        more = {pid for pid, (parent, _) in known.items() if parent in more} - found
        found |= more
    return found


def spawned(folder):
    """Everything of the engine whose kernels work in this folder: its spawner is no child of ours, so we look for it from below."""
    known = processes()
    for pid in known:
        try:
            if os.readlink("/proc/%d/cwd" % pid) != folder:
                continue
        except OSError:
            continue
        while known.get(known[pid][0], (0, ""))[1].startswith("workcell") or known[known[pid][0]][1].startswith("python"):
            pid = known[pid][0]
        return descendants(pid) | {pid}
    return set()


def pss(pids):
    total = 0
    for pid in pids:
        try:
            with open("/proc/%d/smaps_rollup" % pid) as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) << 10
        except (OSError, StopIteration):
            pass
    return total


def interpreters(name, make, count, close=lambda: None, folder=None):
    before = descendants(os.getpid())
    begin = time.perf_counter()
    made = [make() for _ in range(count)]
    for number, each in enumerate(made):
        assert "%d" % (number * 2) in str(each.execute("x = %d\nprint(x * 2)" % number))
    seconds = time.perf_counter() - begin
    memory = pss(spawned(folder) if folder else descendants(os.getpid()) - before)
    for each in made:
        each.shutdown()
    close()
    print("dspy, %3d interpreters   %-44s %8.2f s   %8.1f MiB   %7.2f MiB each" % (count, name, seconds, memory / 2**20, memory / 2**20 / count), flush=True)
    return memory / count


def rlm_rows():
    import dspy
    from workcell.integrations.dspy import WorkcellInterpreters

    factory = WorkcellInterpreters("import json, re, math")
    ours = interpreters("Workcell, forks in sandboxes", factory, COUNT, factory.close, factory._base.executor.config.cwd)
    local = getattr(dspy, "LocalInterpreter", None)
    if local is not None:
        interpreters("dspy's LocalInterpreter (no isolation)", local, OWN)
    if DENO is None:
        print("dspy's PythonInterpreter: no deno found, not measured")
        return 0
    theirs = interpreters("dspy's PythonInterpreter (Deno, Pyodide)", dspy.PythonInterpreter, OWN)
    print("memory of one: %.1f times less (asked %d)" % (theirs / ours, LIMIT))
    return 0 if theirs / ours >= LIMIT else 1


status = 0
if WHAT in ("smolagents", "all"):
    smolagents_rows()
if WHAT in ("rlm", "all"):
    status = rlm_rows()
sys.exit(status)
