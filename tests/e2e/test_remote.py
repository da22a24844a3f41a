"""The executor remote: sessions of a session server, over connections that break."""
import signal
import socket
import threading

import pytest

import serving
import support


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving.shared("--executor", "subprocess", "--storage", tmp_path_factory.mktemp("st"), tokens=serving.TOKEN) as made:
        yield made


def flags_for(server, port=None):
    return ["--executor", "remote", "--remote-url", "http://127.0.0.1:%d" % (port or server.port), "--auth-token-file", server.tokens]


def test_values_state_and_errors(server):
    done = support.workcell("run", "--json", "--keep-going", *flags_for(server), "-e", "x = 10 ** 5000\nprint('hi')", "-e", "x.bit_length()", "-e", "x",
                            "-e", "1/0", "-e", "import os; os._exit(4)", "-e", "'x' in globals()")
    first, length, value, error, dead, after = done.results
    assert first["stdout"] == "hi\n" and length["value"] == (10 ** 5000).bit_length() and value["value"] == 10 ** 5000
    assert error["error"]["type"] == "ZeroDivisionError" and error["error"]["code"] == "exception"
    assert dead["error"]["code"] == "kernel_died" and dead["state"] == "lost" and "status 4" in dead["error"]["message"]
    assert after["value"] is False
    assert first["isolation"]["executor"] == "remote" and first["isolation"]["server"]["executor"] == "subprocess"


def test_sessions_end_with_the_program(server):
    before = server.metric("sessions")
    done = support.workcell("run", "--json", *flags_for(server), "-e", "1")
    assert done.status == 0
    # Fewer, if one of an earlier test was still ending when they were counted.
    support.wait_until(lambda: server.metric("sessions") <= before, "the session to be gone")


def test_workspace_is_the_servers(server):
    assert support.workcell("run", "--workspace", "w", *flags_for(server), "-e", "artifacts.save('a', 'of w').name").status == 0
    got = support.workcell("run", "--json", "--workspace", "w", *flags_for(server), "-e", "artifacts.load('a')").result
    assert got["value"] == "of w"
    assert support.workcell("run", *flags_for(server), "-e", "artifacts.load('a')").status == 1


def test_a_connection_that_breaks_again_and_again(server):
    proxy = serving.Proxy(server.port, cut_after=700000)
    done = support.workcell("run", *flags_for(server, proxy.port), "-e", "for i in range(3000): print('%05d' % i * 200)", deadline=support.DEADLINE * 2)
    assert done.status == 0 and done.out == "".join("%05d" % i * 200 + "\n" for i in range(3000))
    assert proxy.cuts >= 3
    proxy.close()


def test_a_quiet_connection_that_breaks(server, tmp_path):
    proxy, go = serving.Proxy(server.port), tmp_path / "go"
    driver = support.Driver(*flags_for(server, proxy.port)[2:], executor="remote")
    driver.start("import os, time\nprint('on', flush=True)\nwhile not os.path.exists(%r): time.sleep(0.01)\n'done'" % str(go))
    driver.next_event(lambda event: event["event"] == "chunk")
    proxy.cut()
    go.write_text("")
    assert driver.answer()["value"] == "done"
    proxy.close()
    assert driver.close() == 0


def refusal(status, code):
    body = b'{"detail":"not now","code":"%s"}' % code
    return b"HTTP/1.1 %s X\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_the_opening_is_repeated_where_nobody_has_done_it(server):
    """503: the server stops, or starts; 502 and an answer that does not come: it died, and nobody knows the session that it may have opened."""
    proxy = serving.Proxy(server.port, answers=[refusal(b"503", b"busy"), b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", b"",
                                                refusal(b"503", b"busy")])
    done = support.workcell("run", "--json", *flags_for(server, proxy.port), "-e", "6 * 7")
    assert done.result["value"] == 42 and not proxy.answers, done
    proxy.close()
    for status, code, said in ((b"429", b"busy", "busy"), (b"403", b"forbidden", "forbidden"), (b"500", b"io", "io")):
        proxy = serving.Proxy(server.port, answers=[refusal(status, code)])
        assert support.workcell("run", *flags_for(server, proxy.port), "-e", "1").error_code == said
        proxy.close()


def test_a_program_ends_while_it_waits_to_open_again(server):
    proxy = serving.Proxy(server.port, answers=[refusal(b"503", b"busy")] * 1000)
    driver = support.Driver(*flags_for(server, proxy.port)[2:], executor="remote")
    driver.start("1")
    support.wait_until(lambda: len(proxy.answers) < 998, "it has been repeated")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.close() != 0
    proxy.close()


def test_a_run_whose_number_did_not_arrive(server, tmp_path):
    """Its connection broke before the server's first byte was there: it is found by the name that it gives to the state after it."""
    proxy, go = serving.Proxy(server.port), tmp_path / "go"
    others = {each["session_id"] for each in server.ask("GET", "/v1/sessions").json["sessions"]}
    driver = support.Driver(*flags_for(server, proxy.port)[2:], executor="remote")
    driver.run("n = 0")
    session, = {each["session_id"] for each in server.ask("GET", "/v1/sessions").json["sessions"]} - others
    proxy.passes.clear()
    driver.start("import os, time\nprint('on', flush=True)\nn += 1\nwhile not os.path.exists(%r): time.sleep(0.01)\nn" % str(go))
    support.wait_until(lambda: server.ask("GET", "/v1/sessions/%s" % session).json["running"], "the cell runs")
    proxy.lose()
    driver.next_event(lambda event: event["event"] == "chunk")
    go.touch()
    result = driver.answer()
    assert result["value"] == 1 and result["stdout"] == "on\n", result
    assert driver.close() == 0
    proxy.close()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_cell_that_did_not_arrive_is_sent_again(server, fresh):
    """The server knows that: it has had the session all the time."""
    proxy = serving.Proxy(server.port)
    driver = support.Driver(*flags_for(server, proxy.port)[2:], executor="remote")
    driver.run("n = 0")
    if fresh:
        proxy.cut()
    proxy.drops = 1
    result = driver.run("n += 1\nn")
    assert result["value"] == 1 and result["error"] is None and proxy.drops == 0, result
    assert driver.close() == 0
    proxy.close()


def test_interrupt_and_timeout(server):
    driver = support.Driver(*flags_for(server)[2:], executor="remote")
    driver.start("print('on', flush=True)\nwhile True: pass")
    driver.next_event(lambda event: event["event"] == "chunk")
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"
    late = driver.run("while True: pass", timeout=0.3)
    assert late["error"]["code"] == "timeout" and late["state"] == "kept"
    assert driver.value("5") == 5
    assert driver.close() == 0


def end_sessions(server):
    for session in server.ask("GET", "/v1/sessions").json["sessions"]:
        server.ask("DELETE", "/v1/sessions/" + session["session_id"])


def test_an_expired_session_is_told_or_opened_again(server):
    for reopen in (False, True):
        driver = support.Driver(*flags_for(server)[2:], *(["--remote-reopen"] if reopen else []), executor="remote")
        driver.value("1")
        end_sessions(server)
        if not reopen:
            answer = driver.run("2")
            assert answer["error"]["code"] == "session_expired", answer
            assert driver.close() == support.EXIT["session_expired"]
        else:
            assert driver.value("3") == 3
            assert driver.close() == 0


def test_what_cannot_work_is_said(server, tmp_path):
    def refused(code, *flags):
        done = support.workcell("run", "--executor", "remote", *flags, "-e", "1")
        assert done.error_code == code, done

    (tmp_path / "bad").write_text("not-the-right-token\n")
    url = "http://127.0.0.1:%d" % server.port
    refused("invalid")
    refused("invalid", "--remote-url", "ftp://x")
    refused("unauthorized", "--remote-url", url)
    refused("unauthorized", "--remote-url", url, "--auth-token-file", tmp_path / "bad")
    refused("io", "--remote-url", "http://127.0.0.1:1")
    refused("invalid", *flags_for(server)[2:], "--base", tmp_path)
    done = support.workcell("run", "--remote-url", url, "-e", "1")
    assert done.error_code == "invalid"


def test_by_unix_socket(tmp_path):
    server = serving.Server("--executor", "subprocess", listen="unix:%s" % (tmp_path / "s"), tokens=serving.TOKEN, pool=0)
    done = support.workcell("run", "--json", "--executor", "remote", "--remote-url", "unix:%s" % (tmp_path / "s"), "--auth-token-file",
                            server.tokens, "-e", "6 * 7")
    assert done.result["value"] == 42
    server.close()
