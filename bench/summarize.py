#!/usr/bin/env python3
"""Medians over rounds (min-max) of a results file, with ratios to two references.

summarize.py results.jsonl [--ref raw-fastest] [--base direct]
"""

import argparse
import collections
import json
import statistics as st

KEY = {"a": "rps", "b": "rps", "c": "deltas_per_s", "d": "span_p50_ms", "e": "rps", "es": "rps", "g": "deltas_per_s"}
LOOPS = ("e", "es")


def num(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("file", nargs="+")
    p.add_argument("--ref", default="raw-fastest")
    p.add_argument("--base", default="direct")
    a = p.parse_args()
    cells = collections.defaultdict(list)
    cold = collections.defaultdict(list)
    order = []
    for name in a.file:
        for line in open(name):
            r = json.loads(line)
            if r["peer"] not in order:
                order.append(r["peer"])
            if r["scen"] == "f":
                if "cold_s" in r:
                    cold[r["peer"]].append(r)
            elif "rps" in r:
                # one mode per cell: chat/cstream stand in for plain/stream
                mode = {"chat": "plain", "cstream": "stream"}.get(r["mode"], r["mode"])
                cells[r["scen"], mode, r["c"], r["peer"]].append(r)

    med = lambda rows, k: st.median(x.get(k, 0) for x in rows)
    for scen, mode, c in sorted({k[:3] for k in cells}):
        key = KEY[scen]
        # References that run no loop are there with their short answers, (a).
        ran_it = scen not in LOOPS or any((scen, mode, c, n) in cells for n in (a.base, a.ref))
        beside = (scen, mode, c) if ran_it else ("a", "plain", c)
        print(f"\n### ({scen}) {mode}, concurrency {c}{'' if ran_it else ', beside the (a) of the others'}\n")
        print(
            f"| server | {key} median (min-max) | x {a.base} | x {a.ref} | p50 / p95 / p99 ms | first event p50 ms "
            "| CPU ms/req | CPU us/event | CPU share | RSS MB | errors |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        base = {n: med(cells[*beside, n], key) for n in (a.base, a.ref) if (*beside, n) in cells}
        for n in order:
            rows = cells.get((scen, mode, c, n))
            if not rows:
                continue
            v = sorted(x[key] for x in rows)
            m = st.median(v)
            ratio = [f"{m / base[b]:.3f}" if base.get(b) else "-" for b in (a.base, a.ref)]
            err, tot = sum(x["errors"] for x in rows), sum(x["errors"] + x["ok"] for x in rows)
            share = st.median(x.get("cpu_s", 0) / x["seconds"] for x in rows)
            print(
                f"| {n} | {num(m)} ({num(v[0])}-{num(v[-1])}) | {ratio[0]} | {ratio[1]} | "
                f"{num(med(rows, 'p50_ms'))} / {num(med(rows, 'p95_ms'))} / {num(med(rows, 'p99_ms'))} | "
                f"{num(med(rows, 'ttfe_p50_ms'))} | {med(rows, 'cpu_ms_per_req'):.3f} | "
                f"{med(rows, 'cpu_us_per_event'):.1f} | {share:.2f} | {num(med(rows, 'rss_mb'))} | {err} of {tot} |"
            )
    print("\n### (f) cold start and idle memory\n")
    print("| server | first response s, median (min-max) | idle RSS MB | calibration |")
    print("|---|---|---|---|")
    for n in order:
        if rows := cold.get(n):
            v = sorted(x["cold_s"] for x in rows)
            print(
                f"| {n} | {num(st.median(v))} ({num(v[0])}-{num(v[-1])}) | {num(med(rows, 'idle_rss_mb'))} | "
                f"{'/'.join(str(x.get('calib')) for x in rows)} |"
            )


if __name__ == "__main__":
    main()
