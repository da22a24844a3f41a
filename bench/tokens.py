#!/usr/bin/env python3
"""tokens.py [--json]: what do ten tasks cost a model, with tools offered directly and by Workcell?

The tools are those of MCP servers from the npm registry (servers of the table SERVERS, installed in --servers DIR), and ten tasks need some of
their calls. A scripted model does each task twice, with real servers and real answers:

    directly   every request to the model carries the definitions of all tools; each call and its result stay in the conversation
               (second column: as if the model made all calls of a task in one answer)
    Workcell   every request carries Workcell's own tools; one search, one cell that makes all calls and returns the answer

Counted with o200k_base (tiktoken if it is installed and has the vocabulary, else npm's gpt-tokenizer): the definitions once per request to the model (a conversation is sent as a whole each time), and all messages
of the conversation so far. Prompts of the task itself are the same on both sides and are left out.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))
SERVERS = {
    "everything": ["@modelcontextprotocol/server-everything", "dist/index.js"],
    "files": ["@modelcontextprotocol/server-filesystem", "dist/index.js", "{work}"],
    "memory": ["@modelcontextprotocol/server-memory", "dist/index.js"],
}


COUNTER = """const {countTokens} = require('gpt-tokenizer/cjs/encoding/o200k_base');
require('readline').createInterface({input: process.stdin}).on('line', line => console.log(countTokens(JSON.parse(line))));"""


class Counter:
    """Tokens of o200k_base."""

    def __init__(self, folder):
        self.process = self.encoding = None
        try:
            import tiktoken
            self.encoding = tiktoken.get_encoding("o200k_base")
        except Exception:  # not installed, or without its vocabulary and the network to get it
            self.process = subprocess.Popen(["node", "-e", COUNTER], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def count(self, text):
        if self.encoding:
            return len(self.encoding.encode(text, disallowed_special=()))
        self.process.stdin.write(json.dumps(text) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


counter = None


def tokens(value):
    return counter.count(value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False))


class Server:
    """A server on pipes, by the revision 2025-06-18."""

    def __init__(self, argv, **options):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options)
        self.count = 0
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "bench", "version": "1"})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.count += 1
        self.send({"jsonrpc": "2.0", "id": self.count, "method": method, "params": params})
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.count and "method" not in answer:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]
        raise RuntimeError("the server ended")

    def tools(self):
        return self.ask("tools/list")["tools"]

    def call(self, name, arguments):
        return self.ask("tools/call", name=name, arguments=arguments)

    def close(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


def text_of(result):
    return "\n".join(block.get("text", "") for block in result["content"])


def tasks(work):
    """(the words of a search, the calls that are needed, code for the same): ten tasks."""
    def path(name):
        return os.path.join(work, name)
    names = ["notes%d.txt" % i for i in range(8)]
    many = [("files", "read_text_file", {"path": path(name)}) for name in names]
    entities = [{"name": "person%d" % i, "entityType": "person", "observations": ["likes number %d" % i]} for i in range(12)]
    return [
        ("read files", many, "sum(tools.files.read_text_file(path=%r %% i)['content'].count('apple') for i in range(8))" % path("notes%d.txt")),
        ("list a folder", [("files", "list_directory", {"path": work}), ("files", "get_file_info", {"path": path(names[0])})],
         "tools.files.list_directory(path=%r)['content'].count('FILE')" % work),
        ("write files", [("files", "write_file", {"path": path("out%d.txt" % i), "content": "x" * 200}) for i in range(5)],
         "for i in range(5): tools.files.write_file(path=%r %% i, content='x' * 200)" % path("out%d.txt")),
        ("search files", [("files", "search_files", {"path": work, "pattern": "*.txt"}), *many[:4]],
         "[f for f in tools.files.search_files(path=%r, pattern='*.txt')['content'].split() if 'plum' in tools.files.read_text_file(path=f)['content']]" % work),
        ("remember entities", [("memory", "create_entities", {"entities": [entity]}) for entity in entities],
         "tools.memory.create_entities(entities=[{'name': 'person%d' % i, 'entityType': 'person', 'observations': ['likes number %d' % i]} "
         "for i in range(12)]); None"),
        ("search the memory graph", [("memory", "read_graph", {}), ("memory", "search_nodes", {"query": "number 3"})],
         "len(tools.memory.read_graph()['entities'])"),
        ("add two numbers", [("everything", "get-sum", {"a": i, "b": i + 1}) for i in range(10)],
         "[tools.everything['get-sum'](a=i, b=i + 1) for i in range(10)][-1]"),
        ("echo a message", [("everything", "echo", {"message": "hello %d" % i}) for i in range(6)],
         "'; '.join(tools.everything.echo(message='hello %d' % i) for i in range(6))"),
        ("edit a file", [("files", "read_text_file", {"path": path(names[0])}),
                         ("files", "edit_file", {"path": path(names[0]), "edits": [{"oldText": "apple", "newText": "plum"}]})],
         "tools.files.edit_file(path=%r, edits=[{'oldText': 'pear', 'newText': 'plum'}])['content'][:60]" % path(names[1])),
        ("directory tree sizes", [("files", "directory_tree", {"path": work}), ("files", "list_directory_with_sizes", {"path": work})],
         "len(tools.files.directory_tree(path=%r)['content'])" % work),
    ]


def directly(servers, definitions, calls):
    """One call after the other, and as if a model made all calls of a task at once."""
    total, conversation = 0, 0
    for server, name, arguments in calls:
        total += definitions + conversation  # the request to the model
        conversation += tokens({"name": name, "arguments": arguments})
        conversation += tokens(text_of(servers[server].call(name, arguments)))
    return total + definitions + conversation, 2 * definitions + conversation  # with the last request, for the answer


def by_workcell(workcell, definitions, query, code):
    total, conversation = 0, 0
    for name, arguments in (("search_tools", {"query": query, "limit": 3}), ("run_code", {"code": code})):
        result = workcell.call(name, arguments)
        if result.get("isError"):
            raise RuntimeError("%s: %s" % (code, text_of(result)))
        total += definitions + conversation
        conversation += tokens({"name": name, "arguments": arguments}) + tokens(text_of(result))
    return total + definitions + conversation


def prepare(folder, work):
    for i in range(8):
        with open(os.path.join(work, "notes%d.txt" % i), "w", encoding="utf-8") as file:
            file.write("".join("line %d: apple, pear and %d more\n" % (n, n * i) for n in range(60)))
    argvs = {}
    for name, (package, main, *args) in SERVERS.items():
        argvs[name] = ["node", os.path.join(folder, "node_modules", package, main), *(arg.format(work=work) for arg in args)]
    return argvs


def run(folder):
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as base:
        argvs = prepare(folder, os.path.realpath(work))
        work = os.path.realpath(work)
        os.mkdir(os.path.join(base, "tools"))
        for name, argv in argvs.items():
            with open(os.path.join(base, "tools", name + ".yaml"), "w", encoding="utf-8") as file:
                json.dump({"name": name, "type": "mcp", "transport": "stdio", "command": argv[0], "args": argv[1:],
                           "env": {"MEMORY_FILE_PATH": os.path.join(base, "memory2.json")}}, file)
        env = {**os.environ, "MEMORY_FILE_PATH": os.path.join(base, "memory.json")}
        servers = {name: Server(argv, env=env) for name, argv in argvs.items()}
        workcell = Server([BIN, "mcp", "--base", base, "--no-sync-deps"])
        direct = tokens([tool for server in servers.values() for tool in server.tools()])
        own = tokens(workcell.tools())
        rows = []
        for query, calls, code in tasks(work):
            one_by_one, at_once = directly(servers, direct, calls)
            rows.append({"task": query, "calls": len(calls), "direct": one_by_one, "at_once": at_once,
                         "workcell": by_workcell(workcell, own, query, code)})
        for server in (*servers.values(), workcell):
            server.close()
    total = {key: sum(row[key] for row in rows) for key in ("direct", "at_once", "workcell")}
    return {"definitions": {"direct": direct, "workcell": own}, "tasks": rows, "total": total, "saved": 1 - total["workcell"] / total["direct"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default=os.path.join(ROOT, "build", "node"), help="folder with node_modules")
    parser.add_argument("--tokenizer", help="folder with node_modules/gpt-tokenizer (default: --servers)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    global counter
    counter = Counter(args.tokenizer or args.servers)
    found = run(args.servers)
    if args.json:
        print(json.dumps(found))
    else:
        print("definitions: %(direct)d directly, %(workcell)d with Workcell" % found["definitions"])
        for row in found["tasks"]:
            print("%(task)-26s %(calls)3d calls  %(direct)7d %(at_once)7d %(workcell)7d" % row)
        print("%-37s %7d %7d %7d  %.1f %% fewer" % ("total", *(found["total"][key] for key in ("direct", "at_once", "workcell")), found["saved"] * 100))
    return 0 if found["saved"] >= 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
