"""Builds the console from console/ and writes its files as a C table: embed-console.py SOURCE WORK OUTPUT DEPFILE auto|enabled|disabled

Libraries come from console/package-lock.json into WORK, once for each lock file. Nothing of them runs while they are installed. Without node 18 or
newer and npm, or without the registry, `auto` writes an empty table: the rest of the program is built, and `workcell serve --console` says why
it has no console. `enabled` makes that a failure. Files that `npm run build` made in SOURCE/dist are taken as they are if they are of these
sources: so an image is built where no registry is in reach.
"""
import gzip
import hashlib
import os
import shutil
import subprocess
import sys

TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
OLDEST_NODE = 18


def find_tools(root):
    """node and npm: the machine's, else those of the tests."""
    for folder in (None, os.path.join(root, "build", "node", "bin")):
        node, npm = shutil.which("node", path=folder), shutil.which("npm", path=folder)
        if not node or not npm:
            continue
        major = subprocess.run([node, "-p", "process.versions.node.split('.')[0]"], capture_output=True, text=True, check=False).stdout.strip()
        if major.isdigit() and int(major) >= OLDEST_NODE:
            return node, npm
    return None


def install(npm, node, source, work):
    """The libraries as the lock file has them."""
    locks = b"".join(open(os.path.join(source, name), "rb").read() for name in ("package.json", "package-lock.json"))
    wanted, stamp = hashlib.sha256(locks).hexdigest(), os.path.join(work, ".installed")
    if os.path.exists(stamp) and open(stamp, encoding="ascii").read() == wanted:
        return
    os.makedirs(work, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(os.path.join(source, name), work)
    path = os.pathsep.join([os.path.dirname(node), os.environ.get("PATH", "")])
    subprocess.run([npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=work, check=True, env=dict(os.environ, PATH=path))
    with open(stamp, "w", encoding="ascii") as file:
        file.write(wanted)


def hash_of(source):
    """Of everything that the built files depend on; build.mjs has the same."""
    names = ["package-lock.json", "build.mjs"] + ["src/" + name for name in sorted(os.listdir(os.path.join(source, "src")))]
    total = hashlib.sha256()
    for name in names:
        with open(os.path.join(source, name), "rb") as file:
            total.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return total.hexdigest()


def find_built(source):
    dist = os.path.join(source, "dist")
    try:
        with open(os.path.join(dist, ".sources"), encoding="ascii") as file:
            return dist if file.read() == hash_of(source) else None
    except FileNotFoundError:
        return None


def build(root, source, work):
    built = find_built(source)
    if built:
        return built
    tools = find_tools(root)
    if not tools:
        raise RuntimeError("node %d or newer, with npm, was not found" % OLDEST_NODE)
    node, npm = tools
    install(npm, node, source, work)
    dist = os.path.join(work, "dist")
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([node, os.path.join(source, "build.mjs"), work, dist], check=True)
    return dist


def c_bytes(data):
    lines = (data[at:at + 24] for at in range(0, len(data), 24))
    return ",\n".join(",".join(str(byte) for byte in line) for line in lines)


def write_table(dist, output):
    rows, arrays = [], []
    names = sorted(name for name in os.listdir(dist) if not name.startswith(".")) if dist else []
    for number, name in enumerate(names):
        with open(os.path.join(dist, name), "rb") as file:
            data = file.read()
        packed = gzip.compress(data, 9, mtime=0)
        arrays.append("static const unsigned char file_%d[] = {\n%s\n};\n" % (number, c_bytes(packed)))
        rows.append('\t{ "%s", "%s", "\\"%s\\"", file_%d, sizeof(file_%d) },\n' % (
            "" if name == "index.html" else name, TYPES[os.path.splitext(name)[1]], hashlib.sha256(data).hexdigest()[:32], number, number))
    with open(output, "w", encoding="ascii") as file:
        file.write('/* Made by scripts/embed-console.py. */\n#include "server/console.h"\n\n%s\nconst struct cell__console_file cell__console_files[] = {\n%s'
                   "\t{ 0 },\n};\n" % ("".join(arrays), "".join(rows)))


def main():
    source, work, output, depfile, wanted = sys.argv[1:]
    dist = None
    if wanted != "disabled":
        try:
            dist = build(os.path.dirname(source), source, work)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            if wanted == "enabled":
                sys.exit("embed-console: the console cannot be built: %s" % error)
            print("embed-console: built without the console: %s" % error)
    write_table(dist, output)
    parts = [os.path.join(folder, name) for folder, _, names in os.walk(source) if "node_modules" not in folder for name in names]
    with open(depfile, "w", encoding="utf-8") as file:
        file.write("%s: %s\n" % (output, " ".join(sorted(parts))))


main()
