"""Searching by meaning: an embeddings endpoint that works, that fails in every way, and the search that goes on."""
import json
import os
import shutil
import signal
import subprocess

import pytest

import embeddings_server
import spaces
import support

SECRET = "sk-test-0123456789abcdef"

FLOWS = {
    "rent_car": "Offers for a car at the airport",
    "predict": "The weather of tomorrow in a city",
    "thumbnail": "Makes a small image of a large image",
    "tidy_up": "Will delete old files of a folder",
    "newsletter": "Sends an email to every reader",
    "accounting": "Adds up the bill of each customer",
}
TOOLS = {"wipe": "Will delete a row of the table", "snap": "Takes an image with the camera", "post": "Sends an email"}


@pytest.fixture
def endpoint():
    server = embeddings_server.Server()
    yield server
    server.close()


@pytest.fixture
def base(tmp_path):
    files = {"workflows/%s.py" % name: '"""%s."""\n\n\ndef run(x: str):\n    return x\n' % text
             for name, text in FLOWS.items()}
    files.update({"tools/%s.yaml" % name: "name: %s\ndescription: %s\ncommand: 'true'\nrecipes: {go: }\n" % (name, text)
                  for name, text in TOOLS.items()})
    return spaces.write_files(tmp_path / "base", files)


def flags(base, endpoint, key=None):
    more = ["--embeddings-key-env", key] if key else []
    return ["--base", base, "--embeddings-url", endpoint.url, "--embeddings-model", "test-model"] + more


def search(base, endpoint, query, what="workflows", **options):
    return support.workcell(what, "search", query, "--json", *flags(base, endpoint), **options)


def names(done):
    assert done.status == 0, done
    return [hit["name"] for hit in done.objects[0]]


def fused(done):
    assert done.status == 0, done
    return done.objects[0] != [] and {hit["ranking"] for hit in done.objects[0]} == {"fused"}


def status(driver):
    return driver.value("workflows._channel.call('search.status', {})[0]['embeddings']")


# ---- it finds what is meant --------------------------------------------------------------------------------


def test_without_a_common_word(base, endpoint):
    for query, expected in (("automobile", "rent_car"), ("meteorology", "predict"), ("picture", "thumbnail"),
                            ("purge", "tidy_up"), ("correspondence", "newsletter"), ("receipt", "accounting")):
        assert support.workcell("workflows", "search", query, "--json", "--base", base).objects == [[]], query
        done = search(base, endpoint, query)
        assert names(done)[0] == expected and fused(done) and done.err == "", done
    for query, expected in (("erase", "wipe"), ("photograph", "snap"), ("message", "post")):
        assert support.workcell("tools", "search", query, "--json", "--base", base).objects == [[]], query
        done = search(base, endpoint, query, "tools")
        assert names(done)[0] == expected and done.err == "", done
    assert {each["model"] for each in endpoint.asked} == {"test-model"}
    assert {each["key"] for each in endpoint.asked} == {None}


def test_words_still_count(base, endpoint):
    # A name is a name, whatever is nearer.
    assert names(search(base, endpoint, "predict"))[0] == "predict"
    assert names(search(base, endpoint, "tidy up"))[0] == "tidy_up"
    # What both rankings have comes before what one of them has.
    assert names(search(base, endpoint, "reader correspondence"))[0] == "newsletter"
    assert len(names(support.workcell("workflows", "search", "car", "--limit", "2", "--json", *flags(base, endpoint)))) == 2
    text = support.workcell("workflows", "search", "automobile", *flags(base, endpoint))
    assert text.out.startswith("rent_car(x)"), text


def test_in_a_session(drive, base, endpoint):
    driver = drive(*flags(base, endpoint))
    assert driver.value("workflows.search('automobile')[0]['name']") == "rent_car"
    assert driver.value("tools.search('photograph')[0]['name']") == "snap"
    # What comes, changes and goes in the session.
    driver.value("workflows.create('greet', 'def run():\\n    pass\\n', description='A vehicle of politeness') and None")
    assert driver.value("sorted(w['name'] for w in workflows.search('automobile', limit=2))") == ["greet", "rent_car"]
    driver.value("workflows.delete('rent_car') and None")
    assert driver.value("workflows.search('automobile', limit=2)[0]['name']") == "greet"
    spaces.write_files(base, {"tools/drive.yaml": "name: drive\ndescription: Hires a sedan\ncommand: 'true'\nrecipes: {go: }\n"})
    assert driver.value("tools.search('automobile')[0]['name']") == "drive"
    state = status(driver)
    assert state["state"] == "ok" and state["error"] is None and state["model"] == "test-model", state
    assert state["workflows"] == {"documents": 6, "embedded": 6, "refused": 0, "dimensions": 64}, state
    assert state["tools"]["embedded"] == 4, state
    # Many at once.
    assert driver.value("""\
import threading
found = []
threads = [threading.Thread(target=lambda q=q: found.append((q, workflows.search(q)[0]['name'])))
           for q in ('picture', 'purge', 'photo', 'erase', 'rain', 'picture') * 5]
for thread in threads: thread.start()
for thread in threads: thread.join()
[list(each) for each in sorted(set(found))]
""") == [["erase", "tidy_up"], ["photo", "thumbnail"], ["picture", "thumbnail"], ["purge", "tidy_up"],
         ["rain", "predict"]]


def test_without_an_endpoint_nothing_is_told(drive, base):
    driver = drive("--base", base)
    assert driver.value("workflows.search('car')[0]['name']") == "rent_car"
    assert status(driver) is None
    hit = support.workcell("workflows", "search", "car", "--json", "--base", base).objects[0][0]
    assert "ranking" not in hit


# ---- the cache ---------------------------------------------------------------------------------------------


def test_only_new_and_changed_documents_are_embedded(base, endpoint):
    search(base, endpoint, "automobile")
    assert len(endpoint.texts) == len(FLOWS) + 1
    assert all(text.startswith(tuple(name.replace("_", " ") for name in FLOWS)) for text in endpoint.texts if text != "automobile")
    endpoint.set("ok")
    assert names(search(base, endpoint, "vehicle"))[0] == "rent_car"
    assert endpoint.texts == ["vehicle"]
    endpoint.set("ok")
    spaces.write_files(base, {"workflows/newsletter.py": '"""Drives a car."""\n\n\ndef run():\n    pass\n'})
    assert set(names(search(base, endpoint, "automobile"))[:2]) == {"rent_car", "newsletter"}
    assert sorted(text.split()[0].rstrip(":") for text in endpoint.texts) == ["automobile", "newsletter"]
    # It is a cache, in a file of its own.
    endpoint.set("ok")
    os.unlink(os.path.join(base, ".cache", "search.sqlite"))
    assert names(search(base, endpoint, "vehicle"))[0] in ("rent_car", "newsletter")
    assert endpoint.texts == ["vehicle"]
    shutil.rmtree(os.path.join(base, ".cache"))
    assert names(search(base, endpoint, "vehicle"))[0] in ("rent_car", "newsletter")
    assert len(endpoint.texts) == 1 + len(FLOWS) + 1
    with open(os.path.join(base, ".cache", "vectors.sqlite"), "r+b") as file:
        file.write(b"not a database any more" * 1000)
    assert names(search(base, endpoint, "vehicle"))[0] in ("rent_car", "newsletter")


def test_tools_are_embedded_once(base, endpoint):
    search(base, endpoint, "erase", "tools")
    assert len(endpoint.texts) == len(TOOLS) + 1
    endpoint.set("ok")
    assert names(search(base, endpoint, "purge", "tools"))[0] == "wipe"
    assert endpoint.texts == ["purge"]


def test_tools_without_a_storage(base, endpoint):
    done = support.workcell("tools", "search", "erase", "--json", "--tools", os.path.join(base, "tools"),
                            "--embeddings-url", endpoint.url, "--embeddings-model", "m")
    assert names(done)[0] == "wipe", done
    assert not os.path.exists(os.path.join(base, ".cache"))


def test_a_query_is_asked_once(drive, base, endpoint):
    driver = drive(*flags(base, endpoint))
    driver.value("[workflows.search('picture') for _ in range(5)] and [tools.search('picture') for _ in range(5)] and None")
    assert endpoint.texts.count("picture") == 1


def test_a_read_only_storage(base, endpoint):
    if os.geteuid() == 0 and shutil.which("unshare") is None:
        pytest.skip("root writes everywhere, and there is no unshare")
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", script, "sh", base, support.BIN, "workflows", "search", "automobile", "--json",
            *flags(base, endpoint)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.host_environment(),
                          timeout=support.DEADLINE, check=False)
    if b"unshare" in done.stderr or b"mount:" in done.stderr:
        pytest.skip("this user cannot mount: %r" % done.stderr)
    assert json.loads(done.stdout)[0]["name"] == "rent_car", done


# ---- the endpoint fails ------------------------------------------------------------------------------------

FAULTS = {
    "status 500": "HTTP 500: told to fail", "status 404": "HTTP 404", "status 503": "HTTP 503",
    "status 401": "HTTP 401: it requires a key", "busy 7": "searching by words only for 7 s",
    "reset": "mpty reply", "cut": "", "redirect": "HTTP 307: it redirects", "garbage": "not JSON", "html": "not JSON",
    "empty": "not JSON", "count": "0 vectors for 1 texts", "more": "vectors",
    "nan": "not JSON", "infinite": "not JSON", "huge": "too large", "text": "not a number", "null": "not a number",
    "flood": "larger than",
}


@pytest.mark.parametrize("mode", FAULTS)
def test_a_fault_is_told_and_words_go_on(base, endpoint, mode):
    endpoint.set(mode)
    done = search(base, endpoint, "car airport")
    assert names(done) == ["rent_car"] and not fused(done), done
    assert "workcell: warning: embeddings: " in done.err and FAULTS[mode] in done.err, done
    assert "searching by words only for " in done.err, done
    done = search(base, endpoint, "image camera", "tools")
    assert names(done) == ["snap"] and FAULTS[mode] in done.err, done
    assert not endpoint.led_elsewhere


def test_nobody_listens(base, endpoint):
    endpoint.close()
    done = search(base, endpoint, "car airport")
    assert names(done) == ["rent_car"] and "embeddings: " in done.err and "onnect" in done.err, done
    done = support.workcell("workflows", "search", "car", "--json", "--base", base, "--embeddings-url",
                            "http://no-such-host.invalid/v1/embeddings", "--embeddings-model", "m")
    assert names(done) == ["rent_car"] and "esolve host" in done.err, done
    endpoint.__init__()  # for the fixture to close


@pytest.mark.parametrize("mode", ["hang", "slow 600"])
def test_no_answer(drive, base, endpoint, mode):
    endpoint.set(mode)
    done = search(base, endpoint, "car airport")
    assert names(done) == ["rent_car"] and "embeddings: no answer within 3 s" in done.err, done
    driver = drive(*flags(base, endpoint))
    assert driver.value("[w['name'] for w in workflows.search('car')]") == ["rent_car"]
    state = status(driver)
    assert state["state"] == "slow" and state["error"] == "no answer yet", state
    # While it is slow nobody waits for it.
    assert driver.value("[w['name'] for w in workflows.search('weather')]") == ["predict"]
    assert [t["name"] for t in driver.value("tools.search('camera')")] == ["snap"]
    # And the session ends although a request is under way.
    driver.close()


def test_an_interrupted_search(drive, base, endpoint):
    endpoint.set("hang")
    driver = drive(*flags(base, endpoint))
    for code in ("workflows.search('car')", "tools.search('camera')"):
        endpoint.set("hang")
        result = driver.run(code, timeout=0.5)
        assert result["error"]["code"] == "timeout" and result["state"] == "kept", result
    assert driver.value("1 + 1") == 2
    # The program is ended while somebody waits for an answer.
    other = drive(*flags(base, endpoint))
    other.start("workflows.search('weather')")
    support.wait_until(lambda: "weather" in endpoint.texts, "the question has arrived")
    other.process.send_signal(signal.SIGTERM)
    assert other.process.wait(support.DEADLINE) == 143, other.stderr_text()


def test_a_slow_answer_still_counts(drive, base, endpoint):
    endpoint.set("slow 4")
    driver = drive(*flags(base, endpoint))
    assert driver.value("workflows.search('automobile')") == []
    support.wait_until(lambda: status(driver)["state"] == "ok", "the late answer")
    endpoint.set("ok")
    support.wait_until(lambda: driver.value("[w['name'] for w in workflows.search('automobile')][:1]") == ["rent_car"],
                       "the query's vector is known now, and documents follow")
    assert "automobile" not in endpoint.texts


@pytest.mark.parametrize("mode", ["status 500", "garbage", "reset", "count"])
def test_it_is_tried_again(drive, base, endpoint, mode):
    driver = drive(*flags(base, endpoint))
    endpoint.set(mode)
    assert driver.value("workflows.search('automobile')") == []
    state = status(driver)
    assert state["state"] == "resting" and state["error"] and state["retry_ms"] > 0, state

    # Not at once: a rest, which grows from failure to failure, may end on the way, but not with every question.
    def asks_nobody():
        asked = len(endpoint.asked)
        driver.value("[workflows.search(q) for q in ('a', 'b', 'c')] and None")
        return len(endpoint.asked) == asked

    support.wait_until(asks_nobody, "it rests")
    endpoint.set("ok")
    support.wait_until(lambda: driver.value("[w['name'] for w in workflows.search('automobile')][:1]") == ["rent_car"],
                       "the endpoint is used again")
    state = status(driver)
    assert state["state"] == "ok" and state["error"] is None, state
    assert "embeddings: " in driver.stderr_text()


def test_documents_fail_where_the_query_did_not(drive, base, endpoint):
    """A batch with a wrong answer leaves no document with a wrong vector."""
    driver = drive(*flags(base, endpoint))
    endpoint.set("uneven")  # one vector is as it should be, of several the last is short
    found = driver.run("workflows.search('automobile')")
    assert found["error"] is None, found
    assert status(driver)["workflows"]["embedded"] == 0
    endpoint.set("ok")
    support.wait_until(lambda: driver.value("[w['name'] for w in workflows.search('automobile')][:1]") == ["rent_car"],
                       "the documents get their vectors")


# ---- many documents, and some that are refused -------------------------------------------------------------


def test_many_documents_are_not_waited_for(drive, tmp_path, endpoint):
    base = spaces.write_files(tmp_path / "many", {
        "workflows/flow_%d.py" % i: '"""Task %d about a car."""\n\n\ndef run():\n    pass\n' % i for i in range(300)})
    driver = drive(*flags(base, endpoint))
    assert len(driver.value("workflows.search('task 7 car')")) == 5
    support.wait_until(lambda: driver.value("len(workflows.search('automobile'))") >= 0
                       and status(driver)["workflows"]["embedded"] == 300, "all are embedded")
    texts = [text for text in endpoint.texts if text.startswith("flow ")]
    assert len(texts) == len(set(texts)) == 300, "each once"
    assert max(len(each["input"]) for each in endpoint.asked) == 64


@pytest.mark.parametrize("mode", ["most 4", "long 300"])
def test_batches_and_texts_become_as_small_as_needed(drive, base, endpoint, mode):
    spaces.write_files(base, {"workflows/large_%d.py" % i: '"""Tunes an automobile."""\n\n\ndef run():\n' + "    automobile()\n" * 400
                              for i in range(6)})
    endpoint.set(mode)
    driver = drive(*flags(base, endpoint))
    support.wait_until(lambda: driver.value("len(workflows.search('sedan', limit=20))")
                       and status(driver)["workflows"]["embedded"] == 12, "all are embedded in the end")
    assert status(driver)["workflows"]["refused"] == 0
    assert {w["name"] for w in driver.value("workflows.search('sedan', limit=7)")} == {
        "rent_car", *("large_%d" % i for i in range(6))}


def test_one_that_is_refused_does_not_hold_up_the_others(drive, base, endpoint):
    spaces.write_files(base, {"workflows/a_taboo.py": '"""Speaks of voldemort."""\n\n\ndef run():\n    pass\n'})
    endpoint.set("word voldemort")
    driver = drive(*flags(base, endpoint))
    support.wait_until(lambda: driver.value("len(workflows.search('automobile'))")
                       and status(driver)["workflows"]["embedded"] == len(FLOWS), "the others are embedded")
    state = status(driver)
    assert state["workflows"]["refused"] == 1 and state["state"] == "ok", state
    assert "'a_taboo' is skipped: HTTP 400: we do not speak of that" in driver.stderr_text()
    assert driver.value("workflows.search('voldemort')[0]['name']") == "a_taboo"
    asked = len(endpoint.asked)
    driver.value("[workflows.search('automobile') for _ in range(3)] and None")
    assert len(endpoint.asked) == asked, "it is not asked for again"


def test_another_number_of_dimensions(drive, base, endpoint):
    """Once it is a failure; a model that has changed behind its name is taken as it is."""
    search(base, endpoint, "automobile")
    driver = drive(*flags(base, endpoint))
    assert driver.value("workflows.search('vehicle')[0]['name']") == "rent_car"
    endpoint.set("wide")
    assert driver.value("[w['name'] for w in workflows.search('weather city')]") == ["predict"]
    state = status(driver)
    assert state["state"] == "resting" and "128 dimensions" in state["error"], state
    endpoint.set("ok")
    support.wait_until(lambda: driver.value("[w['name'] for w in workflows.search('sedan')][:1]") == ["rent_car"],
                       "as before")
    endpoint.set("wide")
    support.wait_until(lambda: driver.value("len(workflows.search('photo', limit=20))") is not None
                       and status(driver)["workflows"] == {"documents": 6, "embedded": 6, "refused": 0,
                                                           "dimensions": 128}, "embedded anew")
    assert driver.value("workflows.search('photograph')[0]['name']") == "thumbnail"


# ---- the key -----------------------------------------------------------------------------------------------


def key_environment():
    return support.host_environment(EMBED_KEY=SECRET)


def test_the_key_goes_to_the_endpoint_and_nowhere_else(drive, base, endpoint):
    driver = drive(*flags(base, endpoint, "EMBED_KEY"), env=key_environment())
    assert driver.value("workflows.search('automobile')[0]['name']") == "rent_car"
    assert {each["key"] for each in endpoint.asked} == {"Bearer " + SECRET}
    shown = [json.dumps(status(driver))]
    for mode in ("echo 400", "echo 401", "echo 500", "status 403"):
        endpoint.set(mode)
        support.wait_until(lambda: driver.value("len(workflows.search(%r))" % (mode + str(len(shown)))) >= 0
                           and endpoint.asked, "it is asked again")
        shown.append(json.dumps(status(driver)))
        shown.append(support.workcell("workflows", "search", "car", "--json", *flags(base, endpoint, "EMBED_KEY"),
                                      env=key_environment()).err)
        assert "embeddings: HTTP" in shown[-1], shown
    shown += [driver.stderr_text(), json.dumps(driver.events)]
    assert not any(SECRET in text for text in shown), shown
    assert not spaces.memory_holds(driver.kernel_pid(), SECRET.encode())
    driver.close()
    for folder, _, files in os.walk(base):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                assert SECRET.encode() not in file.read(), name


def test_a_key_that_is_not_there(base, endpoint):
    done = support.workcell("workflows", "search", "car", "--json", *flags(base, endpoint, "EMBED_KEY"))
    assert names(done) == ["rent_car"] and "environment variable EMBED_KEY" in done.err, done
    assert endpoint.asked == []
    done = support.workcell("workflows", "search", "car", "--json", *flags(base, endpoint, "EMBED_KEY"),
                            env=support.host_environment(EMBED_KEY=SECRET + "\nX-Evil: 1"))
    assert names(done) == ["rent_car"] and "line break" in done.err and SECRET not in done.err, done
    assert endpoint.asked == []


@pytest.mark.parametrize("wrong, message", [
    (["--embeddings-url", "http://x"], "--embeddings-url needs --embeddings-model"),
    (["--embeddings-model", "m"], "--embeddings-model needs --embeddings-url"),
    (["--embeddings-key-env", "K"], "--embeddings-key-env needs --embeddings-url"),
    (["--embeddings-url", "ftp://user:secret@x", "--embeddings-model", "m"], "http:// or https://"),
    (["--embeddings-url", "http://x", "--embeddings-model", ""], "name of a model"),
    (["--embeddings-url", "http://x", "--embeddings-model", "m", "--embeddings-key-env", "sk-secret"], "name of a variable"),
])
def test_wrong_flags(base, wrong, message):
    for command in (["workflows", "search", "x"], ["tools", "search", "x"], ["run", "-e", "1"]):
        done = support.workcell(*command, "--base", base, *wrong)
        assert done.error_code == "invalid" and message in done.error_message, done
        assert done.status == support.EXIT["invalid"] and "secret" not in done.err, done
    done = support.workcell("run", "-e", "1", "--embeddings-url", "http://x", "--embeddings-model", "m")
    assert done.error_code == "invalid" and "to search in" in done.error_message, done
