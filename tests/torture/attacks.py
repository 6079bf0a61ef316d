"""Attacks on a dashboard, each a function of (dashboard, draw) that returns what is wrong with how it was met."""

from __future__ import annotations

import base64
import contextlib
import random
import re
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import httpx

from db import open_readonly, queries, reviews
from tests.dashboard import hostile_records
from tests.dashboard.web_rules import links, scripts
from tests.torture.served import PAGES, PATIENCE, ROOT, USERS, Served, Visitor, wrong

MARK = "zq7"  # of hostile text: found unescaped, it is a fault
HOSTILE = (
    f"<script>{MARK}()</script>", f"'\"><img src=x onerror={MARK}()>", "../../../etc/passwd", "%2e%2e%2fetc%2fpasswd",
    "a" * 5000, "9" * 5000, "9" * 30, "-1", "nan", "inf", "²", "٣", "\x00", "\x00\x1b[2J", "\u202e", "=1+1", "[",
    "1-2", "0", "' OR 1=1 --", "%", "{}", "$(id)", "\ud7ff\uffff",
)  # fmt: skip
WRONG: list[Any] = [None, -1, 10**30, 1e308, True, [], {}, [[[]]], {"path": "/etc/passwd"}, {"__type__": "update"}]
_JSON = {"content-type": "application/json"}
_RAW = re.compile(rf"<script>{MARK}|<img src=x onerror={MARK}")
_FILES = ("/etc/passwd", "../../../../../../etc/passwd", "..%2f..%2f..%2f..%2fetc%2fpasswd")
_SECRETS = ("root:x:0", "scrypt$")
MOST_LINKS, OF_ONE_KIND = 120, 3  # addresses that a crawl follows, and of those that differ only in their values
METHODS = ("TRACE", "PUT", "DELETE", "OPTIONS", "PATCH")
TAINT = f"{MARK}\"{MARK}'{MARK}<{MARK}>\r\n{MARK}-header: 1 {{{{7919*7907}}}}${{7919*7907}}"
_RAW_TAINT = re.compile(rf"{MARK}[\"'<>]|{7919 * 7907}")
_HIDDEN = (
    "/.git/config /.env /.htaccess /backup.zip /users /tracker.db /workspace.json /server-status /actuator/env "
    "/phpinfo.php /trace.axd /WEB-INF/web.xml /docs /redoc /openapi.json /metrics /gradio_api/openapi.json "
    "/monitoring /admin /debug /console /gradio_api/deep_link?session_hash=x"
).split()
_AROUND = (  # ways past what refuses a path
    *("//gradio_api/file=/etc/passwd", "/gradio_api//file=/etc/passwd", "/./gradio_api/file=/etc/passwd"),
    *("/cycle/../gradio_api/file=/etc/passwd", "/%67radio_api/file=/etc/passwd", "/gradio_api%2ffile=/etc/passwd"),
    *("/gradio_api/queue/join/../../file=/etc/passwd", "//evil.example/", "//evil.example/%2f..", "/\\evil.example/"),
    *("/cycle//evil.example/", "http://evil.example/", "/cycle;/", "/cycle%00", "/cycle%0d%0aset-cookie:x=1"),
)


def paths(served: Served, draw: random.Random) -> list[str]:
    """Ask for files of the server in every route that takes a name or a file."""
    routes = (
        *("/gradio_api/file={}", "/gradio_api/file/{}", "/file={}", "/static/{}", "/assets/{}", "/svelte/{}"),
        *("/gradio_api/custom_component/{}/client/component/x", "/gradio_api/proxy=file://{}", "/theme.css/{}"),
        *("/download/stage/{}.csv", "/download/evaluation/{}.json", "/download/report/{}.html", "/download/{}.csv"),
        *("/download/overview.csv?experiment={}", "/download/votes.csv?first={}&second=base", "/pwa_icon/{}", "/{}"),
    )
    with Visitor(served) as visitor:
        for route in routes:
            for name in (*_FILES, str(served.log.parent / "users"), draw.choice(HOSTILE)):
                raw = route.format(name if name in _FILES else quote(name, safe="/"))
                reply = visitor.ask("GET", raw)
                if any(secret in reply.text for secret in _SECRETS):
                    visitor.faults.append(f"GET {raw[:150]} returned a file of the server")
        for path in ("/gradio_api/upload", "/gradio_api/component_server", "/gradio_api/run/predict", "/login"):
            reply = visitor.ask("POST", path, files={"files": ("x.txt", b"x" * 4096)})
            if reply.status_code < 400:
                visitor.faults.append(f"POST {path} was taken: {reply.text[:100]}")
    return visitor.faults


def headers(served: Served, draw: random.Random) -> list[str]:
    """Send forged Host, Origin and forwarding headers."""
    hosts = ("evil.example", "[", "[::1", "127.0.0.1@evil.example", "evil.example@127.0.0.1", "127.0.0.1/x", "", "a b")
    origins = ("http://evil.example", "null", "http://[", "x", f"http://127.0.0.1:{served.port}.evil.example")
    forged = (
        "x-forwarded-host x-gradio-server x-forwarded-proto forwarded x-forwarded-port x-original-url x-gradio-user"
    ).split()
    function = b'{"data": [], "fn_index": 10000}'
    with Visitor(served) as visitor:
        for host in draw.sample(hosts, len(hosts)):
            if visitor.ask("GET", "/", headers={"host": host}).status_code < 400:
                visitor.faults.append(f"the host {host!r} was let in")
        for origin in origins:
            reply = visitor.ask("POST", "/gradio_api/queue/join", headers={"origin": origin}, json={"data": []})
            if reply.status_code != 403:
                visitor.faults.append(f"the origin {origin!r} was let in")
        for name in forged:
            reply = visitor.ask("GET", "/", headers={name: "http://evil.example/"})
            if "evil.example" in reply.text:
                visitor.faults.append(f"the header {name} is believed")
        for body in (b"x" * (2 << 20), b"[" * 100_000, b"{", b"\xff", b'{"data": NaN}', function):
            reply = visitor.ask("POST", "/gradio_api/queue/join", content=body, headers=_JSON)
            if reply.status_code < 400:
                visitor.faults.append(f"body {body[:40]!r}: {reply.status_code} {reply.text[:60]!r}")
    return visitor.faults


def keys(served: Served, draw: random.Random) -> list[str]:
    """Use wrong, old and forged keys and cookies, many at once; a user who is signed in goes on working."""
    good = base64.b64encode(f"ada:{USERS['ada']}".encode()).decode()
    cookies = {name: draw.choice(("ada", "1", good)) for name in ("access-token", "access-token-unsecure", "session")}
    forged = [
        *("", "Basic", "Basic ???", "Basic é", f"Bearer {good}", f"Digest {good}", f"Basic {good[:-4]}"),
        *(f"Basic {base64.b64encode(pair).decode()}" for pair in (b"ada", b"ada:", b":", b"\xff:\xff", b"ada\x00:x")),
        *(f"Basic {base64.b64encode(f'ada:{draw.random()}'.encode()).decode()}" for _ in range(30)),
        f"Basic {base64.b64encode(b'x' * 40_000).decode()}",
    ]
    faults: list[str] = []
    with Visitor(served) as visitor, httpx.Client(base_url=served.address, timeout=PATIENCE, cookies=cookies) as http:

        def knock(key: str) -> None:
            path = draw.choice(("/", "/cycle", "/config", "/download/overview.csv", "/gradio_api/queue/join"))
            reply = http.get(path, headers={"authorization": key.encode("latin-1")})
            faults.extend(f"key {key[:40]!r}: {fault}" for fault in wrong(reply))
            if reply.status_code not in (400, 401, 431):
                faults.append(f"key {key[:40]!r} on {path}: status {reply.status_code}")

        visitor.ask("GET", "/health")
        visitor.ask("GET", "/")
        with ThreadPoolExecutor(16) as pool:
            knocking = [pool.submit(knock, key) for key in forged]
            visitor.ask("GET", "/cycle")
            for one in knocking:
                one.result()
    return faults + visitor.faults


def slow(served: Served, draw: random.Random) -> list[str]:
    """Send requests a byte at a time, and read replies as slowly: the others are still answered."""
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nX: {'y' * 4000}\r\n\r\n".encode()
    with _connections(served, 40) as open_, Visitor(served) as visitor:
        for number in range(draw.randrange(3, 6)):
            for one in open_:
                with contextlib.suppress(OSError):
                    one.sendall(request[number : number + 1])
            visitor.load(draw.choice(PAGES), {})
    return visitor.faults


def flood(served: Served, draw: random.Random) -> list[str]:
    """Open 400 connections and send what is no HTTP on some: the others are answered, and all is given back."""
    files = Path(f"/proc/{served.process.pid}/fd")
    before = len(list(files.iterdir()))
    with _connections(served, 400) as open_, Visitor(served) as visitor:
        for one in draw.sample(open_, 100):
            with contextlib.suppress(OSError):
                one.sendall(draw.randbytes(200) + b"\r\n\r\n")
        visitor.load("", {})
    until = time.monotonic() + PATIENCE
    while len(list(files.iterdir())) > before + 20 and time.monotonic() < until:
        time.sleep(0.2)
    left = len(list(files.iterdir())) - before
    return visitor.faults + ([f"{left} files stay open after the flood"] if left > 20 else [])


def unread(served: Served, draw: random.Random) -> list[str]:
    """Ask for pages under ever new sessions and never read the answers: memory stays bounded."""
    with Visitor(served) as visitor:
        function = visitor.functions(page := draw.choice(("", "samples", "compare", "cycle")))[0]
        for number in range(150):
            body = {"data": [None] * len(function["inputs"]), "fn_index": function["id"], "session_hash": f"u{number}"}
            visitor.ask("POST", "/gradio_api/queue/join", json=body | {"trigger_id": function["targets"][0][0]})
        visitor.load(page, {})
    return visitor.faults


def decisions(served: Served, draw: random.Random) -> list[str]:
    """Accept and reject at the same moment, by two reviewers who saw the same: one is recorded, and it applies."""
    why = f"race {draw.random()}"
    with Visitor(served, "ada") as ada, Visitor(served, "bob") as bob:
        enter = [one for one in ada.functions("cycle") if one["targets"][0][1] == "click"]
        pairs = [(ada, enter[0]), (bob, enter[1])]
        draw.shuffle(pairs)
        cycle = str(len(served.cycles))
        query = {"cycle": cycle, "experiment": "default"}
        shown = _named("cycle", ada.load("cycle", query))
        said = _at_once([lambda v=v, f=f: v.call(f, [shown, "", why], query) for v, f in pairs])
    database = open_readonly(served.tracker)
    try:
        mine = [one for one in queries.decisions(database, served.cycles[-1]) if one.why == why]
        overview = queries.overview(database, served.experiment)
    finally:
        database.close()
    faults = ada.faults + bob.faults
    recorded = [(one.who, one.decision) for one in mine]
    refused = [outputs for outputs in said if "reload the page" in str(outputs[:1])]
    if recorded not in ([("ada", "accepted")], [("bob", "rejected")]) or len(refused) != 1:
        faults.append(f"of two decisions these are recorded: {recorded}; {said!s:.300}")
    elif overview is not None and overview.latest is not None:
        stands = mine[0].decision
        if (overview.latest.name == f"cycle-{cycle}/recovered") != (stands == "accepted"):
            faults.append(f"the newest decision is {stands}, the latest checkpoint {overview.latest.name}")
    return faults


def votes(served: Served, draw: random.Random) -> list[str]:
    """Send one vote eight times at the same moment: it is stored and counted once."""
    with Visitor(served) as visitor:
        query = {"first": "base", "second": f"cycle-{draw.randint(1, 3)}/recovered", "experiment": "default"}
        shown = visitor.load("review", query)
        pair = _named("pair", shown)
        if pair is None:
            done = any("You have judged all" in str(text) for _, text in shown)
            return [*visitor.faults, *([] if done else [f"no pair is shown for {query}"])]
        function = next(one for one in visitor.functions("review") if one["targets"][0][1] == "click")
        others = [Visitor(served) for _ in range(8)]
        _at_once([lambda v=v: v.call(function, [pair, ""], query) for v in others])
    database = open_readonly(served.tracker)
    try:
        ids = [one.id for one in queries.checkpoints(database, served.experiment) if one.name in query.values()]
        first, second = (int(part) for part in pair.split("-"))
        texts = reviews.texts(database, reviews.Pair(first, second, ""))
        given = [one for one in reviews.votes(database, *ids) if texts and one.item == texts.pair.item]
        with database.reading() as connection:
            statement = f"SELECT count(*) FROM vote WHERE first_id = {first} AND second_id = {second}"
            stored = connection.exec_driver_sql(statement).scalar()
    finally:
        database.close()
    counted = f"a vote sent eight times is stored {stored} times and counted {len(given)} times"
    return sum((one.faults for one in others), visitor.faults) + ([] if stored == len(given) == 1 else [counted])


def hostile(served: Served, draw: random.Random) -> list[str]:
    """Call every page and every function of a page, with one or two hostile values in the address at a time."""
    known = sorted({*re.findall(r'(?:\.get\(|asked\[)"(\w+)"', _sources()), "experiment"})
    with Visitor(served) as visitor:
        for page in PAGES:
            functions = visitor.functions(page)
            for _ in range(3):
                query = {name: draw.choice(HOSTILE) for name in draw.sample(known, draw.randint(1, 2))}
                if _RAW.search(visitor.ask("GET", f"/{page}", params=query).text):
                    visitor.faults.append(f"/{page}: the page holds its query unescaped")
                for function in functions:
                    _call(visitor, draw, page, function, query)
    return visitor.faults


def crawl(served: Served, draw: random.Random) -> list[str]:
    """Follow every link from the pages, breadth first; try each path and parameter as an active scanner does.

    What every response must keep to is in tests/dashboard/web_rules.py.
    """
    pages = [f"{served.address}/{page}" for page in PAGES]
    named = [f"{page}?{urlencode({'experiment': hostile_records.NAME})}" for page in pages]
    waiting, kinds = deque([*pages, *draw.sample(named, len(named))]), Counter[tuple[str, ...]]()
    tried: set[tuple[str, str]] = set()
    with Visitor(served) as visitor:
        while waiting and kinds.total() < MOST_LINKS:
            address = urlsplit(waiting.popleft())
            query = dict(parse_qsl(address.query, keep_blank_values=True))
            kind = (address.path, *sorted(query))
            if kinds[kind] < OF_ONE_KIND:
                kinds[kind] += 1
                waiting.extend(_visited(visitor, address.path, query))
                _try_path(visitor, address.path, tried)
                _try_parameters(visitor, address.path, query, tried)
        for path in _HIDDEN:
            if visitor.ask("GET", path).status_code < 400:
                visitor.faults.append(f"{path} is there")
        for raw in _AROUND:
            visitor.ask("GET", "/", raw=raw)
    if kinds.total() < 2 * len(PAGES):
        visitor.faults.append(f"only {kinds.total()} addresses were found")
    return visitor.faults


def _visited(visitor: Visitor, path: str, query: dict[str, str]) -> list[str]:
    """Ask for an address, and return the links of what it shows."""
    address = f"{visitor.served.address}{path}"
    reply = visitor.ask("GET", path, params=query)
    kind = reply.headers.get("content-type", "")
    if kind.startswith(("text/css", "text/javascript", "application/javascript")):
        return scripts(address, reply.text)
    if not kind.startswith("text/html") or path.startswith("/download/"):
        return []
    found = links(address, reply.text)
    if (page := path.strip("/")) in PAGES:
        for html in _html(visitor.load(page, query)):
            visitor.faults += [f"/{page} {query!s:.150}: {fault}" for fault in hostile_records.unsafe_html(html)]
            found += links(address, html)
    return found


def _html(shown: list[tuple[str, Any]]) -> list[str]:
    return [value for kind, value in shown if kind == "html" and isinstance(value, str)]


def _try_path(visitor: Visitor, path: str, tried: set[tuple[str, str]]) -> None:
    """Try once what a path must refuse: other methods, other sites, nobody's requests; and its folder."""
    if (path, "") in tried:
        return
    tried.add((path, ""))
    for method in METHODS:
        reply = visitor.ask(method, path, headers={"content-length": "0", "x-mark": MARK})
        if (reply.status_code < 400 and method != "OPTIONS") or MARK in reply.text:
            visitor.faults.append(f"{method} {path} was taken: {reply.status_code} {reply.text[:60]!r}")
    asked = {"origin": "http://evil.example", "access-control-request-method": "GET"}
    for method in ("GET", "OPTIONS"):
        visitor.ask(method, path, headers=asked | {"content-length": "0"})
    nobody = httpx.get(f"{visitor.served.address}{path}", timeout=PATIENCE)
    visitor.faults += [f"{path}, nobody's: {fault}" for fault in wrong(nobody)]
    if nobody.status_code != 401:
        visitor.faults.append(f"{path} was shown to nobody: {nobody.status_code}")
    visitor.ask("GET", path.rpartition("/")[0] + "/")


def _try_parameters(visitor: Visitor, path: str, query: dict[str, str], tried: set[tuple[str, str]]) -> None:
    """Put a mark with every special character into each parameter of an address once."""
    for name in query:
        if (path, name) in tried:
            continue
        tried.add((path, name))
        tainted = query | {name: TAINT}
        reply = visitor.ask("GET", path, params=tainted)
        shown = [reply.text] if reply.headers.get("content-type", "").startswith("text/html") else []
        if (page := path.strip("/")) in PAGES:
            shown += _html(visitor.load(page, tainted))
        for found in filter(None, map(_RAW_TAINT.search, shown)):
            near = found.string[max(0, found.start() - 60) :][:120]
            visitor.faults.append(f"{path}: its parameter {name} is not escaped: {near!r}")
        if f"{MARK}-header" in reply.headers:
            visitor.faults.append(f"{path}: its parameter {name} becomes a header")


def documents(served: Served, draw: random.Random) -> list[str]:
    """Look at an experiment in which every text is hostile: its pages, sheets and report."""
    about = {"experiment": hostile_records.NAME}
    compared = about | {"first": "base", "second": "cycle-1/midtrained"}
    asked = {"samples": about | {"show": "all"}, "review": compared | {"view": draw.choice(("compare", "results"))}}
    with Visitor(served) as visitor:
        for page in PAGES:
            for kind, value in visitor.load(page, asked.get(page, about)):
                unsafe = hostile_records.unsafe(kind, value)
                visitor.faults += [f"/{page}, hostile texts: {fault}" for fault in unsafe]
        evaluation = draw.choice(served.hostile)
        names = ("overview", "votes", "labels", f"evaluation/{evaluation}", *(f"stage/{n}" for n in range(1, 7)))
        for name in names:
            sheet = visitor.ask("GET", f"/download/{name}.csv", params=compared).text
            visitor.faults += [f"{name}.csv: {fault}" for fault in hostile_records.unsafe_csv(sheet)]
        rows = visitor.ask("GET", f"/download/evaluation/{evaluation}.json").json()
        kept = hostile_records.stored(served.tracker, evaluation)
        if [{name: row[name] for name in kept[0]} for row in rows] != kept:
            visitor.faults.append("a download as JSON differs from the tracker")
        report = visitor.ask("GET", "/download/report/1.html")
        if report.status_code == 200:
            visitor.faults += [f"report: {fault}" for fault in hostile_records.unsafe_report(report.text)]
        else:
            visitor.faults.append(f"there is no report: {report.text[:400]!r}")
    return visitor.faults


def _call(visitor: Visitor, draw: random.Random, page: str, function: dict[str, Any], query: dict[str, str]) -> None:
    """Call a function with hostile values, or with none if a page calls it by itself: then it must not fail."""
    automatic = function["targets"] and function["targets"][0][1] in ("load", "then", "tick")
    data = [None if automatic else draw.choice((*HOSTILE, *WRONG)) for _ in function["inputs"]]
    outputs = visitor.call(function, data, query)
    if automatic and not outputs:
        visitor.faults.append(f"/{page} {query!s:.300}: its function {function['id']} failed")
    for kind, value in zip(function["returns"], outputs, strict=False):
        if kind == "html" and (found := _RAW.search(str(value))):
            visitor.faults.append(f"/{page} {query!s:.300}: {found[0]!r} is not escaped")


def _sources() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "dashboard" / "pages").glob("*.py")))


def _named(what: str, shown: list[tuple[str, Any]]) -> str | None:
    """Return what a page names as shown in an attribute of its HTML."""
    return next((found[1] for _, text in shown if (found := re.search(rf'data-{what}="([\d-]+)"', str(text)))), None)


def _at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


@contextlib.contextmanager
def _connections(served: Served, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE))
            for _ in range(count)
        ]


ATTACKS: dict[str, Callable[[Served, random.Random], list[str]]] = {
    "paths to files": paths,
    "forged headers and bodies": headers,
    "wrong keys": keys,
    "slow clients": slow,
    "a flood of connections": flood,
    "answers that nobody reads": unread,
    "accepted and rejected at once": decisions,
    "a vote sent eight times at once": votes,
    "hostile values everywhere": hostile,
    "a crawl of all links": crawl,
    "hostile documents": documents,
}
