"""`router batch`: OpenAI's batch format, resumed where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from router.command.client.api import ApiClient
from router.command.client.batch import Sender, run
from router.command.client.batch_files import BadInput, BatchRequest, finished_ids, read_requests


class Router(BaseHTTPRequestHandler):
    """Answers with the prompt, refuses those that say so, and is busy for the first `busy` requests."""

    prompts: ClassVar[list[str]] = []
    busy = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["prompt"]
        if type(self).busy:
            type(self).busy -= 1
            self._answer(429, {"error": {"message": "too busy"}}, {"retry-after": "0.25"})
        elif prompt == "bad":
            self._answer(400, {"error": {"message": "bad prompt"}}, {"x-request-id": "cmpl-9"})
        else:
            self.prompts.append(prompt)
            text = {"id": "cmpl-1", "choices": [{"text": prompt.upper()}], "usage": {"completion_tokens": 2}}
            self._answer(200, text)

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Router.prompts, Router.busy = [], 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def write_input(path: Path, *prompts: str) -> Path:
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}
        for i, prompt in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def lines_of(path: Path) -> dict[str, Any]:
    return {line["custom_id"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_every_request_gets_its_answer_under_its_own_id(url: str, tmp_path: Path) -> None:
    source, output = write_input(tmp_path / "in.jsonl", "a", "b", "c"), tmp_path / "out.jsonl"
    assert run([str(source), str(output), "--url", url, "--concurrency", "2"]) == 0
    results = lines_of(output)
    assert {name: r["response"]["body"]["choices"][0]["text"] for name, r in results.items()} == {
        "r0": "A",
        "r1": "B",
        "r2": "C",
    }
    assert results["r0"]["response"]["status_code"] == 200
    assert results["r0"]["error"] is None
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_a_second_run_sends_only_what_has_no_answer(url: str, tmp_path: Path) -> None:
    source, output = write_input(tmp_path / "in.jsonl", "a", "b", "c"), tmp_path / "out.jsonl"
    run([str(source), str(output), "--url", url])
    first, *_, last = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(first + last[:20])  # killed while it wrote the second result
    Router.prompts.clear()
    assert run([str(source), str(output), "--url", url]) == 0
    assert len(Router.prompts) == 2
    assert set(lines_of(output)) == {"r0", "r1", "r2"}


def test_failed_requests_go_to_the_error_file_and_are_sent_again(url: str, tmp_path: Path) -> None:
    source, output = write_input(tmp_path / "in.jsonl", "a", "bad"), tmp_path / "out.jsonl"
    assert run([str(source), str(output), "--url", url]) == 1
    errors = lines_of(tmp_path / "out.errors.jsonl")
    assert errors["r1"]["response"]["status_code"] == 400
    assert errors["r1"]["response"]["request_id"] == "cmpl-9"
    assert errors["r1"]["response"]["body"]["error"]["message"] == "bad prompt"
    assert set(lines_of(output)) == {"r0"}
    write_input(source, "a", "good")
    assert run([str(source), str(output), "--url", url]) == 0
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_a_busy_router_is_asked_again_after_the_time_that_it_names(url: str) -> None:
    Router.busy = 2
    pauses: list[float] = []
    request = BatchRequest("r0", "/v1/completions", {"prompt": "a"})
    assert Sender(ApiClient(url), 3, pauses.append).send(request).ok
    assert len(pauses) == 2
    assert pauses[0] >= 0.5
    assert pauses[1] >= 1.0


def test_a_router_that_is_gone_fails_the_request_in_the_end() -> None:
    request = BatchRequest("r0", "/v1/completions", {"prompt": "a"})
    outcome = Sender(ApiClient("http://127.0.0.1:9"), 2, lambda _: None).send(request)
    assert not outcome.ok
    assert outcome.line["response"] is None
    assert "no router answers" in outcome.line["error"]["message"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("{}", "custom_id"),
        ('{"custom_id": "x", "method": "POST", "url": "/v1/files", "body": {}}', "url '/v1/files'"),
        (
            '{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"stream": 1}}',
            "stream",
        ),
        ('{"custom_id": "r0", "method": "POST", "url": "/v1/completions", "body": {}}', "that of line 1"),
    ],
)
def test_an_input_that_is_no_batch_is_refused_by_line(tmp_path: Path, line: str, complaint: str) -> None:
    source = write_input(tmp_path / "in.jsonl", "a")
    source.write_text(source.read_text() + line + "\n")
    with pytest.raises(BadInput, match="line 2") as refusal:
        read_requests(source)
    assert complaint in str(refusal.value)


def test_an_output_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir,\n")
    with pytest.raises(BadInput, match="not the output of a batch"):
        finished_ids(letter)
    assert letter.read_text() == "Dear Sir,\n"


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_a_line_ends_at_a_line_feed_only(url: str, tmp_path: Path, separator: str) -> None:
    prompt = f"one{separator}two"
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    request = {"custom_id": "r0", "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}
    source.write_text(json.dumps(request, ensure_ascii=False) + "\n", encoding="utf-8")
    assert run([str(source), str(output), "--url", url]) == 0
    assert Router.prompts == [prompt]
    assert run([str(source), str(output), "--url", url]) == 0
    assert Router.prompts == [prompt]


@pytest.mark.parametrize(
    ("input_name", "output_name", "errors_name"),
    [
        ("in.jsonl", "out.jsonl", "out.jsonl"),
        ("in.jsonl", "out.jsonl", "in.jsonl"),
        ("in.jsonl", "out.jsonl", "link.jsonl"),
        ("in.jsonl", "in.jsonl", "errors.jsonl"),
        ("in.jsonl", "out.jsonl", "sub/../in.jsonl"),
    ],
)
def test_one_file_for_two_purposes_is_refused_and_kept(
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    input_name: str,
    output_name: str,
    errors_name: str,
) -> None:
    source = write_input(tmp_path / "in.jsonl", "a")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.jsonl").hardlink_to(source)
    assert run([str(source), str(tmp_path / "out.jsonl"), "--url", url]) == 0
    before = {name: (tmp_path / name).read_text() for name in ("in.jsonl", "out.jsonl")}
    files = [str(tmp_path / name) for name in (input_name, output_name)]
    assert run([*files, "--errors", str(tmp_path / errors_name), "--url", url]) == 2
    assert "name another file" in capsys.readouterr().err
    assert {name: (tmp_path / name).read_text() for name in before} == before


@pytest.mark.parametrize("content", ["Dear Sir,\n", "Dear Sir,", "[]\n", "{}\n", '{"custom_id": "x"}\n'])
def test_an_error_file_that_is_something_else_is_left_alone(url: str, tmp_path: Path, content: str) -> None:
    source, letter = write_input(tmp_path / "in.jsonl", "a"), tmp_path / "letter.txt"
    letter.write_text(content)
    for files in ([str(tmp_path / "out.jsonl"), "--errors", str(letter)], [str(letter)]):
        assert run([str(source), *files, "--url", url]) == 2
        assert letter.read_text() == content
    assert Router.prompts == []


def test_answers_of_another_run_are_no_error_file(url: str, tmp_path: Path) -> None:
    source, other = write_input(tmp_path / "in.jsonl", "a"), tmp_path / "other.jsonl"
    assert run([str(source), str(other), "--url", url]) == 0
    answers = other.read_text()
    assert run([str(source), str(tmp_path / "out.jsonl"), "--errors", str(other), "--url", url]) == 2
    assert other.read_text() == answers


def test_failures_are_no_output_file(url: str, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", "bad")
    assert run([str(source), str(tmp_path / "out.jsonl"), "--url", url]) == 1
    assert run([str(source), str(tmp_path / "out.errors.jsonl"), "--url", url]) == 2


def test_outputs_of_one_stem_have_an_error_file_each(url: str, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", "bad")
    for name in ("a.jsonl", "a.out", "a"):
        assert run([str(source), str(tmp_path / name), "--url", url]) == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        "in.jsonl",
        "a.errors.jsonl",
        "a.errors.out",
        "a.errors",
    }


def test_a_line_that_a_crash_cut_off_is_sent_again(url: str, tmp_path: Path) -> None:
    source, output = write_input(tmp_path / "in.jsonl", "a", "b"), tmp_path / "out.jsonl"
    assert run([str(source), str(output), "--url", url]) == 0
    whole = output.read_text()
    for length in (1, 12, 40):
        first, second = whole.splitlines(keepends=True)
        output.write_text(first + second[:length])
        assert finished_ids(output) == {json.loads(first)["custom_id"]}
        assert output.read_text() == first
