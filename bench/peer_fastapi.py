"""The peer of the server's benchmark: what people run today, a FastAPI app that execs in process (python3 peer_fastapi.py PORT)."""
import ast
import contextlib
import io
import sys
import time
import traceback
import uuid

import uvicorn
from fastapi import FastAPI, Header
from pydantic import BaseModel

app = FastAPI()
sessions = {}


class Execute(BaseModel):
    code: str
    timeout: float | None = None


class Executed(BaseModel):
    value: object
    stdout: str
    error: str | None
    execution_time_ms: float
    session_id: str


@app.post("/execute")
async def execute(body: Execute, x_session_id: str | None = Header(None)) -> Executed:
    session = x_session_id or str(uuid.uuid4())
    names = sessions.setdefault(session, {"__builtins__": __builtins__})
    began, value, error, out = time.perf_counter(), None, None, io.StringIO()
    try:
        tree = ast.parse(body.code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(tree, "<code>", "exec"), names)
            if last:
                value = eval(compile(ast.Expression(last.value), "<expr>", "eval"), names)
    except Exception:
        error = traceback.format_exc()
    return Executed(value=value, stdout=out.getvalue(), error=error, execution_time_ms=(time.perf_counter() - began) * 1000, session_id=session)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
