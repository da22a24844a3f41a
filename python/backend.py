"""Builds the wheel: libworkcell, its programs, the kernel's files and the Python package in one.

A PEP 517 backend that needs nothing but the standard library and what building Workcell needs (meson, ninja, a C compiler and
the libraries that scripts/setup.sh names). The extension has the stable ABI, so one wheel serves CPython 3.9 and later.
"""

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NAME = "workcell"


def _version():
    with open(os.path.join(ROOT, "VERSION"), encoding="utf-8") as file:
        return file.read().strip()


def _build():
    """The build folder. WORKCELL_BUILD_DIR names one that is there already."""
    folder = os.environ.get("WORKCELL_BUILD_DIR")
    if folder:
        return os.path.abspath(folder)
    folder = os.path.join(ROOT, "build-wheel")
    if not os.path.exists(os.path.join(ROOT, "meson.build")):
        raise RuntimeError("the wheel must be built in a checkout of Workcell: pip install ./python")
    missing = [tool for tool in ("meson", "ninja", "cc") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError("missing for the build of Workcell: %s; scripts/setup.sh installs them" % ", ".join(missing))
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        subprocess.run(["meson", "setup", folder, "--buildtype=release"], cwd=ROOT, check=True)
    # What goes into the wheel, and not the tests.
    subprocess.run(["ninja", "-C", folder, "libworkcell.so." + _version(), "workcell", "workcell-spawner", "_workcell.abi3.so",
                    "_native.abi3.so"], check=True)
    return folder


def _files(build):
    """[(name in the wheel, path on the disk)]"""
    found = []
    package = os.path.join(HERE, NAME)
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        for name in sorted(names):
            if name.endswith((".py", ".pyi", ".typed")):
                path = os.path.join(folder, name)
                found.append((os.path.relpath(path, HERE), path))
    found.append((NAME + "/_native.abi3.so", os.path.join(build, "_native.abi3.so")))
    lib = NAME + "/_lib/"
    found.append((lib + "libworkcell.so.0", os.path.join(build, "libworkcell.so.0")))
    for program in ("workcell", "workcell-spawner"):
        found.append((lib + program, os.path.join(build, program)))
    kernel = os.path.join(ROOT, "kernel", "workcell_kernel")
    for name in sorted(os.listdir(kernel)):
        if name.endswith(".py"):
            found.append((lib + "kernel/workcell_kernel/" + name, os.path.join(kernel, name)))
    found.append((lib + "kernel/_workcell.abi3.so", os.path.join(build, "_workcell.abi3.so")))
    deno = os.path.join(ROOT, "deno")
    found += [(lib + "deno/" + name, os.path.join(deno, name)) for name in sorted(os.listdir(deno))
              if os.path.isfile(os.path.join(deno, name))]
    return found


def _metadata():
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        about = file.read()
    return ("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: Runs the code that AI agents write\nLicense: MIT\n"
            "Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n%s" % (NAME, _version(), about))


def _wheel_text(tag):
    return "Wheel-Version: 1.0\nGenerator: workcell\nRoot-Is-Purelib: false\nTag: %s\n" % tag


_ENTRY_POINTS = "[console_scripts]\nworkcell = workcell._cli:main\n"


def _tag():
    return "cp39-abi3-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


class _Writer:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append("%s,sha256=%s,%d" % (name, digest, len(data)))

    def finish(self, info):
        record = "\n".join(self.record + [info + "/RECORD,,"]) + "\n"
        self.zip.writestr(info + "/RECORD", record)
        self.zip.close()


def _write(directory, files):
    tag = _tag()
    info = "%s-%s.dist-info" % (NAME, _version())
    wheel = "%s-%s-%s.whl" % (NAME, _version(), tag)
    writer = _Writer(os.path.join(directory, wheel))
    for name, path in files:
        with open(path, "rb") as file:
            writer.add(name, file.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
    writer.add(info + "/METADATA", _metadata().encode())
    writer.add(info + "/WHEEL", _wheel_text(tag).encode())
    writer.add(info + "/entry_points.txt", _ENTRY_POINTS.encode())
    writer.finish(info)
    return wheel


def unpack(build):
    """A folder of the build folder with what the wheel has, for programs of this checkout; made anew when something is newer."""
    site = os.path.join(build, "python-site")
    os.makedirs(site, exist_ok=True)
    files = _files(build)
    with open(os.path.join(site, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = os.path.join(site, ".stamp")
        made = os.path.getmtime(stamp) if os.path.exists(stamp) else 0
        if max(os.path.getmtime(path) for _, path in files) > made:
            with zipfile.ZipFile(os.path.join(site, _write(site, files))) as archive:
                for info in archive.infolist():
                    path = os.path.join(site, info.filename)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path + ".new", "wb") as file:
                        file.write(archive.read(info))
                    os.chmod(path + ".new", (info.external_attr >> 16) & 0o777 or 0o644)
                    os.replace(path + ".new", path)
            open(stamp, "w").close()
    return site


# ---- PEP 517


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, _files(_build()))


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = "%s-%s.dist-info" % (NAME, _version())
    os.mkdir(os.path.join(metadata_directory, info))
    for name, text in (("METADATA", _metadata()), ("WHEEL", _wheel_text(_tag())), ("entry_points.txt", _ENTRY_POINTS)):
        with open(os.path.join(metadata_directory, info, name), "w", encoding="utf-8") as file:
            file.write(text)
    return info


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("Workcell's Python package is built in a checkout: pip install ./python")
