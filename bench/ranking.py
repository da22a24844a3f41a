#!/usr/bin/env python3
"""ranking.py [--embeddings builtin|NAME] [--original DIR] [--json]: how good are searches of tools?

Sixty questions in an agent's words about 40 tools, none of which repeats the tool's name. For words alone (BM25) and with a model
(`--embeddings`): the share of questions whose tool is among the first three (recall@3), and the mean reciprocal rank (MRR). Then the time
of a search with a new query. Needs WORKCELL_BIN, or build/workcell.

--original DIR adds the ranking of the original, the cosine of "NAME: DESCRIPTION" and the query with its prefix, by the *.onnx and *tokenizer.json in
DIR. Its package is in no registry, so these few lines stand for it; they need onnxruntime, tokenizers and numpy.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))

TOOLS = {
    "send_email": "Send an email message to a recipient", "read_inbox": "List the newest messages in the mailbox",
    "web_search": "Search the web and return links with snippets", "fetch_page": "Download a web page and return its text",
    "create_event": "Create a calendar event with time and attendees", "list_events": "List calendar events between two dates",
    "get_weather": "Current weather conditions for a city", "weather_forecast": "Weather forecast for the coming days",
    "sql_query": "Run a SQL query against the database", "describe_table": "Show the columns and types of a database table",
    "create_issue": "Open a new issue in the bug tracker", "close_issue": "Mark an issue in the tracker as done",
    "list_pull_requests": "List open pull requests of a repository", "merge_pull_request": "Merge a pull request into its base branch",
    "git_diff": "Show changes between two commits", "git_log": "Show the commit history of a repository",
    "read_file": "Read the contents of a file from disk", "write_file": "Write text to a file on disk",
    "delete_file": "Remove a file from disk", "list_directory": "List the files in a folder",
    "resize_image": "Change the width and height of a picture", "convert_image": "Convert a picture to another format",
    "transcribe_audio": "Turn a speech recording into text", "text_to_speech": "Read text aloud as an audio file",
    "translate_text": "Translate text from one language to another", "summarize_text": "Write a short summary of a long text",
    "currency_rate": "Exchange rate between two currencies", "stock_price": "Latest price of a share on the stock market",
    "create_invoice": "Create an invoice for a customer", "refund_payment": "Give a customer's payment back",
    "track_parcel": "Where a shipment is and when it will arrive", "book_flight": "Reserve seats on an airplane",
    "find_hotel": "Find places to stay in a city with prices", "route_directions": "Driving directions between two places",
    "restart_server": "Restart a virtual machine", "server_metrics": "CPU, memory and disk usage of a server",
    "rotate_secret": "Replace an API key with a new one", "post_message": "Post a message to a chat channel",
    "create_chart": "Draw a chart from a table of numbers", "schedule_job": "Run a task at a given time, repeatedly",
}
QUESTIONS = [
    ("write to my colleague that I am late", "send_email"), ("notify a person by mail", "send_email"), ("did anybody write to me", "read_inbox"),
    ("unread mail", "read_inbox"), ("google something", "web_search"), ("find articles on the internet", "web_search"),
    ("open this URL and give me what it says", "fetch_page"), ("scrape a site", "fetch_page"), ("arrange a meeting on Friday", "create_event"),
    ("put an appointment into my agenda", "create_event"), ("what am I doing tomorrow", "list_events"), ("is it raining in Paris", "get_weather"),
    ("how hot is it outside now", "get_weather"), ("will it snow this weekend", "weather_forecast"), ("select rows from postgres", "sql_query"),
    ("ask the database", "sql_query"), ("schema of a relation", "describe_table"), ("which fields does this entity have", "describe_table"),
    ("report a defect", "create_issue"), ("file a ticket", "create_issue"), ("resolve the ticket", "close_issue"),
    ("code reviews that are waiting", "list_pull_requests"), ("land the reviewed branch", "merge_pull_request"),
    ("what was modified between versions", "git_diff"), ("compare two revisions", "git_diff"), ("who changed this and when", "git_log"),
    ("past revisions", "git_log"), ("show me what is inside notes.txt", "read_file"), ("load a document from the file system", "read_file"),
    ("save this text", "write_file"), ("store a document", "write_file"), ("erase a document", "delete_file"), ("get rid of old logs", "delete_file"),
    ("what is in this directory", "list_directory"), ("make the photo smaller", "resize_image"), ("scale a thumbnail", "resize_image"),
    ("png to jpeg", "convert_image"), ("what was said in the voice memo", "transcribe_audio"), ("subtitles for a podcast", "transcribe_audio"),
    ("say this sentence with a voice", "text_to_speech"), ("put this into German", "translate_text"), ("what does this Spanish sentence mean", "translate_text"),
    ("tl;dr of an article", "summarize_text"), ("condense a report", "summarize_text"), ("how many dollars is a euro", "currency_rate"),
    ("convert money", "currency_rate"), ("how is Apple trading", "stock_price"), ("bill a client", "create_invoice"),
    ("the buyer wants the money returned", "refund_payment"), ("when does my package come", "track_parcel"), ("delivery status", "track_parcel"),
    ("plane tickets to Tokyo", "book_flight"), ("where can I sleep in Rome", "find_hotel"), ("how do I get from home to work by car", "route_directions"),
    ("the machine hangs, reboot it", "restart_server"), ("is the host overloaded", "server_metrics"), ("credentials have leaked", "rotate_secret"),
    ("tell the team on Slack", "post_message"), ("plot these figures", "create_chart"), ("cron", "schedule_job"),
]


def make_tools(folder):
    for name, about in TOOLS.items():
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as file:
            file.write("name: %s\ntype: cli\ndescription: %s\ncommand: /bin/true\nrecipes: {run: {description: %s}}\n" % (name, json.dumps(about), json.dumps(about)))


CODE = """
import json, time
questions = json.loads(%r)
tools.search("warm")
time.sleep(0)
deadline = time.monotonic() + 60
found, times = [], []
for question in questions:
    began = time.perf_counter()
    names = [str(getattr(each, "tool", None) or getattr(each, "name", each)) for each in tools.search(question, limit=10)]
    times.append(time.perf_counter() - began)
    found.append(names)
print("@@" + json.dumps([found, times]))
"""


def measure(folder, *flags):
    questions = json.dumps([question for question, _ in QUESTIONS])
    with tempfile.TemporaryDirectory() as base:
        cells = ["-e", "import time\nfor _ in range(100):\n    tools.search('x%d' % _)\n    time.sleep(0.02)"] if flags else []
        done = subprocess.run([BIN, "run", "--base", base, "--tools", folder, *flags, *cells, "-e", CODE % questions], capture_output=True,
                              text=True, check=False)
    line = [each for each in done.stdout.splitlines() if each.startswith("@@")]
    if not line:
        raise SystemExit(done.stdout + done.stderr)
    found, times = json.loads(line[0][2:])
    ranks = [names.index(wanted) + 1 if wanted in names else 0 for names, (_, wanted) in zip(found, QUESTIONS)]
    return {"recall@3": sum(1 <= rank <= 3 for rank in ranks) / len(ranks), "mrr": sum(1 / rank for rank in ranks if rank) / len(ranks),
            "search_ms": statistics.median(times) * 1000, "missed": [question for rank, (question, _) in zip(ranks, QUESTIONS) if not 1 <= rank <= 3],
            "stderr": done.stderr[-500:]}


def original(folder):
    import numpy
    import onnxruntime
    import tokenizers
    files = sorted(os.listdir(folder))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.path.join(folder, next(f for f in files if f.endswith(".onnx"))), options)
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, next(f for f in files if f.endswith("tokenizer.json"))))
    tokenizer.no_padding()

    def embed(text):
        ids = numpy.array([tokenizer.encode(text).ids], dtype=numpy.int64)
        known = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        vector = session.run(["last_hidden_state"], {each.name: known[each.name] for each in session.get_inputs()})[0][0][0]
        return vector / numpy.linalg.norm(vector)

    vectors = {name: embed("%s: %s" % item) for name, item in zip(TOOLS, TOOLS.items())}
    ranks, times = [], []
    for question, wanted in QUESTIONS:
        began = time.perf_counter()
        query = embed("Represent this sentence for searching relevant passages: " + question)
        found = sorted(TOOLS, key=lambda name: -float(vectors[name] @ query))
        times.append(time.perf_counter() - began)
        ranks.append(found.index(wanted) + 1)
    return {"recall@3": sum(rank <= 3 for rank in ranks) / len(ranks), "mrr": sum(1 / rank for rank in ranks) / len(ranks),
            "search_ms": statistics.median(times) * 1000}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", default="builtin")
    parser.add_argument("--original", metavar="DIR")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    assert len(QUESTIONS) == 60 and all(wanted in TOOLS for _, wanted in QUESTIONS)
    with tempfile.TemporaryDirectory() as folder:
        make_tools(folder)
        rows = {"words": measure(folder), args.embeddings: measure(folder, "--embeddings", args.embeddings)}
    if args.original:
        rows["original"] = original(args.original)
    if args.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print("%-10s recall@3 %.2f  MRR %.3f  a search %.2f ms" % (name, row["recall@3"], row["mrr"], row["search_ms"]))


if __name__ == "__main__":
    main()
