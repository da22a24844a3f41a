"""What a sandbox must know of an interpreter: where its files are, and the package index that pip or uv is configured with,
as HOST:PORT of each address. A program too: one a line, of the index, or of the files with the argument `files`."""

import os
import sys


HERE = os.path.dirname(os.path.abspath(__file__))


def file_paths():
    """What a sandboxed kernel must find where it is."""
    return sorted({os.path.abspath(p) for p in sys.path + [
        sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(HERE), HERE, os.path.dirname(os.path.realpath(sys.executable)),
    ] if p and os.path.exists(p)})


def index_hosts():
    """Of pip's own default where nothing is configured."""
    import re

    home = os.environ.get("HOME", "/")
    texts = []
    for path in (sys.prefix + "/pip.conf", "/etc/pip.conf", "/etc/xdg/pip/pip.conf", home + "/.config/pip/pip.conf",
                 home + "/.pip/pip.conf", "/etc/uv/uv.toml", home + "/.config/uv/uv.toml"):
        try:
            with open(path, encoding="utf-8") as file:
                texts += [line for line in file if re.match(r"\s*(extra-)?index|\s*(default-)?url|\s*https?:", line)]
        except (OSError, ValueError):
            pass
    if not any("://" in text for text in texts):
        for folder in sys.path:
            try:
                with open(folder + "/pip/_internal/models/index.py", encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            found = re.search(r'^PyPI = PackageIndex\(\s*"(https://[^"]+)",\s*file_storage_domain="([^"]+)"', text, re.M)
            if found:
                texts += [found[1], "https://" + found[2] + "/"]
            break
    hosts = set()
    for scheme, host, port in re.findall(r"(https?)://(?:[^@/\s\"']*@)?([A-Za-z0-9.-]+)(?::(\d+))?", "\n".join(texts)):
        hosts.add("%s:%s" % (host, port or ("443" if scheme == "https" else "80")))
    return sorted(hosts)


if __name__ == "__main__":
    print("\n".join(file_paths() if sys.argv[1:] == ["files"] else index_hosts()))
