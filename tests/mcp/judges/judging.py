"""What the Python SDKs have to do, once for all of them: a judge has `call(tool, arguments, **options)`, which returns (structured, content, failed)."""
import asyncio
import base64
import json

CALL = "__import__('json').loads(tools.probe.go(a='x'))['argv'][-1]"
IMAGE = "import os\nclass P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(3 << 20)\nP()"


async def judge(call, seconds, interrupts=False):
    """interrupts: the SDK does not tell the server of a call that is given up. A value, a silent cell, a cancelled one, a large image, an approval, a job that goes on without its client."""
    found = {}
    structured, _, _ = await call("run_code", {"code": "x = 42"})
    session = {"session": structured["session"]} if "session" in structured else {}
    found["value"] = (await call("run_code", {"code": "x", **session}))[0]["value"]
    found["silent"] = (await call("run_code", {"code": "import time; time.sleep(%g); 'slept'" % seconds, **session}))[0]["value"]
    try:
        await asyncio.wait_for(call("run_code", {"code": "time.sleep(600)", **session}), 1)
        found["cancelled"] = False
    except asyncio.TimeoutError:
        if interrupts:
            await call("interrupt", session)
        found["cancelled"] = (await call("run_code", {"code": "x", **session}))[0]["value"] == 42
    _, content, _ = await call("run_code", {"code": IMAGE, **session})
    found["image"] = [len(base64.b64decode(part.data)) for part in content if part.type == "image"]
    found["approved"] = (await call("run_code", {"code": CALL, **session}))[0]["value"]
    job = (await call("run_code", {"code": "time.sleep(1); 'went on'", "wait_ms": 0, **session}))[0]["job"]
    for _ in range(100):
        got = (await call("get_job", {"job": job, "wait_ms": 1000}))[0]
        if "value" in got:
            found["job"] = got["value"]
            break
    print(json.dumps(found))
