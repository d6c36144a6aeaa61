"""Addresses and credentials of a cluster; no server is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("elasticsearch")

from capsearch.engine.errors import IndexProblem
from capsearch.indexer.elastic.client import Address, connect, readable_errors

URL = "https://search.example:9200/images"


def test_an_address_is_a_cluster_and_a_name():
    assert Address.parse(URL) == Address("https://search.example:9200", "images")
    assert str(Address.parse(URL)) == URL
    assert Address.parse("https://search.example/a").cluster == "https://search.example:9200"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://search.example:9200", "HOST:9200/NAME"),
        ("ftp://search.example/images", "HOST:9200/NAME"),
        ("https://search.example:port/images", "port"),
        ("https://search.example/Images", "a-z"),
        ("https://search.example/a*", "a-z"),
        ("http://search.example:9200/images", "https://"),
    ],
)
def test_other_addresses_are_refused(url, said):
    with pytest.raises(IndexProblem, match=said):
        Address.parse(url)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(IndexProblem, match="CAPSEARCH_ES_PASSWORD") as caught:
        Address.parse("https://me:secret@search.example/images")
    assert "secret" not in str(caught.value)


def test_an_api_key_is_preferred_to_a_password():
    client = connect(Address.parse(URL), {"CAPSEARCH_ES_API_KEY": "k", "CAPSEARCH_ES_USER": "me"})
    assert client._headers["authorization"] == "ApiKey k"


def test_half_of_the_credentials_or_a_missing_ca_file_are_refused(tmp_path):
    with pytest.raises(IndexProblem, match="both"):
        connect(Address.parse(URL), {"CAPSEARCH_ES_USER": "me"})
    missing = str(tmp_path / "ca.crt")
    with pytest.raises(IndexProblem, match="no file"):
        connect(Address.parse(URL), {"CAPSEARCH_ES_CA": missing})


def test_a_wrong_port_is_one_line_with_what_to_do():
    address = Address.parse("https://127.0.0.1:1/images")
    said = "nothing answers at https://127.0.0.1:1; check host and port"
    with pytest.raises(IndexProblem, match=said), readable_errors(address):
        connect(address, {}).options(max_retries=0).info()
