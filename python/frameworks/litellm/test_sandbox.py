"""LiteLLM's sandbox provider for E2B, unmodified, against `workcell serve --e2b --e2b-domain`.

It makes the address of a sandbox itself, https://49999-ID.DOMAIN: the server has a certificate for such names, and this process resolves them.
"""
import asyncio
import os
import socket
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it is fetched otherwise
import serving  # noqa: E402

TOKEN = "t0ken-of-litellm-" + "x" * 30
TOKENS = "tokens:\n  - {name: litellm, token: %s}\n  - {name: tests, token: t0ken-of-the-tests}\n" % TOKEN
DOMAIN = "cells.test"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=" + DOMAIN,
                    "-addext", "subjectAltName=DNS:%s,DNS:*.%s" % (DOMAIN, DOMAIN), "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
                   check=True, stderr=subprocess.DEVNULL)
    port = serving.free_port()
    made = serving.Server("--executor", "sandbox", "--e2b", "--e2b-domain", "%s:%d" % (DOMAIN, port), "--tls-cert", folder / "cert.pem", "--tls-key",
                          folder / "key.pem", python="/usr/bin/python3", tokens=TOKENS, listen="127.0.0.1:%d" % port)
    made.base = "https://%s:%d" % (DOMAIN, port)
    made.cert = str(folder / "cert.pem")
    yield made
    made.close()


@pytest.fixture
def litellm(server, monkeypatch):
    real = socket.getaddrinfo

    def resolve(host, *rest, **options):
        name = host.decode() if isinstance(host, bytes) else host
        return real("127.0.0.1" if name and name.endswith(DOMAIN) else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("SSL_CERT_FILE", server.cert)
    import litellm as module

    monkeypatch.setattr(module, "ssl_verify", server.cert)
    monkeypatch.setenv("DISABLE_AIOHTTP_TRANSPORT", "True")  # its resolver does not ask this process
    monkeypatch.setattr(module, "disable_aiohttp_transport", True)
    return module


def test_a_sandbox_is_made_used_and_deleted(litellm, server):
    from litellm.sandbox.main import acreate_sandbox, adelete_sandbox, arun_code

    async def work():
        options = {"provider": "e2b", "api_key": TOKEN}
        container = await acreate_sandbox(api_base=server.base, timeout=120, **options)
        assert container.domain == "%s:%d" % (DOMAIN, server.port)
        first = await arun_code(container=container, code="import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)", **options)
        assert (first.stdout, first.stderr, first.error, first.results) == ("out\n", "err\n", None, [])
        second = await arun_code(container=container, code="x * 2 + 2", **options)
        assert second.results[0]["text"] == "42", second
        failed = await arun_code(container=container, code="1/0", **options)
        assert failed.error["name"] == "ZeroDivisionError", failed
        assert await adelete_sandbox(container=container, api_base=server.base, **options) is True
        assert await adelete_sandbox(container=container, api_base=server.base, **options) is False

    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_code_interpreter_leaves_nothing(litellm, server):
    from litellm.sandbox.main import acode_interpreter_tool

    async def work():
        return await acode_interpreter_tool(provider="e2b", code="print(6 * 7)", api_key=TOKEN, api_base=server.base)

    assert asyncio.run(asyncio.wait_for(work(), 60)).stdout == "42\n"


def test_a_wrong_token_is_refused(litellm, server):
    from litellm.sandbox.main import acreate_sandbox

    with pytest.raises(Exception, match="401|[Ii]nvalid"):
        asyncio.run(asyncio.wait_for(acreate_sandbox(provider="e2b", api_key="wrong" * 10, api_base=server.base), 60))
