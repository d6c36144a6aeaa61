"""Who may use the page: Host and Origin, tokens, passwords."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from capsearch.encoders.models.registry import Model
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.ui.web import access
from capsearch.ui.web import page as page_module
from capsearch.ui.web.access import Rights, forwarded, rights_of_secret, same_site
from capsearch.ui.web.settings import INDEXES_VARIABLE, AccessSettings
from capsearch.ui.web.texts import TEXTS

TOKEN, LAUNCH, PASSWORD = "the-token", "only-once", "пароль 密码"
Visit = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WRONG_SECRET_S", 0.0)
    access._used_tokens.clear()


@pytest.fixture
def visit(
    toy_models: Model, index_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Visit:
    """Open the page of a server with these settings, on this address, with these headers."""
    monkeypatch.delenv(INDEXES_VARIABLE, raising=False)
    with Collection.create(index_path, toy_models) as collection:
        index(collection, [image_folder])

    def run(
        address: str = "127.0.0.1",
        token: str = "",
        headers: Mapping[str, str] | None = None,
        **settings: object,
    ) -> AppTest:
        chosen = AccessSettings(TOKEN, LAUNCH, **settings)  # type: ignore[arg-type]
        for name, value in chosen.to_environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("streamlit.get_option", {"server.address": address}.get)
        monkeypatch.setattr(type(st.context), "headers", headers or {})
        page = AppTest.from_file(str(page_module.__file__), default_timeout=60)
        if token:
            page.query_params["token"] = token
        page.run()
        assert not page.exception
        return page

    return run


def searches(page: AppTest) -> bool:
    return any(button.label.startswith("Open image") for button in page.button)


def indexes(page: AppTest) -> bool:
    return any(button.label == "Index this folder" for button in page.button)


def shows_nothing(page: AppTest) -> bool:
    return not page.button and not page.selectbox and "Newest images" not in texts(page)


def texts(page: AppTest) -> list[str]:
    return [element.value for element in page.text]


def test_on_this_machine_everyone_may_search_and_nobody_may_index(visit: Visit) -> None:
    """Loopback was trusted, also behind a proxy and on a shared machine."""
    page = visit()
    assert searches(page)
    assert not indexes(page)
    assert TEXTS["en"].token_needed in [element.value for element in page.caption]


def test_the_token_allows_indexing_and_leaves_the_url(visit: Visit) -> None:
    page = visit(token=TOKEN)
    assert indexes(page)
    assert "token" not in page.query_params
    assert indexes(page.run())  # it stays in the session


def test_the_browsers_token_works_once(visit: Visit) -> None:
    first = visit(token=LAUNCH)
    assert indexes(first)
    assert indexes(first.run())
    assert shows_nothing(visit(token=LAUNCH))


def test_allow_indexing_needs_no_token(visit: Visit) -> None:
    assert indexes(visit(allow_indexing=True))


@pytest.mark.parametrize("token", ["wrong", "THE-TOKEN", "the-token ", "猫"])
def test_a_wrong_token_shows_a_plain_page_in_three_languages(visit: Visit, token: str) -> None:
    page = visit(token=token)
    assert shows_nothing(page)
    assert texts(page) == ["capsearch", *(one.wrong_secret for one in TEXTS.values())]
    page.text_input(key="secret").set_value(TOKEN).run()
    assert indexes(page)


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.5", "::", None])
def test_beyond_this_machine_everything_needs_a_secret(visit: Visit, address: str) -> None:
    """Everyone who could reach the address could view the images."""
    page = visit(address)
    assert shows_nothing(page)
    assert texts(page) == ["capsearch", *(one.secret_needed for one in TEXTS.values())]
    assert indexes(visit(address, TOKEN))


def test_through_a_proxy_everything_needs_a_secret(visit: Visit) -> None:
    """To the server, a proxy's visitors come from this machine."""
    page = visit(headers={"Host": "127.0.0.1:8501", "X-Forwarded-For": "203.0.113.9"})
    assert shows_nothing(page)


def test_the_password_allows_searching_only(visit: Visit) -> None:
    page = visit("0.0.0.0", password=PASSWORD)
    assert shows_nothing(page)
    page.text_input(key="secret").set_value("wrong").run()
    assert TEXTS["ja"].wrong_secret in texts(page)
    page.text_input(key="secret").set_value(PASSWORD).run()
    assert searches(page)
    assert not indexes(page)
    assert searches(page.run())


def test_a_password_is_also_needed_on_this_machine(visit: Visit) -> None:
    assert shows_nothing(visit(password=PASSWORD))


def test_a_server_started_without_any_secret_serves_this_machine_only(visit: Visit) -> None:
    nothing = AccessSettings()
    assert rights_of_secret(nothing, "") == Rights.NONE
    assert AccessSettings.from_environment({}) == nothing


def test_another_name_of_this_server_is_refused(visit: Visit) -> None:
    """DNS rebinding."""
    page = visit(token=TOKEN, headers={"Host": "evil.example:8501"})
    assert shows_nothing(page)
    assert texts(page) == ["capsearch", *(one.wrong_host for one in TEXTS.values())]
    assert searches(visit(headers={"Host": "evil.example:8501"}, hosts=("evil.example",)))


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8501", True),
        ("127.0.0.1:8501", True),
        ("[::1]:8501", True),
        ("192.168.1.5", True),  # an address cannot be rebound
        ("Photos.Example.org", True),
        ("photos.example.org.:443", True),
        ("photos.example.org.evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_names_have_to_be_known_and_addresses_not(host: str, allowed: bool) -> None:
    assert same_site({"Host": host}, ("photos.example.ORG",)) == allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:8501", True),
        ("https://localhost:8501", True),  # a proxy with TLS
        ("http://localhost:3000", False),  # another server on this machine
        ("http://127.0.0.1:8501", False),
        ("http://evil.example", False),
        ("null", False),
    ],
)
def test_only_the_pages_own_origin_is_allowed(origin: str, allowed: bool) -> None:
    """Streamlit accepts every origin on localhost, whatever its port."""
    assert same_site({"Host": "localhost:8501", "Origin": origin}) == allowed


def test_clients_that_are_no_browsers_send_neither() -> None:
    assert same_site({})
    assert not forwarded({})


def test_wrong_secrets_take_a_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(access, "WRONG_SECRET_S", 1.0)
    monkeypatch.setattr(access.time, "sleep", waited.append)
    settings = AccessSettings(TOKEN, password=PASSWORD)
    assert rights_of_secret(settings, "wrong") == Rights.NONE
    assert rights_of_secret(settings, PASSWORD) == Rights.SEARCH
    assert rights_of_secret(settings, TOKEN) == Rights.OWN
    assert waited == [1.0]


def test_settings_survive_the_environment() -> None:
    settings = AccessSettings(TOKEN, LAUNCH, PASSWORD, True, ("a.example", "b.example"))
    assert AccessSettings.from_environment(settings.to_environment()) == settings
