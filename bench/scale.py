#!/usr/bin/env python3
"""scale.py [--measure REDIS_URL_SOCKET] [--nodes N...]: what Redis, the proxy and the hibernated storage carry with many servers, for docs/scale.md.

Without --measure it uses the inputs of docs/scale.md. With it (the path of a Unix socket of a Redis of its own, which is filled and emptied) it measures what one
thread of Redis does of each of our operations, in a pipeline, which is its own cost and not that of a network. The rest is arithmetic, and a simulation, second by
second, of a zone of servers that fails: its leases end, and its sessions are woken by the requests that come.
"""
import argparse
import random
import socket

INPUTS = {
    # Measured (docs/scale.md says how and where).
    "renew_us": 7.7,      # of Redis' thread: one renewal of a lease (EVAL)
    "find_us": 1.6,       # one question for an owner (EXISTS, HGET, GET)
    "note_us": 1.4,       # one note of an owner (SET)
    "commit_us": 21.0,    # one save's description (EVAL)
    "piece_us": 163.0,    # a piece of 1 MB that is written
    # Assumed; change them to those of your agents.
    "sessions": 100,      # awake on each server
    "asleep": 900,        # hibernated for each server
    "cells_s": 0.05,      # cells a second of an awake session
    "woken_s": 0.002,     # times a second that a session sleeps and is woken
    "delta_mb": 2.0,      # written by a save after a cell
    "image_mb": 20.0,     # kept of a hibernated session
    "lease_s": 15.0,
    "sticky": 0.0,        # share of requests that the proxy sends to the owner
    "request_kb": 2.0,
}
SCRIPT = ("local is = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'name', 'url') if is[1] ~= ARGV[1] or is[2] ~= ARGV[2] then return {0} end "
          "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3]) return {1}")


def encode(*words):
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def cpu(path):
    """Seconds of Redis' main thread, as it says itself."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(encode("INFO", "cpu"))
        text = link.recv(65536).decode()
    return sum(float(line.partition(":")[2]) for line in text.splitlines() if line.startswith(("used_cpu_user:", "used_cpu_sys:")))


def cost_us(path, commands, n):
    """Of Redis' CPU, for each time that the commands are carried out."""
    block = b"".join(encode(*words) for words in commands)
    before = cpu(path)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        for _ in range(n):
            link.sendall(block)
            link.sendall(encode("ECHO", "the-end"))
            data = b""
            while not data.endswith(b"the-end\r\n"):
                data += link.recv(1 << 20)
            assert b"-ERR" not in data and b"-NOSCRIPT" not in data, data[:200]
    return (cpu(path) - before) * 1e6 / n


def measure(path):
    """Each operation 100 times in one pipeline, so that a system call is shared."""
    setup = [("HSET", "s", "holder", "h", "fence", "1", "name", "n", "url", "http://10.0.0.1:8080"), ("SET", "s:lease", "h", "PX", 600000)]
    cost_us(path, setup, 1)
    many = 100
    renew = [("EVAL", SCRIPT, 2, "s", "s:lease", "h", "1", 15000)] * many
    find = [("EXISTS", "s:lease"), ("HGET", "s", "url"), ("GET", "o")] * many
    note = [("SET", "o", "http://10.0.0.1:8080", "EX", 3600)] * many
    commit = [("EVAL", SCRIPT.replace("return {1}", "redis.call('HSET', KEYS[1], 'state', ARGV[4]) redis.call('ZADD', 'i', 1, KEYS[1]) return {1}"),
               2, "s", "s:lease", "h", "1", 15000, "x" * 4000)] * many
    piece = [("HSET", "p", 1, b"x" * (1 << 20))]
    return {"renew_us": cost_us(path, renew, 200) / many, "find_us": cost_us(path, find, 200) / many, "note_us": cost_us(path, note, 200) / many,
            "commit_us": cost_us(path, commit, 200) / many, "piece_us": cost_us(path, piece, 300)}


def load(nodes, at):
    """What all servers together ask of the parts, in a second."""
    awake = nodes * at["sessions"]
    renewals, cells, wakes = awake / (at["lease_s"] / 4), awake * at["cells_s"], awake * at["woken_s"]
    forwarded = cells * (1 - at["sticky"]) * (1 - 1 / nodes)
    redis_us = (renewals * at["renew_us"] + forwarded * at["find_us"] + wakes * (at["find_us"] + 2 * at["note_us"] + at["commit_us"]) +
                cells * (at["commit_us"] + at["delta_mb"] * at["piece_us"]) + wakes * at["image_mb"] * at["piece_us"])
    return {"awake": awake, "renewals": renewals, "cells": cells, "forwarded": forwarded, "redis_cores": redis_us / 1e6,
            "lease_cores": renewals * at["renew_us"] / 1e6, "redis_gbit": (cells * at["delta_mb"] + wakes * at["image_mb"]) * 8e-3,
            "proxy_mbit": cells * at["request_kb"] * 8e-3, "stored_tb": nodes * (at["sessions"] + at["asleep"]) * at["image_mb"] / 1e6}


def fail(nodes, at, share, cores, seed=1):
    """A share of the servers dies at once. Returns how long requests for their sessions are refused, and the busiest second of Redis, in cores."""
    rng = random.Random(seed)
    sessions = int(nodes * at["sessions"] * share)
    # When its lease ends, and when the next request for it comes.
    due = sorted(max(rng.uniform(at["lease_s"] * 2 / 3, at["lease_s"]), rng.expovariate(at["cells_s"])) for _ in range(min(sessions, 200_000)))
    scale = sessions / len(due)
    work_s = (at["find_us"] * 3 + at["note_us"] + at["renew_us"] + at["image_mb"] * at["piece_us"]) / 1e6
    base = load(nodes, at)["redis_cores"]
    free, second, busiest, waits = max(cores - base, 0.01), {}, 0.0, []
    queue_until = 0.0
    for moment in due:
        queue_until = max(queue_until, moment) + scale * work_s / free
        waits.append(queue_until - moment)
        second[int(moment)] = second.get(int(moment), 0) + scale * work_s
    busiest = base + max(second.values())
    return at["lease_s"], sorted(waits)[int(len(waits) * 0.99)], busiest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", metavar="SOCKET")
    parser.add_argument("--nodes", type=int, nargs="*", default=[3, 10, 100, 1000, 10000])
    for name, value in INPUTS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, default=value)
    options = parser.parse_args()
    at = {name: getattr(options, name) for name in INPUTS}
    if options.measure:
        at.update(measure(options.measure))
    print(", ".join("%s %.4g" % item for item in at.items()))
    print("%8s %10s %11s %9s %10s %12s %12s %11s %11s %10s | %s" % ("servers", "awake", "renewals/s", "cells/s", "forwards/s", "Redis cores", "for leases",
                                                                    "Redis Gb/s", "proxy Mb/s", "stored TB", "a tenth dies: p99 wait s, Redis cores"))
    for nodes in options.nodes:
        row = load(nodes, at)
        shards = max(1, round(row["redis_cores"] / 0.5 + 0.5))
        _, wait, busiest = fail(nodes, at, 0.1, shards)
        print("%8d %10d %11.0f %9.0f %10.0f %12.2f %12.3f %11.2f %11.1f %10.2f | %.2f, %.2f of %d" % (
            nodes, row["awake"], row["renewals"], row["cells"], row["forwarded"], row["redis_cores"], row["lease_cores"], row["redis_gbit"], row["proxy_mbit"],
            row["stored_tb"], wait, busiest, shards), flush=True)


if __name__ == "__main__":
    main()
