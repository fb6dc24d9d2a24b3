"""Addresses to listen at; commands/test_serve.py has the whole life of a server."""

import pytest

from jaxscore.errors import InputError
from jaxscore.server.lifecycle import listen, resolved, url_of


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.1", False)],
)  # fmt: skip
def test_addresses_of_this_machine_alone(host, here):
    assert resolved(host, 80).is_loopback is here


@pytest.mark.parametrize(("host", "named"), [("127.8.8.8", "127.8.8.8"), ("::1", "[::1]")])
def test_how_clients_name_an_address(host, named):
    assert resolved(host, 80).host == named


def test_a_name_that_no_machine_has():
    with pytest.raises(InputError, match="no machine has this name"):
        resolved("no such name", 80)


@pytest.mark.parametrize("host", ["", " "])
def test_no_name_is_not_every_address(host):
    with pytest.raises(InputError):
        resolved(host, 80)


def test_where_clients_find_it():
    with listen(resolved("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert url_of(one) == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match=f"--port {port}: cannot be used"):
            listen(resolved("127.0.0.1", port))
