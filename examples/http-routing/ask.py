"""Asks over HTTP and shows the answer. Usage:

ask.py METHOD URL [NAME:VALUE...]        status and body, and what the header x-served-by says
ask.py --count N [--only NAME] URL       who answers how many of N requests; with --only it fails unless all are NAME's
"""

import collections
import sys
import urllib.error
import urllib.request


def ask(method, url, headers=()):
    request = urllib.request.Request(url, method=method, headers=dict(h.split(":", 1) for h in headers))
    try:
        answer = urllib.request.urlopen(request, timeout=5)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.read().decode().strip(), answer.headers["x-served-by"]


if sys.argv[1] == "--count":
    only = sys.argv[4] if sys.argv[3] == "--only" else None
    counts = collections.Counter(ask("GET", sys.argv[-1])[1].split(" ")[0] for _ in range(int(sys.argv[2])))
    for name, count in sorted(counts.items()):
        print(f"{count} answers by {name}")
    sys.exit(bool(only) and set(counts) != {only})
status, body, served_by = ask(sys.argv[1], sys.argv[2], sys.argv[3:])
print(f"{status} {body}" + (f" (served by {served_by})" if served_by else ""))
