"""What is wrong with a response by rules that hold for every one, as the passive rules of OWASP ZAP, and its links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

import httpx

_EXPECTED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_DIRECTIVES = {
    "default-src": "'self'", "script-src-attr": "'none'", "object-src": "'none'", "base-uri": "'self'",
    "form-action": "'self'", "frame-ancestors": "'none'", "connect-src": "'self'",
}  # fmt: skip
_FILES = ("/assets/", "/static/")  # the only responses that a browser may keep: they hold nothing of the tracker
_LISTING = re.compile(r"<title>(Index of|Directory listing)|Parent Directory</a>", re.IGNORECASE)
_SOURCE = re.compile(r"(/home/|/Users/|/root/|[A-Z]:\\\\)[\w.-]+")  # a folder of whoever built a source map
_NOT_HTTP = "Invalid HTTP request received."  # what uvicorn says before any application is asked
_LOADING = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "form": "action"}


def broken(reply: httpx.Response) -> list[str]:
    """Return the rules that a response breaks."""
    if reply.status_code == 400 and reply.text == _NOT_HTTP:
        return []
    faults = [
        f"{name} is {reply.headers.get(name)!r}"
        for name, value in _EXPECTED.items()
        if reply.headers.get(name) != value
    ]
    faults += [*_policy(reply), *_cookies(reply), *_kept(reply), *_sent_on(reply)]
    if reply.status_code >= 500:
        faults.append(f"an error of the server: {reply.text[:100]!r}")
    faults += [f"the header {name}" for name in ("server", "x-powered-by") if name in reply.headers]
    faults += [f"{name}: {value}" for name, value in reply.headers.items() if name.startswith("access-control-")]
    kind = reply.headers.get("content-type", "")
    if reply.content and not kind:
        faults.append("no content type")
    if kind.startswith("text/html"):
        faults += _loaded(reply, kind)
    if reply.url.path.endswith(".map") and (found := _SOURCE.search(reply.text)):
        faults.append(f"a source map tells {found[0]!r}")
    return [f"status {reply.status_code}: {fault}" for fault in faults]


def _policy(reply: httpx.Response) -> Iterator[str]:
    parts = (part.strip().partition(" ") for part in reply.headers.get("content-security-policy", "").split(";"))
    policy = {name: value for name, _, value in parts}
    for name, value in _DIRECTIVES.items():
        if policy.get(name) != value:
            yield f"the content-security policy has {name} {policy.get(name)}"
    for name, value in policy.items():
        if re.search(r"\*|https?:", value):
            yield f"the content-security policy lets other sites in: {name} {value}"


def _cookies(reply: httpx.Response) -> Iterator[str]:
    for cookie in reply.headers.get_list("set-cookie"):
        marks = {part.strip().partition("=")[0].lower() for part in cookie.split(";")[1:]}
        if not marks >= {"httponly", "samesite"}:
            yield f"a cookie without HttpOnly or SameSite: {cookie:.80}"


def _kept(reply: httpx.Response) -> Iterator[str]:
    kept = reply.headers.get("cache-control", "")
    if "no-store" not in kept and not (reply.status_code < 400 and reply.url.path.startswith(_FILES)):
        yield f"a browser or a proxy may keep it: cache-control {kept!r}"


def _sent_on(reply: httpx.Response) -> Iterator[str]:
    there = reply.headers.get("location", "")
    if there and urlsplit(urljoin(str(reply.url), there)).netloc != urlsplit(str(reply.url)).netloc:
        yield f"it sends the browser to {there:.80}"


def _loaded(reply: httpx.Response, kind: str) -> Iterator[str]:
    """Yield what a page loads from elsewhere, and where it lets another page change it."""
    if "charset" not in kind:
        yield "HTML without a charset"
    if _LISTING.search(reply.text):
        yield "it lists a folder"
    for tag, attributes in _elements(reply.text):
        address = attributes.get(_LOADING.get(tag, ""), "")
        if address and not address.startswith("data:") and not is_ours(str(reply.url), address):
            yield f"it loads <{tag}> from {address:.80}"
        if attributes.get("target") == "_blank" and "noopener" not in attributes.get("rel", ""):
            yield f"a link that opens a window may change this one: {attributes.get('href', ''):.80}"


class _Elements(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep one element."""
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def _elements(html: str) -> list[tuple[str, dict[str, str]]]:
    return _Elements(html).found


def is_ours(page: str, address: str) -> bool:
    """Whether an address on a page is one of the same server."""
    there = urlsplit(urljoin(page, address))
    return (there.scheme, there.netloc) == urlsplit(page)[:2]


def links(page: str, html: str) -> list[str]:
    """Return the addresses of the same server that a page's HTML names, also those of forms, without fragments."""
    named, form, fields = [], "", dict[str, str]()
    for tag, attributes in [*_elements(html), ("form", {})]:
        named += [attributes[name] for name in ("href", "src") if name in attributes]
        if tag == "form":
            named += [f"{form}?{urlencode(fields)}"] if form else []
            form, fields = attributes.get("action", ""), {}
        elif attributes.get("name"):
            fields[attributes["name"]] = attributes.get("value", "")
    return [urljoin(page, one).partition("#")[0] for one in named if one and is_ours(page, one)]


def scripts(address: str, text: str) -> list[str]:
    """Return the addresses of the scripts, style sheets and source maps that a script or a style sheet names."""
    named = re.findall(r"[\"'](\.{1,2}/[\w./-]+\.(?:js|css))[\"']|sourceMappingURL=([\w./-]+\.map)\b", text)
    return [urljoin(address, one or other) for one, other in named]
