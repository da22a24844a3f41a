"""Which processes belong to a server: the spawner and what it has started are not its children."""
import os


def parents():
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as file:
                    found[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    return found


def spawner_of(pid):
    """The process that the kernel descends from, which is not the server's child; below it are also the first processes of all sandboxes."""
    def is_spawner(each):
        with open("/proc/%d/cmdline" % each, "rb") as file:
            return b"workcell-spawner" in file.read()

    table = parents()
    while not is_spawner(pid) or is_spawner(table[pid]):
        pid = table[pid]
    return pid


def children(pid):
    return [child for child, parent in parents().items() if parent == pid]


def below(*roots):
    """They and all their descendants."""
    table, found = parents(), list(roots)
    for each in found:
        found += [child for child, parent in table.items() if parent == each]
    return found
