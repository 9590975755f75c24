"""What gpu_check.py found, as a table; and what of it is missing."""
import re

WHERE = ("cold", "G1", "G2", "G3", "restart")
CONDITIONS = ("alone", "messages, from G1", "wake calls, from G2", "messages, from G2")
LIMITS = {"copy": "limit: a copy within the device", "product": "limit: a product of cuBLAS, bf16",
          "up": "limit: pinned memory to the device", "down": "limit: the device to pinned memory"}
KERNELS = ("product", "attention", "norm", "rope", "gate", "embedding", "head", "promotion",
            "demotion")

# What a test may be skipped for where there is a GPU: it needs the CPU that stands in for one,
# or is one of a CPU's own; and the program whose model need not be there.
MAY_SKIP = re.compile("real device|has no avx")
MAY_LACK_MODEL = "model/test_smollm2: "


def limit(out, name):
    """In units of a second; None where it was not measured."""
    return next((row["rate"] * 1e9 for row in out.get("kernels", ())
                 if row["what"] == LIMITS[name]), None)


def missing(out):
    """Sentences."""
    if "device" not in out:
        return ["no kernel, test or wake ran: there is no device"]
    said = [row["what"] for row in out["kernels"]]
    gone = [what for what in LIMITS.values() if what not in said]
    gone += [f"kernels: {k}" for k in KERNELS if not any(s.startswith(k) for s in said)]
    if not out.get("tests"):
        gone.append("the sum of the tests")
    elif ", 0 failed" not in out["tests"] or out["tests"].startswith("0 passed"):
        gone.append(f"tests that pass: {out['tests']}")
    gone += [f"{test}, skipped: {why}" for test, why in out.get("skipped", {}).items()
             if not MAY_SKIP.search(why) and not test.startswith(MAY_LACK_MODEL)]
    lengths = out.get("waking", {}).get("waking", ())
    gone += [f"TTFT of {x['tokens']} tokens from {w}" for x in lengths for w in WHERE if w not in x]
    if not lengths:
        gone.append("TTFT from each tier")
    gone += [f"time between tokens: {x}" for x in CONDITIONS
             if x not in out.get("streams", {}).get("G2", {})]
    return ["missing: " + x for x in gone]


def share(rate, of):
    return f"{rate / of:>7.0%} of the limit" if of else ""


def show_waking(out, x):
    if "cold" not in x:
        return
    cold = x["cold"]["seconds"]
    print(f"\n{x['tokens']} tokens: TTFT ms, sooner than cold; promoted in ms, at GB/s")
    for where in WHERE:
        if where not in x:
            print(f"{where:>12}{'-':>12}")
            continue
        y = x[where]
        line = f"{where:>12}{y['seconds'] * 1e3:>12.1f}{cold / y['seconds']:>10.1f}x"
        if "rate" in y:
            line += f"{y['wake'] * 1e3:>10.1f}{y['rate'] / 1e9:>8.2f}"
            line += (share(y["rate"], limit(out, "up")) if where == "G2"
                     else f"{y['share']:>7.0%} of reading the file ({x['read_by']})")
        if where != "cold" and y["found"] < x["tokens"] // 16 * 16:
            line += f"; {y['found']} tokens found, the others computed"
        print(line)


def show_streams(out):
    found = out.get("streams", {}).get("G2", {})
    if not found:
        return
    print("\ntime between tokens of four streams, ms: p50, p99, and p99 to that alone")
    for condition in CONDITIONS:
        if condition in found:
            m = found[condition]
            print(f"{condition:>24}{m['p50'] * 1e3:>10.2f}{m['p99'] * 1e3:>10.2f}{m['ratio']:>8.2f}")
    copy = limit(out, "copy")
    if copy and "alone" in found:
        least = out["weights"] / copy
        print(f"reading {out['weights'] / 1e9:.1f} GB of weights once takes {least * 1e3:.2f} ms by "
              f"the limit: {least / found['alone']['p50']:.0%} of a step alone")


def show(out):
    print(f"\n== {out.get('device')}, {out['shape']}")
    print(f"tests: {out.get('tests')}")
    for test, why in out.get("skipped", {}).items():
        print(f"skipped {test}: {why}")
    print()
    for row in out.get("kernels", ()):
        of_limit = f"{row['share']:>7.0%} of the limit" if "share" in row else ""
        print(f"{row['what']:<52}{row['rate']:>12.2f} {row['unit']:<8}{of_limit}".rstrip())
    lengths = out.get("waking", {}).get("waking", ())
    for x in lengths:
        show_waking(out, x)
    for x in lengths[:1]:
        if "up" in x:
            print(f"\na server with {out['weights'] / 1e9:.1f} GB of weights is up in {x['up']:.1f} s")
    show_streams(out)
    print("\nseconds: " + ", ".join(f"{k} {v:.0f}" for k, v in out.get("took", {}).items()))
    for sentence in out["failed"]:
        print("gpu_check: " + sentence)
