"""How much an address may ask, with a clock that only the test moves; and what is written of each request."""

from __future__ import annotations

import logging

import pytest
from starlette.testclient import TestClient

from harena.access import MAX_ADDRESSES, Buckets, Rate
from harena.api.app import create_app
from harena.http.limits import RequestLimits, address_of
from support.served import upload


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def limited(arena, clock):
    limits = RequestLimits(
        read=Rate(per_s=1, burst=3), write=Rate(per_s=1, burst=2), upload=Rate(per_s=0.5, burst=1), spare_loopback=False
    )
    app = create_app(arena, loopback=False, limits=limits, clock=lambda: clock[0])
    clients = []

    def make(address):
        clients.append(TestClient(app, base_url="http://localhost", client=(address, 1)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_an_address_that_asks_too_often_waits_and_others_do_not(limited, clock):
    one, two = limited("192.0.2.1"), limited("192.0.2.2")
    assert [one.get("/health").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = one.get("/v1/boards?env_id=CartPole-v1")
    assert (refused.json()["code"], refused.headers["retry-after"]) == ("too_many_requests", "1")
    assert two.get("/health").status_code == 200
    clock[0] += 1.0
    assert [one.get("/health").status_code for _ in range(2)] == [200, 429]


def test_uploads_writes_and_reads_are_counted_apart(limited, clock):
    client = limited("192.0.2.3")
    assert upload(client).status_code == 201
    assert upload(client, path="/api/submit/").status_code == 429
    assert client.post("/v1/logout").status_code == 200
    assert client.get("/health").status_code == 200
    clock[0] += 2.0
    assert upload(client, path="/submissions/").status_code == 200


def test_a_network_of_version_6_is_one_address():
    assert address_of(("2001:db8::1", 1)) == address_of(("2001:db8::ffff:1", 2)) == ("2001:db8::/64", False)
    assert address_of(("2001:db8:0:1::1", 1))[0] == "2001:db8:0:1::/64"
    assert address_of(("::ffff:192.0.2.1", 1)) == ("192.0.2.1", False)
    assert address_of(("::1", 1)) == ("::1", True)
    assert address_of(("127.0.0.9", 1)) == ("127.0.0.9", True)
    assert address_of(("testclient", 1)) == ("testclient", False)
    assert address_of(None) == ("local", True)


def test_buckets_forget_the_oldest_address_and_stay_small():
    buckets = Buckets(Rate(per_s=1, burst=1), lambda: 0.0)
    assert buckets.take("first") == 0.0
    assert buckets.take("first") == 1.0
    for number in range(MAX_ADDRESSES):
        buckets.take(str(number))
    assert len(buckets._left) == MAX_ADDRESSES
    assert buckets.take("first") == 0.0


def test_loopback_is_spared_by_default(arena):
    client = TestClient(
        create_app(arena, loopback=True, limits=RequestLimits(read=Rate(per_s=1, burst=1))),
        base_url="http://localhost",
        client=("127.0.0.1", 1),
    )
    assert {client.get("/health").status_code for _ in range(5)} == {200}
    client.close()


def test_each_request_is_logged_once_with_its_id_and_without_its_query(client, caplog):
    with caplog.at_level(logging.INFO, "harena.api.access"):
        answer = client.get("/v1/nothing%0ahere?token=secret")
    (line,) = [vars(record) for record in caplog.records if record.name == "harena.api.access"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["status"], line["client"]) == ("GET", 404, "127.0.0.1")
    assert "secret" not in str(line)


def test_labels_of_metrics_are_routes_and_not_what_strangers_type(client):
    for path in ("/v1/submissions/abcdef", "/made-up-path", "/v1/boards?env_id=made-up-env"):
        client.get(path)
    client.request("MADEUP", "/v1")
    text = client.get("/metrics").text
    assert 'route="/v1/submissions/{submission_id}"' in text
    assert "abcdef" not in text
    assert "made-up" not in text
    assert "MADEUP" not in text
