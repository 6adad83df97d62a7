#!/usr/bin/env python3
"""Run gateways side by side on one core and record one JSON line per measurement.

  run.py --bin DIR --peers servers.toml [--only a,b] [--scen a,b,c,d,e,es] [--rounds 3] --out results.jsonl

Layout: server under test on core 0, mock backend and load generator on core 1.
Each peer is started fresh in every round (so the cold start is measured as
often), and rounds interleave the peers. A block holds the lock file, so other
measurements on the machine wait.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request

BACKEND_PORT = 18400
PORT = 18410
# Scheduler autogroups make plain nice work only within a session; raise the
# session's own weight where the kernel allows it.
WEIGHT = '{ echo -10 > /proc/self/autogroup; } 2>/dev/null; exec "$@"'


def pinned(core: int, cmd: list[str]) -> list[str]:
    return ["sh", "-c", WEIGHT, "sh", "taskset", "-c", str(core), *cmd]


@contextlib.contextmanager
def lock(path: str):
    with open(path, "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(f, fcntl.LOCK_UN)


def calibrate() -> float:
    """Million loop steps per CPU second on core 0: shows a disturbed machine."""
    code = "import time;t=time.process_time();i=0\nwhile i<2_000_000:i+=1\nprint(2/(time.process_time()-t))"
    out = subprocess.run(["taskset", "-c", "0", sys.executable, "-c", code], capture_output=True, text=True)
    return round(float(out.stdout), 2)


def rss_mb(pid: int) -> float:
    todo, total = [pid], 0.0
    while todo:
        p = todo.pop()
        try:
            total += int(open(f"/proc/{p}/statm").read().split()[1]) * 4096 / 1e6
            for t in os.listdir(f"/proc/{p}/task"):
                todo += map(int, open(f"/proc/{p}/task/{t}/children").read().split())
        except OSError:
            pass
    return round(total, 1)


def first_response(url: str, body: dict, deadline: float) -> str | None:
    """Poll until one correct answer; None when it came, else the last error."""
    err = "no answer"
    while time.monotonic() < deadline:
        req = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer sk-test"}
        )
        try:
            with urllib.request.urlopen(req, timeout=20) as r:
                if b"Hello from the mock backend." in (got := r.read()):
                    return None
                err = got[:300].decode()
        except urllib.error.HTTPError as e:
            err = f"{e.code} {e.read()[:300].decode(errors='replace')}"
        except OSError as e:
            err = str(e)
        time.sleep(0.02)
    return err


class Run:
    def __init__(self, args) -> None:
        self.a = args
        self.out = open(args.out, "a")

    def emit(self, **row) -> None:
        line = json.dumps(row)
        print(line, file=self.out, flush=True)
        print(line[:260], flush=True)

    def load(self, base: str, pid: int, **opt) -> dict:
        cmd = [f"{self.a.bin}/loadgen", "-base", base, "-pid", str(pid), "-timeout", "40s"]
        for k, v in {**self.common, **opt}.items():
            cmd += [f"-{k}", str(v)]
        p = subprocess.run(pinned(1, cmd), capture_output=True, text=True, timeout=170, start_new_session=True)
        try:
            r = json.loads(p.stdout)
        except ValueError:
            r = {"failed": p.stderr[-300:]}
        if r.get("errors"):
            r["sample"] = p.stderr[:400]
        return r

    def scenarios(self, peer: dict):
        a, pre = self.a, peer.get("model_prefix", "")
        direct = peer.get("direct", False)
        plain, stream = ("chat", "cstream") if direct else ("plain", "stream")
        conc = [c for c in a.conc if c <= peer.get("max_conc", 10**6)]
        for s in [s for s in a.scen if s in peer.get("scen", a.scen)]:
            if s in "ab" and peer.get("stream_only"):
                continue
            if s == "a":
                for c in conc:
                    yield s, dict(mode=plain, model=pre + "text", c=c, d=f"{a.secs}s", store="false")
            elif s == "b" and not direct and peer.get("store", True):
                for c in conc:
                    yield s, dict(mode=plain, model=pre + "text", c=c, d=f"{a.secs}s", store="true")
            elif s == "c":
                for c in [c for c in conc if c <= peer.get("max_streams", 128)]:
                    yield s, dict(mode=stream, model=pre + "text-256", c=c, d=f"{a.secs}s")
            elif s == "g" and not direct and peer.get("store", True):
                yield s, dict(mode=stream, model=pre + "text-256", c=32, d=f"{a.secs}s", store="true")
            elif s == "d":
                yield s, dict(mode=stream, model=pre + "text-100-20", c=200, n=200)
            elif (s == "e" or (s == "es" and peer.get("store", True))) and "loop" in peer:
                for c in [c for c in conc if c <= peer.get("max_streams", 128)]:
                    for mode in ["loop"] + (["sloop"] if c == 32 else []):
                        yield (
                            s,
                            dict(
                                mode=mode,
                                model=pre + "tools-3",
                                c=c,
                                d=f"{a.secs}s",
                                warm="3s",  # the first call connects to the MCP server
                                store="true" if s == "es" else "false",
                                extra=json.dumps(peer["loop"]).replace("@BACKEND", f"http://127.0.0.1:{BACKEND_PORT}"),
                            ),
                        )

    def block(self, name: str, peer: dict, rnd: int) -> None:
        base = f"http://127.0.0.1:{PORT}"
        sub = lambda s: (
            s.replace("@PORT", str(PORT))
            .replace("@BACKEND", f"http://127.0.0.1:{BACKEND_PORT}")
            .replace("@BIN", self.a.bin)
            .replace("@PEERS", self.a.dir)
            .replace("@HERE", os.path.dirname(os.path.abspath(__file__)))
        )
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env |= {k: sub(v) for k, v in peer.get("env", {}).items()}
        log = open(f"{self.a.dir}/log-{name}.txt", "w")
        calib = calibrate()
        mock = subprocess.Popen(
            pinned(1, [f"{self.a.bin}/mock", "-addr", f"127.0.0.1:{BACKEND_PORT}"]), start_new_session=True
        )
        time.sleep(0.2)
        t0 = time.monotonic()
        srv = subprocess.Popen(
            pinned(0, shlex.split(sub(peer["cmd"]))),
            env=env,
            stdout=log,
            stderr=log,
            cwd=sub(peer.get("cwd", self.a.dir)),
            start_new_session=True,
        )
        try:
            direct = peer.get("direct", False)
            text = "Say hello."
            path = peer.get("path", "/v1/responses")
            body = {
                "model": peer.get("model_prefix", "") + "text",
                "store": False,
                "input": [{"type": "message", "role": "user", "content": text}],
            }
            if direct:
                path = "/v1/chat/completions"
                body = {"model": "text", "messages": [{"role": "user", "content": text}]}
            if peer.get("stream_only"):
                body["stream"] = True
            err = first_response(base + path, body, t0 + peer.get("start_s", 60))
            cold = round(time.monotonic() - t0, 3)
            if err:
                self.emit(peer=name, round=rnd, scen="f", failed=err)
                return
            time.sleep(0.5)
            self.emit(
                peer=name,
                round=rnd,
                scen="f",
                cold_s=cold,
                idle_rss_mb=rss_mb(srv.pid),
                calib=calib,
                load1=os.getloadavg()[0],
            )
            for at, post in peer.get("setup", {}).items():
                urllib.request.urlopen(
                    urllib.request.Request(base + at, sub(post).encode(), {"Content-Type": "application/json"}),
                    timeout=10,
                ).read()
            self.common = {} if direct else {"path": path}
            for s, opt in self.scenarios(peer):
                if time.monotonic() - t0 > 165:
                    self.emit(
                        peer=name, round=rnd, scen=s, skipped="block time spent", **{k: opt[k] for k in ("c", "mode")}
                    )
                    continue
                if srv.poll() is not None:
                    self.emit(peer=name, round=rnd, scen=s, failed="server died", c=opt["c"])
                    return
                try:
                    r = self.load(base, srv.pid, **opt)
                except subprocess.TimeoutExpired:
                    r = {"failed": "load generator timed out", "c": opt["c"]}
                self.emit(peer=name, round=rnd, scen=s, **r)
        finally:
            for p, grp in ((srv, True), (mock, False)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL) if grp else p.kill()
                p.wait()

    def main(self) -> None:
        with open(self.a.peers, "rb") as f:
            peers = tomllib.load(f)
        names = self.a.only or list(peers)
        for rnd in range(1, self.a.rounds + 1):
            for n in names:
                with lock(self.a.lock):
                    self.block(n, peers[n], rnd)
                time.sleep(0.3)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--bin", required=True, help="folder with the mock and loadgen binaries")
    p.add_argument("--dir", required=True, help="folder with the built peers; logs go here")
    p.add_argument("--peers", default=os.path.join(os.path.dirname(__file__), "servers.toml"))
    p.add_argument("--only", type=lambda s: s.split(","))
    p.add_argument("--scen", type=lambda s: s.split(","), default=list("abcde"))
    p.add_argument("--conc", type=lambda s: [int(x) for x in s.split(",")], default=[1, 32, 128, 512])
    p.add_argument("--secs", type=float, default=2.5)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--lock", default=os.path.join(tempfile.gettempdir(), "antwort-bench.lock"))
    p.add_argument("--out", required=True)
    Run(p.parse_args()).main()


if __name__ == "__main__":
    sys.exit(main())
