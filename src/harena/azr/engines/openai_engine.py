"""Completions from any OpenAI-compatible server (vLLM, SGLang, llama.cpp and others): for evaluation, for proposing and
for rollouts that somebody else learns from.

Guarantees: completions in the order of the requests, as many as were asked for, also from servers that give one at a
time; what a server sends is read through caps and a closed schema, and within timeout_s, however it drips; a busy or
failing server is asked again a bounded number of times, and a wrong key, model or request is an error at once, which
waits for no other request. A server that answers every repeated question with the same words does not sample, and is
refused where sampling was asked for.

Does not learn: the weights are the server's, so `step`, `state` and `load` refuse. A server that ignores the seed may
answer differently each time. Token ids and log probabilities are there on request and where the server gives them (most
give those of temperature 1); else they are empty. Standard library only; the address is the caller's, and nothing else
is contacted: no proxy, no redirect.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import urllib.parse
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never, cast

from harena.azr import environment
from harena.azr.engines import registry
from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Rollout, Sampling, Update
from harena.azr.errors import TrainingError
from harena.errors import SpecError
from harena.terminal import safe

if TYPE_CHECKING:
    from pathlib import Path

    from harena.azr.config import EngineConfig, TrainConfig
    from harena.azr.report.journal import Sink
    from harena.azr.run import Say

MAX_ANSWER_BYTES = 64 << 20
MAX_TEXT_CHARS = 1 << 20
"""Largest completion: many times what the tokens that are ever asked for can hold."""
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
PAUSE_S = 0.5
"""Before the first retry; twice as long before each further one."""
SAME_CHARS, SAME_TIMES, SAME_PROMPTS = 20, 16, 3
"""So many repetitions of so long answers to so many prompts, and never another answer, are no chance, if
sampled at a temperature of WARM or more."""
WARM = 0.7
LARGEST = 1e30
"""Largest size of a log probability; what is beyond is not a number."""


class ServerError(TrainingError):
    """The server refused, or stayed unreachable through all retries."""


class RequestRefused(ServerError):
    """The server does not take this request, however often."""


class LearningRefused(TrainingError):
    """A server's weights cannot be trained from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    url: str
    """Where the API starts, e.g. http://127.0.0.1:8000/v1."""
    model: str
    chat: bool = False
    """Ask /chat/completions with the prompt as one user message, for servers that have nothing else. A reply then has
    the server's template around it, and the compact prompts, which are code to be continued, do badly."""
    concurrency: int = 16
    """Requests at once; batching is the server's."""
    retries: int = 4
    timeout_s: float = 300.0
    """Seconds from the question to the last byte of the answer; connecting may take as long again."""
    logprobs: bool = False
    """Ask for the log probabilities of sampled tokens (completions only). Evaluating and proposing need none."""
    token_ids: bool = False
    """Ask for token ids by vLLM's `return_token_ids`; other servers may refuse the field."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise SpecError(f"server {self.url!r}: give an address such as http://127.0.0.1:8000/v1")
        if not self.model:
            raise SpecError("server: name a model; GET /models lists those it has")
        if self.concurrency < 1 or self.retries < 0 or not self.timeout_s > 0:
            raise SpecError("server: concurrency >= 1, retries >= 0 and timeout_s > 0")


class OpenAIEngine:
    """A Generator. `key`: sent as a bearer token; by default what OPENAI_API_KEY holds, if anything."""

    def __init__(self, settings: ServerSettings, *, key: str | None = None) -> None:
        self.settings = settings
        key = environment.server_key() if key is None else key
        if not key.isascii() or any(letter.isspace() for letter in key):
            raise SpecError(f"{environment.KEY_VARIABLE}: not a usable key")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._busy: set[http.client.HTTPConnection] = set()
        self._given_up = threading.Event()
        self._several = True  # completions in one answer, until the server refuses

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        answers: list[list[Completion]] = [[] for _ in requests]
        workers = ThreadPoolExecutor(self.settings.concurrency, "harena-openai")
        self._given_up.clear()
        try:
            waiting: dict[Future[list[Completion]], int] = {
                workers.submit(self._ask, request, sampling, index): index for index, request in enumerate(requests)
            }
            for done in as_completed(waiting):
                index = waiting[done]
                answers[index] = done.result()
                if on_done is not None:
                    on_done(index, answers[index])
        except BaseException:
            self._give_up()
            raise
        finally:
            workers.shutdown(cancel_futures=True)
            while self._idle:
                self._idle.pop().close()
        if not sampling.greedy and sampling.temperature >= WARM:
            self._check_sampled(requests, answers)
        return answers

    def _give_up(self) -> None:
        """Ends the requests that are under way; their answers would be waited for."""
        self._given_up.set()
        for connection in list(self._busy):
            with contextlib.suppress(OSError, AttributeError):  # it may be closed by now, or not yet open
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _check_sampled(self, requests: Sequence[CompletionRequest], answers: Sequence[Sequence[Completion]]) -> None:
        by_prompt: dict[str, list[str]] = {}
        for request, group in zip(requests, answers, strict=True):
            by_prompt.setdefault(request.prompt, []).extend(one.text for one in group)
        repeated = [texts for texts in by_prompt.values() if len(texts) > 1]
        telling = [texts for texts in repeated if len(texts[0]) >= SAME_CHARS]
        times = sum(len(texts) - 1 for texts in telling)
        same = all(len(set(texts)) == 1 for texts in repeated)
        if same and times >= SAME_TIMES and len(telling) >= SAME_PROMPTS:
            raise ServerError(
                f"{self.settings.url}: the same answers {times} times over: the server does not sample, whatever the "
                "temperature (`transformers serve` samples where the model's generation_config.json has do_sample)"
            )

    # ---- learning: not here ----

    def step(self, rollouts: Sequence[Rollout], update: Update) -> Never:
        del rollouts, update
        self._refuse()

    def state(self) -> Never:
        self._refuse()

    def load(self, state: Mapping[str, Any]) -> Never:
        del state
        self._refuse()

    def _refuse(self) -> Never:
        raise LearningRefused(
            f"the weights of {self.settings.model!r} are the server's and cannot be trained from here: "
            f"train with --engine {' or '.join(registry.TRAINING)}, and use openai to evaluate or propose"
        )

    # ---- asking ----

    def _ask(self, request: CompletionRequest, sampling: Sampling, index: int) -> list[Completion]:
        found: list[Completion] = []
        path = "/chat/completions" if self.settings.chat else "/completions"
        while len(found) < request.n:
            wanted = request.n - len(found) if self._several else 1
            # Some servers give one completion whatever `n` says: the rest is asked for with other seeds.
            body = self._body(request, sampling, number=index + 7919 * len(found)) | {"n": wanted}
            try:
                answer = self._post(path, json.dumps(body).encode())
            except RequestRefused:
                if wanted == 1:
                    raise
                self._several = False
                continue
            choices = _list(answer.get("choices"))
            if not 1 <= len(choices) <= wanted:
                raise ServerError(f"the server gave {len(choices)} completions, {wanted} were asked for")
            found += [_completion(_mapping(choice), sampling, chat=self.settings.chat) for choice in choices]
        return found

    def _body(self, request: CompletionRequest, sampling: Sampling, *, number: int) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {
            "model": settings.model,
            "max_tokens": request.max_new,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": 1.0 if sampling.greedy else sampling.top_p,
            "seed": (sampling.seed * 1_000_003 + number) % (1 << 31),
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if settings.chat:
            return body | {"messages": [{"role": "user", "content": request.prompt}]}
        if settings.logprobs:
            body["logprobs"] = 1
        if settings.token_ids:
            body["return_token_ids"] = True
        return body | {"prompt": request.prompt}

    def _post(self, path: str, body: bytes) -> dict[str, Any]:
        why = ""
        for attempt in range(self.settings.retries + 1):
            if attempt:
                self._given_up.wait(min(20.0, PAUSE_S * 2 ** (attempt - 1)) * (0.5 + random.random()))
            if self._given_up.is_set():
                break
            try:
                status, data = self._exchange(path, body)
            except (OSError, http.client.HTTPException) as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                return _object(data)
            why = f"HTTP {status}: {_message(data)}"
            if status not in RETRIED:
                raise RequestRefused(f"{self.settings.url}: {why}")
        raise ServerError(f"{self.settings.url}: {why} (after {self.settings.retries + 1} tries)")

    def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Over a connection that is kept open for the next request; closed when anything goes wrong."""
        connection = self._connection()
        self._busy.add(connection)
        base = urllib.parse.urlsplit(self.settings.url).path.rstrip("/")
        deadline: _Deadline | None = None
        try:
            if connection.sock is None:
                connection.connect()
            deadline = _Deadline(connection, self.settings.timeout_s)
            connection.request("POST", base + path, body, self._headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER_BYTES + 1)
            deadline.check()
            if len(data) > MAX_ANSWER_BYTES:
                raise ServerError(f"{self.settings.url}: an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        except BaseException as error:
            connection.close()
            if deadline is not None and isinstance(error, OSError | http.client.HTTPException):
                deadline.check()
            raise
        finally:
            self._busy.discard(connection)
            if deadline is not None:
                deadline.cancel()
        self._idle.append(connection)
        return answer.status, data

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            parts = urllib.parse.urlsplit(self.settings.url)
            make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            return make(parts.hostname or "", parts.port, timeout=self.settings.timeout_s)


class _Deadline:
    """Ends a connection when its time is over: a socket's own timeout begins anew with every byte."""

    def __init__(self, connection: http.client.HTTPConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._is_over = False
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self._is_over = True
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        if self._is_over:
            raise TimeoutError(f"no whole answer within timeout_s={self._timeout_s:g}")

    def cancel(self) -> None:
        self._timer.cancel()


def _object(data: bytes) -> dict[str, Any]:
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ServerError("the server's answer is not JSON") from None
    if not isinstance(answer, dict):
        raise ServerError("the server's answer is not a JSON object")
    return cast("dict[str, Any]", answer)


def _message(data: bytes) -> str:
    """What a server says about its refusal: shortened, and safe in a terminal."""
    return safe(data[:2000].decode("utf-8", "replace"))[:300]


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value if isinstance(value, dict) else {})


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value if isinstance(value, list) else [])


def _completion(choice: Mapping[str, Any], sampling: Sampling, *, chat: bool) -> Completion:
    text = _mapping(choice.get("message")).get("content", "") if chat else choice.get("text")
    if text is None and chat:
        text = ""  # a refusal or an empty turn
    if not isinstance(text, str):
        raise ServerError("the server gave a completion without text")
    if len(text) > MAX_TEXT_CHARS:
        raise ServerError(f"the server gave a completion of {len(text)} characters; {MAX_TEXT_CHARS} are the most")
    return Completion(
        prompt_ids=_ids(choice.get("prompt_token_ids")),
        ids=_ids(choice.get("token_ids")),
        logprobs=_logprobs(_mapping(choice.get("logprobs"))),
        text=before_stop(text, sampling.stop),
        finished=choice.get("finish_reason") != "length",
    )


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Some servers leave the stop string in."""
    ends = [at for word in stop if (at := text.find(word)) >= 0]
    return text[: min(ends)] if ends else text


def _ids(value: object) -> tuple[int, ...]:
    ids = _list(value)
    return tuple(ids) if all(type(item) is int and item >= 0 for item in ids) else ()


def _logprobs(value: Mapping[str, Any]) -> tuple[float, ...]:
    """Read log probabilities in either form: a list of numbers, or, from llama.cpp, one object for each token."""
    numbers = _list(value.get("token_logprobs")) or [
        _mapping(one).get("logprob") for one in _list(value.get("content"))
    ]
    # JSON has ints that no float holds, and Python's has NaN.
    known = all(isinstance(number, int | float) and abs(number) < LARGEST for number in numbers)
    return tuple(map(float, numbers)) if known else ()


class OpenAIDriver:
    """How commands use this engine: to ask, never to train."""

    def train(self, folder: Path, config: TrainConfig, *, sinks: Sequence[Sink], resume: bool, say: Say) -> Never:
        del folder, config, sinks, resume, say
        raise LearningRefused("a server's weights cannot be trained from here")

    def generator(self, engine: EngineConfig) -> OpenAIEngine:
        options = cast("dict[str, Any]", dict(engine.options))
        if "url" not in options:
            raise SpecError("engine.name=openai: give the server's address, --server http://127.0.0.1:8000/v1")
        return OpenAIEngine(ServerSettings(model=engine.model, **options))

    def trained(self, folder: Path, config: TrainConfig, learnt: Mapping[str, Any]) -> Never:
        del folder, config, learnt
        raise LearningRefused("a server's weights cannot be trained from here")
