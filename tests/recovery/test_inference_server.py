"""The HTTP client of inference servers: retries, error messages, and keys that are never shown."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from recovery.engines import check_address, is_address
from recovery.errors import ServerError, UsageError
from recovery.inference_server import InferenceServer, NotOffered, ask_all, check_model, served_model, window_of
from recovery.models.chat_loading import load_chat
from recovery.prompt_logprobs import entries, parse_positions
from recovery.rollouts.engine import Completion
from recovery.rollouts.vllm_server_engine import parse_completion
from recovery.teachers.remote import RemoteTeacher
from tests.http_json import address_of, serve_json, stop
from tests.torture.misbehaving import Server, serving


@dataclass
class Script:
    """A real HTTP server that returns the given responses in turn, then repeats the last one."""

    answers: list[tuple[int, Any]]
    keys: list[str | None] = field(default_factory=list)
    slow: float = 0.0
    asked: threading.Event = field(default_factory=threading.Event)

    def serve(self, port: int = 0) -> ThreadingHTTPServer:
        def answer(_path: str, _body: Any, key: str | None) -> tuple[int, Any]:
            self.keys.append(key)
            self.asked.wait(self.slow)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

        return serve_json(answer, port)


@pytest.fixture
def running() -> Iterator[Callable[[Script, int], str]]:
    """``running(script)``: its address, for as long as the test lasts."""
    servers = []

    def run(script: Script, port: int = 0) -> str:
        servers.append(script.serve(port))
        return address_of(servers[-1])

    yield run
    for server in servers:
        stop(server)


def nobody() -> str:
    """The address of a server that is gone."""
    gone = Script([(200, {})]).serve()
    stop(gone)
    return address_of(gone)


def client(address: str, **settings: Any) -> InferenceServer:
    return InferenceServer(address, ("RECOVER_TEACHER_KEY", "VLLM_API_KEY"), **settings)


def test_an_overloaded_server_is_asked_again(running: Callable[..., str]) -> None:
    script = Script([(503, {}), (429, {}), (500, {}), (200, {"fine": 1})])
    returned: list[bool] = []
    server = client(running(script), returned=lambda: returned.append(True))
    assert server.post("/x", {}) == {"fine": 1}
    assert len(script.keys) == 4 and returned == [True]
    script.answers = [(500, {"error": {"message": "a worker failed"}})]
    with pytest.raises(ServerError, match="returned status 500: a worker failed"):
        server.post("/x", {}, retried=False)


def test_a_server_that_is_gone_is_waited_for_and_found_again(running: Callable[..., str]) -> None:
    script = Script([(200, {"n": 1})])
    first = script.serve()
    port = first.server_address[1]
    server = client(f"http://127.0.0.1:{port}", patience=30.0)
    assert server.get("/x") == {"n": 1}
    first.shutdown()
    first.server_close()
    server.close()  # no connection is left either
    said: list[str] = []

    def told(line: str) -> None:
        said.append(line)
        threading.Timer(0.6, running, args=(Script([(200, {"n": 2})]), port)).start()

    server = client(f"http://127.0.0.1:{port}", patience=30.0, waiting=told)
    found = ask_all(lambda n, given_up: server.post("/x", n, given_up=given_up), range(3), 3)
    assert found == [{"n": 2}] * 3
    (line,) = said
    assert line.endswith(": waiting up to 30 seconds (--server-wait)"), "each thread waits, and one says so"


def test_patience_and_timeouts_end(running: Callable[..., str]) -> None:
    with pytest.raises(ServerError, match="`recover resume`, or raise --server-wait"):
        client(nobody(), patience=0.3).get("/x")
    slow = Script([(200, {})], slow=5.0)
    with pytest.raises(ServerError, match=r"did not respond within 0.2 seconds"):
        client(running(slow), timeout=0.2, patience=0.1).get("/x")
    slow.asked.set()


def test_keys_come_from_the_environment_and_are_shown_nowhere(
    running: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECOVER_TEACHER_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    script = Script([(200, {}), (200, {}), (200, {}), (401, {"error": "Unauthorized"})])
    server = client(running(script))
    server.get("/x")
    monkeypatch.setenv("VLLM_API_KEY", "general")
    server.get("/x")
    monkeypatch.setenv("RECOVER_TEACHER_KEY", "particular")
    server.get("/x")
    assert script.keys == [None, "Bearer general", "Bearer particular"]
    with pytest.raises(ServerError, match="set RECOVER_TEACHER_KEY or VLLM_API_KEY") as refused:
        server.get("/x")
    assert "particular" not in str(refused.value) + repr(server)


def test_a_key_from_a_file_loses_its_line_break_and_one_that_is_none_is_not_shown(
    running: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script([(200, {})])
    server = client(running(script))
    monkeypatch.setenv("RECOVER_TEACHER_KEY", "particular\r\n")
    server.get("/x")
    assert script.keys == ["Bearer particular"]
    for key in ("parti\ncular", "schlüssel"):
        monkeypatch.setenv("RECOVER_TEACHER_KEY", key)
        with pytest.raises(UsageError, match="RECOVER_TEACHER_KEY contains a character") as refused:
            server.get("/x")
        assert key not in str(refused.value)


def test_many_are_asked_at_once_and_answers_keep_their_order(running: Callable[..., str]) -> None:
    server = client(running(Script([(200, {"n": 1})])))
    seen: list[tuple[int, Any]] = []
    answers = ask_all(lambda n, given_up: (n, server.post("/x", n, given_up=given_up)), range(30), 8, seen.extend)
    assert answers == [(n, {"n": 1}) for n in range(30)]
    assert sorted(seen) == answers


def test_the_first_error_of_many_waits_for_no_other(running: Callable[..., str]) -> None:
    slow = Script([(200, {})], slow=3600.0)  # a client that waited for it would block the test
    server = client(running(slow), timeout=3600.0)

    def ask(number: int, given_up: threading.Event) -> None:
        if number == 3:
            raise ServerError("refused")
        server.post("/x", {}, given_up=given_up)

    with pytest.raises(ServerError, match="refused"):
        ask_all(ask, range(100), 8)
    assert len(slow.keys) < 9, "no further requests after the first error"
    slow.asked.set()


def test_nobody_goes_on_waiting_for_a_server_after_the_first_gave_up() -> None:
    address = nobody()
    hasty, patient = client(address, patience=0.0), client(address, patience=3600.0)
    begun: list[int] = []
    ended: list[int] = []

    def ask(number: int, given_up: threading.Event) -> None:
        begun.append(number)
        try:
            (hasty if number == 0 else patient).post("/x", {}, given_up=given_up)
        finally:
            ended.append(number)

    with pytest.raises(ServerError, match="recover resume"):
        ask_all(ask, range(200), 8)
    while len(ended) < len(begun):  # a client that kept retrying would block the test
        time.sleep(0.02)
    assert len(begun) < 20, "no further requests after the first error"
    patient.tell("/farewell", {})


def test_errors_contain_the_servers_message(running: Callable[..., str]) -> None:
    said = {"error": {"message": "Requested prompt logprobs of 200\nis too many", "code": 400}}
    server = client(running(Script([(400, said), (404, {"detail": "Not Found"})])))
    with pytest.raises(ServerError, match="returned status 400: Requested prompt logprobs of 200 is too many"):
        server.post("/v1/completions", {})
    with pytest.raises(NotOffered, match="has no /tokenize: Not Found"):
        server.post("/tokenize", {})


def test_the_served_model_is_the_one_that_is_no_adapter(running: Callable[..., str]) -> None:
    listed = {"data": [{"id": "adapter", "parent": "clean"}, {"id": "clean", "parent": None, "max_model_len": 64}]}
    assert served_model(client(running(Script([(200, listed)]))))["id"] == "clean"
    with pytest.raises(ServerError, match="is it a vLLM server"):
        served_model(client(running(Script([(200, {"hello": 1})]))))
    with pytest.raises(ServerError, match="has no /v1/models: nothing here: is it a vLLM server"):
        served_model(client(running(Script([(404, {"detail": "nothing here"})]))))


def test_a_page_in_html_is_not_part_of_an_error() -> None:
    """It was, with its tags, where the address was that of another web server."""
    other = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with pytest.raises(ServerError, match="has no /v1/models: Not Found: is it a vLLM server"):
        served_model(client(address_of(other)))
    stop(other)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://", "is not an address"),
        ("http://host:port", "is not an address"),
        ("ftp://host", "is not an address"),
        ("http://user:secret@host:8000", "must not contain a key"),
        ("http://user:se/secret@host:8000", "must not contain a key"),
        ("http://user:secret@host:port", "must not contain a key"),
        ("http://host:8000?key=secret", "must not contain a key"),
    ],
)
def test_an_address_that_is_none_or_holds_a_key_is_refused(address: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        check_address(address, "--teacher")
    assert "secret" not in str(refused.value)


def test_addresses_are_distinguished_from_names() -> None:
    assert is_address("http://127.0.0.1:8000") and is_address("https://host") and not is_address("org/model")
    assert check_address("http://127.0.0.1:8000/v1/", "--teacher") == "http://127.0.0.1:8000"


def test_a_reply_takes_a_bounded_time_and_has_a_bounded_length(running: Callable[..., str]) -> None:
    server = client(running(Script([(200, {"text": "x" * 5000})])))
    with pytest.raises(ServerError, match=r"/x returned more than 1,000 bytes: check the server"):
        server.post("/x", {}, most=1000)
    with raw(_drip) as address, pytest.raises(ServerError, match=r"did not respond within 0.2 seconds"):
        client(address, timeout=0.2, patience=0.0).get("/x")


def _drip(handler: Any) -> None:
    for _ in range(10_000_000):
        handler.wfile.write(b" ")


@contextlib.contextmanager
def raw(send: Callable[[Any], Any], *headers: tuple[str, str]) -> Iterator[str]:
    """A server whose replies of ten million bytes are sent by a function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in (("Content-Length", "10000000"), *headers):
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client leaves
                send(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield address_of(server)
    stop(server)


def test_what_is_no_json_or_has_no_encoding_is_no_traceback(running: Callable[..., str]) -> None:
    assert client(running(Script([(200, "[" * 100_000)]))).get("/x") is None
    garbled = raw(lambda handler: handler.wfile.write(b"x" * 1000), ("Content-Encoding", "gzip"))
    with garbled as address, pytest.raises(ServerError, match="decompressing data"):
        client(address, patience=0.0).get("/x")
    for listed in ({"data": None}, {"data": 5}, [1]):
        with pytest.raises(ServerError, match="lists no model"):
            served_model(client(running(Script([(200, listed)]))))


def test_a_server_that_is_away_every_other_time_is_checked_once(running: Callable[..., str]) -> None:
    server = client(running(Script([(503, {}), (200, {"n": 1})] * 20)))
    checked: list[Any] = []
    server.returned = lambda: checked.append(server.get("/x"))
    assert server.get("/x") == {"n": 1}
    assert checked == [{"n": 1}]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_a_teacher_that_is_busy_once_during_its_check_can_teach(tiny_model: Path, path: str) -> None:
    server, chat = Server(tiny_model), load_chat(str(tiny_model), {})
    with serving(server) as address:
        teacher = RemoteTeacher(client(address), chat.tokenizer, chat, len(chat.tokenizer), 5)
        server.misbehave("status 503", 1, paths=(path,))
        teacher.check()
        assert server.left == 0 and len(teacher.identity.scores) == 7
        teacher.check_again()


def test_the_model_that_answers_is_the_one_that_was_asked() -> None:
    check_model({"choices": []}, "clean")
    check_model({"model": "clean"}, "clean")
    with pytest.raises(ServerError, match="the model 'other' answered, not 'clean'"):
        check_model({"model": "other"}, "clean")


def test_a_window_is_a_number_of_tokens() -> None:
    assert [window_of(value) for value in (4096, "4096", None, True, -1, [5], math.nan)] == [4096, *[None] * 6]


# --- vLLM responses --------------------------------------------------------------------------------------------------


def choice(index: int, ids: list[int], positions: list[dict[int, float] | None]) -> dict[str, Any]:
    """One prompt's part of a response, in vLLM's format."""
    payload = [p and {str(t): {"logprob": v, "rank": 1, "decoded_token": "x"} for t, v in p.items()} for p in positions]
    return {"index": index, "prompt_token_ids": ids, "prompt_logprobs": payload}


def test_positions_are_returned_in_the_order_of_the_prompts() -> None:
    answer = {"choices": [choice(1, [7, 8], [None, {8: -2.0}]), choice(0, [5, 6], [None, {6: -1.0}])]}
    first, second = parse_positions(answer, [[5, 6], [7, 8]])
    assert entries(first[1], 6, 1).target == -1.0
    assert entries(second[1], 8, 1).target == -2.0
    for wrong in ([[5, 6]], [[5, 6], [7, 9]], [[5, 6], [7, 8, 9]]):
        with pytest.raises(ServerError):
            parse_positions(answer, wrong)
    with pytest.raises(ServerError, match="has no prompt_logprobs"):
        parse_positions({"choices": [{"index": 0, "text": "hello"}]}, [[5, 6]])


def test_the_target_token_is_always_among_the_entries() -> None:
    likely = {"3": {"logprob": -0.5}, "4": {"logprob": -1.5}, "9": {"logprob": -2.5}}
    inside = entries(likely, 4, 3)
    assert inside.ids == [3, 4, 9] and inside.target == -1.5
    outside = entries(likely | {"7": {"logprob": -8.0}}, 7, 3)
    assert outside.ids == [3, 4, 7] and outside.logprobs == [-0.5, -1.5, -8.0]
    assert entries(likely, 9, 1).ids == [9]
    with pytest.raises(ServerError, match="has no log-probability of token 7"):
        entries(likely, 7, 3)
    with pytest.raises(ServerError, match="returned 3 entries at a token, not 5"):
        entries(likely, 3, 5)


def test_a_completion_is_ids_with_their_log_probabilities() -> None:
    answer = {"choices": [{"token_ids": [4, 2], "logprobs": {"token_logprobs": [-0.1, -0.2]}}]}
    assert parse_completion(answer, {2}) == Completion([4, 2], [-0.1, -0.2], True)
    assert not parse_completion(answer, {3}).finished
    for wrong in ({}, {"choices": [{"token_ids": None, "logprobs": None}]}, {"choices": []}):
        with pytest.raises(ServerError, match="no token ids with log-probabilities"):
            parse_completion(wrong, {2})
