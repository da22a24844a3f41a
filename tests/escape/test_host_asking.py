"""Attacks on questions and on those who answer them: terminal, MCP elicitation, policies, the audit log, zygotes.

Each test is an attempt of code in a session to get a yes that nobody gave, to hide what it asks for, or to reach the host by
what it prints.
"""
import json
import os
import re

import pytest

import spaces
import support

ASK = ("--approve", "ask", "--approve-shell")


def is_request(event):
    return event["event"] == "approval"


def audit_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ---- the audit log ---------------------------------------------------------------------------------------------


def withdraw_by_interrupt(driver):
    driver.interrupt()
    assert driver.answer()["error"]["code"] == "interrupted"


def withdraw_by_end(driver):
    driver.process.terminate()
    driver.process.wait(support.DEADLINE)


@pytest.mark.parametrize("withdraw", [withdraw_by_interrupt, withdraw_by_end], ids=["interrupt", "end"])
def test_a_withdrawn_question_is_not_logged_as_allowed(drive, tmp_path, withdraw):
    """The code asks and takes the question back: the log must not read as if the call had been allowed."""
    log = tmp_path / "audit.jsonl"
    driver = drive(*ASK, "--audit", log)
    driver.start("!echo never")
    driver.next_event(is_request)
    withdraw(driver)
    if driver.process.poll() is None:
        driver.close()
    record, = audit_lines(log)
    assert (record["decision"], record["by"], record["outcome"]) == ("withdrawn", "session", "cancelled"), record


def test_a_kernel_that_dies_while_it_asks_is_not_logged_as_allowed(drive, tmp_path):
    """A thread asks, and the main thread kills the process while the question is open."""
    log = tmp_path / "audit.jsonl"
    driver = drive(*ASK, "--audit", log)
    go = tmp_path / "go"
    driver.start("import os, threading\n"
                 "threading.Thread(target=lambda: get_ipython().system('echo never')).start()\n"
                 "while not os.path.exists(%r): pass\n"
                 "os._exit(1)" % str(go))
    driver.next_event(is_request)
    go.write_text("")
    assert driver.answer()["error"]["code"] == "kernel_died"
    driver.close()
    record, = audit_lines(log)
    assert (record["decision"], record["by"], record["outcome"]) == ("withdrawn", "session", "cancelled"), record
